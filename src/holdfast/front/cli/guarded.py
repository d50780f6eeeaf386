"""
Subcommands that run under a guardian: the part in the guardian.

The worker is imported after the fork, so that the guardian stays small. The guardian ensures that
no process of a command remains, whatever happens to the worker.
"""

import argparse
import signal

from holdfast.base.late_import import load
from holdfast.engine.supervision.guardian import run_guarded

__all__ = ["app_server", "mcp", "run", "shell"]

# Signals that the guardian of a prompt forwards instead of handling them.
_TO_PROMPT = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)

# Signals that are forwarded to the command; see `ForegroundCommand`.
_TO_COMMAND = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGWINCH,
    signal.SIGTSTP,
)


def app_server(options: argparse.Namespace) -> int:
    """Start the app-server, print its URL, and serve until a signal or the end of stdin."""
    reloads = load("holdfast.front.cli.serve:reloads")(options)
    return run_guarded(
        lambda lifeline: load("holdfast.front.cli.app_server:run_app_server")(options, lifeline),
        pass_on=(signal.SIGHUP,) if reloads else (),
        notify=True,
    )


def mcp(options: argparse.Namespace) -> int:
    """Serve MCP until a signal or the end of stdin."""
    return run_guarded(
        lambda lifeline: load("holdfast.front.cli.mcp:run_mcp")(options, lifeline),
        # At SIGHUP a listener reloads its tokens, and a worker on stdio ends. Only the worker knows
        # the settings.
        pass_on=(signal.SIGHUP,),
    )


def run(options: argparse.Namespace) -> int:
    """Run a command and return the exit status; see `exit_status.py`."""
    return run_guarded(
        lambda lifeline: load("holdfast.front.cli.run_foreground:run_attended")(options, lifeline),
        forward=_TO_COMMAND,
    )


def shell(options: argparse.Namespace) -> int:
    """Run the prompt and return the exit status."""
    return run_guarded(
        lambda lifeline: load("holdfast.front.cli.shell:run_shell")(options, lifeline),
        forward=_TO_PROMPT,
    )
