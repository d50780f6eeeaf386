"""Policies: a profile applied to the paths of this machine."""
