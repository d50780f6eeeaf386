"""
Reads the settings of `holdfast-sh` from a file and from the caller's environment.

The file is `sh.toml` in the home of Holdfast, or the one that `HOLDFAST_SH_CONFIG` names. An
environment variable overrides each setting: `HOLDFAST_SH_SANDBOX` for `sandbox`, and so on.
"""

import os
import stat
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.base.errors import InvalidParams
from holdfast.environments.config.home import holdfast_home
from holdfast.environments.limits import Limits
from holdfast.wire.protocol.limits import LIMITS

__all__ = ["InvalidSettings", "ShellSettings", "read_settings"]

# Bytes of a settings file.
_LARGEST_FILE = 1 << 20

_LIMITS = {limit.name for limit in LIMITS}


class InvalidSettings(Exception):
    """A setting is invalid; the text names it and its file or variable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellSettings:
    """Settings of one shell."""

    shell: str = "/bin/bash"
    """Path of the real shell."""
    sandbox: str = "workspace-write"
    """Name of a profile or path of a profile file; `none` for no sandbox."""
    sandbox_write: tuple[str, ...] = ()
    """Further paths that the sandbox permits writing; relative ones are in the workspace."""
    workspace: str | None = None
    """Path of the directory that `workspace-write` permits writing; None for the caller's."""
    environment: str = "local"
    """Environment of commands: `local`, or a name in `environments.toml`."""
    policy: str | None = None
    """Approval policy; None if commands need no approval."""
    rules: tuple[str, ...] = ()
    """Paths of files with rules."""
    limits: Limits = Limits()  # noqa: RUF009 - frozen
    """Limits of each command."""


def read_settings(environ: Mapping[str, str]) -> ShellSettings:
    """
    Return the settings for a caller with these environment variables.

    Raises:
        InvalidSettings: The file cannot be read, or a setting is invalid.
    """
    named = environ.get("HOLDFAST_SH_CONFIG", "")
    if named and not os.path.isabs(named):
        raise InvalidSettings(f"HOLDFAST_SH_CONFIG: `{named}` must be a full path")
    path = named or str(holdfast_home(environ) / "sh.toml")
    found = _read_file(path, must_exist=bool(named))
    limits = found.pop("limits", {})
    if not isinstance(limits, dict):
        raise InvalidSettings(f"{path}: `limits` is a table, not {limits!r}")
    unknown = [*(set(found) - _SETTINGS), *(f"limits.{name}" for name in set(limits) - _LIMITS)]
    if unknown:
        raise InvalidSettings(f"{path}: unknown setting `{min(unknown)}`")
    for name in _SETTINGS:
        value = environ.get(f"HOLDFAST_SH_{name.upper()}", "")
        if value:
            found[name] = value.split(":") if name in _LISTS else value
    limits_from = path
    for name in _LIMITS:
        value = environ.get(f"HOLDFAST_SH_LIMIT_{name.upper()}", "")
        if value:
            limits[name] = _number(f"HOLDFAST_SH_LIMIT_{name.upper()}", value)
            limits_from = "HOLDFAST_SH_LIMIT_…"
    return _checked(path, found, limits, limits_from)


_LISTS = ("rules", "sandbox_write")
_SETTINGS = {"shell", "sandbox", "workspace", "environment", "policy", *_LISTS}


def _read_file(path: str, *, must_exist: bool) -> dict[str, object]:
    try:
        with open(path, "rb", opener=_open_at_once) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise InvalidSettings(f"{path}: not a file")
            content = file.read(_LARGEST_FILE + 1)
        if len(content) > _LARGEST_FILE:
            raise InvalidSettings(f"{path}: larger than {_LARGEST_FILE} bytes")
        return tomllib.loads(content.decode())
    except FileNotFoundError:
        if must_exist:
            raise InvalidSettings(f"{path}: there is no such file") from None
        return {}
    except OSError as error:
        raise InvalidSettings(f"{path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError):
        # Without the decoder's message, which may quote secrets of another file.
        raise InvalidSettings(f"{path}: not a TOML file") from None


def _open_at_once(path: str, flags: int) -> int:
    """Open a file with O_NONBLOCK: a FIFO without a writer would block all other callers."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)


def _paths(path: str, name: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not all(isinstance(one, str) for one in value):
        raise InvalidSettings(f"{path}: `{name}` is a list of paths, not {value!r}")
    return tuple(value)


def _number(name: str, text: str) -> int | float:
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        raise InvalidSettings(f"{name} is {text!r}, it must be a number") from None


def _checked(
    path: str, found: dict[str, object], limits: dict[str, object], limits_from: str
) -> ShellSettings:
    rules, write = (_paths(path, name, found.pop(name, ())) for name in _LISTS)
    for name, value in found.items():
        if not isinstance(value, str) or not value:
            raise InvalidSettings(f"{path}: `{name}` is a text, not {value!r}")
    for rule in rules:
        if not os.path.isabs(rule):
            raise InvalidSettings(f"rules: `{rule}` must be a full path")
    try:
        made = Limits(**limits)  # type: ignore[arg-type]  # checked by `on_wire`
        made.on_wire()
    except (InvalidParams, TypeError) as error:
        raise InvalidSettings(f"{limits_from}: {error}") from error
    if made.output is not None:
        raise InvalidSettings("the limit `output` cannot be kept: the shell writes by itself")
    settings = ShellSettings(
        rules=rules,
        sandbox_write=write,
        limits=made,
        **found,  # type: ignore[arg-type]
    )
    is_file = "/" in settings.sandbox or settings.sandbox.endswith(".toml")
    # Relative paths are refused: the server has another working directory, and a command
    # could write a file in its own.
    for name, value in (("shell", settings.shell), *([("sandbox", settings.sandbox)] * is_file)):
        if not os.path.isabs(value):
            raise InvalidSettings(f"{name}: `{value}` must be a full path")
    # It would execute itself for ever. Links to it are called `bash`, as in `PATH` for Gemini CLI.
    if os.path.basename(os.path.realpath(settings.shell)) == "holdfast-sh":
        raise InvalidSettings(f"shell: `{settings.shell}` is holdfast-sh itself: name another one")
    workspace = settings.workspace
    if workspace is not None and not (os.path.isabs(workspace) and os.path.isdir(workspace)):
        raise InvalidSettings(f"workspace: `{workspace}` must be the full path of a directory")
    if is_file and not os.path.isfile(settings.sandbox):
        raise InvalidSettings(f"sandbox: `{settings.sandbox}` is no file")
    return settings
