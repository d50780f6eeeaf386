"""Configuration of named environments: `environments.toml`, variables, or the program."""
