"""`holdfast serve`: runs a server as a separate process, under a guardian."""

import argparse
import os
import signal
import sys

from holdfast.base.dialect import texts
from holdfast.base.errors import InvalidConfig
from holdfast.base.late_import import load
from holdfast.base.url_schemes import is_stdio
from holdfast.engine.supervision.guardian import STOP_LIMIT, run_guarded
from holdfast.front.cli.server_config import with_config

__all__ = ["reloads", "serve"]

# Seconds that a kept server waits for its first connection and after its last session. Sessions
# count as use until they expire, so after that no client can return.
_KEPT_IDLE = 10.0


def serve(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    """
    Start a server, print its URL, and serve until a signal or the end of stdin.

    Args:
        parser: Parser of this subcommand, also used for the config file.
        options: The parsed command line.
    """
    given = options

    def read() -> argparse.Namespace:
        return with_config(given, parser)

    try:
        options = read()
    except InvalidConfig as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1
    if options.keep or options.attach is not None:
        return _serve_kept(options)
    # The worker is imported after the fork, so that the guardian stays small.
    return run_guarded(
        lambda lifeline: load("holdfast.front.cli.server_worker:run_server")(
            options, lifeline, lambda url: _announce(url, options), read=read
        ),
        pass_on=(signal.SIGHUP,) if reloads(options) else (),
        stop_limit=STOP_LIMIT + options.drain,
        notify=True,
    )


def reloads(options: argparse.Namespace) -> bool:
    """Return True if SIGHUP reloads files; otherwise it ends the server."""
    has_files = options.token_file is not None or options.tls_cert is not None
    # Clients end `exec-server` by SIGHUP, so it reloads only if it has files.
    return (has_files or not options.as_codex) and not is_stdio(options.listen)


def _serve_kept(options: argparse.Namespace) -> int:
    """Connect the standard streams to a server that outlives them."""
    if not is_stdio(options.listen) or options.also_listen:
        print("Error: --keep and --attach require `--listen stdio`", file=sys.stderr)
        return 1
    if options.attach is not None:
        if options.keep:
            print("Error: --keep and --attach are mutually exclusive", file=sys.stderr)
            return 1
        status: int = load("holdfast.front.cli.bridge:attach")(options.attach)
        return status
    if options.idle_exit is None:
        options.idle_exit = _KEPT_IDLE
    ended: int = load("holdfast.front.cli.bridge:start_kept")(
        lambda lifeline, announce, keeping: load("holdfast.front.cli.server_worker:run_server")(
            options, lifeline, announce, keeping
        )
    )
    return ended


def _announce(url: str, options: argparse.Namespace) -> None:
    print(url, flush=True)
    if os.environ.get("HOLDFAST_HINT"):
        asks = not (options.no_auth or options.insecure_no_auth or options.as_codex)
        print(
            "\nTry it from another terminal:\n"
            f"  scripts/holdfast run --url {url} -- echo hello\n"
            + (texts.TRY_WITH_TOKEN if asks else texts.try_without_token(url)),
            file=sys.stderr,
            flush=True,
        )
