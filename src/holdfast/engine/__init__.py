"""Processes, files, HTTP calls and sandboxes of this machine."""
