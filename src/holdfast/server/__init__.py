"""The exec-server: connections, sessions and handlers between the wire and the backends."""
