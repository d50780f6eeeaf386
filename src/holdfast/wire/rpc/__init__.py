"""JSON-RPC without I/O: bytes in, events out, bytes to send."""
