"""
Reader of `environments.toml`, strict about every key.

Other programs read the same file, so there are no additional keys, and its errors have fixed texts
[environments.file.*].
"""

import os
import re
from pathlib import Path
from typing import Final

from holdfast.base.errors import InvalidConfig
from holdfast.base.regular_files import read_regular
from holdfast.base.suggestions import listed
from holdfast.base.system_text import system_text
from holdfast.environments.config.home import FILE_NAME
from holdfast.environments.config.keys import EntryKeys, Unfit, read_keys
from holdfast.environments.config.server_urls import check_token, check_url
from holdfast.environments.config.snapshot import (
    DEFAULT_TIMEOUT,
    LOCAL,
    ConfiguredEnvironments,
    Entry,
    ServerUrl,
    ServingProgram,
)

__all__ = ["FILE_NAME", "check_id", "load", "parse", "read"]

# Maximum size of a file in bytes; a larger one is a mistake.
_LARGEST: Final = 1 << 20

# Maximum length of an id in bytes.
_ID_LIMIT: Final = 64

_ID: Final = re.compile(r"[A-Za-z0-9_-]+")


def load(path: str | os.PathLike[str]) -> ConfiguredEnvironments:
    """
    Read a file.

    Raises:
        InvalidConfig: With the reason in fixed words, and advice where they give none.
    """
    # The path may be a string.
    path = Path(path)
    return parse(read(path), path)


def read(path: Path) -> str:
    """
    Return the text of a file, with its line endings unchanged.

    Raises:
        InvalidConfig: It cannot be read.
    """
    number: int | None = None
    try:
        return read_regular(path, largest=_LARGEST).decode()
    except OSError as error:
        number, detail = error.errno, system_text(error)
        cause: Exception = error
    except UnicodeDecodeError as error:
        detail = "stream did not contain valid UTF-8"
        cause = error
    raise InvalidConfig(
        f"failed to read environment config `{path}`: {detail}",
        errno=number,
        path=str(path),
    ) from cause


def parse(text: str, path: Path) -> ConfiguredEnvironments:
    """
    Parse the text of a file.

    Args:
        text: The whole text.
        path: Path of the file, for errors; relative directories start at its parent.

    Raises:
        InvalidConfig: See `load`.
    """
    try:
        keys = read_keys(text)
    except Unfit as error:
        raise InvalidConfig(
            f"failed to parse environment config `{path}`: {error}", path=str(path)
        ) from error
    entries: dict[str, Entry] = {}
    for written in keys.get("environments", []):
        entry = _entry(written, path.absolute().parent)
        # TOML allows two tables with the same id.
        if entry.id in entries:
            raise InvalidConfig(
                f"environment id `{entry.id}` is duplicated",
                "give each environment a different id",
            )
        entries[entry.id] = entry
    include_local = keys.get("include_local", True)
    # In the order in which names are listed.
    ids = [LOCAL] * include_local + list(entries)
    return ConfiguredEnvironments(
        entries=tuple(entries.values()),
        include_local=include_local,
        default=_default(keys.get("default"), ids),
    )


def check_id(environment_id: str) -> None:
    """
    Refuse an id that a file must not define.

    Raises:
        InvalidConfig: The id is invalid; the message says why.
    """
    if not environment_id:
        raise InvalidConfig("environment id cannot be empty")
    name = f"environment id `{environment_id}`"
    if environment_id != environment_id.strip():
        raise InvalidConfig(f"{name} must not contain surrounding whitespace")
    if environment_id == LOCAL or environment_id.lower() == "none":
        raise InvalidConfig(
            f"{name} is reserved",
            "`local` names this machine and `none` means no environment; choose another id",
        )
    if len(environment_id.encode()) > _ID_LIMIT:
        raise InvalidConfig(f"{name} cannot be longer than {_ID_LIMIT} characters")
    if not _ID.fullmatch(environment_id):
        raise InvalidConfig(f"{name} must contain only ASCII letters, numbers, '-' or '_'")


def _entry(keys: EntryKeys, home: Path) -> Entry:
    check_id(keys["id"])
    name = f"environment `{keys['id']}`"
    if "program" not in keys and not keys.keys().isdisjoint(("args", "env", "cwd")):
        raise InvalidConfig(
            f"{name} args, env, and cwd require program",
            "they apply to a command; a server with a `url` has its own",
        )
    # Both or neither.
    if ("url" in keys) == ("program" in keys):
        raise InvalidConfig(
            f"{name} must set exactly one of url or program",
            "use `url` for a server that listens, `program` for a command that serves on its"
            " standard streams, such as ssh",
        )
    return Entry(
        id=keys["id"],
        transport=_url(keys) if "url" in keys else _program(keys, name, home),
        initialize_timeout=keys.get("initialize_timeout_sec", DEFAULT_TIMEOUT),
    )


def _url(keys: EntryKeys) -> ServerUrl:
    url, token = keys["url"].strip(), keys.get("auth_bearer_token")
    check_url(url)
    if token is not None:
        check_token(url, token)
    timeout = keys.get("connect_timeout_sec", DEFAULT_TIMEOUT)
    return ServerUrl(url=url, bearer_token=token, connect_timeout=timeout)


def _program(keys: EntryKeys, name: str, home: Path) -> ServingProgram:
    for key in ("auth_bearer_token", "connect_timeout_sec"):
        if key in keys:
            raise InvalidConfig(
                f"{name} {key} requires url", "it applies to a server that listens; remove it"
            )
    program = keys["program"].strip()
    if not program:
        raise InvalidConfig(f"{name} program cannot be empty")
    return ServingProgram(
        program=program,
        args=keys.get("args", ()),
        env=keys.get("env", {}),
        cwd=os.path.join(home, keys["cwd"]) if "cwd" in keys else None,
    )


def _default(written: str | None, ids: list[str]) -> str | None:
    if written is None:
        # Without `default`, the default is this machine if it is included.
        return LOCAL if LOCAL in ids else None
    default = written.strip()
    if not default:
        raise InvalidConfig(
            "default environment id cannot be empty",
            'omit `default`, or set `default = "none"` for no default',
        )
    if default.lower() == "none":
        return None
    if default not in ids:
        raise InvalidConfig(
            f"default environment `{default}` is not configured",
            f"configured: {listed(ids)}",
        )
    return default
