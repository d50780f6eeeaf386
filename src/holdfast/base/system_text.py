"""
The text of an operating system error, in the protocol's form: `TEXT (os error N)`.

Every layer may import this module, so that the form is made in one place. No code parses such a
text: errors carry their number as `errno`.
"""

import errno
import os

__all__ = ["system_text", "without_number"]


# Clients know the words of musl, which differ from those of glibc.
_WORDS = {
    errno.EIO: "I/O error",
    errno.EBUSY: "Resource busy",
    errno.ENAMETOOLONG: "Filename too long",
    errno.ELOOP: "Symbolic link loop",
}


def system_text(error: int | OSError) -> str:
    """
    Return the text for an error number, or for what a system call raised.

    Args:
        error: The number, or the exception that has it. An exception without a number
            is shown by its own text.
    """
    if isinstance(error, OSError):
        if not error.errno:
            return error.strerror or str(error)
        # Not `strerror` of the exception: uvloop has its own texts for some errors.
        error = error.errno
    number = error
    return f"{_WORDS.get(number) or os.strerror(number)}{_suffix(number)}"


def without_number(text: str, number: int | None) -> str:
    """Return the text of an error without ` (os error N)` at its end, for people to read."""
    return text if number is None else text.removesuffix(_suffix(number))


def _suffix(number: int) -> str:
    return f" (os error {number})"
