"""Conversion of plain paths to URIs in an environment."""

import os

from holdfast.base.errors import InvalidParams
from holdfast.wire.protocol.handshake import EnvironmentInfo
from holdfast.wire.protocol.paths import ForeignPathUri, InvalidPathUri, PathUri

__all__ = ["AnyPath", "below", "folder_of_server"]

AnyPath = str | os.PathLike[str] | PathUri
"""A path in an environment: absolute, relative to its directory, or a URI."""


def below(folder: PathUri, path: AnyPath) -> PathUri:
    """
    Return the URI of a path that may be relative to a directory.

    Raises:
        InvalidParams: It is empty, or the directory belongs to another operating system.
    """
    if isinstance(path, PathUri):
        return path
    text = os.fspath(path)
    if not text:
        raise InvalidParams("the path is empty")
    try:
        return PathUri.from_path(text if text.startswith("/") else f"{folder.native}/{text}")
    except ForeignPathUri:
        raise InvalidParams(
            f"`{text}` is relative to `{folder}`, a directory of another operating system:"
            " give a PathUri"
        ) from None


def folder_of_server(info: EnvironmentInfo) -> PathUri:
    """Return the directory of a server: its cwd, else the user's home, else the root."""
    for path in (info.cwd, info.user_home_dir):
        if path:
            try:
                return PathUri.from_path(path) if path.startswith("/") else PathUri.parse(path)
            except InvalidPathUri:
                continue
    return PathUri.from_path("/")
