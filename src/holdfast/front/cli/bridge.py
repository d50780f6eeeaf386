"""
`holdfast serve --listen stdio --keep` and `--attach`: connects standard streams to a kept server.

The process that ssh starts on a host ends with its connection. It starts a server in a separate
session, hands its streams to the server and waits. When the connection is lost, another such
process hands over the streams of the next connection.

    ssh --- streams ---> this process --- hands them over ---> server, with its guardian

The line that this process prints tells the client where the server is. It also has the token that
the client must send as its first line to reconnect.
"""

import os
import select
import sys
from collections.abc import Callable
from contextlib import suppress

from holdfast.base.late_import import load
from holdfast.engine.supervision.guardian import run_guarded
from holdfast.wire.transports.handover import (
    MARK,
    STREAMS,
    TOKEN_SIZE,
    HandoverFailed,
    hand_over,
    new_token,
)
from holdfast.wire.transports.private_directory import (
    PrivateDirectory,
    UnusableDirectory,
    remove_abandoned,
)

# As in `late_import.py`, to keep `typing` out of the guardian.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.server.handed_streams import Keeping

__all__ = ["attach", "start_kept"]

# Seconds for a client to send its token.
_TOKEN_LIMIT = 30.0


def start_kept(work: "Callable[[int, Callable[[str], None], Keeping], int]") -> int:
    """
    Start a server that outlives this process, and connect the standard streams to it.

    Args:
        work: Runs the server. It gets the lifeline of its guardian, a function to call once it
            listens, and the directory where streams are handed over.

    Returns:
        The exit status, in this process and in the two that are forked.
    """
    token = new_token()
    try:
        # Only this user can enter it: access to its socket gives control of the server.
        folder = PrivateDirectory.make()
    except UnusableDirectory as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1
    started, starting = os.pipe()
    if os.fork() == 0:
        return _run_server(work, folder, token, starting)
    # Close this copy, or the end of the pipe would not be seen if the server fails.
    os.close(starting)
    folder.close()
    # Blocks until the server listens, or closes its end of the pipe because it failed.
    listens = os.read(started, 1)
    os.close(started)
    if not listens:
        # The server has printed the reason.
        return 1
    return _connect(folder.path, token)


def attach(path: str) -> int:
    """Connect the standard streams to a server that was started earlier."""
    token = _read_token()
    if token is None:
        print("Error: no token was received on stdin", file=sys.stderr)
        return 1
    return _connect(path, token)


def _run_server(
    work: "Callable[[int, Callable[[str], None], Keeping], int]",
    folder: PrivateDirectory,
    token: str,
    starting: int,
) -> int:
    """Run the guardian in this process and the server in its child, and do not return."""
    # A new session, to not receive signals to the process group or terminal of ssh.
    os.setsid()
    _replace_streams(0)
    os.dup2(starting, 1)
    # Inherited descriptors would keep pipes of ssh open, whose end ssh waits for.
    _close_all_but(*STREAMS, folder.fileno())

    def serve(lifeline: int) -> int:
        return work(
            lifeline, _say_listening, load("holdfast.server.handed_streams:Keeping")(folder, token)
        )

    try:
        return run_guarded(serve, release_stderr=True)
    finally:
        folder.remove()
        remove_abandoned()


def _say_listening(path: str) -> None:
    os.write(1, b"\n")
    # From here on, stdout and stderr are only read while streams are handed over.
    _replace_streams(1, 2)


def _connect(path: str, token: str) -> int:
    """Hand over the standard streams and wait for the end of the connection."""
    try:
        control = hand_over(path, token)
    except (HandoverFailed, UnusableDirectory) as error:
        # Without `gone`, so that the client tries again.
        if isinstance(error, HandoverFailed) and not error.final:
            print(f"Error: {error}", file=sys.stderr)
        else:
            print(f"\n{MARK}gone\t{error}", flush=True)
        return 1
    print(f"\n{MARK}kept\t{path}\t{token}", flush=True)
    # Only the server may hold the streams from now on, so that their end is seen.
    _replace_streams(*STREAMS)
    with control:
        # Returns when the server closes its end, at the end of the connection.
        control.recv(1)
    return 0


def _read_token() -> str | None:
    """Read exactly the first line of stdin: the rest is for the server."""
    line = b""
    poll = select.poll()
    poll.register(0, select.POLLIN)
    while not line.endswith(b"\n"):
        # Without a newline, the line is too long, too late or cut off.
        if len(line) > TOKEN_SIZE or not poll.poll(_TOKEN_LIMIT * 1000):
            return None
        byte = os.read(0, 1)
        if not byte:
            return None
        line += byte
    return line.decode("ascii", "replace").strip()


def _close_all_but(*kept: int) -> None:
    """Close inherited descriptors, whose peers may wait for that."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in kept:
            # The descriptor used to list the directory is already closed.
            with suppress(OSError):
                os.close(int(name))


def _replace_streams(*numbers: int) -> None:
    """Replace standard streams with `/dev/null`, so that their peers see the end."""
    null = os.open(os.devnull, os.O_RDWR)
    for number in numbers:
        os.dup2(null, number)
    os.close(null)
