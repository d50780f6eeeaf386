"""Request handlers, which translate between the wire and the backends."""
