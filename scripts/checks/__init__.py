"""Checks that no other tool makes: citations in code, and the form of documents."""
