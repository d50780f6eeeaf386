"""
The seam between the process engine and sandboxes.

The engine asks a `SandboxSource` for the sandbox of a start, and lets that start the command. It
knows no kind of sandbox: `holdfast.engine.sandbox` decides what enforces a profile.
"""

from collections.abc import Mapping
from importlib import import_module
from typing import Protocol

from holdfast.base.errors import SpawnFailed
from holdfast.engine.process.child import Child
from holdfast.engine.process.executable_lookup import Launch
from holdfast.engine.process.start_threads import StartThreads
from holdfast.wire.protocol.process import Enforcement, ProcessLimits
from holdfast.wire.protocol.sandbox import SandboxContext

__all__ = ["CommandSandbox", "SandboxOutdated", "SandboxSource", "default_source"]

# The module whose `shared_sandboxes` is the default source of every registry. By name: it is above
# this package, and most servers never sandbox anything and start sooner without it.
_DEFAULT = "holdfast.engine.sandbox.factory"


class SandboxOutdated(SpawnFailed):
    """A sandbox could not be built, perhaps because files changed since it was planned."""


class CommandSandbox(Protocol):
    """A sandbox that starts any number of commands, until it is closed."""

    @property
    def enforcement(self) -> Enforcement:
        """Isolation level and known gaps, for all commands of this sandbox."""

    async def start(
        self,
        launch: Launch,
        env: Mapping[str, str],
        *,
        terminal: tuple[int, int] | None = None,
        pipe_stdin: bool = False,
        pipe_stderr: bool = True,
        limits: ProcessLimits | None = None,
    ) -> Child:
        """
        Start a command; its program is looked up inside the sandbox.

        Args:
            launch: The program, as the client named it, with its arguments and directory.
            env: Its complete environment, without tokens of servers.
            terminal: Rows and columns, if it gets a terminal.
            pipe_stdin: True if its stdin is a pipe, False for `/dev/null`.
            pipe_stderr: True if its stderr is a pipe.
            limits: Limits of the command. The kernel's have to be set before it runs; the
                caller enforces the others.

        Raises:
            SpawnFailed: The sandbox could not be built; nothing is left of it. With
                `SandboxOutdated`, another sandbox for the same profile may be built.
            OSError: No descriptor is left to start it with.
        """

    def close(self) -> None:
        """End the use of the sandbox by its owner; running commands continue."""


class SandboxSource(Protocol):
    """Finds the sandbox for the profile of a start."""

    async def get(
        self,
        context: SandboxContext,
        *,
        cwd: str,
        env: Mapping[str, str],
        threads: StartThreads | None = None,
    ) -> CommandSandbox | None:
        """
        Return the sandbox for a profile.

        Args:
            context: The profile and its paths, as in the request.
            cwd: The working directory of the command.
            env: The environment of the command, which defines its `tmpdir`.
            threads: Threads for look-ups on the disk; shared ones by default.

        Returns:
            None if the profile isolates nothing.

        Raises:
            CannotEnforce: It cannot be enforced with the files that are on the disk now.
            InvalidParams: The profile is invalid, or this machine can enforce none.
            TimeoutError: The disk does not answer.
            OSError: No descriptor is left for the look-ups.
        """


def default_source() -> SandboxSource:
    """Return the source for all registries of this process; the first call imports it."""
    source: SandboxSource = import_module(_DEFAULT).shared_sandboxes()
    return source
