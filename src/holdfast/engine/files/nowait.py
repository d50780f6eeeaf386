"""
Reads metadata and small files from the kernel's caches, without blocking.

A thread costs ten times as much as the system call, and a call on a dead mount would block the
event loop. So `holdfast.engine.linux.kernel_cache` looks paths up in the dentry cache only, and
`RWF_NOWAIT` reads from the page cache only. `cached_metadata` and `cached_content` return None
if the answer is not cached, and the caller then uses a thread. Local files that are in use are
nearly always cached.
"""

import os
import stat
from contextlib import AbstractContextManager
from time import monotonic

from holdfast.engine.files.errno_mapping import refusal
from holdfast.engine.linux.kernel_cache import (
    AT_EMPTY_PATH,
    AT_FDCWD,
    AT_STATX_DONT_SYNC,
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
from holdfast.wire.protocol.fs import FileMetadata

__all__ = [
    "LARGEST_CACHED",
    "cached_content",
    "cached_content_of_command",
    "cached_metadata",
    "metadata",
    "metadata_of",
]

_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY
_CONTENT = CachedLookup(_READ)
_NO_LINK_CONTENT = CachedLookup(_READ, links=False)

LARGEST_CACHED = 1 << 16
"""Size of the largest file to read in the event loop; copying more would delay other clients."""


def _milliseconds(seconds: int, nanoseconds: int) -> int:
    # 0 means "not known" on the wire, which has no times before 1970.
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
    Return the metadata of a path's target, and whether the path is a link. May block.

    Raises:
        OSError: The error of the system call.
    """
    name = os.fsencode(path)
    itself = look(AT_FDCWD, name, AT_SYMLINK_NOFOLLOW)
    if not stat.S_ISLNK(itself.mode):
        return _wire(itself, False)
    return _wire(look(AT_FDCWD, name, 0), True)


def metadata_of(folder: int, name: str) -> FileMetadata:
    """
    Return the metadata of an entry of an open directory; a link is not followed.

    An empty name stands for the directory itself.

    Raises:
        OSError: The error of the system call.
    """
    facts = look(folder, os.fsencode(name), AT_SYMLINK_NOFOLLOW | AT_EMPTY_PATH)
    return _wire(facts, stat.S_ISLNK(facts.mode))


def cached_metadata(path: str, *, links: bool = True) -> FileMetadata | None:
    """
    Return the metadata of a path from the kernel's caches; None if they are not cached.

    Args:
        path: Absolute path.
        links: Follow links; if False, the result for a path with a link is None.

    Raises:
        NotFound: The kernel has cached that there is no such file.
    """
    name = os.fsencode(path)
    try:
        facts = recall(name, THE_LINK_ITSELF if links else NO_LINK)
        is_symlink = facts is not None and stat.S_ISLNK(facts.mode)
        # The metadata of the target, with the link flag of the path itself.
        if is_symlink:
            facts = recall(name, WHAT_IT_LEADS_TO)
    except FileNotFoundError as error:
        raise refusal(error, path) from None
    return None if facts is None else _wire(facts, is_symlink)


def cached_content(path: str) -> bytes | None:
    """
    Return the content of a small regular file from the page cache; None if not cached.

    Args:
        path: Absolute path; links are followed.

    Raises:
        NotFound: The kernel has cached that there is no such file.
    """
    name = os.fsencode(path)
    facts = _small_file(path, name, WHAT_IT_LEADS_TO)
    return None if facts is None else _read(name, _CONTENT, facts)


def cached_content_of_command(path: str, block: AbstractContextManager[None]) -> bytes | None:
    """
    Return the content of a small regular file as a command in a sandbox reads it.

    A file that could be read within `block` a moment ago and has not changed since is read again
    without it: entering the block takes a third of the time of a read.

    Args:
        path: Absolute path; the result for a path with a link is None.
        block: Block in which the thread has the rights of the command.

    Raises:
        NotFound: The kernel has cached that there is no such file.
    """
    name = os.fsencode(path)
    recent = _recent.get(name)
    now = monotonic()
    if recent is not None and now < recent[0]:
        # It was a regular file, so opening it before checking is safe.
        content = _read(name, _NO_LINK_CONTENT, recent[1], check=True)
        if content is not None:
            return content
    with block:
        facts = _small_file(path, name, NO_LINK)
        # Checked, since another file may be there now: only the one that was opened is known to be
        # readable.
        content = None if facts is None else _read(name, _NO_LINK_CONTENT, facts, check=True)
    if facts is not None and content is not None:
        if len(_recent) >= _MOST_RECENT:
            _recent.clear()
        _recent[name] = (now + _MOMENT, facts)
    return content


# Files that a command could read, each with the time until which that is assumed.
_recent: dict[bytes, tuple[float, StatxFields]] = {}
_MOST_RECENT = 256
# Seconds. Only permissions of the directories above may have changed meanwhile. A fast path:
# `scripts/bench --without recent-content`.
_MOMENT = 0.05


def _small_file(path: str, name: bytes, how: CachedLookup) -> StatxFields | None:
    """Return the cached attributes of a small regular file; None for anything else."""
    try:
        facts = recall(name, how)
    except FileNotFoundError as error:
        raise refusal(error, path) from None
    # Opened only after this check: opening a device or a FIFO has side effects.
    if facts is None or not stat.S_ISREG(facts.mode) or not 0 < facts.size <= LARGEST_CACHED:
        return None
    return facts


def _read(
    name: bytes, how: CachedLookup, facts: StatxFields, *, check: bool = False
) -> bytes | None:
    """Return the content of a cached file; None if its size, or with `check` more, has changed."""
    try:
        descriptor = open_cached(name, how)
    except FileNotFoundError:
        # It was removed meanwhile; a thread finds the right error.
        return None
    if descriptor is None:
        return None
    try:
        if check and look(descriptor, b"", AT_EMPTY_PATH | AT_STATX_DONT_SYNC) != facts:
            return None
        # One byte more than the size, to notice a file that has grown meanwhile.
        room = bytearray(facts.size + 1)
        got = os.preadv(descriptor, [room], 0, os.RWF_NOWAIT)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return bytes(memoryview(room)[:got]) if got == facts.size else None
