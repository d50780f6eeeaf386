"""
Facts about a file, and the content of a small one, without waiting for them where the
kernel has them at hand.

To ask a thread costs ten times what the question itself costs, and to ask in the
event loop could stop everything on a dead mount. `holdfast.linux.kernel_cache` settles it, and
`RWF_NOWAIT` takes what is in memory of a file's content. So `cached_metadata` and
`cached_content` never wait, and their "don't know" sends the caller to a thread. A
local path that is in use is nearly always known.
"""

import os
import stat

from holdfast.filesystem.errno_mapping import refusal
from holdfast.linux.kernel_cache import (
    AT_EMPTY_PATH,
    AT_FDCWD,
    AT_SYMLINK_NOFOLLOW,
    BIRTH,
    NO_LINK,
    THE_LINK_ITSELF,
    WHAT_IT_LEADS_TO,
    CachedLookup,
    StatxFields,
    look,
    open_cached,
    recall,
)
from holdfast.protocol.fs import FileMetadata

__all__ = ["cached_content", "cached_metadata", "metadata", "metadata_of"]

_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY
_CONTENT = CachedLookup(_READ)
_NO_LINK_CONTENT = CachedLookup(_READ, links=False)

_LARGEST = 1 << 16
"""Bytes of a file that is read at once; the time to copy more would be missed elsewhere."""


def _milliseconds(seconds: int, nanoseconds: int) -> int:
    return seconds * 1000 + nanoseconds // 1_000_000 if seconds > 0 else 0


def _wire(facts: StatxFields, is_symlink: bool) -> FileMetadata:
    kind = stat.S_IFMT(facts.mode)
    return FileMetadata(
        is_directory=kind == stat.S_IFDIR,
        is_file=kind == stat.S_IFREG,
        is_symlink=is_symlink,
        size=facts.size,
        created_at_ms=_milliseconds(facts.born, facts.born_ns) if facts.mask & BIRTH else 0,
        modified_at_ms=_milliseconds(facts.modified, facts.modified_ns),
        permissions=facts.mode & 0o777,
    )


def metadata(path: str) -> FileMetadata:
    """
    What a path leads to, and whether it is a link itself. May wait for the file system.

    Raises:
        OSError: As the kernel says.
    """
    name = os.fsencode(path)
    itself = look(AT_FDCWD, name, AT_SYMLINK_NOFOLLOW)
    if not stat.S_ISLNK(itself.mode):
        return _wire(itself, False)
    return _wire(look(AT_FDCWD, name, 0), True)


def metadata_of(folder: int, name: str) -> FileMetadata:
    """
    An entry of an open folder, itself and not what it leads to; an empty name is the folder.

    Raises:
        OSError: As the kernel says.
    """
    facts = look(folder, os.fsencode(name), AT_SYMLINK_NOFOLLOW | AT_EMPTY_PATH)
    return _wire(facts, stat.S_ISLNK(facts.mode))


def cached_metadata(path: str, *, links: bool = True) -> FileMetadata | None:
    """
    As `metadata`, from what the kernel remembers; `None` if it would have to look.

    Args:
        links: Whether links are followed; otherwise nothing is known of a path with one.

    Raises:
        NotFound: It remembers that there is no such file.
    """
    name = os.fsencode(path)
    facts = _recall(name, THE_LINK_ITSELF if links else NO_LINK)
    is_symlink = facts is not None and stat.S_ISLNK(facts.mode)
    if is_symlink:
        facts = _recall(name, WHAT_IT_LEADS_TO)
    return None if facts is None else _wire(facts, is_symlink)


def cached_content(path: str, *, links: bool = True) -> bytes | None:
    """
    All of a small regular file, if the kernel has it in memory.

    Args:
        links: As for `cached_metadata`.

    Raises:
        NotFound: It remembers that there is no such file.
    """
    name = os.fsencode(path)
    facts = _recall(name, WHAT_IT_LEADS_TO if links else NO_LINK)
    # Only now it is opened: to open a device, or a FIFO, does something.
    if facts is None or not stat.S_ISREG(facts.mode) or not 0 < facts.size <= _LARGEST:
        return None
    how = _CONTENT if links else _NO_LINK_CONTENT
    try:
        descriptor = open_cached(name, how)
    except FileNotFoundError:
        return None  # it has gone meanwhile
    if descriptor is None:
        return None
    try:
        # One byte more than there was: if that is read, the file has grown meanwhile.
        room = bytearray(facts.size + 1)
        got = os.preadv(descriptor, [room], 0, os.RWF_NOWAIT)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return bytes(memoryview(room)[:got]) if got == facts.size else None


def _recall(name: bytes, how: CachedLookup) -> StatxFields | None:
    try:
        return recall(name, how)
    except FileNotFoundError as error:
        raise refusal(error, os.fsdecode(name)) from None
