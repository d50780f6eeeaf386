"""Hosts behind ssh: their addresses, what is there, and how Holdfast gets there."""
