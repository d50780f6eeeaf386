"""
Encloses commands: from the profile of a request to a child inside its sandbox.

What this machine can enforce is found out once: with the first profile, or when a server
starts that logs it.
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
from holdfast.local_servers import make_runtime_folder, reachable
from holdfast.process.environment import without_tokens
from holdfast.process.executable_lookup import DEFAULT_PATH, Launch
from holdfast.process.limits.rlimits import has_bounds
from holdfast.process.sandboxed.child import EnclosedChild
from holdfast.process.sandboxed.handed import HANDED_FDS, HandedStart
from holdfast.process.sandboxed.launch import EMPTY_FD, Enclosure, start_enclosed
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
    What one command, or several one after the other, are enclosed in.

    Close it when no more are to be started: its places on the disk are kept until then,
    and until the last of its commands has ended.
    """

    def __init__(
        self,
        policy: Policy,
        ladder: SandboxSupport,
        targets: MountPoints,
        *,
        open_urls: Sequence[str] = (),
        devices: str | None = None,
    ) -> None:
        """
        Plan it, and take its places on the disk.

        Args:
            policy: What it allows.
            ladder: What can be enforced here.
            targets: Keeps its places.
            open_urls: Holdfast servers of this user that ask for no token.
            devices: A folder with device nodes of its own, if it is to have such.
        """
        made = plan(
            policy,
            proc=ladder.rung is IsolationLevel.FULL,
            settings=ladder.settings,
            read_only_proc=ladder.read_only_proc,
            devices=devices,
        )
        gaps = (*policy_gaps(policy, ladder.landlock_abi), *ladder.gaps)
        if policy.network != "restricted":
            gaps += tuple(map(open_server_gap, open_urls))
        self.enforcement = Enforcement(rung=ladder.rung, gaps=gaps)
        """What holds for all that is started in it."""
        self._policy = policy
        self._targets = targets
        self._to_verify = made.to_verify
        self._places = [(target.path, target.kind) for target in made.targets]
        self._paths = [path for path, _ in self._places]
        self._ladder = ladder
        self._plan = made
        self._enclosure = self._make_enclosure(range(EMPTY_FD, EMPTY_FD + made.empty_fds))
        self._reserve()

    def _make_enclosure(self, blanks: Sequence[int], *, shares_group: bool = False) -> Enclosure:
        """Return how to build it, with the numbers of descriptors that are empty to read."""
        ladder, policy, launcher = self._ladder, self._policy, self._ladder.launcher
        assert launcher is not None  # the rung has one
        listens = ladder.listens and policy.network == "restricted"
        options = self._plan.argv(blanks)
        if "--disable-userns" not in launcher.options:
            options.remove("--disable-userns")  # the filter refuses them too
        if not shares_group:
            # Nothing inside is in the session of the launcher, which so gets no signal.
            options = ["--new-session", *options]
        return Enclosure(
            launcher=launcher.path,
            options=options,
            empty_fds=self._plan.empty_fds,
            # In the last moment of a command nothing of its sandbox may be missing.
            tells_end=bool(self._plan.targets),
            filter=filter_program(
                "restricted" if policy.network == "restricted" else "open",
                platform.machine(),
                tells=listens,
                shares_group=shares_group,
            ),
            listen=listens,
            landlock=ruleset(policy, ladder.landlock_abi),
        )

    def access(self, path: str) -> Access:
        """Return what a command in it may do with a real path."""
        return self._policy.access(path)

    @property
    def descriptors(self) -> int:
        """How many descriptors a process needs that is to start a command in it (`hand_over`)."""
        return HANDED_FDS + self._plan.empty_fds

    def hand_over(
        self,
        launch: Launch,
        env: Mapping[str, str],
        *,
        numbers: Sequence[int],
        caller: CallersSession,
        limits: ProcessLimits | None = None,
        stand_in: tuple[str, str] | None = None,
    ) -> HandedStart:
        """
        Make all that another process of this user needs to start a command in it.

        Args:
            launch: The command.
            env: All of its environment.
            numbers: What numbers the descriptors will have there; see `descriptors`.
            caller: The signals and the terminal of that process.
            limits: What the command may use.
            stand_in: A file, and the path of another that it stands in for inside.

        Raises:
            SpawnFailed: It makes no sense.
            OSError: The kernel refused.
        """
        launch = self._as_inside(launch, env.get("PATH"))
        env = without_tokens(env)
        shared = caller.terminal is not None
        self._reserve()
        try:
            return HandedStart(
                self._make_enclosure(numbers[HANDED_FDS:], shares_group=shared),
                launch,
                env,
                numbers=numbers,
                caller=caller,
                limits=limits if limits is not None and has_bounds(limits) else None,
                to_verify=self._to_verify,
                ended=self.close,
                stand_in=stand_in,
            )
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """One of those who need its places does not any more."""
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
    ) -> EnclosedChild:
        """
        Start a command; its program is looked for inside.

        Raises:
            SpawnFailed: The sandbox could not be built; nothing is left of it.
            OSError: No descriptor is left to start it with.
        """
        launch = self._as_inside(launch, env.get("PATH"))
        env = without_tokens(env)
        self._reserve()
        try:
            child = await start_enclosed(
                self._enclosure,
                launch,
                env,
                terminal=terminal,
                pipe_stdin=pipe_stdin,
                pipe_stderr=pipe_stderr,
                limits=limits if limits is not None and has_bounds(limits) else None,
                to_verify=self._to_verify,
            )
        except BaseException:
            self.close()
            raise
        child.ended = self.close
        return child

    def _reserve(self) -> None:
        """Be one of those who need its places."""
        try:
            self._targets.reserve(self._places)
        except OSError as error:
            raise SpawnFailed(
                f"the sandbox's places cannot be made: {error}",
                errno=error.errno,
                path=error.filename if isinstance(error.filename, str) else None,
            ) from error

    def outcome(self, child: EnclosedChild) -> SandboxedOutcome:
        """What to make of the end of a command that was started in it."""
        assert child.report is not None  # it was started
        return SandboxedOutcome(child.report, child.attempts)

    def _as_inside(self, launch: Launch, path: str | None) -> Launch:
        """
        With the program and the folder as they are inside, where links may be missing.

        Raises:
            SpawnFailed: The folder is longer than a path can be, or denied, or a path has
                a NUL.
        """
        if "\0" in launch.cwd or "\0" in launch.program:
            raise SpawnFailed("nul byte found in provided data", program=launch.program)
        if path is not None and "\0" in path:
            raise SpawnFailed("data provided contains a nul byte", program=launch.program)
        if len(os.fsencode(launch.cwd)) >= PATH_MAX:
            # As the kernel does. `realpath` would look at each part, and hold up everybody.
            fault = errno.ENAMETOOLONG
            raise SpawnFailed(system_text(fault), errno=fault, path=launch.cwd)
        program = self._find(launch.program, launch.cwd, path)
        cwd = os.path.realpath(launch.cwd)
        if self._policy.denies_folder(cwd):
            fault = errno.EACCES
            raise SpawnFailed(system_text(fault), errno=fault, path=launch.cwd)
        return Launch(program, launch.argv, cwd)

    def _find(self, program: str, cwd: str, path: str | None) -> str:
        """The file that a name stands for inside, as `execvp` finds it; nothing if none does."""
        if "/" in program:
            return program
        refused = ""
        for folder in (DEFAULT_PATH if path is None else path).split(":"):
            candidate = os.path.join(folder, program)
            place = os.path.join(os.path.realpath(os.path.join(cwd, folder)), program)
            found = os.path.realpath(place)
            if not os.path.isfile(found) or "deny" in map(self._policy.access, (place, found)):
                continue
            if os.access(found, os.X_OK):
                return candidate
            refused = refused or candidate
        return refused


