"""What the last stage of a start tells from inside a sandbox, and what it is told."""

import asyncio
import os
import signal
import socket
import struct
from contextlib import suppress

from holdfast.errors import SpawnFailed
from holdfast.sandbox.bubblewrap.init.program import (
    BUILT,
    END_SIZE,
    EXEC_ERROR_SIZE,
    GO,
    READY,
    ended,
)

__all__ = ["StageReport"]

_ERROR = struct.Struct("=i")
_CREDENTIALS = struct.Struct("=3i")
_ENDS = (os.CLD_EXITED, os.CLD_KILLED, os.CLD_DUMPED)
_HIGHEST_STATUS = 255

# Messages; after it is ready, there are two at the most.
_MOST_SAID = 4

# Bytes; more than it ever says at once.
_LONGEST = 64


class StageReport:
    """
    Our end of the line to a sandbox that is being built.

    It is closed by whoever has it at last; `theirs` as soon as the launcher has it.
    """

    def __init__(self) -> None:
        self._ours, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ours.setblocking(False)
        # Tells which process speaks, by the number that it has out here.
        self._ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        # Closed here unless it is taken: a start may be given up while it is on its way.
        self._listener: int | None = None
        self._exec_error: int | None = None
        self._end: os.waitid_result | None = None

    @property
    def their_inode(self) -> int:
        """What `/proc` shows of the other end, while `theirs` is open."""
        return os.fstat(self.theirs.fileno()).st_ino

    async def hung_up(self) -> None:
        """Wait until no process has the other end any more."""
        loop = asyncio.get_running_loop()
        over = asyncio.Event()
        loop.add_reader(self._ours.fileno(), over.set)
        try:
            while True:
                await over.wait()
                over.clear()
                with suppress(BlockingIOError):
                    if not self._ours.recv(_LONGEST):
                        return
        except ConnectionResetError:
            return
        finally:
            loop.remove_reader(self._ours.fileno())

    def close(self) -> None:
        """Close both ends, and the listener that nobody has taken."""
        self._ours.close()
        self.theirs.close()
        listener = self.take_listener()
        if listener is not None:
            os.close(listener)

    def take_listener(self) -> int | None:
        """Return the descriptor of the filter, if that has one to tell; it is the caller's then."""
        listener, self._listener = self._listener, None
        return listener

    async def built(self) -> int | None:
        """
        Wait until all is mounted: the pid of the first process inside.

        `None` if the launcher has failed before.

        Raises:
            SpawnFailed: It failed after that.
        """
        said, pid, _ = await self._receive()
        if not said:
            return None
        self._check(said)
        # Or it was not told to wait.
        assert said == BUILT
        return pid

    def go(self) -> None:
        """Let it go on, now that what it has built was looked at."""
        # It will be seen to have ended.
        with suppress(BrokenPipeError):
            self._ours.send(GO)

    async def ready(self) -> bool:
        """
        Wait until all is applied; False if the launcher has failed before.

        Raises:
            SpawnFailed: Something could not be applied.
        """
        said, _, fds = await self._receive()
        self._listener = fds[0] if fds else None
        if not said:
            return False
        self._check(said)
        return True

    def exec_error(self) -> int | None:
        """Why the command could not be executed; nothing if it could, or may still be."""
        self._take()
        return self._exec_error

    def end(self) -> os.waitid_result | None:
        """How the command ended, as the first process inside has seen it; nothing if it has not."""
        self._take()
        return self._end

    def _take(self) -> None:
        """
        Hear what was said since.

        By then the command has run, and may have got hold of the process that speaks: it
        can say nothing but how it ended itself, and not so much that it holds us up.
        """
        # Nothing more was said, or it is closed.
        with suppress(OSError):
            for _ in range(_MOST_SAID):
                said = self._ours.recv(_LONGEST)
                if len(said) == EXEC_ERROR_SIZE:
                    self._exec_error = -_ERROR.unpack(said)[0]
                elif len(said) == END_SIZE:
                    code, status = ended(said)
                    if code in _ENDS and 0 <= status <= _HIGHEST_STATUS:
                        self._end = os.waitid_result((0, 0, signal.SIGCHLD, status, code))

    def _check(self, said: bytes) -> None:
        if said in (BUILT, READY):
            return
        error = -_ERROR.unpack_from(said)[0]
        raise SpawnFailed(f"the sandbox could not be completed: {os.strerror(error)}", errno=error)

    async def _receive(self) -> tuple[bytes, int | None, list[int]]:
        """What is said next, by whom, and what comes with it; nothing at the end."""
        loop = asyncio.get_running_loop()
        there = asyncio.Event()
        loop.add_reader(self._ours.fileno(), there.set)
        try:
            await there.wait()
        finally:
            loop.remove_reader(self._ours.fileno())
        try:
            said, control, _, _ = self._take_one()
        except ConnectionResetError:
            # It ended without having read what it was sent: its last words come after that.
            said, control, _, _ = self._take_one()
        pid, fds = None, []
        for _, kind, data in control:
            if kind == socket.SCM_RIGHTS:
                fds = list(memoryview(data).cast("i"))
            elif kind == socket.SCM_CREDENTIALS:
                pid = _CREDENTIALS.unpack(data)[0]
        return said, pid, fds

    def _take_one(self) -> tuple[bytes, list[tuple[int, int, bytes]], int, object]:
        return self._ours.recvmsg(
            _LONGEST,
            socket.CMSG_SPACE(_CREDENTIALS.size) + socket.CMSG_SPACE(_ERROR.size),
            socket.MSG_CMSG_CLOEXEC,
        )
