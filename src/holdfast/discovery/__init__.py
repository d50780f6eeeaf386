"""Finds plugins and skills in a file system, behind the seam: which one it is, it does not know."""
