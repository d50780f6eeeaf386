"""
What a start asks for that cannot be given, and what is said then.

Some of it is refused; some is a process that fails, where the real server starts its
launcher and that fails [sandbox.launcher-fails].
"""

import re
from collections.abc import Mapping

from holdfast.errors import CannotEnforce, InvalidParams
from holdfast.protocol.paths import ForeignPathUri
from holdfast.protocol.process import StartParams
from holdfast.protocol.sandbox import DisabledProfile
from holdfast.sandbox.policy.policy import NO_MXC
from holdfast.sandbox.profile.entries import check_places

__all__ = [
    "NO_PROXY",
    "complaint",
    "is_sandboxed",
    "manages_network",
    "native_cwd",
    "refuse_managed_network",
    "refuse_unsupported",
]

_NO_MANAGED_NETWORK = "managed networking is not supported by this exec-server"

NO_PROXY = 101
"""What the real server's launcher exits with where there is none."""

_LOCAL_PROXY = re.compile(
    r"(?:[a-z0-9+.-]+://)?(?:[^/@]*@)?(?:localhost|127\.0\.0\.1|\[::1\])(?::|/|\Z)", re.IGNORECASE
)
"""An address of a proxy on this machine, as variables have it."""


def native_cwd(params: StartParams) -> str:
    """
    The folder to start in.

    Raises:
        InvalidParams: It is a folder of another kind of machine.
    """
    try:
        return params.cwd.native
    except ForeignPathUri as error:
        raise InvalidParams(
            f"cwd URI `{params.cwd}` is not valid on this exec-server host: {error}"
        ) from None


def refuse_unsupported(params: StartParams) -> None:
    """
    Refuse what asks for a protection that is not there.

    A client believes a server that ignores such a request, so ignoring it is
    never an option.

    Raises:
        InvalidParams: With what is missing.
    """
    if params.network_proxy is not None:
        raise InvalidParams("network proxies are not supported by this exec-server")
    native_cwd(params)
    if params.sandbox is not None:
        if params.sandbox.windows_sandbox_level == "mxc":
            raise InvalidParams(NO_MXC)
        if not is_sandboxed(params):
            check_places(params.sandbox)  # others are looked at with their entries
    if params.managed_network is not None:
        raise InvalidParams(_NO_MANAGED_NETWORK)


def is_sandboxed(params: StartParams) -> bool:
    """Whether a profile has to be looked at; one of the type `disabled` asks for nothing."""
    sandbox = params.sandbox
    return sandbox is not None and not isinstance(sandbox.permissions, DisabledProfile)


def manages_network(params: StartParams) -> bool:
    """Whether the network is to be reached through a proxy only; no effect without a sandbox."""
    return params.enforce_managed_network and params.sandbox is not None


def refuse_managed_network(env: Mapping[str, str]) -> CannotEnforce:
    """
    Why a command that is to reach a proxy only cannot run.

    The real server does without the proxy of its own that there could be, so a command
    without one fails there as well, and in the same way [sandbox.program-missing].

    Raises:
        InvalidParams: There is a proxy, and nothing here that leads to it.
    """
    for name, value in env.items():
        if name.upper().endswith("_PROXY") and _LOCAL_PROXY.match(value):
            raise InvalidParams(_NO_MANAGED_NETWORK)
    return CannotEnforce(
        "failed to prepare host proxy routing bridge:"
        " managed proxy mode requires proxy environment variables"
    )


def complaint(text: str, code: int = 1) -> list[str]:
    """A command that does nothing but fail with this on its error output."""
    return ["/bin/sh", "-c", 'printf "%s\\n" "$2" >&2; exit "$1"', "sh", str(code), text]
