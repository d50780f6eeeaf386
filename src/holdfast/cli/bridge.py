"""
`holdfast serve --listen stdio --keep` and `--attach`: standard streams for a kept server.

The process that ssh starts on a host ends with its connection. It starts a server in a
session of its own, hands its streams to that server and waits. When the connection is
lost, another such process hands over the streams of the next connection.

    ssh --- streams ---> this process --- hands them over ---> server, with its guardian

The line that this process prints tells the client where the server is, and the token
that it must send, as a first line, to come back.
"""

import os
import select
import sys
from collections.abc import Callable
from contextlib import suppress

from holdfast.process.guardian import run_guarded
from holdfast.transports.handover import (
    MARK,
    STREAMS,
    TOKEN_SIZE,
    HandoverFailed,
    hand_over,
    new_token,
)
from holdfast.transports.private_folder import PrivateFolder, UnusableFolder, remove_abandoned

TYPE_CHECKING = False  # as in `serve.py`
if TYPE_CHECKING:
    from holdfast.server.kept import Keeping

__all__ = ["attach", "start_kept"]

# Seconds a client may take to send its token.
_TOKEN_LIMIT = 30.0


def start_kept(work: "Callable[[int, Callable[[str], None], Keeping], int]") -> int:
    """
    Start a server that outlives this process, and connect the standard streams to it.

    Args:
        work: Is the server; gets the descriptor that ends with the guardian, whom to
            tell that it listens, and where streams are handed to it.

    Returns:
        The exit status, in this process and in the two that are forked.
    """
    token = new_token()
    try:
        folder = PrivateFolder.make()
    except UnusableFolder as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1
    told, tell = os.pipe()
    if os.fork() == 0:
        return _run_server(work, folder, token, tell)
    os.close(tell)
    folder.close()
    listens = os.read(told, 1)
    os.close(told)
    if not listens:
        return 1  # it has said why
    return _connect(folder.path, token)


def attach(path: str) -> int:
    """Connect the standard streams to a server that was started before."""
    token = _read_token()
    if token is None:
        print("Error: no token came on stdin", file=sys.stderr)
        return 1
    return _connect(path, token)


def _run_server(
    work: "Callable[[int, Callable[[str], None], Keeping], int]",
    folder: PrivateFolder,
    token: str,
    tell: int,
) -> int:
    """Be the guardian and, in a child of it, the server; both end here."""
    # What ssh or a terminal sends to the group or the session of this process stops there.
    os.setsid()
    _replace_streams(0)
    os.dup2(tell, 1)
    _close_all_but(*STREAMS, folder.fileno())

    def serve(lifeline: int) -> int:
        from holdfast.server.kept import Keeping

        return work(lifeline, _say_listening, Keeping(folder, token))

    try:
        return run_guarded(serve, release_stderr=True)
    finally:
        folder.remove()
        remove_abandoned()


def _say_listening(path: str) -> None:
    os.write(1, b"\n")
    # From here on nobody reads these but for as long as streams are handed over.
    _replace_streams(1, 2)


def _connect(path: str, token: str) -> int:
    """Hand over the standard streams and wait for the end of the connection."""
    try:
        control = hand_over(path, token)
    except (HandoverFailed, UnusableFolder) as error:
        if isinstance(error, HandoverFailed) and not error.final:
            print(f"Error: {error}", file=sys.stderr)
        else:
            print(f"\n{MARK}gone\t{error}", flush=True)
        return 1
    print(f"\n{MARK}kept\t{path}\t{token}", flush=True)
    _replace_streams(*STREAMS)
    with control:
        control.recv(1)
    return 0


def _read_token() -> str | None:
    """Read the first line of stdin and not a byte more: what follows is for the server."""
    line = b""
    poll = select.poll()
    poll.register(0, select.POLLIN)
    while not line.endswith(b"\n"):
        # Without an end the line is too long, too late or cut off.
        if len(line) > TOKEN_SIZE or not poll.poll(_TOKEN_LIMIT * 1000):
            return None
        byte = os.read(0, 1)
        if not byte:
            return None
        line += byte
    return line.decode("ascii", "replace").strip()


def _close_all_but(*kept: int) -> None:
    """Close what was inherited: others may wait to see the end of that, too."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in kept:
            with suppress(OSError):  # the one that listed them is closed already
                os.close(int(name))


def _replace_streams(*numbers: int) -> None:
    """Let go of standard streams, which others wait to see the end of."""
    null = os.open(os.devnull, os.O_RDWR)
    for number in numbers:
        os.dup2(null, number)
    os.close(null)
