"""`holdfast mcp`: the tools for an agent, under a guardian."""

import argparse
import os
import sys

from holdfast.process.guardian import run_guarded

TYPE_CHECKING = False  # loading `typing` for it would cost the guardian more than all the rest
if TYPE_CHECKING:
    from holdfast.mcp_server.http import HttpAccess
    from holdfast.mcp_server.server import McpServer
    from holdfast.server.listen import ListenUrl
    from holdfast.telemetry import Telemetry

__all__ = ["mcp"]


def mcp(options: argparse.Namespace) -> int:
    """Serve until a signal or the end of stdin."""
    fault = _fault(options)
    if fault is not None:
        print(f"Error: {fault}", file=sys.stderr)
        return 1
    return run_guarded(lambda lifeline: _serve(options, lifeline))


def _fault(options: argparse.Namespace) -> str | None:
    """Return what can be known to be wrong before anything is loaded."""
    here = options.environment in (None, "local")
    if here and options.cwd is not None and not os.path.isdir(options.cwd):
        return f"--cwd: {options.cwd} is no folder"
    for path in options.rules:
        if not os.path.isfile(path):
            return f"--rules: {path} is no file"
    return None


def _serve(options: argparse.Namespace, lifeline: int) -> int:
    from holdfast.server.life import LifeOptions, StartFailed, live

    try:
        from holdfast.mcp_server.server import McpServer
    except ModuleNotFoundError as error:
        print(f"Error: {error.name} is not installed: pip install 'holdfast[mcp]'", file=sys.stderr)
        return 1
    from holdfast.mcp_server.options import ServerOptions

    chosen = ServerOptions(
        environment=options.environment,
        cwd=options.cwd,
        sandbox=options.sandbox,
        ask_for_approval=options.ask_for_approval,
        ask_after_denial=options.ask_after_denial,
        rules=options.rules,
        max_wait=options.max_wait,
        on_cancel=options.on_cancel,
        keep=options.keep,
    )

    def make(where: "ListenUrl", telemetry: "Telemetry | None") -> "McpServer":
        return McpServer(chosen, None if where.kind == "stdio" else _access(options, where))

    try:
        return live(
            # Whom to let in is decided here: `--ws-auth` knows no principals.
            LifeOptions(listen=options.listen, scheme="http", insecure_no_auth=True),
            lifeline=lifeline,
            announce=_announce,
            make=make,
        )
    except StartFailed as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1


def _access(options: argparse.Namespace, where: "ListenUrl") -> "HttpAccess":
    """
    Return who may come in over HTTP.

    Raises:
        StartFailed: Everybody on the network could, or there is no token in the file.
    """
    from holdfast.mcp_server.http import HttpAccess
    from holdfast.server.life import StartFailed

    if where.kind == "unix":
        raise StartFailed("--listen takes stdio or http://IP:PORT")
    tokens: list[str] = []
    if options.token_file is not None:
        try:
            with open(options.token_file, encoding="utf-8") as file:
                tokens = [line.strip() for line in file if line.strip()]
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is no text"
            raise StartFailed(
                f"--token-file: cannot read {options.token_file}: {reason}"
            ) from error
        if not tokens:
            raise StartFailed(f"--token-file: there is no token in {options.token_file}")
    elif not where.is_local:
        raise StartFailed(
            f"listening on {where.host} without a token would let anyone who can reach it run"
            " commands; add `--token-file FILE`"
        )
    return HttpAccess(tokens=tokens, hosts=options.allowed_host, origins=options.allowed_origin)


def _announce(url: str) -> None:
    print(url, flush=True)
