"""File operations with the permissions of a sandbox."""
