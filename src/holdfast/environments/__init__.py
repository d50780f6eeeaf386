"""Environments: machines to run commands on, local and remote, behind one interface."""
