"""
Implementation of `Enforcer` that builds sandboxes with bubblewrap.

`BubblewrapSandbox` prepares all that the commands of one policy share: the arguments of bwrap,
the seccomp filter, the Landlock rules and the mount points on the disk. `launch` starts one.
"""

import atexit
import errno
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cache, partial
from typing import NamedTuple

import msgspec

from holdfast.base.errors import InvalidParams, SpawnFailed
from holdfast.base.own_code import note_program
from holdfast.base.system_text import system_text
from holdfast.engine.linux.device_nodes import OwnDevices, hidden_by_own_devices
from holdfast.engine.linux.mount_namespace import MountNamespace
from holdfast.engine.linux.search_path import candidates
from holdfast.engine.process.executable_lookup import Launch
from holdfast.engine.process.limits.rlimits import has_kernel_limits
from holdfast.engine.process.variables import without_tokens
from holdfast.engine.sandbox.bubblewrap.bwrap_arguments import Plan, plan
from holdfast.engine.sandbox.bubblewrap.bwrap_launch import (
    DESCRIPTORS,
    EMPTY_FD,
    SandboxSpec,
    start_sandboxed,
)
from holdfast.engine.sandbox.bubblewrap.delegated_start import DelegatedStart
from holdfast.engine.sandbox.bubblewrap.filter import filter_program
from holdfast.engine.sandbox.bubblewrap.gaps import policy_gaps
from holdfast.engine.sandbox.bubblewrap.init_program import CallersSession
from holdfast.engine.sandbox.bubblewrap.landlock import ruleset
from holdfast.engine.sandbox.bubblewrap.mount_points import MountPoints
from holdfast.engine.sandbox.bubblewrap.sandboxed_child import SandboxedChild
from holdfast.engine.sandbox.bubblewrap.support import BubblewrapSupport, probe_support
from holdfast.engine.sandbox.enforcer import Enforcer, IsolationLevel
from holdfast.engine.sandbox.policy.policy import PATH_MAX, Policy
from holdfast.wire.protocol.process import Enforcement, ProcessLimits
from holdfast.wire.protocol.sandbox import Access

__all__ = ["BubblewrapEnforcer", "BubblewrapSandbox"]


class OwnMounts(NamedTuple):
    """Devices and mount namespaces of sandboxes in place of the machine's."""

    devices: str | None = None
    """Directory with device nodes for sandboxes; None if the machine's are used."""
    namespace: MountNamespace | None = None
    """Starts bwrap with private mounts and these devices; without it, each sandbox binds them."""


