"""
Factory of sandboxes: turns the profile of a request into a sandbox that starts commands.

The capabilities of this machine are probed once: for the first profile, or at the start of a
server that logs them.
"""

import asyncio
import atexit
import errno
import logging
import os
import platform
import threading
from collections.abc import Mapping, Sequence
from functools import cache, partial

from holdfast.errors import CannotEnforce, InvalidParams, SpawnFailed
from holdfast.linux.search_path import candidates
from holdfast.local_servers import make_runtime_folder, reachable
from holdfast.process.environment import without_tokens
from holdfast.process.executable_lookup import Launch
from holdfast.process.limits.rlimits import has_kernel_limits
from holdfast.process.sandboxed.child import SandboxedChild
from holdfast.process.sandboxed.delegated_start import DELEGATED_FDS, DelegatedStart
from holdfast.process.sandboxed.launch import EMPTY_FD, SandboxSpec, start_sandboxed
from holdfast.process.sandboxed.verdict import SandboxedOutcome
from holdfast.process.start_threads import StartThreads, call_in_daemon
from holdfast.protocol.process import Enforcement, ProcessLimits
from holdfast.protocol.sandbox import Access, SandboxContext
from holdfast.sandbox.bubblewrap.arguments import plan
from holdfast.sandbox.bubblewrap.devices import OwnDevices
from holdfast.sandbox.bubblewrap.filter import filter_program
from holdfast.sandbox.bubblewrap.gaps import open_server_gap, policy_gaps
from holdfast.sandbox.bubblewrap.init.program import CallersSession
from holdfast.sandbox.bubblewrap.landlock import ruleset
from holdfast.sandbox.bubblewrap.mount_points import MountPoints
from holdfast.sandbox.bubblewrap.support import IsolationLevel, SandboxSupport, probe_support
from holdfast.sandbox.policy.build import PolicyInputs, resolve
from holdfast.sandbox.policy.policy import PATH_MAX, Policy
from holdfast.system_text import system_text

__all__ = ["Sandbox", "Sandboxes", "shared_sandboxes"]

logger = logging.getLogger(__name__)


