"""Tells a shortage of this process from a fact about what it looks at."""

import errno

__all__ = ["raise_exhausted"]

_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})


def raise_exhausted(error: BaseException) -> None:
    """
    Raise an error again that says only that nothing more can be opened at the moment.

    It must not be taken for an answer: a directory would seem to be empty, and what a pattern
    denies in it would be readable; a launcher would seem to be broken for good.
    """
    if isinstance(error, OSError) and error.errno in _EXHAUSTED:
        raise error
