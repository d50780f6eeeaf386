"""Init program: the machine code that runs as PID 1 of a sandbox."""