class Sandbox:
    """
    A sandbox that starts any number of commands.

    Close it when no more commands are to be started. Its mount points on the disk are kept
    until then, and until the last of its commands has ended.
    """

    def __init__(
        self,
        policy: Policy,
        support: SandboxSupport,
        targets: MountPoints,
        *,
        open_urls: Sequence[str] = (),
        devices: str | None = None,
    ) -> None:
        """
        Plan the mounts, and reserve their mount points on the disk.

        Args:
            policy: The files and the network that commands may use.
            support: The capabilities of this machine.
            targets: Registry of mount points.
            open_urls: Holdfast servers of this user that ask for no token.
            devices: A directory with device nodes for this sandbox, if it needs its own.
        """
        made = plan(
            policy,
            proc=support.rung is IsolationLevel.FULL,
            settings=support.settings,
            read_only_proc=support.read_only_proc,
            devices=devices,
        )
        gaps = (*policy_gaps(policy, support.landlock_abi), *support.gaps)
        # With a network, a command can reach a server without a token and leave its sandbox.
        if policy.network != "restricted":
            gaps += tuple(map(open_server_gap, open_urls))
        self.enforcement = Enforcement(rung=support.rung, gaps=gaps)
        """Isolation level and known gaps, for all commands of this sandbox."""
        self._policy = policy
        self._targets = targets
        self._to_verify = made.to_verify
        self._places = [(target.path, target.kind) for target in made.targets]
        self._paths = [path for path, _ in self._places]
        self._support = support
        self._plan = made
        self._spec = self._make_spec(range(EMPTY_FD, EMPTY_FD + made.empty_fds))
        self._reserve()

    def _make_spec(self, blanks: Sequence[int], *, shares_group: bool = False) -> SandboxSpec:
        """Return the description for bwrap; `blanks` are its `/dev/null` descriptors."""
        support, policy, launcher = self._support, self._policy, self._support.launcher
        # A machine that can enforce anything has a launcher.
        assert launcher is not None
        listens = support.listens and policy.network == "restricted"
        options = self._plan.argv(blanks)
        if "--disable-userns" not in launcher.options:
            # An old bwrap does not know it. The seccomp filter refuses user namespaces as well.
            options.remove("--disable-userns")
        if not shares_group:
            # Then the command is not in the session of bwrap, which so gets none of its signals.
            options = ["--new-session", *options]
        return SandboxSpec(
            launcher=launcher.path,
            options=options,
            empty_fds=self._plan.empty_fds,
            # Mount points are removed after the last process: a command must not lose a mount,
            # and with it a protection, in its last moment.
            tells_end=bool(self._plan.targets),
            filter=filter_program(
                "restricted" if policy.network == "restricted" else "open",
                platform.machine(),
                tells=listens,
                shares_group=shares_group,
            ),
            listen=listens,
            landlock=ruleset(policy, support.landlock_abi),
        )

    def access(self, path: str) -> Access:
        """Return the access that commands have to a path, which must be free of links."""
        return self._policy.access(path)

    @property
    def descriptors(self) -> int:
        """Number of descriptors that `delegate_start` sends to another process."""
        return DELEGATED_FDS + self._plan.empty_fds

    def delegate_start(
        self,
        launch: Launch,
        env: Mapping[str, str],
        *,
        numbers: Sequence[int],
        caller: CallersSession,
        limits: ProcessLimits | None = None,
        stand_in: tuple[str, str] | None = None,
    ) -> DelegatedStart:
        """
        Prepare a command that another process of this user starts in this sandbox.

        Args:
            launch: The command.
            env: Its complete environment.
            numbers: The descriptor numbers in that process; see `descriptors`.
            caller: The signals and the terminal of that process.
            limits: Limits of the command.
            stand_in: A file, and the path inside at which it is mounted.

        Raises:
            SpawnFailed: The command cannot be started.
            OSError: The kernel refused.
        """
        launch = self._as_inside(launch, env.get("PATH"))
        env = without_tokens(env)
        # A command on the caller's terminal has to be in its process group for job control.
        shared = caller.terminal is not None
        self._reserve()
        try:
            return DelegatedStart(
                self._make_spec(numbers[DELEGATED_FDS:], shares_group=shared),
                launch,
                env,
                numbers=numbers,
                caller=caller,
                limits=limits if limits is not None and has_kernel_limits(limits) else None,
                to_verify=self._to_verify,
                ended=self.close,
                stand_in=stand_in,
            )
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Release one reservation of the mount points; the last release removes them."""
        self._targets.release(self._paths)

    async def start(
        self,
        launch: Launch,
        env: Mapping[str, str],
        *,
        terminal: tuple[int, int] | None = None,
        pipe_stdin: bool = False,
        pipe_stderr: bool = True,
        limits: ProcessLimits | None = None,
    ) -> SandboxedChild:
        """
        Start a command; its program is looked up inside the sandbox.

        Raises:
            SpawnFailed: The sandbox could not be built; nothing is left of it.
            OSError: No descriptor is left to start it with.
        """
        launch = self._as_inside(launch, env.get("PATH"))
        env = without_tokens(env)
        self._reserve()
        # One reservation per command, released by its end or by a failed start.
        try:
            child = await start_sandboxed(
                self._spec,
                launch,
                env,
                terminal=terminal,
                pipe_stdin=pipe_stdin,
                pipe_stderr=pipe_stderr,
                limits=limits if limits is not None and has_kernel_limits(limits) else None,
                to_verify=self._to_verify,
            )
        except BaseException:
            self.close()
            raise
        child.ended = self.close
        return child

    def _reserve(self) -> None:
        """Reserve the mount points for one more user: this object, or a command."""
        try:
            self._targets.reserve(self._places)
        except OSError as error:
            raise SpawnFailed(
                f"the sandbox's places cannot be made: {error}",
                errno=error.errno,
                path=error.filename if isinstance(error.filename, str) else None,
            ) from error

    def outcome(self, child: SandboxedChild) -> SandboxedOutcome:
        """Return the function that completes the verdict of a command of this sandbox."""
        # `start` has set it.
        assert child.report is not None
        return SandboxedOutcome(child.report, child.attempts)

    def _as_inside(self, launch: Launch, path: str | None) -> Launch:
        """
        Return the launch with the paths inside, where links of the host may be missing.

        Raises:
            SpawnFailed: The cwd is too long or denied, or a path has a NUL.
        """
        if "\0" in launch.cwd or "\0" in launch.program:
            raise SpawnFailed("nul byte found in provided data", program=launch.program)
        if path is not None and "\0" in path:
            raise SpawnFailed("data provided contains a nul byte", program=launch.program)
        if len(os.fsencode(launch.cwd)) >= PATH_MAX:
            # As the kernel does. `realpath` would resolve every part, and block the event loop.
            fault = errno.ENAMETOOLONG
            raise SpawnFailed(system_text(fault), errno=fault, path=launch.cwd)
        program = self._find(launch.program, launch.cwd, path)
        # A link on the way to it may be hidden inside, so bwrap gets the real path.
        cwd = os.path.realpath(launch.cwd)
        if self._policy.denies_folder(cwd):
            fault = errno.EACCES
            raise SpawnFailed(system_text(fault), errno=fault, path=launch.cwd)
        return Launch(program, launch.argv, cwd)

    def _find(self, program: str, cwd: str, path: str | None) -> str:
        """Look up a program inside as `execvp` does; return "" if there is none."""
        if "/" in program:
            return program
        refused = ""
        for candidate in candidates(program, path):
            folder = os.path.join(cwd, os.path.dirname(candidate))
            listed = os.path.join(os.path.realpath(folder), program)
            found = os.path.realpath(listed)
            if not os.path.isfile(found) or "deny" in map(self._policy.access, (listed, found)):
                continue
            if os.access(found, os.X_OK):
                return candidate
            # As `execvp`: a file that cannot be executed is used only if there is no other, and
            # the init program then reports EACCES.
            refused = refused or candidate
        return refused


class Sandboxes:
    """Factory of sandboxes, with the capabilities of this machine."""

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        """`environ` has the `PATH` to find bwrap in; this process's own by default."""
        # A copy: the first probe may come long after the start.
        self._environ = dict(os.environ if environ is None else environ)
        self._home = os.path.expanduser("~")
        self._support: SandboxSupport | None = None
        self._devices: str | None = None
        self._probing = threading.Lock()
        self.targets = MountPoints()

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
                make_runtime_folder(self._environ)
                support = probe_support(self._environ)
                if support.own_devices:
                    self._devices = own_devices()
                self._support = support
                _log(support)
            return self._support

    async def get(
        self,
        context: SandboxContext,
        *,
        cwd: str,
        env: Mapping[str, str],
        threads: StartThreads | None = None,
    ) -> Sandbox | CannotEnforce | None:
        """
        Return the sandbox for a profile.

        Args:
            context: The profile and its paths, as in the request.
            cwd: The working directory of the command.
            env: The environment of the command, which defines its `tmpdir`.
            threads: Threads for look-ups on the disk; shared ones by default.

        Returns:
            None if the profile isolates nothing; an error if it cannot be enforced with the
            files that are on the disk now.

        Raises:
            InvalidParams: The profile is invalid, or this machine can enforce none.
            TimeoutError: The disk does not answer.
            OSError: No descriptor is left for the look-ups.
        """
        facts = PolicyInputs(
            cwd=cwd,
            tmpdir=env.get("TMPDIR"),
            own_tmpdir=self._environ.get("TMPDIR"),
            home=self._home,
            uid=os.getuid(),
            reachable=(servers := reachable(self._environ)),
        )
        # While planning, no other command's end removes mount points that this plan has seen.
        with self.targets.planning():
            try:
                # In a thread: the client chooses the paths. Many files may match a pattern, and
                # a mount may be dead.
                ask = call_in_daemon if threads is None else threads.call
                policy = await ask(partial(resolve, context, facts))
                if not policy.isolates:
                    return None
                support = self._support or await self.support()
                if support.rung is IsolationLevel.NONE:
                    raise InvalidParams(f"this host cannot enforce a sandbox: {support.problem}")
                return Sandbox(
                    policy,
                    support,
                    self.targets,
                    open_urls=servers.open_urls,
                    devices=self._devices,
                )
            except CannotEnforce as error:
                return error


def _log(support: SandboxSupport) -> None:
    if support.rung is IsolationLevel.NONE:
        logger.warning("no sandbox can be enforced here: %s", support.problem)
        return
    # A machine that can enforce anything has a launcher.
    assert support.launcher is not None
    logger.info("sandboxes are built by bubblewrap %s: %s", support.launcher.version, support.rung)
    for gap in (*([support.problem] if support.problem else ()), *support.gaps):
        logger.info("sandbox: %s", gap)


@cache
def own_devices() -> str:
    """
    Return the directory with the device nodes for all sandboxes; it is removed at exit.

    Raises:
        InvalidParams: The nodes cannot be made; without them a sandbox would be too weak.
    """
    try:
        devices = OwnDevices()
    except OSError as error:
        raise InvalidParams(f"devices for sandboxes cannot be made: {error}") from error
    # If this process is killed, its guardian removes them. A forked child must not.
    maker = os.getpid()
    atexit.register(lambda: devices.close() if os.getpid() == maker else None)
    return devices.folder


@cache
def shared_sandboxes() -> Sandboxes:
    """Return the factory of this process: all its sessions share mount points on the disk."""
    return Sandboxes()
