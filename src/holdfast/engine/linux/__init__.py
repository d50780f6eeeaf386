"""System calls and kernel files that Python has no module for."""
