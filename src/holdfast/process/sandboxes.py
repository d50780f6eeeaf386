"""
Encloses commands: from the profile of a request to a child inside its sandbox.

What this machine can enforce is found out once, when the first profile comes.
"""

import asyncio
import logging
import os
import platform
import threading
from collections.abc import Mapping
from functools import cache

from holdfast.errors import CannotEnforce, InvalidParams, SpawnFailed
from holdfast.process.enclosed import EnclosedChild
from holdfast.process.enclosing import EMPTY_FD, Enclosure, start_enclosed
from holdfast.process.limits import has_kernel_limits
from holdfast.process.outcome import SandboxedOutcome
from holdfast.process.program import Launch
from holdfast.protocol.process import Enforcement, ProcessLimits
from holdfast.protocol.sandbox import GlobPath, ManagedProfile, RestrictedFiles, SandboxContext
from holdfast.sandbox.bwrap import plan
from holdfast.sandbox.ladder import Ladder, Rung, climb
from holdfast.sandbox.policy import Policy
from holdfast.sandbox.resolve import Facts, resolve
from holdfast.sandbox.seccomp import filter_program
from holdfast.sandbox.targets import MountTargets

__all__ = ["Sandbox", "Sandboxes", "shared_sandboxes"]

logger = logging.getLogger(__name__)

_TERMINAL_OWNERS = ("/usr/bin/setsid", "/bin/setsid")
"""
Programs that make a terminal the controlling one of what they execute.

Inside a sandbox the command is not the leader of a session, and so cannot by itself.
"""

_NAMING_SHELLS = ("/usr/bin/bash", "/bin/bash")
"""Shells that can execute a program under another name, for launchers that cannot."""

_NAMING = ("--norc", "-c", 'exec -a "$0" -- "$@"')
"""
How they are asked to.

Without the first, they take an input that they cannot ask about for a remote login.
"""


