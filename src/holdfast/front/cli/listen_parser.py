"""The options of every server: where it listens, whom it lets in, when it ends."""

import argparse

__all__ = [
    "ListenAction",
    "add_listen_options",
    "add_principal_limits",
    "not_negative_seconds",
    "positive",
]

_AUTH_MODES = ("capability-token", "signed-bearer-token")

# Seconds, about four months; more is a mistake.
_LONGEST_WAIT = 1e7


def add_listen_options(
    parser: argparse.ArgumentParser, *, default: str, default_about: str
) -> None:
    """
    Add `--listen`, `--idle-exit`, `--token-file`, `--no-auth`, `--tls-…` and `--ws-…`.

    Args:
        parser: Of the subcommand.
        default: Where the server listens unless told.
        default_about: That in the words of the help text.
    """
    parser.add_argument(
        "--listen",
        metavar="URL",
        default=default,
        action=ListenAction,
        help="ws://IP:PORT, stdio or unix:///PATH; a second one listens there, too"
        f" (default: {default_about})",
    )
    parser.set_defaults(also_listen=())
    parser.add_argument(
        "--idle-exit",
        metavar="SECONDS",
        type=_seconds,
        help="end after so long without a connection and without a session (default: never)",
    )
    parser.add_argument(
        "--token-file",
        metavar="PATH",
        help="holds the tokens of clients, one in each line, with a name before it if there are"
        " several; made with a new token if it is missing",
    )
    parser.add_argument(
        "--no-auth",
        action="store_true",
        help="ask for no token: every user of this machine can connect and run commands",
    )
    parser.add_argument(
        "--tls-cert", metavar="PATH", help="a certificate (PEM): listen for wss:// instead of ws://"
    )
    parser.add_argument("--tls-key", metavar="PATH", help="its key (PEM)")
    parser.add_argument(
        "--ws-auth", metavar="MODE", choices=_AUTH_MODES, help=" or ".join(_AUTH_MODES)
    )
    parser.add_argument("--ws-token-file", metavar="PATH", help="holds the capability token")
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
        help="ask for no token, beyond loopback too: anyone who can connect runs commands",
    )


_LIMITS = {
    "connections": "connections",
    "sessions": "sessions, those without a connection as well",
    "processes": "processes that run",
    "file-handles": "files that are open",
    "requests": "requests that wait for their answer",
}


def add_principal_limits(parser: argparse.ArgumentParser) -> None:
    """Add `--max-connections` and so on: what the clients of one token may use together."""
    for name, about in _LIMITS.items():
        parser.add_argument(
            f"--max-{name}",
            metavar="N",
            type=positive,
            help=f"for the clients of one token together: {about} (default: any number)",
        )


class ListenAction(argparse.Action):
    """Action for `--listen`: the first value replaces the default, further ones are added."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        # argparse cannot tell a default from a given value.
        if getattr(namespace, "listen_given", False):
            namespace.also_listen = (*namespace.also_listen, values)
        else:
            namespace.listen, namespace.listen_given = values, True
            # Those of a config file, which the command line replaces all together.
            namespace.also_listen = ()


def positive(text: str) -> int:
    """Read an option that is a whole number of at least 1."""
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
    """Read an option that is a number of seconds, 0 included."""
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
    # argparse would put the name of the function into its text for a `ValueError`.
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a whole number, not {text!r}") from None
