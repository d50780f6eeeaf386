"""Checks of scripts/check that no other tool makes: citations in code, and the form of documents."""
