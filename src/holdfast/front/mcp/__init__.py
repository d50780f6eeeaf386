"""
The MCP server of `holdfast mcp`: the tools of `unified_exec` for any agent.

`mcp_server` combines the parts. The Model Context Protocol is implemented by the official SDK,
which only this package imports.
"""
