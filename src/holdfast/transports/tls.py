"""The certificate of a listener, which can be replaced while it listens."""

import os
import ssl

from holdfast.errors import HoldfastError
from holdfast.system_text import system_text

__all__ = ["BadCertificate", "ServerTls"]


class BadCertificate(HoldfastError):
    """A certificate or its key cannot be used; the text names the file and says why."""


class ServerTls:
    """What a listener shows to clients that come by TLS."""

    def __init__(self, certificate: str, key: str) -> None:
        """
        Read the files.

        Args:
            certificate: A PEM file with the certificate, and those that it was signed by.
            key: A PEM file with its key, which must not be readable by everybody.

        Raises:
            BadCertificate: One of them cannot be used.
        """
        self._certificate = certificate
        self._key = key
        self._current = self._read()
        self.context = self._read()
        """For the listener. Each connection gets the certificate that was read last."""
        self.context.sni_callback = self._choose

    def reload(self) -> None:
        """
        Read the files again. Connections that are open stay as they are.

        Raises:
            BadCertificate: They cannot be used now; what was read before stays in use.
        """
        self._current = self._read()

    def _choose(self, handshake: ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> None:
        # Called for every handshake, also without a name. A whole context is put in place, so
        # no handshake sees the certificate of one reading and the key of another.
        handshake.context = self._current

    def _read(self) -> ssl.SSLContext:
        for path in (self._certificate, self._key):
            try:
                mode = os.stat(path).st_mode
            except OSError as error:
                raise BadCertificate(
                    f"cannot read {path}: {system_text(error)}", errno=error.errno, path=path
                ) from error
            if path == self._key and mode & 0o007:
                raise BadCertificate(
                    f"everybody on this machine can read the key {path}: do `chmod o-rwx` to it",
                    path=path,
                )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.num_tickets = 0  # connections live long: nobody comes back with a ticket
        try:
            context.load_cert_chain(self._certificate, self._key, self._refuse_password)
        except (OSError, ValueError) as error:  # SSLError is an OSError
            reason = error.reason if isinstance(error, ssl.SSLError) else str(error)
            raise BadCertificate(
                f"cannot use the certificate {self._certificate} with the key {self._key}:"
                f" {reason or error}",
                path=self._certificate,
            ) from error
        return context

    def _refuse_password(self) -> str:
        # Unless told, OpenSSL would ask on the terminal and wait.
        raise BadCertificate(
            f"the key {self._key} is encrypted: give one without a password", path=self._key
        )
