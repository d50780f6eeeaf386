"""Paths the way people write them, made into those of a place."""

import os

from holdfast.errors import InvalidParams
from holdfast.protocol.handshake import EnvironmentInfo
from holdfast.protocol.paths import ForeignPathUri, InvalidPathUri, PathUri

__all__ = ["AnyPath", "below", "folder_of_server"]

AnyPath = str | os.PathLike[str] | PathUri
"""A path of a place: absolute, or relative to its folder; or a URI."""


def below(folder: PathUri, path: AnyPath) -> PathUri:
    """
    The path as it is meant in a folder.

    Raises:
        InvalidParams: It is empty, or the folder is one of another kind of machine.
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
            f"`{text}` is relative to `{folder}`, which is no folder of this kind of machine:"
            " give a PathUri"
        ) from None


def folder_of_server(info: EnvironmentInfo) -> PathUri:
    """The folder a server works in, as far as it tells: its own, else the user's, else the root."""
    for told in (info.cwd, info.user_home_dir):
        if told:
            try:
                return PathUri.from_path(told) if told.startswith("/") else PathUri.parse(told)
            except InvalidPathUri:
                continue
    return PathUri.from_path("/")
