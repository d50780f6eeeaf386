"""
TLS of a listener: a certificate that can be replaced, and a bounded number of handshakes.

An event loop's own server starts a handshake with every client that connects, and each costs memory
before the client is known.
"""

import asyncio
import logging
import os
import socket
import ssl
import stat
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from holdfast.base.errors import HoldfastError
from holdfast.base.system_text import system_text
from holdfast.wire.log_event import LogEvent, clip
from holdfast.wire.transports.accepting import Newcomers, PlainListener

__all__ = ["BadCertificate", "ServerTls", "TlsListener"]

logger = logging.getLogger(__name__)

# Most handshakes at a time; then the oldest is dropped, since a genuine one takes a moment.
MAX_HANDSHAKES = 256

# Bytes of a file that are searched for a block.
_LARGEST = 1 << 20

# Seconds that the other side may take to confirm the end of TLS.
_END_TIMEOUT = 5.0


class BadCertificate(HoldfastError):
    """A certificate or its key cannot be used; the text names the file and says why."""


class ServerTls:
    """The certificate that a listener presents to TLS clients."""

    def __init__(self, certificate: str, key: str) -> None:
        """
        Read the files.

        Args:
            certificate: A PEM file with the certificate and the chain that signed it.
            key: A PEM file with its key, which must not be readable by all users.

        Raises:
            BadCertificate: One of them cannot be used.
        """
        self._certificate = certificate
        self._key = key
        self._current = self._read()
        self.context = self._read()
        """For the listener. Each connection gets the most recently read certificate."""
        self.context.sni_callback = self._choose

    def read(self) -> Callable[[], None]:
        """
        Read the files again, in any thread; calling the returned function puts them to use.

        Open connections stay as they are.

        Raises:
            BadCertificate: They cannot be used now; the previous ones stay in use.
        """
        return partial(setattr, self, "_current", self._read())

    def _choose(self, handshake: ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> None:
        # Called for every handshake, even without a name. The whole context is replaced, so that no
        # handshake combines an old certificate with a new key.
        handshake.context = self._current

    def _read(self) -> ssl.SSLContext:
        for path in (self._certificate, self._key):
            try:
                mode = os.stat(path).st_mode
                if not stat.S_ISREG(mode):
                    # A FIFO would hang for ever.
                    raise OSError(None, "it is not a regular file")
            except OSError as error:
                raise BadCertificate(
                    f"cannot read {path}: {system_text(error)}", errno=error.errno, path=path
                ) from error
            if path == self._key and mode & 0o007:
                raise BadCertificate(
                    f"all users of this machine can read the key {path}: run `chmod o-rwx` on it",
                    path=path,
                )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        # Connections are long-lived, so no client would use a ticket.
        context.num_tickets = 0
        try:
            context.load_cert_chain(self._certificate, self._key, self._refuse_password)
        except (OSError, ValueError) as error:
            self._look_for_blocks()
            # `SSLError` is an `OSError`.
            reason = error.reason if isinstance(error, ssl.SSLError) else str(error)
            raise BadCertificate(
                f"cannot use the certificate {self._certificate} with the key {self._key}:"
                f" {reason or error}",
                path=self._certificate,
            ) from error
        return context

    def _look_for_blocks(self) -> None:
        """
        Raise if a file lacks its block; OpenSSL does not report which one.

        Raises:
            BadCertificate: A file has no such block.
        """
        for path, what in ((self._certificate, "CERTIFICATE"), (self._key, "PRIVATE KEY")):
            with suppress(OSError), open(path, "rb") as file:
                if f"{what}-----".encode() not in file.read(_LARGEST):
                    raise BadCertificate(f"{path} has no PEM block `{what}`", path=path)

    def _refuse_password(self) -> str:
        # Without a password callback, OpenSSL would ask on the terminal and wait.
        raise BadCertificate(
            f"the key {self._key} is encrypted: give one without a password", path=self._key
        )


class TlsListener(PlainListener):
    """Creates a protocol for each connection whose handshake succeeds in time."""

    def __init__(
        self,
        listening: socket.socket,
        tls: ssl.SSLContext,
        make_protocol: Callable[[], asyncio.Protocol],
        newcomers: Newcomers,
        *,
        timeout: float,
    ) -> None:
        """
        Start accepting.

        Args:
            listening: See `PlainListener`.
            tls: The certificate to present to clients.
            make_protocol: See `PlainListener`.
            newcomers: See `PlainListener`.
            timeout: Seconds that a handshake may take.
        """
        self._tls = tls
        self._newcomers = newcomers
        self._timeout = timeout
        # In order of their start.
        self._shaking: dict[asyncio.Task[None], None] = {}
        super().__init__(listening, make_protocol, newcomers)

    def close(self) -> None:
        """Stop accepting; connections after their handshake stay open."""
        super().close()
        for task in list(self._shaking):
            task.cancel()

    def _take(self, line: socket.socket) -> None:
        if len(self._shaking) >= MAX_HANDSHAKES:
            oldest = next(iter(self._shaking))
            del self._shaking[oldest]
            oldest.cancel()
        task = self._opening.start(self._open(line))
        self._shaking[task] = None
        task.add_done_callback(partial(self._forget, line))

    def _forget(self, line: socket.socket, task: asyncio.Task[None]) -> None:
        self._shaking.pop(task, None)
        if task.cancelled():
            # A task that is cancelled before its first step does not close the socket.
            line.close()

    async def _open(self, line: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(
                self._make_protocol,
                line,
                ssl=self._tls,
                ssl_handshake_timeout=self._timeout,
                ssl_shutdown_timeout=_END_TIMEOUT,
            )
        except OSError as error:
            # `SSLError` and `TimeoutError` are among them.
            skipped = self._newcomers.refused.skipped()
            if skipped is not None:
                logger.info(
                    LogEvent("a handshake failed", reason=clip(str(error)), skipped=skipped or None)
                )
