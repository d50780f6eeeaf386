"""`holdfast serve`: a server with a process of its own, under a guardian."""

import argparse
import os
import signal
import sys

from holdfast.cli.server_config import with_config
from holdfast.errors import InvalidConfig
from holdfast.process.guardian import run_guarded

TYPE_CHECKING = False  # loading `typing` for it would cost the guardian more than all the rest
if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.server.kept import Keeping
    from holdfast.server.life import ServiceMaker
    from holdfast.server.logs import LogFormat
    from holdfast.server.principals import PrincipalLimits

__all__ = ["reloads", "run_server", "serve", "set_log_level"]

_KEPT_IDLE = 10.0
"""
Seconds a kept server waits for the first connection, and after the end of its last session.

Nobody can come back then: sessions have a time of their own, and count as use until it is over.
"""


def serve(options: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """
    Start a server, print its URL, and serve until a signal or the end of stdin.

    Args:
        options: What the command line said.
        parser: Of this subcommand; it reads the config file, too.
    """
    try:
        options = with_config(options, parser)
    except InvalidConfig as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1
    if options.keep or options.attach is not None:
        return _serve_kept(options)
    # The guardian has all it needs: everything below is the server's alone.
    return run_guarded(
        lambda lifeline: run_server(options, lifeline, lambda url: _announce(url, options)),
        pass_on=(signal.SIGHUP,) if reloads(options) else (),
        notify=True,
    )


def reloads(options: argparse.Namespace) -> bool:
    """Return True if SIGHUP reads files again; otherwise it ends the server, as it does Codex's."""
    has_files = options.token_file is not None or options.tls_cert is not None
    return (has_files or not options.as_codex) and options.listen not in ("stdio", "stdio://")


def _serve_kept(options: argparse.Namespace) -> int:
    """Let the standard streams be a connection to a server that outlives them."""
    from holdfast.cli.bridge import attach, start_kept

    if options.listen not in ("stdio", "stdio://") or options.also_listen:
        print("Error: --keep and --attach are for `--listen stdio`", file=sys.stderr)
        return 1
    if options.attach is not None:
        if options.keep:
            print("Error: --keep and --attach exclude each other", file=sys.stderr)
            return 1
        return attach(options.attach)
    if options.idle_exit is None:
        options.idle_exit = _KEPT_IDLE
    return start_kept(
        lambda lifeline, announce, keeping: run_server(options, lifeline, announce, keeping)
    )


def run_server(
    options: argparse.Namespace,
    lifeline: int,
    announce: "Callable[[str], None]",
    keeping: "Keeping | None" = None,
    make: "ServiceMaker | None" = None,
) -> int:
    """
    Serve in this process, which has a guardian, and return the exit status.

    Args:
        options: Where to listen and whom to let in.
        lifeline: Readable when the guardian is gone.
        announce: Called with the URL.
        keeping: For a server that outlives its stdio.
        make: Makes another server than an exec-server.
    """
    from holdfast.server.entrance import EntranceOptions
    from holdfast.server.life import LifeOptions, ListenFailed, StartFailed, live

    # Only commands that this server starts itself can be in an audit log.
    audit = () if make is not None else ("audit_log", "audit_log_max_size", "audit_log_keep")
    try:
        set_log_level(
            options.log_level or os.environ.get("HOLDFAST_LOG", "error"),
            options.log_format,
            # A server on streams has one client, whose own stderr is written to in order.
            threaded=options.listen not in ("stdio", "stdio://"),
        )
    except ValueError:
        print("Error: HOLDFAST_LOG must be error, warning, info or debug", file=sys.stderr)
        return 1
    try:
        return live(
            LifeOptions(
                listen=options.listen,
                also_listen=options.also_listen,
                concurrent_requests=options.concurrent_requests,
                auth_mode=options.ws_auth,
                token_file=options.ws_token_file,
                token_sha256=options.ws_token_sha256,
                shared_secret_file=options.ws_shared_secret_file,
                issuer=options.ws_issuer,
                audience=options.ws_audience,
                max_clock_skew=options.ws_max_clock_skew_seconds,
                entrance=EntranceOptions(
                    token_file=options.token_file,
                    makes_token=not options.as_codex,
                    no_auth=options.no_auth,
                    insecure_no_auth=options.insecure_no_auth,
                    tls_cert=options.tls_cert,
                    tls_key=options.tls_key,
                ),
                tells_token=make is not None,
                limits=_limits(options),
                pages=not options.as_codex,
                reloads=reloads(options),
                idle_exit=options.idle_exit,
                keeping=keeping,
                **{name: getattr(options, name) for name in audit},
            ),
            lifeline=lifeline,
            announce=announce,
            make=make,
        )
    except StartFailed as error:
        # Only `exec-server` has texts that others compare.
        where = ""
        if isinstance(error, ListenFailed) and getattr(options, "command", "") != "exec-server":
            where = f"cannot listen on {error.address}: "
        print(f"Error: {where}{error}", file=sys.stderr)
        return 1


def _limits(options: argparse.Namespace) -> "PrincipalLimits":
    from holdfast.server.principals import PrincipalLimits

    names = PrincipalLimits.__struct_fields__
    # An app-server has no such options.
    return PrincipalLimits(**{name: getattr(options, f"max_{name}", None) for name in names})


def set_log_level(name: str, style: "LogFormat" = "text", *, threaded: bool = False) -> None:
    """
    Choose what goes to stderr; nothing does as long as all is well, unless it is asked for.

    Raises:
        ValueError: There is no such level.
    """
    from holdfast.server.logs import start_logging

    start_logging(name.lower(), style, threaded=threaded)


def _announce(url: str, options: argparse.Namespace) -> None:
    print(url, flush=True)
    if os.environ.get("HOLDFAST_HINT"):
        asks = not (options.no_auth or options.insecure_no_auth or options.as_codex)
        codex = '  A real Codex needs its token: README.md, "Point a real Codex at it"\n'
        print(
            "\nTry it from another terminal:\n"
            f"  scripts/holdfast run --url {url} -- echo hello\n"
            + (codex if asks else f"  CODEX_EXEC_SERVER_URL={url} codex\n"),
            file=sys.stderr,
            flush=True,
        )
