"""
Subcommands that run under a guardian: the half that stays in the guardian.

The worker is loaded after the fork, so that the guardian stays small.
"""

import argparse
import signal

from holdfast.base.late_import import load
from holdfast.engine.supervision.guardian import run_guarded
from holdfast.front.cli.serve import reloads

__all__ = ["app_server", "mcp", "shell"]

# Signals that the guardian of a prompt forwards instead of obeying them itself.
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def app_server(options: argparse.Namespace) -> int:
    """Start the app-server, print its URL, and serve until a signal or the end of stdin."""
    return run_guarded(
        lambda lifeline: load("holdfast.front.cli.app_server:run_app_server")(options, lifeline),
        pass_on=(signal.SIGHUP,) if reloads(options) else (),
        notify=True,
    )


def mcp(options: argparse.Namespace) -> int:
    """Serve MCP until a signal or the end of stdin."""
    return run_guarded(
        lambda lifeline: load("holdfast.front.cli.mcp:run_mcp")(options, lifeline),
        # A listener reads its tokens again; on stdio the worker ends. Only it reads the settings.
        pass_on=(signal.SIGHUP,),
    )


def shell(options: argparse.Namespace) -> int:
    """Run the prompt and return the exit status."""
    return run_guarded(
        lambda lifeline: load("holdfast.front.cli.shell:run_shell")(options, lifeline),
        forward=_FORWARDED,
    )