class Sandboxes:
    """Makes sandboxes, and knows what this machine can enforce."""

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        """`environ` says where the launcher is found; this process's own by default."""
        self._environ = dict(os.environ if environ is None else environ)
        self._home = os.path.expanduser("~")
        self._ladder: SandboxSupport | None = None
        self._devices: str | None = None
        self._climbing = threading.Lock()
        self.targets = MountPoints()

    async def ladder(self) -> SandboxSupport:
        """What can be enforced here, tried out the first time."""
        if self._ladder is None:
            return await asyncio.get_running_loop().run_in_executor(None, self.probe_support)
        return self._ladder

    def probe_support(self) -> SandboxSupport:
        """The same, waiting for it in this thread."""
        with self._climbing:  # a hundred first starts at once are one trial
            if self._ladder is None:
                make_runtime_folder(self._environ)
                ladder = probe_support(self._environ)
                if ladder.own_devices:
                    self._devices = own_devices()
                self._ladder = ladder
                _log(ladder)
            return self._ladder

    async def get(
        self,
        context: SandboxContext,
        *,
        cwd: str,
        env: Mapping[str, str],
        threads: StartThreads | None = None,
    ) -> Sandbox | CannotEnforce | None:
        """
        The sandbox for a profile.

        Args:
            context: As it came with a request.
            cwd: The folder of the command.
            env: The environment of the command, which says what its `tmpdir` is.
            threads: Where the disk is asked; those of nobody in particular by default.

        Returns:
            `None` if the profile isolates nothing, the reason if it cannot be kept
            as things stand on the disk.

        Raises:
            InvalidParams: The profile is wrong in itself, or nothing here can enforce it.
            TimeoutError: The disk has not answered.
            OSError: No descriptor is left to ask it with.
        """
        facts = PolicyInputs(
            cwd=cwd,
            tmpdir=env.get("TMPDIR"),
            own_tmpdir=self._environ.get("TMPDIR"),
            home=self._home,
            uid=os.getuid(),
            reachable=(servers := reachable(self._environ)),
        )
        with self.targets.planning():
            try:
                # Its paths are the client's: files that match may be many, a mount may be dead.
                ask = call_in_daemon if threads is None else threads.call
                policy = await ask(partial(resolve, context, facts))
                if not policy.isolates:
                    return None
                ladder = self._ladder or await self.ladder()
                if ladder.rung is IsolationLevel.NONE:
                    raise InvalidParams(f"this host cannot enforce a sandbox: {ladder.problem}")
                return Sandbox(
                    policy,
                    ladder,
                    self.targets,
                    open_urls=servers.open_urls,
                    devices=self._devices,
                )
            except CannotEnforce as error:
                return error


def _log(ladder: SandboxSupport) -> None:
    if ladder.rung is IsolationLevel.NONE:
        logger.warning("no sandbox can be enforced here: %s", ladder.problem)
        return
    assert ladder.launcher is not None  # the rung has one
    logger.info("sandboxes are built by bubblewrap %s: %s", ladder.launcher.version, ladder.rung)
    for gap in (*([ladder.problem] if ladder.problem else ()), *ladder.gaps):
        logger.info("sandbox: %s", gap)


@cache
def own_devices() -> str:
    """
    The folder of the devices of this process, for all its sandboxes; removed at its end.

    Raises:
        InvalidParams: They cannot be made: a sandbox would be weaker than it has to be.
    """
    try:
        devices = OwnDevices()
    except OSError as error:
        raise InvalidParams(f"devices for sandboxes cannot be made: {error}") from error
    # A guardian does the same, where this process is killed.
    maker = os.getpid()
    atexit.register(lambda: devices.close() if os.getpid() == maker else None)
    return devices.folder


@cache
def shared_sandboxes() -> Sandboxes:
    """Those of this process: what they make on the disk is shared by all its sessions."""
    return Sandboxes()
