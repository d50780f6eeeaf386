"""
Factory of sandboxes: turns the profile of a request into a sandbox that starts commands.

It makes the policy, and leaves its enforcement to an `Enforcer`. The capabilities of this machine
are probed once: for the first profile, or at the start of a server that logs them.
"""

import asyncio
import logging
import os
import threading
from collections.abc import Mapping
from functools import cache, partial

from holdfast.base.errors import InvalidParams
from holdfast.base.late_import import distrust
from holdfast.base.local_servers import make_runtime_directories, reachable, runtime_directory
from holdfast.base.own_files import OwnFiles
from holdfast.engine.linux.mounts import mount_table
from holdfast.engine.process.sandbox_source import CommandSandbox
from holdfast.engine.process.start_threads import StartThreads, call_in_daemon
from holdfast.engine.sandbox.bubblewrap.bubblewrap_enforcer import BubblewrapEnforcer
from holdfast.engine.sandbox.enforcer import Enforcer, IsolationLevel, SandboxSupport
from holdfast.engine.sandbox.policy.build import PolicyInputs, resolve
from holdfast.engine.sandbox.policy.own_paths import own_paths, settings_at
from holdfast.engine.sandbox.policy.policy import Policy
from holdfast.wire.protocol.sandbox import SandboxContext

__all__ = ["Sandboxes", "shared_sandboxes"]

logger = logging.getLogger(__name__)


class Sandboxes:
    """Factory of sandboxes, with the capabilities of this machine."""

    def __init__(
        self, enforcer: Enforcer | None = None, *, environ: Mapping[str, str] | None = None
    ) -> None:
        """
        Args:
            enforcer: Enforces the policies; bubblewrap by default.
            environ: Variables of the server; by default those of this process.
        """
        # A copy: the first probe may happen long after the start.
        self._environ = dict(os.environ if environ is None else environ)
        self._enforcer = BubblewrapEnforcer(self._environ) if enforcer is None else enforcer
        self._home = os.path.expanduser("~")
        self._support: SandboxSupport | None = None
        self._probing = threading.Lock()

    async def support(self) -> SandboxSupport:
        """Return the capabilities of this machine; the first call probes them in a thread."""
        if self._support is None:
            return await asyncio.get_running_loop().run_in_executor(None, self.probe_support)
        return self._support

    def probe_support(self) -> SandboxSupport:
        """Return the capabilities of this machine; the first call probes them in this thread."""
        # A hundred simultaneous first starts make one probe.
        with self._probing:
            if self._support is None:
                make_runtime_directories(self._environ)
                self._support = self._enforcer.probe()
                _log(self._support)
            return self._support

    async def get(
        self,
        context: SandboxContext,
        *,
        cwd: str,
        env: Mapping[str, str],
        threads: StartThreads | None = None,
        settings: OwnFiles | None = None,
    ) -> CommandSandbox | None:
        """
        Return the sandbox for a profile; see `process.sandbox.SandboxSource`.

        Args:
            context: As there, like the following ones.
            cwd: The working directory of the command.
            env: The environment of the command.
            threads: Threads for look-ups on the disk.
            settings: Settings of the caller, to keep read-only in addition to our own.
        """
        with self._enforcer.planning():
            # In a thread: the client chooses the paths. Many files may match a pattern, and
            # a mount may be dead.
            ask = call_in_daemon if threads is None else threads.call
            policy, gaps = await ask(partial(self._resolve, context, cwd, env, settings))
            if not policy.isolates:
                return None
            support = self._support
            if support is None:
                support = await self.support()
                # Again: the probe has found the program that builds sandboxes, and made the
                # directories of tokens.
                policy, gaps = await ask(partial(self._resolve, context, cwd, env, settings))
            if support.isolation is IsolationLevel.NONE:
                raise InvalidParams(f"this host cannot enforce a sandbox: {support.problem}")
            return self._enforcer.open(policy, gaps=gaps)

    def _resolve(
        self,
        context: SandboxContext,
        cwd: str,
        env: Mapping[str, str],
        settings: OwnFiles | None,
    ) -> tuple[Policy, tuple[str, ...]]:
        """Return the policy of a profile, and its gaps that no enforcer can close."""
        # systemd removes a runtime directory with the last login of its user.
        if not os.path.isdir(runtime_directory(self._environ)):
            make_runtime_directories(self._environ)
        # A caller with other variables may have its own servers, as for `holdfast-sh`.
        servers = reachable(self._environ, env)
        own = own_paths(self._environ)
        mounts = mount_table()
        facts = PolicyInputs(
            cwd=cwd,
            tmpdir=env.get("TMPDIR"),
            own_tmpdir=self._environ.get("TMPDIR"),
            home=self._home,
            uid=os.getuid(),
            reachable=servers,
            own=own.paths if settings is None else (*own.paths, *settings_at(settings)),
            mounts=mounts,
            makes=True,
        )
        policy = resolve(context, facts)
        # With a network, a command can reach a server without a token and leave its sandbox.
        reached = () if policy.network == "restricted" else servers.open_urls
        gaps = tuple(map(_open_server_gap, reached))
        if policy.isolates:
            writable = [
                (path, entry)
                for path, entry in own.searched
                if "write" in map(policy.access, (path, *mounts.names(path)))
            ]
            if writable:
                # This program must not import code that a command wrote there.
                distrust([entry for _, entry in writable])
                gaps = (*gaps, *[_import_gap(path) for path, _ in writable])
        return policy, gaps


def _import_gap(path: str) -> str:
    """Return the gap of a directory that this program imports modules from."""
    return (
        f"this program imports modules from {path}, which is writable: it runs what a command"
        " writes there if it imports a module that it has not loaded yet, or when it starts again"
    )


def _open_server_gap(url: str) -> str:
    """Return the gap of a server without a token, which a command with network can reach."""
    return (
        f"with the network enabled, the server at {url} can be used to run anything outside"
        " the sandbox: it asks for no token"
    )


def _log(support: SandboxSupport) -> None:
    if support.isolation is IsolationLevel.NONE:
        logger.warning("no sandbox can be enforced here: %s", support.problem)
        return
    logger.info("sandboxes are built by %s: %s", support.enforced_by, support.isolation)
    for gap in (*([support.problem] if support.problem else ()), *support.gaps):
        logger.info("sandbox: %s", gap)


@cache
def shared_sandboxes() -> Sandboxes:
    """Return the factory of this process, so that its capabilities are probed once."""
    return Sandboxes()
