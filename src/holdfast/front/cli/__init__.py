"""The command line: `holdfast serve`, `holdfast run` and friends."""
