"""The argv that runs a script in a shell."""

from holdfast.environments.shell import shell_kind
from holdfast.protocol.handshake import ShellInfo

__all__ = ["shell_argv"]

_POWERSHELL = ("pwsh", "powershell")


def shell_argv(shell: ShellInfo, script: str, *, login: bool) -> list[str]:
    """Return the argv that runs `script` in `shell`, with the start files of a login or not."""
    kind = shell_kind(shell.name)
    if kind in _POWERSHELL:
        return [shell.path, *([] if login else ["-NoProfile"]), "-Command", script]
    if kind == "cmd":
        return [shell.path, "/c", script]
    return [shell.path, "-lc" if login else "-c", script]
