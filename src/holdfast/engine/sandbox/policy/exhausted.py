"""Separates errors of an exhausted process from errors about a file."""

import errno

__all__ = ["raise_exhausted"]

# No descriptor for this process, none for the whole system, or no memory.
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})


def raise_exhausted(error: BaseException) -> None:
    """
    Raise the error again if it means that no descriptor or memory is left.

    Such an error must not be taken for an answer. A directory would seem to be empty, so that its
    denied files would be readable; bubblewrap would seem to be broken for good.
    """
    if isinstance(error, OSError) and error.errno in _EXHAUSTED:
        raise error
