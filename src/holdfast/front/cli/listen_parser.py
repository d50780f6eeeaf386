"""Options of all servers: where to listen, which clients to admit, when to stop."""

import argparse

__all__ = [
    "ListenAction",
    "add_listen_options",
    "add_principal_limits",
    "not_negative_seconds",
    "positive",
]

_AUTH_MODES = ("capability-token", "signed-bearer-token")

# Maximum seconds, about four months; more is a mistake.
_LONGEST_WAIT = 1e7


def add_listen_options(
    parser: argparse.ArgumentParser, *, default: str, default_about: str
) -> None:
    """
    Add `--listen`, `--idle-exit`, `--token-file`, `--no-auth`, `--tls-…` and `--ws-…`.

    Args:
        parser: Parser of the subcommand.
        default: Default address.
        default_about: Description of the default in the help text.
    """
    parser.add_argument(
        "--listen",
        metavar="URL",
        default=default,
        action=ListenAction,
        help=f"ws://IP:PORT, stdio or unix:///PATH; may be repeated (default: {default_about})",
    )
    parser.set_defaults(also_listen=())
    parser.add_argument(
        "--idle-exit",
        metavar="SECONDS",
        type=_seconds,
        help="stop after this time without connections and sessions (default: never)",
    )
    parser.add_argument(
        "--token-file",
        metavar="PATH",
        help="file with the tokens of clients, one per line, each after a name if there are"
        " several; created with a new token if missing",
    )
    parser.add_argument(
        "--no-auth",
        action="store_true",
        help="require no token: every user of this machine can connect and run commands",
    )
    parser.add_argument(
        "--tls-cert", metavar="PATH", help="certificate (PEM): listen for wss:// instead of ws://"
    )
    parser.add_argument("--tls-key", metavar="PATH", help="key of the certificate (PEM)")
    parser.add_argument(
        "--ws-auth", metavar="MODE", choices=_AUTH_MODES, help=" or ".join(_AUTH_MODES)
    )
    parser.add_argument("--ws-token-file", metavar="PATH", help="file with the capability token")
    parser.add_argument("--ws-token-sha256", metavar="HEX", help="SHA-256 of the capability token")
    parser.add_argument(
        "--ws-shared-secret-file", metavar="PATH", help="key of signed tokens (HS256)"
    )
    parser.add_argument("--ws-issuer", metavar="NAME", help="required `iss` of signed tokens")
    parser.add_argument("--ws-audience", metavar="NAME", help="required `aud` of signed tokens")
    parser.add_argument(
        "--ws-max-clock-skew-seconds", metavar="N", type=_not_negative, help="default 30"
    )
    parser.add_argument(
        "--insecure-no-auth",
        action="store_true",
        help="require no token, even beyond loopback: anyone who can connect can run commands",
    )


_LIMITS = {
    "connections": "connections",
    "sessions": "sessions, including those without a connection",
    "processes": "running processes",
    "file-handles": "open files",
    "requests": "requests waiting for their response",
}


def add_principal_limits(parser: argparse.ArgumentParser) -> None:
    """Add `--max-connections` and so on: limits for the clients of one token together."""
    for name, about in _LIMITS.items():
        parser.add_argument(
            f"--max-{name}",
            metavar="N",
            type=positive,
            help=f"maximum for the clients of one token together: {about} (default: no limit)",
        )


class ListenAction(argparse.Action):
    """Action for `--listen`: the first value replaces the default, others are added."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        # argparse cannot distinguish a default from a given value.
        if getattr(namespace, "listen_given", False):
            namespace.also_listen = (*namespace.also_listen, values)
        else:
            namespace.listen, namespace.listen_given = values, True
            # Addresses of a config file, all of which the command line replaces.
            namespace.also_listen = ()


def positive(text: str) -> int:
    """Parse a whole number of at least 1."""
    value = _whole_number(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def _seconds(text: str) -> float:
    value = not_negative_seconds(text)
    if not value:
        raise argparse.ArgumentTypeError("must be more than 0")
    return value


def not_negative_seconds(text: str) -> float:
    """Parse a number of seconds, including 0."""
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"expected a number of seconds, such as 600, not {text!r}"
        ) from None
    if not 0 <= value <= _LONGEST_WAIT:
        raise argparse.ArgumentTypeError(f"must be at least 0 and at most {_LONGEST_WAIT:g}")
    return value


def _not_negative(text: str) -> int:
    value = _whole_number(text)
    if value < 0:
        raise argparse.ArgumentTypeError("must not be negative")
    return value


def _whole_number(text: str) -> int:
    # For a `ValueError`, argparse would show the name of this function.
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a whole number, not {text!r}") from None
