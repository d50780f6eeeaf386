"""
The MCP server of `holdfast mcp`: the tools of `unified_exec` for every agent.

`server` puts the parts together. The Model Context Protocol itself is the official SDK's, which
is imported in this package only.
"""
