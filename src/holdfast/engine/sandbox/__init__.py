"""Sandboxes: permission profiles, the policies made from them, and their enforcement."""
