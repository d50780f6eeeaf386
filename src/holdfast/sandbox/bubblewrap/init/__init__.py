"""The init program: the first process inside of a sandbox."""
