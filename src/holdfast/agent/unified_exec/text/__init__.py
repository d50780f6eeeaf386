"""Texts that a model reads: headers, shortened output, forms of errors."""
