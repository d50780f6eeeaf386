"""`holdfast mcp`: the tools for an agent, under a guardian."""

import argparse
import os
import sys

from holdfast.process.guardian import run_guarded

TYPE_CHECKING = False  # loading `typing` for it would cost the guardian more than all the rest
if TYPE_CHECKING:
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
    )

    def make(where: "ListenUrl", telemetry: "Telemetry | None") -> "McpServer":
        return McpServer(chosen)

    try:
        return live(
            LifeOptions(listen="stdio", scheme="http"), lifeline=lifeline, announce=print, make=make
        )
    except StartFailed as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1
