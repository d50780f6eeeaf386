"""The exec-server: sessions and handlers between the wire and the engine."""
