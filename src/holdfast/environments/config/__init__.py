"""Which places have a name: `environments.toml`, variables, or the program itself."""
