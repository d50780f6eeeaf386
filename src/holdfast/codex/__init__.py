"""Everything that imitates Codex; `README.md` says how to follow a new release."""
