"""The command line: `holdfast serve`, `holdfast run` and the other subcommands."""
