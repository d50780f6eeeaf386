"""Authentication of listeners, from the options of a server."""

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from holdfast.base.errors import HoldfastError
from holdfast.base.local_servers import Listed, Reachable, UnusableRuntimeDirectory, list_server
from holdfast.base.token_file import (
    DEFAULT_PRINCIPAL,
    BadTokenFile,
    NamedToken,
    NoToken,
    make_token_file,
    new_token,
    read_tokens,
)
from holdfast.server.listen import ListenUrl
from holdfast.server.operate.auth import (
    Access,
    AuthOptions,
    BadAuthOptions,
    Check,
    NoSecret,
    SecretCheck,
    check_tokens,
    make_check,
)
from holdfast.wire.transports.tls import BadCertificate, ServerTls
from holdfast.wire.transports.transport import Credential

__all__ = ["BadListenerAuth", "ListenerAuth", "ListenerAuthOptions", "Part", "make_listener_auth"]

logger = logging.getLogger(__name__)

# Minimum characters of a token in `--token-file`; a shorter one could be guessed.
_SHORTEST: Final = 16


Part = tuple[str, Callable[[], Callable[[], None]]]
"""A name for messages, and a reader; see `ListenerAuth.parts`."""


class BadListenerAuth(HoldfastError):
    """The options contradict each other, or name an unusable file."""


class ListenerAuthOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Command-line options for authentication."""

    token_file: str | None = None
    """`--token-file`; the file is created if missing."""
    makes_token: bool = False
    """True if a listener without other options creates its own token."""
    no_auth: bool = False
    """True if any user and program on this machine may connect."""
    insecure_no_auth: bool = False
    """True if any client on the network may connect."""
    tls_cert: str | None = None
    tls_key: str | None = None


class ListenerAuth:
    """Token check and certificate of the listeners; see `make_listener_auth`."""

    def __init__(
        self,
        check: Access | None,
        tls: ServerTls | None = None,
        *,
        token: str | None = None,
        token_file: str | None = None,
        secrets: tuple[str, ...] = (),
        warnings: tuple[str, ...] = (),
    ) -> None:
        self.check = check
        self.tls = tls
        self.warnings = warnings
        """Warnings for the user who starts the server."""
        self.hidden = Reachable(secrets=secrets)
        """Files with secrets, hidden from sandboxed commands."""
        self.made_token = token is not None
        """True if the token was created for this start, and clients have to learn it."""
        self.revoke: Callable[[Callable[[Credential], bool]], None] | None = None
        """Ends the clients that are no longer admitted; set by the server."""
        self._token = token
        self._token_file = token_file

    def write_down(self, where: ListenUrl, url: str, environ: Mapping[str, str]) -> Listed | None:
        """
        List the server, so that clients of this user find its token and sandboxes hide it.

        Raises:
            UnusableRuntimeDirectory: The list cannot be written, and it is the only way for
            clients to learn the token.
        """
        try:
            return list_server(
                url,
                environ,
                token=self._token,
                token_file=self._token_file,
                secrets=self.hidden.secrets,
                is_open=self.check is None and where.is_network,
            )
        except UnusableRuntimeDirectory as error:
            # The list is the only way to learn a new token. Other servers work without it.
            if self._token is not None:
                raise
            logger.info("%s", error)
            return None

    def parts(self) -> Iterator[Part]:
        """
        Yield names and functions that reload the tokens and the certificate.

        Each function may be called in any thread. It raises `HoldfastError`, or returns a function
        that applies what was read, to be called in the event loop.
        """
        if self.check is not None:
            yield "the tokens", self._read_tokens
        if self.tls is not None:
            yield "the certificate", self.tls.read

    def _read_tokens(self) -> Callable[[], None]:
        # Otherwise not yielded by `parts`.
        assert self.check is not None
        use, admits = self.check.read(), self.check.admits

        def use_tokens() -> None:
            use()
            # Without waiting for the certificate, which may be on a dead mount.
            if self.revoke is not None:
                self.revoke(admits)

        return use_tokens


def make_listener_auth(
    options: ListenerAuthOptions, auth: AuthOptions, addresses: Sequence[ListenUrl]
) -> ListenerAuth:
    """
    Return the authentication for all listeners of a server.

    Args:
        options: Holdfast's own options.
        auth: The `--ws-*` options.
        addresses: Addresses; the rules for the most exposed one apply to all.

    Raises:
        BadListenerAuth: The options contradict each other, or name an unusable file.
    """
    where = _most_exposed(addresses)
    try:
        # First, so that errors in these options have the texts that clients expect.
        check = make_check(auth)
    except BadAuthOptions as error:
        raise BadListenerAuth(str(error), errno=error.errno, path=error.path) from error
    if check is not None and where.kind != "ws":
        raise BadListenerAuth(f"WebSocket auth requires a WebSocket listener, not {where.kind}")
    _refuse_contradictions(options, check, where)
    key = () if options.tls_key is None else (options.tls_key,)
    unused = _unused(options, where)
    if unused:
        tokens = () if options.token_file is None else (options.token_file,)
        return ListenerAuth(
            None, secrets=(*tokens, *key), warnings=tuple(map(_UNUSED.format, unused))
        )
    tls = _read_tls(options, where)
    if check is not None:
        access = Access(lambda: _again(auth), check)
        # A pipe need not be hidden: it is empty by now.
        named = (auth.token_file, auth.shared_secret_file)
        files = [path for path in named if path is not None and os.path.isfile(path)]
        return ListenerAuth(access, tls, secrets=(*files, *key))
    if options.token_file is not None:
        return _with_token_file(options.token_file, tls, key, where)
    if where.is_network and options.makes_token and not _is_open(options):
        token = new_token()
        access = Access(lambda: check_tokens([NamedToken(DEFAULT_PRINCIPAL, token)]))
        return ListenerAuth(
            access, tls, token=token, secrets=key, warnings=_in_the_clear(where, tls)
        )
    asked = options.makes_token and where.is_network
    return ListenerAuth(None, tls, secrets=key, warnings=_open_warning(where) if asked else ())


def _most_exposed(addresses: Sequence[ListenUrl]) -> ListenUrl:
    return max(addresses, key=lambda address: (not address.is_local, address.is_network))


# A warning, since the same config file may serve units with a port and with a socket file.
_UNUSED: Final = "{} is ignored: the mode of the socket file from systemd decides who can connect"


def _unused(options: ListenerAuthOptions, where: ListenUrl) -> list[str]:
    """Return warnings for options that do not apply to sockets of the service manager."""
    if where.kind != "unix" or where.descriptor is None:
        return []
    given = {"--token-file": options.token_file, "--tls-cert": options.tls_cert}
    return [name for name, path in given.items() if path is not None]


def _is_open(options: ListenerAuthOptions) -> bool:
    return options.no_auth or options.insecure_no_auth


def _again(auth: AuthOptions) -> SecretCheck:
    check = make_check(auth, at_start=False)
    # The options are those of the start, which selected a check.
    assert check is not None
    return check


def _refuse_contradictions(
    options: ListenerAuthOptions, check: Check | None, where: ListenUrl
) -> None:
    tokens = options.token_file is not None
    if tokens and check is not None:
        raise BadListenerAuth("--token-file and --ws-auth are mutually exclusive")
    if tokens and _is_open(options):
        raise BadListenerAuth("--token-file and --no-auth are mutually exclusive")
    if tokens and not where.is_network and not _unused(options, where):
        raise BadListenerAuth(
            f"--token-file is for a listener on ws://, not {where.kind}: only the user who"
            " starts the server can connect there"
        )
    if check is not None or tokens or where.is_local or options.insecure_no_auth:
        return
    if not options.makes_token:
        raise BadListenerAuth(
            f"listening on {where.host} without auth would let anyone who can reach it run"
            " commands; add `--ws-auth …`, or `--insecure-no-auth` to allow that"
        )
    if options.no_auth:
        raise BadListenerAuth(
            f"--no-auth is for loopback: listening on {where.host} without auth would let anyone"
            " who can reach it run commands; to allow that, use `--insecure-no-auth`"
        )


def _with_token_file(
    path: str, tls: ServerTls | None, key: tuple[str, ...], where: ListenUrl
) -> ListenerAuth:
    path = os.path.abspath(path)

    def read() -> SecretCheck:
        try:
            tokens = read_tokens(path)
        except NoToken as error:
            raise NoSecret(str(error), path=path) from error
        except BadTokenFile as error:
            raise BadAuthOptions(str(error), errno=error.errno, path=path) from error
        for token in tokens:
            if len(token.token) < _SHORTEST:
                raise BadAuthOptions(
                    f"cannot use the token file {path}: the token of `{token.name}` has fewer"
                    f" than {_SHORTEST} characters",
                    path=path,
                )
        return check_tokens(tokens)

    try:
        # Created if missing, so that the first start of a server needs no other step.
        make_token_file(path)
        access = Access(read)
    except (BadTokenFile, BadAuthOptions) as error:
        raise BadListenerAuth(str(error), errno=error.errno, path=path) from error
    return ListenerAuth(
        access,
        tls,
        token_file=path,
        secrets=(path, *key),
        warnings=_in_the_clear(where, tls),
    )


def _read_tls(options: ListenerAuthOptions, where: ListenUrl) -> ServerTls | None:
    if options.tls_cert is None and options.tls_key is None:
        return None
    if options.tls_cert is None or options.tls_key is None:
        raise BadListenerAuth("--tls-cert and --tls-key must be used together")
    if where.kind != "ws":
        raise BadListenerAuth(f"--tls-cert is for a listener on ws://, not {where.kind}")
    try:
        return ServerTls(os.path.abspath(options.tls_cert), os.path.abspath(options.tls_key))
    except BadCertificate as error:
        raise BadListenerAuth(str(error), errno=error.errno, path=error.path) from error


def _in_the_clear(where: ListenUrl, tls: ServerTls | None) -> tuple[str, ...]:
    if where.is_local or tls is not None:
        return ()
    # Only WebSocket listeners have options for a certificate.
    own = "give --tls-cert and --tls-key, or " if where.kind == "ws" else ""
    return (
        f"tokens cross the network to {where.host} unencrypted: {own}put a proxy with a"
        " certificate in front of the server",
    )


def _open_warning(where: ListenUrl) -> tuple[str, ...]:
    who = "every user and program on this machine" if where.is_local else "anyone on the network"
    return (
        f"this server requires no token: {who} can run commands as the user who started it,"
        " and so can a sandboxed command with network access",
    )
