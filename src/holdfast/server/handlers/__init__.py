"""Handlers of requests: they translate between the wire and the interfaces of the engine."""
