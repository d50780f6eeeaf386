"""
Finds out whether a TCP port is listened on, through the files of an environment.

The kernel lists its sockets in `/proc/net/tcp` and `tcp6`, those that listen first. These are the
sockets in the network namespace of the server. A command with a namespace of its own cannot be
looked at.
"""

import asyncio
import re

from holdfast.backends import FileSystem
from holdfast.base.errors import ConnectionLost, InvalidParams, NotFound, Refused
from holdfast.wire.protocol.fs import ReadFileParams
from holdfast.wire.protocol.paths import PathUri
from holdfast.wire.protocol.sandbox import DisabledProfile, SandboxContext

__all__ = ["ListeningPort"]

_TABLES = tuple(PathUri.parse(f"file:///proc/net/{name}") for name in ("tcp", "tcp6"))

# Bytes of a table that are searched, some 7,000 sockets; those that listen come first.
_MOST_BYTES = 1 << 20

# Seconds for the look before a command is started or polled: the line may be down.
FIRST_LOOK = 5.0


class ListeningPort:
    """Looks for one port of one machine."""

    def __init__(self, port: int, files: FileSystem) -> None:
        """Make one with `open`."""
        self.was_open = False
        """True if something listened on it when this was made, as far as that is known."""
        self._files = files
        self._tables = _TABLES
        # An address and a port, those of the peer, and the state: 0A is LISTEN.
        self._row = re.compile(
            rb"^ *\d+: [0-9A-F]+:%04X [0-9A-F]+:[0-9A-F]{4} 0A " % port, re.MULTILINE
        )

    @classmethod
    async def open(
        cls, port: int, files: FileSystem, sandbox: SandboxContext | None
    ) -> "ListeningPort":
        """
        Return one that works, as far as the environment answers within 5 s.

        One that does not answer is left to the call that looks: a start or a poll has its own
        limits, and its own words for an environment that is lost.

        Raises:
            InvalidParams: The command has a network of its own, or the environment does not
                show its sockets.
        """
        if _has_own_network(sandbox):
            raise InvalidParams(
                f"wait_for: port {port} cannot be looked up, because the sandbox gives the command"
                " a network of its own"
            )
        found = cls(port, files)
        try:
            async with asyncio.timeout(FIRST_LOOK):
                found.was_open = await found.is_open()
        except (TimeoutError, ConnectionLost):
            pass
        except Refused as error:
            raise InvalidParams(
                f"wait_for: port {port} cannot be looked up, because the environment does not"
                f" show its sockets in {_TABLES[0].native}: {error}"
            ) from error
        return found

    async def is_open(self) -> bool:
        """
        Return True if something listens on the port.

        Raises:
            Refused: The environment does not show its sockets.
            ConnectionLost: It is lost for good.
        """
        for table in self._tables:
            try:
                text = await self._files.read_file(ReadFileParams(table))
            except NotFound:
                if len(self._tables) == 1:
                    raise
                # A kernel without IPv6, most likely.
                self._tables = tuple(other for other in self._tables if other != table)
                continue
            if self._row.search(text, 0, _MOST_BYTES):
                return True
        return False


def _has_own_network(sandbox: SandboxContext | None) -> bool:
    if sandbox is None or isinstance(sandbox.permissions, DisabledProfile):
        return False
    return sandbox.permissions.network == "restricted"
