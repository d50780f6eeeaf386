"""Processes in a sandbox: their start, their end and the channel to the init program."""
