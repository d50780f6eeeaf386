"""Hosts behind ssh: addresses, and detection and installation of Holdfast."""
