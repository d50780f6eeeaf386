"""JSON-RPC without input or output: bytes in, events out, bytes to send."""
