"""
Channel between this process and the init program, which is PID 1 of a sandbox.

It is a socket pair of type SEQPACKET, so each message arrives whole. While the sandbox is built,
the init program reports its progress. After that it reports why the exec failed, if it did, and
the exit status of the command.
"""

import asyncio
import os
import signal
import socket
import struct
from contextlib import suppress

from holdfast.base.errors import SpawnFailed
from holdfast.engine.process.limits.prologue import BUILT, EXEC_ERROR_SIZE, GO
from holdfast.engine.sandbox.bubblewrap.init_program import END_SIZE, READY, ended

__all__ = ["InitChannel"]

# A negative errno.
_ERROR = struct.Struct("=i")
# struct ucred: pid, uid, gid.
_CREDENTIALS = struct.Struct("=3i")
_ENDS = (os.CLD_EXITED, os.CLD_KILLED, os.CLD_DUMPED)
_HIGHEST_STATUS = 255

# Most messages to read at once. After READY there are at most two.
_MOST_SAID = 4

# Bytes of a message; more than the init program ever sends.
_LONGEST = 64


class InitChannel:
    """
    Our end of the channel to a sandbox's init program.

    Close `theirs` as soon as bwrap has it, and the channel itself after the command's end.
    """

    def __init__(self) -> None:
        self._ours, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ours.setblocking(False)
        # Each message then carries the pid of its sender, in our pid namespace.
        self._ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        # The seccomp listener. Closed here unless it is taken: a start may be cancelled in between.
        self._listener: int | None = None
        self._exec_error: int | None = None
        self._end: os.waitid_result | None = None

    async def hung_up(self) -> None:
        """Wait until no process has the other end open."""
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
        """Close both ends, and the seccomp listener unless it was taken."""
        self._ours.close()
        self.theirs.close()
        listener = self.take_listener()
        if listener is not None:
            os.close(listener)

    def take_listener(self) -> int | None:
        """Return the seccomp listener if the filter has one; the caller then owns it."""
        listener, self._listener = self._listener, None
        return listener

    async def built(self) -> int | None:
        """
        Wait until everything is mounted; return the pid of PID 1 in our pid namespace.

        Returns None if bwrap has failed.

        Raises:
            SpawnFailed: The init program has failed.
        """
        said, pid, _ = await self._receive()
        if not said:
            return None
        self._check(said)
        # The caller awaits this only if the init program was made with `wait`.
        assert said == BUILT
        return pid

    def go(self) -> None:
        """Make the init program continue."""
        # If it has exited, `ready` reports that.
        with suppress(BrokenPipeError):
            self._ours.send(GO)

    async def ready(self) -> bool:
        """
        Wait until the init program is about to execute the command; False if bwrap has failed.

        Raises:
            SpawnFailed: The init program could not apply a filter, a rule or a limit.
        """
        said, _, fds = await self._receive()
        self._listener = fds[0] if fds else None
        if not said:
            return False
        self._check(said)
        return True

    def exec_error(self) -> int | None:
        """Return the errno of a failed exec of the command; None if it has not failed."""
        self._take()
        return self._exec_error

    def end(self) -> os.waitid_result | None:
        """Return the exit status of the command as PID 1 reports it; None before that."""
        self._take()
        return self._end

    def _take(self) -> None:
        """
        Read the messages that have arrived since.

        The command runs by then and may have taken control of PID 1. So messages are not
        trusted: they can only claim an exit status, and only a few of them are read.
        """
        # No further message has arrived, or the channel is closed.
        with suppress(OSError):
            for _ in range(_MOST_SAID):
                said = self._ours.recv(_LONGEST)
                if len(said) == EXEC_ERROR_SIZE:
                    self._exec_error = -_ERROR.unpack(said)[0]
                elif len(said) == END_SIZE:
                    code, status = ended(said)
                    # Checked, since the command could have sent anything.
                    if code in _ENDS and 0 <= status <= _HIGHEST_STATUS:
                        self._end = os.waitid_result((0, 0, signal.SIGCHLD, status, code))

    def _check(self, said: bytes) -> None:
        if said in (BUILT, READY):
            return
        error = -_ERROR.unpack_from(said)[0]
        raise SpawnFailed(f"the sandbox could not be completed: {os.strerror(error)}", errno=error)

    async def _receive(self) -> tuple[bytes, int | None, list[int]]:
        """Wait for a message; return it with its sender's pid and descriptors; empty at the end."""
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
            # It exited without reading our message. The error comes before its last message.
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
