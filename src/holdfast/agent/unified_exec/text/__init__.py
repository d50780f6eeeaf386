"""Texts for a model: headers, truncated output, errors."""
