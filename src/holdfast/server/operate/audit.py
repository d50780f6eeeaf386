"""
Audit log: which principal ran which command, changed which file and called which host.

One JSON object per line. It has command lines and paths, but no variables, input, output or file
contents. A thread writes the lines (`line_writer`). Lost lines are counted, reported in the log,
and marked by a line with the event `lost`.
"""

import logging
import os
import stat
import time
from contextlib import suppress

from holdfast.base.errors import HoldfastError
from holdfast.base.system_text import system_text
from holdfast.server.operate.line_writer import (
    CLOSE_LIMIT,
    LineWriter,
    PartlyWritten,
    write_all,
)
from holdfast.server.operate.logs import json_line, time_text
from holdfast.server.operate.records import LostRecord, Record, RefusalRecord
from holdfast.wire.log_event import LogEvent, Sampled, clip

__all__ = ["AuditFile", "AuditLog", "AuditUnusable"]

logger = logging.getLogger(__name__)

# Bytes counted for a line, in addition to texts that can be long.
_LINE = 512


class AuditUnusable(HoldfastError):
    """The audit log cannot be written; the message names the file."""


class AuditFile:
    """
    A file that is appended to, and renamed to `FILE.1`, `FILE.2` and so on when it is full.

    If another program has moved or removed the file, a new one is created. After the start, only
    the writer's thread uses this object. A character device, such as `/dev/null`, is never
    renamed.
    """

    def __init__(self, path: str, *, max_bytes: int, kept: int) -> None:
        """
        Open the file, or create it with mode 0600.

        Args:
            path: The current file.
            max_bytes: Size at which the file is rotated.
            kept: Number of old files to keep.

        Raises:
            AuditUnusable: It cannot be opened for writing, or is not a regular file.
        """
        self._path = path
        self._max_bytes = max_bytes
        self._kept = kept
        # Size at which the file is rotated; larger after a failed attempt.
        self._full_at = max_bytes
        try:
            self._descriptor = self._open()
        except OSError as error:
            raise AuditUnusable(
                f"--audit-log: cannot write {path}: {system_text(error)}",
                errno=error.errno,
                path=path,
            ) from error
        self._rotates = stat.S_ISREG(os.fstat(self._descriptor).st_mode)
        # True if the last line is incomplete: a write was interrupted, perhaps before the start.
        self._torn = self._rotates and _is_torn(self._descriptor)

    def write(self, data: bytes) -> None:
        """
        Append whole lines.

        Raises:
            OSError: Nothing was written.
            PartlyWritten: Some lines were written.
        """
        if self._rotates:
            size = self._follow_renames() + len(data)
            if size > self._full_at:
                self._rotate(size)
        # Otherwise the torn line would also make the first new line unreadable.
        if self._torn:
            write_all(self._descriptor, b"\n")
            self._torn = False
        try:
            write_all(self._descriptor, data)
        except PartlyWritten as error:
            self._torn = error.torn
            raise

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)

    def _open(self) -> int:
        # O_NOFOLLOW: a link could lead to any file of this user. O_NONBLOCK: a FIFO without a
        # reader fails at once.
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
        descriptor = os.open(self._path, flags | os.O_CLOEXEC, 0o600)
        mode = os.fstat(descriptor).st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISCHR(mode)):
            os.close(descriptor)
            raise OSError(None, "it is not a regular file")
        return descriptor

    def _reopen(self) -> None:
        fresh = self._open()
        os.close(self._descriptor)
        self._descriptor = fresh
        self._torn = _is_torn(fresh)
        self._full_at = self._max_bytes

    def _follow_renames(self) -> int:
        """Reopen the path if it is missing or another file; return the size."""
        # As few calls as possible: after each, the thread has to acquire the GIL again.
        ours = os.fstat(self._descriptor)
        with suppress(FileNotFoundError):
            there = os.stat(self._path, follow_symlinks=False)
            if os.path.samestat(there, ours):
                return ours.st_size
        self._reopen()
        return os.fstat(self._descriptor).st_size

    def _rotate(self, size: int) -> None:
        # Up to the first free number, since many more may be allowed than exist.
        last = 1
        while last < self._kept and os.path.lexists(f"{self._path}.{last}"):
            last += 1
        try:
            for number in range(last, 1, -1):
                _rename(f"{self._path}.{number - 1}", f"{self._path}.{number}")
            _rename(self._path, f"{self._path}.1")
        except OSError as error:
            # Better let the file grow than lose lines. Try again when the same amount has been
            # added; until then, another program may rename the file.
            self._full_at = size + self._max_bytes
            logger.warning(
                LogEvent(
                    "the audit log cannot be rotated",
                    path=clip(self._path),
                    reason=system_text(error),
                )
            )
            return
        self._reopen()


def _rename(old: str, new: str) -> None:
    try:
        os.replace(old, new)
    except FileNotFoundError:
        # Another program has removed it meanwhile.
        return


def _is_torn(descriptor: int) -> bool:
    """Return True if the file does not end with a newline."""
    try:
        size = os.fstat(descriptor).st_size
        # The descriptor is write-only; without permission to read the file, assume False.
        reading = os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return size > 0 and os.pread(reading, 1, size - 1) != b"\n"
    except OSError:
        return False
    finally:
        os.close(reading)


class AuditLog(LineWriter[tuple[float, Record]]):
    """Audit log for use in the event loop; its methods never block or raise."""

    def __init__(self, file: AuditFile) -> None:
        super().__init__("audit", encode=_encode, write=file.write, gap=_gap, warn=_warn)
        self._file = file
        self._refusals = Sampled()

    def write(self, record: Record, size: int = 0, *, at: float | None = None) -> None:
        """Add a line; see `Records.add`."""
        self.put((time.time() if at is None else at, record), _LINE + size)

    def write_refusal(self, record: RefusalRecord) -> None:
        """Record the refusal of a client; of a flood of them, only the first."""
        skipped = self._refusals.skipped()
        if skipped is not None:
            record.skipped = skipped
            self.write(record)

    def close(self, limit: float = CLOSE_LIMIT) -> bool:
        """Write the remaining lines, and close the file unless the thread is stuck."""
        ended = super().close(limit)
        if ended:
            self._file.close()
        return ended


def _encode(item: tuple[float, Record]) -> bytes:
    at, record = item
    # Puts the time first, for human readers, after the `{` of the object.
    return b'{"time":"%b",%b\n' % (time_text(at).encode(), json_line(record)[1:])


def _gap(count: int, reason: str) -> bytes:
    return _encode((time.time(), LostRecord(count=count, reason=reason)))


def _warn(count: int, reason: str) -> None:
    logger.warning(
        LogEvent("audit lines could not be written", lost_since_start=count, reason=reason)
    )
