"""The tools `exec_command` and `write_stdin`, on any environment (unified-exec spec)."""
