"""A server in a process of its own: options, authentication, logs, audit and signals."""
