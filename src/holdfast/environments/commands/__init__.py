"""Running commands in an environment, to their end or in the background."""
