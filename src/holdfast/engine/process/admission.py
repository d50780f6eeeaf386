"""
Checks that refuse start requests this server cannot serve.

Most are answered with an error. A sandbox that cannot be enforced becomes a process that fails
instead: the real server starts its launcher, which fails [sandbox.launcher-fails].
"""

import re
from collections.abc import Mapping

from holdfast.base.errors import CannotEnforce, InvalidParams
from holdfast.wire.protocol.codes import NO_MXC
from holdfast.wire.protocol.paths import ForeignPathUri
from holdfast.wire.protocol.process import StartParams
from holdfast.wire.protocol.sandbox import DisabledProfile
from holdfast.wire.protocol.sandbox_folders import check_folders

__all__ = [
    "NO_PROXY",
    "failing_command",
    "is_sandboxed",
    "manages_network",
    "native_cwd",
    "refuse_managed_network",
    "refuse_unsupported",
]

_NO_MANAGED_NETWORK = "managed networking is not supported by this exec-server"

# Exit status of the real server's launcher if a required proxy is not configured.
NO_PROXY = 101

# Matches the value of a `*_PROXY` variable whose proxy runs on this machine. Scheme and
# credentials are optional there; what follows the host must not make it another host's name.
_LOCAL_PROXY = re.compile(
    r"(?:[a-z0-9+.-]+://)?(?:[^/@]*@)?(?:localhost|127\.0\.0\.1|\[::1\])(?::|/|\Z)", re.IGNORECASE
)


def native_cwd(params: StartParams) -> str:
    """
    Return the working directory of a start as a path of this machine.

    Raises:
        InvalidParams: It is a path of another operating system.
    """
    try:
        return params.cwd.native
    except ForeignPathUri as error:
        raise InvalidParams(
            f"cwd URI `{params.cwd}` is not valid on this exec-server host: {error}"
        ) from None


def refuse_unsupported(params: StartParams) -> None:
    """
    Refuse a start that asks for a protection this server does not have.

    Ignoring such a request is never an option: the client would believe that the command is
    protected.

    Raises:
        InvalidParams: The message names the missing protection.
    """
    if params.network_proxy is not None:
        raise InvalidParams("network proxies are not supported by this exec-server")
    # Only for its error, whose position among the checks is part of the protocol.
    native_cwd(params)
    if params.sandbox is not None:
        if params.sandbox.windows_sandbox_level == "mxc":
            raise InvalidParams(NO_MXC)
        if not is_sandboxed(params):
            # Enforced profiles are checked later, when their entries are resolved.
            check_folders(params.sandbox)
    if params.managed_network is not None:
        raise InvalidParams(_NO_MANAGED_NETWORK)


def is_sandboxed(params: StartParams) -> bool:
    """Return True if the start has a profile to enforce; `disabled` profiles ask for nothing."""
    sandbox = params.sandbox
    return sandbox is not None and not isinstance(sandbox.permissions, DisabledProfile)


def manages_network(params: StartParams) -> bool:
    """Return True if a sandboxed start may reach the network through a proxy only."""
    # Without a sandbox the flag has no effect in the real server either.
    return params.enforce_managed_network and params.sandbox is not None


def refuse_managed_network(env: Mapping[str, str]) -> CannotEnforce:
    """
    Return the error of a command that may reach the network through a proxy only.

    Without a local proxy in its variables, the command fails as it does on the real server,
    which starts no proxy of its own [sandbox.program-missing].

    Raises:
        InvalidParams: A local proxy is configured, which this server cannot connect a sandbox to.
    """
    for name, value in env.items():
        # Programs read these variables in upper and in lower case.
        if name.upper().endswith("_PROXY") and _LOCAL_PROXY.match(value):
            raise InvalidParams(_NO_MANAGED_NETWORK)
    return CannotEnforce(
        "failed to prepare host proxy routing bridge:"
        " managed proxy mode requires proxy environment variables"
    )


def failing_command(text: str, code: int = 1) -> list[str]:
    """Return the argv of a command that prints a text on stderr and exits with a status."""
    # Arguments, not part of the script: the text may hold quotes and `$`.
    return ["/bin/sh", "-c", 'printf "%s\\n" "$2" >&2; exit "$1"', "sh", str(code), text]
