"""Partial views of commands' output: selections, pages, searches."""
