"""A process without a free descriptor, for a moment."""

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

_SOFT = 512


@contextmanager
def no_descriptors() -> Iterator[None]:
    """Leave this process no descriptor to open anything with."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (_SOFT, limits[1]))
    taken: list[int] = []
    try:
        with pytest.raises(OSError, match="Too many open files"):
            taken.extend(os.open(os.devnull, os.O_RDONLY) for _ in range(_SOFT))
        yield
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
