"""Tools for models: commands, approvals and patches."""
