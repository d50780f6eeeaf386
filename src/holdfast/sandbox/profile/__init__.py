"""Permission profiles: what a command may use, as its owner writes it."""
