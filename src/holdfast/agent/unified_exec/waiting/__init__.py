"""Waits of a call: time limits, a pausable clock, conditions that end a wait early."""
