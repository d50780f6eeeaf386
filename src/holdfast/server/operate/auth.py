"""
Checks bearer tokens and returns the principal and secret of a client [auth.*].

Secrets are read at the start, and reloaded by `Access.read`. They are compared in constant time.
"""

import hashlib
import hmac
import logging
import re
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final, Protocol

import msgspec

from holdfast.base.dialect import limits
from holdfast.base.errors import HoldfastError
from holdfast.base.regular_files import read_regular
from holdfast.base.system_text import system_text
from holdfast.base.token_file import DEFAULT_PRINCIPAL, NamedToken
from holdfast.wire.log_event import LogEvent
from holdfast.wire.transports.transport import Credential

__all__ = [
    "ANONYMOUS",
    "REVOKED",
    "Access",
    "AuthOptions",
    "BadAuthOptions",
    "Check",
    "NoSecret",
    "SecretCheck",
    "Unauthorized",
    "check_tokens",
    "log_revoked",
    "make_check",
]

logger = logging.getLogger(__name__)

Check = Callable[[str | None], Credential]
"""Maps an `Authorization` header to a credential, or raises `Unauthorized`."""

ANONYMOUS: Final = Credential("anonymous")
"""Credential of all clients of a listener without tokens."""

REVOKED: Final = "its token was revoked"
"""Reason for ending a connection."""

_SHA256 = re.compile(r"[0-9A-Fa-f]{64}")
# Maximum bytes of a file with a secret; more is a mistake, such as the path of a log.
_LARGEST: Final = 64 << 10

# Seconds for a shell command to print a secret; it may ask the user for a passphrase.
_PIPE_TIME: Final = 60.0

# Maximum characters of a `sub` claim. A longer one is ignored: it would appear in logs and metrics.
_MAX_SUBJECT = 128


class BadAuthOptions(HoldfastError):
    """The options contradict each other, or name an unusable secret."""


class NoSecret(BadAuthOptions):
    """The file with the tokens, or the secret that signs them, is empty."""


class Unauthorized(HoldfastError):
    """The token is missing or wrong; the message is for the client."""


def log_revoked(credential: Credential, **ended: int) -> None:
    """
    Log that a token was revoked.

    Args:
        credential: Credential of the clients that used it.
        **ended: What was ended, such as `sessions=2`.
    """
    logger.info(LogEvent("token revoked", principal=credential.principal, **ended))


class SecretCheck(Protocol):
    """A check that also knows which credentials are still valid."""

    def __call__(self, header: str | None, /) -> Credential:
        """Return the credential of a client; see `Check`."""

    def admits(self, credential: Credential, /) -> bool:
        """Return True if the secret of a credential is valid for its principal."""


class Access:
    """A check whose secrets can be reloaded while the server runs."""

    def __init__(self, make: Callable[[], SecretCheck], first: SecretCheck | None = None) -> None:
        """
        Read the secrets.

        Args:
            make: Reads the secrets and creates the check; called again by `read`.
            first: The initial check, if it exists already.

        Raises:
            BadAuthOptions: The secrets are unusable.
        """
        self._make = make
        self._check = make() if first is None else first

    def __call__(self, header: str | None) -> Credential:
        return self._check(header)

    def admits(self, credential: Credential) -> bool:
        """Return False for a client whose token was revoked, or now has another name."""
        return credential.secret is None or self._check.admits(credential)

    def read(self) -> Callable[[], None]:
        """
        Read the secrets again, in any thread; return a function that puts them to use.

        An empty file leaves no token valid, so that the last one can be revoked. The caller has to
        end the clients of revoked tokens.

        Raises:
            BadAuthOptions: The secrets are unusable; the previous ones stay valid.
        """
        try:
            return partial(self._use, self._make())
        except NoSecret as error:
            return partial(self._use, _TokenCheck(()), error)

    def _use(self, check: SecretCheck, empty: NoSecret | None = None) -> None:
        self._check = check
        if empty is not None:
            logger.error("%s: all clients are refused", empty)


class AuthOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The `--ws-*` options, which are not ours alone: their errors have fixed texts."""

    mode: str | None = None
    token_file: str | None = None
    token_sha256: str | None = None
    shared_secret_file: str | None = None
    issuer: str | None = None
    audience: str | None = None
    max_clock_skew: int | None = None

    @property
    def has_token_options(self) -> bool:
        return self.token_file is not None or self.token_sha256 is not None

    @property
    def has_jwt_options(self) -> bool:
        return (
            self.shared_secret_file is not None
            or self.issuer is not None
            or self.audience is not None
            or self.max_clock_skew is not None
        )


def make_check(options: AuthOptions, *, at_start: bool = True) -> SecretCheck | None:
    """
    Return the check that the options select, or None.

    Args:
        options: The options.
        at_start: True to allow reading a secret from a pipe, which is possible only once.

    Raises:
        BadAuthOptions: The options are unusable.
    """
    if options.mode is None:
        if options.has_token_options or options.has_jwt_options:
            raise BadAuthOptions(
                "websocket auth flags require `--ws-auth capability-token`"
                " or `--ws-auth signed-bearer-token`"
            )
        return None
    if options.mode == "capability-token":
        return _capability_check(options, at_start=at_start)
    return _signed_check(options, at_start=at_start)


def _capability_check(options: AuthOptions, *, at_start: bool) -> SecretCheck:
    if options.has_jwt_options:
        raise BadAuthOptions(
            "`--ws-shared-secret-file`, `--ws-issuer`, `--ws-audience`, and"
            " `--ws-max-clock-skew-seconds` require `--ws-auth signed-bearer-token`"
        )
    if options.token_file is not None and options.token_sha256 is not None:
        raise BadAuthOptions("`--ws-token-file` and `--ws-token-sha256` are mutually exclusive")
    if options.token_sha256 is not None:
        if not _SHA256.fullmatch(options.token_sha256):
            raise BadAuthOptions("--ws-token-sha256 must be a 64-character hex SHA-256 digest")
        expected = bytes.fromhex(options.token_sha256)
    elif options.token_file is not None:
        expected = _digest(_read_secret(options.token_file, at_start=at_start))
    else:
        raise BadAuthOptions(
            "`--ws-token-file` or `--ws-token-sha256` is required"
            " when `--ws-auth capability-token` is set"
        )

    return _TokenCheck([Credential(DEFAULT_PRINCIPAL, expected)])


def check_tokens(tokens: Iterable[NamedToken]) -> SecretCheck:
    """Return a check for these tokens; the name of a token is the principal."""
    return _TokenCheck([Credential(one.name, _digest(one.token)) for one in tokens])


class _TokenCheck:
    """Checks tokens; keeps only their digests."""

    def __init__(self, known: Sequence[Credential]) -> None:
        self._known = known

    def __call__(self, header: str | None) -> Credential:
        digest = _digest(_bearer(header))
        # Compare all: the time must not reveal which token matched.
        found = [one for one in self._known if hmac.compare_digest(digest, one.secret or b"")]
        if not found:
            raise Unauthorized("invalid websocket bearer token")
        return found[0]

    def admits(self, credential: Credential) -> bool:
        # The first name of a token applies, as when it is checked.
        names = [one.principal for one in self._known if one.secret == credential.secret]
        return names[:1] == [credential.principal]


def _digest(token: str) -> bytes:
    # Digests have the same length, so the comparison does not reveal that of the token.
    return hashlib.sha256(token.encode()).digest()


def _signed_check(options: AuthOptions, *, at_start: bool) -> SecretCheck:
    if options.has_token_options:
        raise BadAuthOptions(
            "`--ws-token-file` and `--ws-token-sha256` require"
            " `--ws-auth capability-token`, not `signed-bearer-token`"
        )
    if options.shared_secret_file is None:
        raise BadAuthOptions(
            "`--ws-shared-secret-file` is required when `--ws-auth signed-bearer-token` is set"
        )
    secret = _read_secret(options.shared_secret_file, at_start=at_start).encode()
    if len(secret) < limits.SECRET_BYTES:
        raise BadAuthOptions(
            f"signed websocket bearer secret {options.shared_secret_file}"
            f" must be at least {limits.SECRET_BYTES} bytes"
        )
    return _SignedCheck(secret, options)


class _SignedCheck:
    """Checks JWTs signed with a shared secret."""

    def __init__(self, secret: bytes, options: AuthOptions) -> None:
        self._secret = secret
        self._digest = hashlib.sha256(secret).digest()
        # A blank option is ignored [auth.jwt.issuer].
        self._issuer = (options.issuer or "").strip() or None
        self._audience = (options.audience or "").strip() or None
        skew = options.max_clock_skew
        self._skew = limits.JWT_SKEW if skew is None else skew

    def __call__(self, header: str | None) -> Credential:
        claims = _read_claims(_bearer(header), self._secret)
        if claims is None:
            raise Unauthorized("invalid websocket jwt")
        fault = _claims_fault(claims, self._issuer, self._audience, self._skew)
        if fault is not None:
            raise Unauthorized(fault)
        return Credential(_subject(claims), self._digest)

    def admits(self, credential: Credential) -> bool:
        # A token that has expired since does not end sessions that it opened.
        return credential.secret == self._digest


def _subject(claims: dict[str, object]) -> str:
    """Return the principal of a JWT, prefixed to differ from the names of tokens."""
    subject = claims.get("sub")
    if isinstance(subject, str) and subject.isprintable() and 0 < len(subject) <= _MAX_SUBJECT:
        return f"jwt:{subject}"
    return DEFAULT_PRINCIPAL


def _read_claims(token: str, secret: bytes) -> dict[str, object] | None:
    """Return the claims of a token with a valid signature and integer times, else None."""
    # Imported late: takes over 100 ms, and few servers use JWTs.
    import jwt

    try:
        # `_claims_fault` checks the claims, in the protocol's order and with its texts.
        claims: dict[str, object] = jwt.decode(
            token,
            secret,
            algorithms=["HS256"],
            options={
                "verify_exp": False,
                "verify_nbf": False,
                "verify_iat": False,
                "verify_aud": False,
                "verify_iss": False,
                "verify_sub": False,
                "verify_jti": False,
            },
        )
    except jwt.PyJWTError:
        return None
    # `type`, not `isinstance`, since a bool is an int in Python; floats are not exact.
    if type(claims.get("exp")) is not int:
        return None
    if type(claims.get("nbf")) not in (int, type(None)):
        return None
    return claims


def _claims_fault(
    claims: dict[str, object], issuer: str | None, audience: str | None, skew: int
) -> str | None:
    now = time.time()
    expires, not_before = claims["exp"], claims.get("nbf")
    # `_read_claims` has checked the type.
    assert isinstance(expires, int)
    if now > expires + skew:
        return "expired websocket jwt"
    if isinstance(not_before, int) and now < not_before - skew:
        return "websocket jwt is not valid yet"
    if issuer is not None and claims.get("iss") != issuer:
        return "websocket jwt issuer mismatch"
    if audience is not None:
        listed = claims.get("aud")
        if audience not in (listed if isinstance(listed, list) else [listed]):
            return "websocket jwt audience mismatch"
    return None


def _bearer(header: str | None) -> str:
    """
    Return the bearer token of an `Authorization` header.

    Raises:
        Unauthorized: The header is missing or malformed.
    """
    if header is None:
        raise Unauthorized("missing websocket bearer token")
    # The scheme is case-insensitive (RFC 9110), and blanks may surround the token.
    scheme, _, token = header.partition(" ")
    token = token.strip()
    if scheme.lower() != "bearer" or not token or not header.isascii():
        raise Unauthorized("invalid authorization header")
    return token


def _read_secret(path: str, *, at_start: bool) -> str:
    try:
        content = read_regular(path, largest=_LARGEST, pipe_within=_PIPE_TIME if at_start else None)
        secret = content.decode().strip()
    except OSError as error:
        raise BadAuthOptions(
            f"failed to read websocket auth secret {path}: {system_text(error)}",
            errno=error.errno,
            path=path,
        ) from error
    except UnicodeDecodeError as error:
        raise BadAuthOptions(
            f"failed to read websocket auth secret {path}: stream did not contain valid UTF-8",
            path=path,
        ) from error
    if not secret:
        raise NoSecret(f"websocket auth secret {path} must not be empty", path=path)
    return secret
