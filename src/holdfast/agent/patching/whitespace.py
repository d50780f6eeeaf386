"""
Blanks in the patch format: the characters with the Unicode property `White_Space`.

Python's `str.strip` also removes U+001C to U+001F, which do not have that property.
"""

__all__ = ["BLANKS", "strip", "strip_end"]

# In the order of their code points.
BLANKS = (
    "\t\n\x0b\x0c\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009"
    "\u200a\u2028\u2029\u202f\u205f\u3000"
)


def strip(text: str) -> str:
    """Return a text without leading and trailing blanks."""
    return text.strip(BLANKS)


def strip_end(text: str) -> str:
    """Return a text without trailing blanks."""
    return text.rstrip(BLANKS)