class BubblewrapSandbox:
    """
    A sandbox that starts any number of commands.

    Close it when no more commands are to be started. Its mount points on the disk are kept
    until then, and until the last of its commands has ended.
    """

    def __init__(
        self,
        policy: Policy,
        support: BubblewrapSupport,
        mount_points: MountPoints,
        *,
        gaps: tuple[str, ...] = (),
        own: OwnMounts = OwnMounts(),  # noqa: B008 - immutable
    ) -> None:
        """
        Plan the mounts, and reserve their mount points on the disk.

        Args:
            policy: The files and the network that commands may use.
            support: The capabilities of this machine.
            mount_points: Registry of mount points.
            gaps: Known gaps to report in addition to those of bubblewrap.
            own: Devices and namespaces of a root server.
        """
        made = _plan(policy, support, devices=own.devices)
        known = (*policy_gaps(policy, support.landlock_abi), *support.gaps, *gaps)
        self.enforcement = Enforcement(isolation=support.isolation, gaps=known)
        """Isolation level and known gaps, for all commands of this sandbox."""
        self.reasons = policy.own_reasons
        """Reasons why paths of Holdfast itself are read-only, for denials."""
        self._policy = policy
        self._mount_points = mount_points
        self._to_verify = made.to_verify
        self._own_mounts = own.namespace is not None
        self._needed = [(target.path, target.kind) for target in made.targets]
        self._paths = [path for path, _ in self._needed]
        self._support = support
        self._plan = made
        blanks = range(EMPTY_FD, EMPTY_FD + made.empty_fds)
        self._spec = self._make_spec(made, blanks)
        # The same for starts in a namespace whose `/dev` has the devices already. A rule for
        # another path of `/dev` needs the machine's.
        self._spec_with_devices: SandboxSpec | None = None
        if own.namespace is not None:
            call = partial(_call_in, own.namespace, devices=False)
            self._spec = msgspec.structs.replace(self._spec, call=call)
            if own.devices is not None and not hidden_by_own_devices(policy.rules):
                self._spec_with_devices = msgspec.structs.replace(
                    self._make_spec(_plan(policy, support, devices=None), blanks),
                    call=partial(_call_in, own.namespace, devices=True),
                )
        self._reserve()

    def _make_spec(
        self, made: Plan, blanks: Sequence[int], *, shares_group: bool = False
    ) -> SandboxSpec:
        """Return the description for bwrap; `blanks` are its `/dev/null` descriptors."""
        support, policy, launcher = self._support, self._policy, self._support.launcher
        # A machine that can enforce anything has a launcher.
        assert launcher is not None
        listens = support.listens and policy.network == "restricted"
        options = made.argv(blanks)
        if "--disable-userns" not in launcher.options:
            # An old bwrap does not know it. The seccomp filter also refuses user namespaces.
            options.remove("--disable-userns")
        if not shares_group:
            # Puts the command into another session than bwrap, which then gets none of its signals.
            options = ["--new-session", *options]
        return SandboxSpec(
            launcher=launcher.path,
            options=options,
            empty_fds=made.empty_fds,
            # Mount points are removed after the last process: a command must not lose a mount,
            # and with it a protection, in its last moment.
            tells_end=bool(made.targets),
            filter=filter_program(
                "restricted" if policy.network == "restricted" else "open",
                platform.machine(),
                notifies=listens,
                shares_group=shares_group,
                sets_group_ids=bool(policy.group_directories),
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
        return DESCRIPTORS + self._plan.empty_fds

    def delegate_start(
        self,
        launch: Launch,
        env: Mapping[str, str],
        *,
        numbers: Sequence[int],
        owner: int,
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
            owner: Its pid; the sandbox ends with that process.
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
                self._make_spec(self._plan, numbers[DESCRIPTORS - 1 : -1], shares_group=shared),
                launch,
                env,
                numbers=numbers,
                owner=owner,
                caller=caller,
                limits=limits if limits is not None and has_kernel_limits(limits) else None,
                to_verify=self._to_verify,
                private_mounts=self._own_mounts,
                ended=self.close,
                stand_in=stand_in,
            )
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Release one reservation of the mount points; the last release removes them."""
        self._mount_points.release(self._paths)

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
        self._reserve()
        # One reservation per command, released by its end or by a failed start.
        try:
            child = await start_sandboxed(
                self._spec_for(launch.cwd),
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
        child.reasons, child.cwd = self.reasons, launch.cwd
        return child

    def _spec_for(self, cwd: str) -> SandboxSpec:
        """Return the description for a command with this working directory."""
        # bwrap begins there itself, so the directory has to exist in its namespace.
        if self._spec_with_devices is None or hidden_by_own_devices([cwd]):
            return self._spec
        return self._spec_with_devices

    def _reserve(self) -> None:
        """Reserve the mount points for one more user: this object, or a command."""
        try:
            self._mount_points.reserve(self._needed)
        except OSError as error:
            raise SpawnFailed(
                f"the sandbox's mount points cannot be made: {error}",
                errno=error.errno,
                path=error.filename if isinstance(error.filename, str) else None,
            ) from error

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
            # Most directories of `PATH` lack the program: one check is cheaper than resolving each.
            if not os.path.isfile(os.path.join(folder, program)):
                continue
            listed = os.path.join(os.path.realpath(folder), program)
            found = os.path.realpath(listed)
            if "deny" in map(self._policy.access, (listed, found)):
                continue
            if os.access(found, os.X_OK):
                return candidate
            # As `execvp`: a file that cannot be executed is used only if there is no other, and
            # the init program then reports EACCES.
            refused = refused or candidate
        return refused


class BubblewrapEnforcer(Enforcer):
    """Enforces policies by bubblewrap, a seccomp filter and, where the kernel has it, Landlock."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        """`environ` has the `PATH` to find bwrap in."""
        self._environ = environ
        self._support: BubblewrapSupport | None = None
        self._own = OwnMounts()
        self.mount_points = MountPoints()
        """Mount points on the disk of all its sandboxes."""

    def probe(self) -> BubblewrapSupport:
        support = probe_support(self._environ)
        if support.own_devices:
            self._own = _own_devices(in_namespace=support.own_mounts)
        elif support.own_mounts:
            self._own = OwnMounts(namespace=MountNamespace())
        self._support = support
        if support.launcher is not None:
            note_program(support.launcher.path)
        return support

    def planning(self) -> AbstractContextManager[None]:
        # Within it, the end of another command does not remove mount points that a policy has seen.
        return self.mount_points.planning()

    def open(self, policy: Policy, *, gaps: tuple[str, ...] = ()) -> "BubblewrapSandbox":
        # The caller has probed: it knows that something can be enforced.
        assert self._support is not None
        return BubblewrapSandbox(policy, self._support, self.mount_points, gaps=gaps, own=self._own)


def _plan(policy: Policy, support: BubblewrapSupport, *, devices: str | None) -> Plan:
    return plan(
        policy,
        proc=support.isolation is IsolationLevel.FULL,
        settings=support.settings,
        read_only_proc=support.read_only_proc,
        devices=devices,
    )


def _call_in(namespace: MountNamespace, start: Callable[[], int], *, devices: bool) -> int:
    """
    Call the start of bwrap in a namespace.

    Raises:
        SpawnFailed: The namespace cannot be made. A plain ENOENT would look like the command's.
    """
    try:
        return namespace.call(start, devices=devices)
    except OSError as error:
        text = f"the sandbox's devices cannot be mounted: {system_text(error)}"
        raise SpawnFailed(text, errno=error.errno) from error


@cache
def _own_devices(*, in_namespace: bool) -> OwnMounts:
    """
    Return the device nodes for all sandboxes; they are removed at exit.

    Args:
        in_namespace: True if bwrap can be started in a mount namespace.

    Raises:
        InvalidParams: The nodes cannot be made; without them a sandbox would be too weak.
    """
    try:
        devices = OwnDevices()
        # If this process is killed, its guardian removes them. A forked child must not.
        maker = os.getpid()
        atexit.register(lambda: devices.close() if os.getpid() == maker else None)
        # Root in a container may make devices, but perhaps no namespace.
        namespace = MountNamespace(devices.folder, devices.kept) if in_namespace else None
    except OSError as error:
        raise InvalidParams(f"devices for sandboxes cannot be made: {error}") from error
    return OwnMounts(devices.folder, namespace)
