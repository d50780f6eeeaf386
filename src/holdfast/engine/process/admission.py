"""
Checks of start requests, each made once, in the order of the protocol [start.check-order].

Requests that this server cannot serve are refused with an error. A sandbox that cannot be enforced
becomes a process that fails instead, like one whose launcher fails [sandbox.launcher-fails].
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from holdfast.base.dialect import limits, texts
from holdfast.base.errors import InvalidParams
from holdfast.base.late_import import late_module
from holdfast.engine.process.reachable import can_start_without_waiting
from holdfast.wire.protocol.paths import ForeignPathUri
from holdfast.wire.protocol.process import ShellSnapshotParams, StartParams
from holdfast.wire.protocol.sandbox import DisabledProfile, SandboxContext
from holdfast.wire.protocol.sandbox_directories import check_directories

if TYPE_CHECKING:
    from holdfast.engine.process.snapshots import script
else:
    # Few starts come with a snapshot of a shell.
    script = late_module("holdfast.engine.process.snapshots.script")

__all__ = ["CannotConfine", "CheckedStart", "admit", "is_sandboxed", "refuse_unsupported"]

# Matches the value of a `*_PROXY` variable whose proxy runs on this machine. Scheme and credentials
# are optional there; the rest must not turn it into another host's name.
_LOCAL_PROXY = re.compile(
    r"(?:[a-z0-9+.-]+://)?(?:[^/@]*@)?(?:localhost|127\.0\.0\.1|\[::1\])(?::|/|\Z)", re.IGNORECASE
)


class CannotConfine(NamedTuple):
    """The reason why a command cannot be confined, and the exit status that stands for it."""

    why: str
    exit_code: int = 1


class CheckedStart(NamedTuple):
    """A start whose request has passed all checks, and what they have found."""

    params: StartParams
    argv: Sequence[str]
    """The arguments, wrapped in those of the captured shell once it is available."""
    cwd: str
    """The working directory, as a path of this machine."""
    env: Mapping[str, str]
    """The whole environment."""
    snapshot: ShellSnapshotParams | None
    """The shell whose profile is captured for the command, if there is one."""
    confinement: SandboxContext | CannotConfine | None
    """The profile to enforce, or the reason why none can be; None without one."""
    is_cached: bool
    """True if the start need not wait for a file."""

    @property
    def executed(self) -> Sequence[str]:
        """The arguments with the file to execute first: on a terminal, `arg0` names it."""
        return _executed(self.params)

    def failing(self, cause: CannotConfine) -> "CheckedStart":
        """Return the start of a command that prints the reason and exits with the status."""
        # Arguments, not part of the script: the text may hold quotes and `$`.
        line = 'printf "%s\\n" "$2" >&2; exit "$1"'
        argv = ["/bin/sh", "-c", line, "sh", str(cause.exit_code), cause.why]
        # `arg0` and limits were meant for the command, not for this shell. It is in no sandbox,
        # and a variable such as `LD_PRELOAD` could make it run code of the client.
        params = msgspec.structs.replace(self.params, arg0=None, limits=None)
        return self._replace(params=params, argv=argv, env={})


def admit(
    params: StartParams,
    check_free: Callable[[str], None],
    make_environment: Callable[[StartParams], Mapping[str, str]],
) -> CheckedStart:
    """
    Perform all checks of a request.

    Args:
        params: The request.
        check_free: Raises `DuplicateProcess` if its id is taken.
        make_environment: Returns the environment of the process.

    Raises:
        InvalidParams: The request cannot be served.
        DuplicateProcess: Its id is taken.
    """
    cwd = refuse_unsupported(params)
    snapshot = params.shell_snapshot
    if snapshot is not None:
        script.check_scope(snapshot)
    if not params.argv:
        raise InvalidParams(texts.ARGV_EMPTY)
    check_free(params.process_id)
    if snapshot is not None and not script.applies(params.argv, snapshot):
        snapshot = None
    env = make_environment(params)
    is_cached = can_start_without_waiting(_executed(params), cwd, env, tty=params.tty)
    confinement: SandboxContext | CannotConfine | None = None
    if is_sandboxed(params):
        confinement = params.sandbox
    # Without a sandbox the flag has no effect.
    if params.enforce_managed_network and params.sandbox is not None:
        confinement = _refuse_managed_network(env)
    return CheckedStart(params, params.argv, cwd, env, snapshot, confinement, is_cached)


def refuse_unsupported(params: StartParams) -> str:
    """
    Refuse a start that asks for a protection this server does not have.

    Ignoring such a request is never an option: the client would believe that the command is
    protected.

    Returns:
        The working directory as a path of this machine.

    Raises:
        InvalidParams: It is a path of another system, or the named protection is missing.
    """
    if params.network_proxy is not None:
        raise InvalidParams(texts.NO_PROXIES)
    try:
        cwd = params.cwd.native
    except ForeignPathUri as error:
        raise InvalidParams(texts.foreign_cwd(params.cwd, error)) from None
    if params.sandbox is not None:
        if params.sandbox.windows_sandbox_level == "mxc":
            raise InvalidParams(texts.NO_MXC)
        if not is_sandboxed(params):
            # Enforced profiles are checked later, when their entries are resolved.
            check_directories(params.sandbox)
    if params.managed_network is not None:
        raise InvalidParams(texts.NO_MANAGED_NETWORK)
    return cwd


def is_sandboxed(params: StartParams) -> bool:
    """Return True if the start has a profile to enforce; `disabled` profiles ask for nothing."""
    sandbox = params.sandbox
    return sandbox is not None and not isinstance(sandbox.permissions, DisabledProfile)


def _executed(params: StartParams) -> Sequence[str]:
    if not params.tty or params.arg0 is None:
        return params.argv
    return [params.arg0, *params.argv[1:]]


def _refuse_managed_network(env: Mapping[str, str]) -> CannotConfine:
    """
    Return the reason not to start a command that may reach the network through a proxy only.

    Without a local proxy in its variables, the command fails: a server starts no proxy itself
    [sandbox.program-missing].

    Raises:
        InvalidParams: A local proxy is configured, which this server cannot connect a sandbox to.
    """
    for name, value in env.items():
        # Programs read these variables in upper and in lower case.
        if name.upper().endswith("_PROXY") and _LOCAL_PROXY.match(value):
            raise InvalidParams(texts.NO_MANAGED_NETWORK)
    return CannotConfine(texts.NO_PROXY_VARIABLES, limits.NO_PROXY_STATUS)
