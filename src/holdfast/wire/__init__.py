"""Messages between a client and a server: their types, codecs, transports and connections."""
