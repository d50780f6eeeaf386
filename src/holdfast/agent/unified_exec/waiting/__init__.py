"""Waits of a call: time limits, a clock that can be paused, conditions that end them early."""
