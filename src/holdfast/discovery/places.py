"""Names below and above a path, in the text of its URI alone."""

from collections.abc import Iterator
from urllib.parse import unquote

from holdfast.protocol.paths import ForeignPathUri, InvalidPathUri, PathUri

__all__ = ["ancestors", "below", "name_of", "parent_of"]


def parent_of(path: PathUri) -> PathUri | None:
    """The folder above, `None` for the topmost one."""
    text = str(path).rstrip("/")
    above = text.rpartition("/")[0].rstrip("/")
    if not above:
        return None
    try:
        return PathUri.parse("file:///" if above == "file:" else above)
    except InvalidPathUri:  # a path that has no plain spelling has no parent either
        return None


def ancestors(path: PathUri) -> Iterator[PathUri]:
    """The folders above, the nearest first."""
    above = parent_of(path)
    while above is not None:
        yield above
        above = parent_of(above)


def below(folder: PathUri, *names: str) -> PathUri | None:
    """Something in a folder, `None` if it cannot be named."""
    try:
        for name in names:
            folder = folder.child(name)
    except (ForeignPathUri, ValueError):
        return None
    return folder


def name_of(path: PathUri) -> str:
    """The last part of a path, as a person reads it."""
    return unquote(str(path).rstrip("/").rpartition("/")[2], errors="replace")
