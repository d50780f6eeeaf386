"""The wire: frozen types and the method table. No behaviour, no I/O."""
