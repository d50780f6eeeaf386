"""
Formatting of values as Rust does it (`{:?}` of a text, floats in decoder errors).

Models read these texts in error messages, so they have to match. Which letters are printable
depends on the interpreter's Unicode version.
"""

import re
import unicodedata

__all__ = ["debug_text", "float_text"]

# Everything but plain ASCII, and the two ASCII characters that are escaped.
_UNUSUAL = re.compile(r"[^ !#-\[\]-~]")

_SHORT = {
    "\0": "\\0",
    "\t": "\\t",
    "\n": "\\n",
    "\r": "\\r",
    '"': '\\"',
    "\\": "\\\\",
}

# Letters with the Unicode property Other_Grapheme_Extend: they join the letter before
# them without being of the categories Mn and Me, which have that property by definition.
_JOINING = frozenset(
    "\u09be\u09d7\u0b3e\u0b57\u0bbe\u0bd7\u0cc0\u0cc2\u0cc7\u0cc8\u0cca\u0ccb\u0cd5\u0cd6"
    "\u0d3e\u0d57\u0dcf\u0ddf\u1715\u1734\u1b35\u1b3b\u1b3d\u1b43\u1b44\u1baa\u1bf2\u1bf3"
    "\u302e\u302f\ua953\ua9c0\uff9e\uff9f\U000111c0\U00011235\U0001133e\U0001134d\U00011357"
    "\U000114b0\U000114bd\U000115af\U000116b6\U00011930\U0001193d\U00011f41"
    "\U00016ff0\U00016ff1\U0001d165\U0001d166\U0001d16d\U0001d16e\U0001d16f\U0001d170"
    "\U0001d171\U0001d172"
)


def debug_text(text: str) -> str:
    """Return the text in double quotes, escaped as Rust's `{:?}` does it."""
    return f'"{_UNUSUAL.sub(_escape, text)}"'


def _escape(match: "re.Match[str]") -> str:
    letter = match.group()
    short = _SHORT.get(letter)
    if short is not None:
        return short
    joins = unicodedata.category(letter) in ("Mn", "Me") or letter in _JOINING
    if joins or not letter.isprintable():
        return f"\\u{{{ord(letter):x}}}"
    return letter


def float_text(value: float) -> str:
    """Return the shortest text of a finite number: `1000.0`, `1e+16`, `0.00001`, `1e-7`."""
    shown = repr(value)
    digits, exponential, exponent = shown.partition("e-")
    if not exponential:
        return shown
    if int(exponent) == 5:
        # Python switches to exponents one power of ten earlier than Rust.
        sign = "-" if digits.startswith("-") else ""
        return f"{sign}0.0000{digits.lstrip('-').replace('.', '')}"
    return f"{digits}e-{int(exponent)}"
