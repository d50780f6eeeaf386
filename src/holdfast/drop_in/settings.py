"""
What a shell is held to: a file, and variables of the caller that say otherwise.

The file is `sh.toml` in the home of Holdfast, or the one that `HOLDFAST_SH_CONFIG` names.
Each setting has a variable: `HOLDFAST_SH_SANDBOX` for `sandbox`, and so on.
"""

import os
import stat
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields

from holdfast.environments.config.providers import holdfast_home
from holdfast.environments.limits import Limits
from holdfast.errors import InvalidParams

__all__ = ["InvalidSettings", "ShellSettings", "read_settings"]

_LARGEST_FILE = 1 << 20
"""Bytes."""

_LIMITS = {field.name for field in fields(Limits)}


class InvalidSettings(Exception):
    """A setting makes no sense; the text names it and where it comes from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellSettings:
    """What holds for one shell."""

    shell: str = "/bin/bash"
    """The shell that is really run."""
    sandbox: str = "workspace-write"
    """The name of a profile or the path of a file; `none` for no sandbox."""
    environment: str = "local"
    """Where commands run: `local`, or a name in `environments.toml`."""
    policy: str | None = None
    """Who may be asked, and about what; None if commands are not looked at."""
    rules: tuple[str, ...] = ()
    """Files with rules."""
    limits: Limits = Limits()  # noqa: RUF009 - frozen


def read_settings(environ: Mapping[str, str]) -> ShellSettings:
    """
    Read the settings for a caller with these variables.

    Raises:
        InvalidSettings: The file cannot be read, or something in it makes no sense.
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
            found[name] = value.split(":") if name == "rules" else value
    limits_from = path
    for name in _LIMITS:
        value = environ.get(f"HOLDFAST_SH_LIMIT_{name.upper()}", "")
        if value:
            limits[name] = _number(f"HOLDFAST_SH_LIMIT_{name.upper()}", value)
            limits_from = "HOLDFAST_SH_LIMIT_…"
    return _checked(path, found, limits, limits_from)


_SETTINGS = {"shell", "sandbox", "environment", "policy", "rules"}


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
        # Without the decoder's words, which may quote the file.
        raise InvalidSettings(f"{path}: not a TOML file") from None


def _open_at_once(path: str, flags: int) -> int:
    """Open a file without waiting for a writer of a FIFO, for whom all other callers would wait."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)


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
    rules = found.pop("rules", ())
    if not isinstance(rules, list | tuple) or not all(isinstance(rule, str) for rule in rules):
        raise InvalidSettings(f"{path}: `rules` is a list of paths, not {rules!r}")
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
    settings = ShellSettings(rules=tuple(rules), limits=made, **found)  # type: ignore[arg-type]
    is_file = "/" in settings.sandbox or settings.sandbox.endswith(".toml")
    # The server has another working directory, and one of a command could be written to.
    for name, value in (("shell", settings.shell), *([("sandbox", settings.sandbox)] * is_file)):
        if not os.path.isabs(value):
            raise InvalidSettings(f"{name}: `{value}` must be a full path")
    if is_file and not os.path.isfile(settings.sandbox):
        raise InvalidSettings(f"sandbox: `{settings.sandbox}` is no file")
    return settings
