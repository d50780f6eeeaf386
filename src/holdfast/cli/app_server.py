"""`holdfast app-server`: the server of `command/exec`, under a guardian."""

import argparse
import signal
import sys

from holdfast.cli.serve import reloads
from holdfast.process.guardian import run_guarded

TYPE_CHECKING = False  # loading `typing` for it would cost the guardian more than all the rest
if TYPE_CHECKING:
    from holdfast.app_server.app import AppServer
    from holdfast.app_server.sandboxes import Sandboxes
    from holdfast.server.listen import ListenUrl
    from holdfast.telemetry import Telemetry

__all__ = ["app_server"]


def app_server(options: argparse.Namespace) -> int:
    """Start the server, print its URL, and serve until a signal or the end of stdin."""
    return run_guarded(
        lambda lifeline: _serve(options, lifeline),
        pass_on=(signal.SIGHUP,) if reloads(options) else (),
        notify=True,
    )


def _serve(options: argparse.Namespace, lifeline: int) -> int:
    from holdfast.cli.serve import run_server
    from holdfast.errors import HoldfastError, InvalidConfig

    def make(where: "ListenUrl", telemetry: "Telemetry | None") -> "AppServer":
        return _make(options, telemetry)

    try:
        return run_server(options, lifeline, _announce, make=make)
    except HoldfastError as error:  # the environment cannot be reached, or there is none
        advice = error.advice if isinstance(error, InvalidConfig) else None
        print(f"Error: {error}{f'; {advice}' if advice else ''}", file=sys.stderr)
        return 1


def _make(options: argparse.Namespace, telemetry: "Telemetry | None") -> "AppServer":
    from holdfast.app_server.app import AppServer
    from holdfast.environments.connect import connect
    from holdfast.server.state import DEFAULT_CONCURRENT_REQUESTS

    return AppServer(
        connect(options.environment),
        sandboxes=_sandboxes(options),
        compat=options.compat,
        concurrent_requests=options.concurrent_requests or DEFAULT_CONCURRENT_REQUESTS,
        telemetry=telemetry,
    )


def _sandboxes(options: argparse.Namespace) -> "Sandboxes":
    from holdfast.app_server.sandboxes import Sandboxes
    from holdfast.sandbox.names import named_profile
    from holdfast.sandbox.profile_file import load_profile

    is_file = "/" in options.sandbox or options.sandbox.endswith(".toml")
    return Sandboxes(
        default=load_profile(options.sandbox) if is_file else named_profile(options.sandbox),
        named={name: load_profile(path) for name, path in options.profile},
    )


def _announce(url: str) -> None:
    print(url, flush=True)
