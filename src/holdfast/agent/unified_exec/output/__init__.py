"""Output of commands that a call does not show as a whole: parts, pages, searches."""
