"""
Passes standard streams from one process to a server that is already running.

A process that ssh starts on a host ends with its connection, so the server must be another process.
`hand_over` passes that server the three streams of this process as descriptors (SCM_RIGHTS) over a
unix socket. Bytes then flow directly between ssh and the server: nothing is copied. The socket
stays open while the streams are in use, and closing it ends the use for both sides.

This module is used by a process that only waits, so it avoids asyncio.
"""

import os
import socket
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.base.errors import HoldfastError
from holdfast.base.late_import import late_module
from holdfast.wire.transports.private_directory import SOCKET, PrivateDirectory, listen_privately

if TYPE_CHECKING:
    import hmac
else:
    # Loads OpenSSL, which a process that only waits avoids.
    hmac = late_module("hmac")

__all__ = [
    "END",
    "MARK",
    "STREAMS",
    "TOKEN_SIZE",
    "HandoverFailed",
    "hand_over",
    "listen_for_handovers",
    "new_token",
    "peer_is_own_user",
    "take_over",
]

MARK = "@holdfast "
"""Prefix of the lines on stdout that report the state to a client before the protocol begins."""

END = b"@holdfast end"
"""Line after the last message: the client will not return, so the server need not wait."""

STREAMS = (0, 1, 2)

TOKEN_SIZE = 32
"""Length of the secret with which a client can return."""

# Seconds a server on the same machine may take to accept the streams.
_ANSWER_LIMIT = 10.0

_ACCEPTED = b"accepted"

# The answer to a peer that knows the token, if the system is out of descriptors.
_NOT_NOW = b"not now"


class HandoverFailed(HoldfastError):
    """The server did not take the streams; the text says why."""

    def __init__(self, message: str, *, final: bool = True) -> None:
        super().__init__(message)
        self.final = final
        """True if another attempt is useless."""


def new_token() -> str:
    """Return a secret for one server and its client."""
    return os.urandom(TOKEN_SIZE // 2).hex()


def listen_for_handovers(folder: PrivateDirectory) -> socket.socket:
    """
    Listen on the socket of a directory that was just created.

    Each message is a packet, so it arrives whole or not at all.

    Raises:
        OSError: The kernel refused.
    """
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listen_privately(listening, folder.entry(SOCKET))
    listening.setblocking(False)
    return listening


def hand_over(path: str, token: str, streams: Sequence[int] = STREAMS) -> socket.socket:
    """
    Pass descriptors to the server of a directory, and wait until it has taken them.

    Returns:
        A socket that reaches its end when the server is done with them. Closing it makes the server
        release them.

    Raises:
        HandoverFailed: There is no such server, or it refused or did not answer.
        UnusableDirectory: The directory is missing, or not private to this user.
    """
    folder = None
    control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        folder = PrivateDirectory.open(path)
        control.settimeout(_ANSWER_LIMIT)
        control.connect(folder.entry(SOCKET))
        if not peer_is_own_user(control):
            raise HandoverFailed(f"the server in {path} runs as another user")
        socket.send_fds(control, [token.encode()], list(streams))
        answer = control.recv(len(_ACCEPTED))
        if answer == _NOT_NOW:
            raise HandoverFailed(f"the server in {path} is out of descriptors", final=False)
        if answer != _ACCEPTED:
            raise HandoverFailed(f"the server in {path} refused, or has just ended")
    except (ConnectionRefusedError, FileNotFoundError) as error:
        control.close()
        raise HandoverFailed(f"the server in {path} has ended") from error
    except OSError as error:
        control.close()
        raise HandoverFailed(f"cannot reach the server in {path}: {error}", final=False) from error
    except BaseException:
        control.close()
        raise
    finally:
        if folder is not None:
            folder.close()
    control.settimeout(None)
    return control


def take_over(control: socket.socket, token: str) -> list[int]:
    """
    Receive and acknowledge the descriptors that a peer passes, if it knows the token.

    Returns:
        As many as there are `STREAMS`, which belong to the caller; none if the peer sent something
        else, or is gone.
    """
    taken: list[int] = []
    try:
        said, taken, _, _ = socket.recv_fds(
            control, TOKEN_SIZE + 1, len(STREAMS), socket.MSG_CMSG_CLOEXEC
        )
        if hmac.compare_digest(said, token.encode()):
            # The kernel drops descriptors if this process has no free number for them.
            taken_all = len(taken) == len(STREAMS)
            control.send(_ACCEPTED if taken_all else _NOT_NOW)
            if taken_all:
                return taken
    except OSError:
        # The other process is gone.
        pass
    for descriptor in taken:
        os.close(descriptor)
    return []


def peer_is_own_user(control: socket.socket) -> bool:
    """Return True if the other side of a unix socket runs as the user of this process."""
    about = struct.Struct("3i")
    raw = control.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, about.size)
    _pid, uid, _gid = about.unpack(raw)
    return bool(uid == os.geteuid())
