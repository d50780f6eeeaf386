"""Enforcement of a policy by bubblewrap, seccomp and Landlock."""
