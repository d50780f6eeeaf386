"""
Formats values as Rust does (`{:?}` of a string, floats in decoder errors).

Models and clients read these texts in error messages. Which characters are printable depends on the
interpreter's Unicode version.
"""

import re
import unicodedata

__all__ = ["debug_text", "float_text"]

# Everything except printable ASCII, plus the two ASCII characters that are escaped.
_UNUSUAL = re.compile(r"[^ !#-\[\]-~]")

_SHORT = {
    "\0": "\\0",
    "\t": "\\t",
    "\n": "\\n",
    "\r": "\\r",
    '"': '\\"',
    "\\": "\\\\",
}


def debug_text(text: str) -> str:
    """Return the text in double quotes, escaped as Rust's `{:?}` does."""
    return f'"{_UNUSUAL.sub(_escape, text)}"'


def _escape(match: "re.Match[str]") -> str:
    letter = match.group()
    short = _SHORT.get(letter)
    if short is not None:
        return short
    # A combining character would change the look of the one before it.
    shown = letter.isprintable() and unicodedata.category(letter) not in ("Mn", "Me")
    return letter if shown else f"\\u{{{ord(letter):x}}}"


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
