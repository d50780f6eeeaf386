"""The worker of `holdfast app-server`: the server of `command/exec`."""

import argparse
import os
import sys

from holdfast.base.errors import HoldfastError
from holdfast.engine.sandbox.profile.profile_file import load_profile
from holdfast.environments.connect import connect
from holdfast.environments.sandbox import (
    ProfileContext,
    SandboxProfile,
    also_writing,
    as_profile,
    home_here,
)
from holdfast.front.app_server.app_server import AppServer
from holdfast.front.app_server.sandboxes import SandboxProfiles
from holdfast.front.cli.exit_status import text_with_advice
from holdfast.front.cli.server_worker import run_server
from holdfast.server.listen import ListenUrl
from holdfast.server.state import DEFAULT_CONCURRENT_REQUESTS
from holdfast.telemetry import Telemetry
from holdfast.wire.protocol.paths import PathUri

__all__ = ["run_app_server"]


def run_app_server(options: argparse.Namespace, lifeline: int) -> int:
    """Serve in this process, which has a guardian, and return the exit status."""

    def make(where: ListenUrl, telemetry: Telemetry | None) -> AppServer:
        return _make(options, telemetry)

    try:
        return run_server(options, lifeline, _announce, make=make)
    except HoldfastError as error:
        # The environment cannot be reached, or is not configured.
        print(f"Error: {text_with_advice(error)}", file=sys.stderr)
        return 1


def _make(options: argparse.Namespace, telemetry: Telemetry | None) -> AppServer:
    return AppServer(
        connect(options.environment),
        sandboxes=_sandboxes(options),
        compat=options.compat,
        concurrent_requests=options.concurrent_requests or DEFAULT_CONCURRENT_REQUESTS,
        telemetry=telemetry,
    )


def _sandboxes(options: argparse.Namespace) -> SandboxProfiles:
    name: str = options.sandbox
    profile = as_profile(also_writing(name, options.sandbox_write))
    # Only Python callers can pass a context.
    assert isinstance(profile, SandboxProfile)
    # Commands have their own workspaces, to which relative paths refer.
    here = ProfileContext(folder=PathUri.from_path(os.getcwd()), home=home_here())
    return SandboxProfiles(
        default=profile.permissions(here),
        named={name: load_profile(path) for name, path in options.profile},
    )


def _announce(url: str) -> None:
    print(url, flush=True)
