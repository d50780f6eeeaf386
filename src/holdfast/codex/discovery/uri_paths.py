"""Parents and children of a path, computed only from the text of its URI."""

from collections.abc import Iterator
from urllib.parse import unquote

from holdfast.wire.protocol.paths import ForeignPathUri, InvalidPathUri, PathUri

__all__ = ["ancestors", "below", "name_of", "parent_of"]


def parent_of(path: PathUri) -> PathUri | None:
    """Return the parent directory; None for the root."""
    # As text: the URI may belong to another operating system.
    text = str(path).rstrip("/")
    above = text.rpartition("/")[0].rstrip("/")
    if not above:
        return None
    try:
        return PathUri.parse("file:///" if above == "file:" else above)
    except InvalidPathUri:
        # A wrapped path has no parent.
        return None


def ancestors(path: PathUri) -> Iterator[PathUri]:
    """Yield the parent directories, nearest first."""
    above = parent_of(path)
    while above is not None:
        yield above
        above = parent_of(above)


def below(directory: PathUri, *names: str) -> PathUri | None:
    """Return a path below a directory, or None if it has no valid URI."""
    try:
        for name in names:
            directory = directory.child(name)
    except (ForeignPathUri, ValueError):
        return None
    return directory


def name_of(path: PathUri) -> str:
    """Return the last part of a path, decoded for display."""
    return unquote(str(path).rstrip("/").rpartition("/")[2], errors="replace")
