"""Everything that imitates Codex."""
