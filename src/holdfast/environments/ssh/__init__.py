"""Hosts behind ssh: addresses, detection of Holdfast, and its installation."""
