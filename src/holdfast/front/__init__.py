"""User interfaces: command line, MCP, app-server, drop-in shell, prompt and blocking API."""
