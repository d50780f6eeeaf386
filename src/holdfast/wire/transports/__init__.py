"""Ways to carry whole messages: WebSocket, lines on a byte stream, memory."""