class Sandbox:
    """
    What one command, or several one after the other, are enclosed in.

    Close it when no more are to be started: its places on the disk are kept until then,
    and until the last of its commands has ended.
    """

    def __init__(self, policy: Policy, ladder: Ladder, targets: MountTargets) -> None:
        launcher = ladder.launcher
        assert launcher is not None  # the rung has one
        made = plan(policy, proc=ladder.rung is Rung.FULL)
        self.enforcement = Enforcement(rung=ladder.rung, gaps=ladder.gaps)
        """What holds for all that is started in it."""
        self._policy = policy
        self._can_name = "--argv0" in launcher.options
        self._targets = targets
        self._to_verify = made.to_verify
        self._places = [(target.path, target.kind) for target in made.targets]
        self._paths = [path for path, _ in self._places]
        options = made.argv(range(EMPTY_FD, EMPTY_FD + made.blanks))
        if "--disable-userns" not in launcher.options:
            options.remove("--disable-userns")  # the filter refuses them too
        self._enclosure = Enclosure(
            launcher=launcher.path,
            # Nothing inside is in the session of the launcher, which so gets no signal.
            options=["--new-session", *options],
            empty_fds=made.blanks,
            # In the last moment of a command nothing of its sandbox may be missing.
            tells_end=bool(made.targets),
            filter=filter_program(
                "restricted" if policy.network == "restricted" else "open", _MACHINE
            ),
        )
        self._reserve()

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
            InvalidParams: It cannot be given the name it is to have.
            SpawnFailed: The sandbox could not be built; nothing is left of it.
            OSError: No descriptor is left to start it with.
        """
        if launch.argv[0] != launch.program and (terminal is not None or not self._can_name):
            launch = self._with_name(launch)
        if terminal is not None:
            launch = self._with_terminal(launch)
        self._reserve()
        try:
            child = await start_enclosed(
                self._enclosure,
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
        """Be one of those who need its places."""
        try:
            self._targets.reserve(self._places)
        except OSError as error:
            raise SpawnFailed(
                f"the sandbox's places cannot be made: {error}", errno=error.errno
            ) from error

    def outcome(self, program: str) -> SandboxedOutcome:
        """What to make of the end of a command that was started in it."""
        return SandboxedOutcome(program)

    def _with_terminal(self, launch: Launch) -> Launch:
        for owner in _TERMINAL_OWNERS:
            if self._is_inside(owner):
                return _behind(launch, owner, "-c", "--", launch.program)
        return launch

    def _with_name(self, launch: Launch) -> Launch:
        """
        The same, by a shell that gives it its name.

        Raises:
            InvalidParams: There is none inside.
        """
        name = launch.argv[0]
        for shell in _NAMING_SHELLS:
            if self._is_inside(shell):
                return _behind(launch, shell, *_NAMING, name, launch.program)
        raise InvalidParams("arg0 needs bubblewrap 0.9 on the host or bash in the sandbox")

    def _is_inside(self, program: str) -> bool:
        if not os.access(program, os.X_OK):
            return False
        return self._policy.access(os.path.realpath(program)) != "deny"


def _behind(launch: Launch, program: str, *arguments: str) -> Launch:
    """A command that another program executes, with what is before its own arguments."""
    return Launch(program, [program, *arguments, *launch.argv[1:]], launch.cwd)


_MACHINE = platform.machine()


class Sandboxes:
    """Makes sandboxes, and knows what this machine can enforce."""

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        """`environ` says where the launcher is found; this process's own by default."""
        self._environ = dict(os.environ if environ is None else environ)
        self._home = os.path.expanduser("~")
        self._ladder: Ladder | None = None
        self._climbing = threading.Lock()
        self.targets = MountTargets()

    async def ladder(self) -> Ladder:
        """What can be enforced here, tried out the first time."""
        if self._ladder is None:
            return await asyncio.get_running_loop().run_in_executor(None, self._climb)
        return self._ladder

    def _climb(self) -> Ladder:
        with self._climbing:  # a hundred first starts at once are one trial
            if self._ladder is None:
                self._ladder = climb(self._environ)
                _log(self._ladder)
            return self._ladder

    async def get(
        self, context: SandboxContext, *, cwd: str, env: Mapping[str, str]
    ) -> Sandbox | CannotEnforce | None:
        """
        The sandbox for a profile.

        Args:
            context: As it came with a request.
            cwd: The folder of the command.
            env: The environment of the command, which says what its `tmpdir` is.

        Returns:
            `None` if the profile isolates nothing, the reason if it cannot be kept
            as things stand on the disk.

        Raises:
            InvalidParams: The profile is wrong in itself, or nothing here can enforce it.
        """
        facts = Facts(
            cwd=cwd,
            tmpdir=env.get("TMPDIR"),
            own_tmpdir=self._environ.get("TMPDIR"),
            home=self._home,
            uid=os.getuid(),
        )
        with self.targets.planning():
            try:
                if _has_patterns(context):
                    # Looking for files that match may take long.
                    loop = asyncio.get_running_loop()
                    policy = await loop.run_in_executor(None, resolve, context, facts)
                else:
                    policy = resolve(context, facts)
                if not policy.isolates:
                    return None
                ladder = self._ladder or await self.ladder()
                if ladder.rung is Rung.NONE:
                    raise InvalidParams(f"this host cannot enforce a sandbox: {ladder.problem}")
                return Sandbox(policy, ladder, self.targets)
            except CannotEnforce as error:
                return error


def _log(ladder: Ladder) -> None:
    if ladder.rung is Rung.NONE:
        logger.warning("no sandbox can be enforced here: %s", ladder.problem)
        return
    assert ladder.launcher is not None  # the rung has one
    logger.info("sandboxes are built by bubblewrap %s: %s", ladder.launcher.version, ladder.rung)
    for gap in (*([ladder.problem] if ladder.problem else ()), *ladder.gaps):
        logger.info("sandbox: %s", gap)


def _has_patterns(context: SandboxContext) -> bool:
    profile = context.permissions
    return (
        isinstance(profile, ManagedProfile)
        and isinstance(profile.file_system, RestrictedFiles)
        and any(isinstance(entry.path, GlobPath) for entry in profile.file_system.entries)
    )


@cache
def shared_sandboxes() -> Sandboxes:
    """Those of this process: what they make on the disk is shared by all its sessions."""
    return Sandboxes()
