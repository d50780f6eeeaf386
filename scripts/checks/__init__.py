"""Checks that no other tool does: citations in code, and the form of documents."""
