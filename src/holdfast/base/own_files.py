"""
Files that Holdfast reads and writes for itself: settings, rules, state, installed programs.

Each sandbox makes them read-only. A command could otherwise decide what the next command of the
user may do, for example with an `mcp.toml` that asks for no sandbox.
"""

import os
import pwd
from collections.abc import Iterator, Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import NamedTuple

from holdfast.base.dialect import names

__all__ = [
    "OwnFiles",
    "cache_home",
    "database_home",
    "holdfast_home",
    "keep_unchanged",
    "own_files",
    "settings_folders",
    "token_files",
    "user_home",
]


class OwnFiles(NamedTuple):
    """Absolute paths; links are not resolved."""

    folders: tuple[str, ...]
    """Directories, which sandboxes create if they are missing."""
    files: tuple[str, ...]
    """Files elsewhere that options or programs name."""
    around: tuple[str, ...] = ()
    """Directories of such files, which a profile may still make writable by name."""


def holdfast_home(environ: Mapping[str, str]) -> Path:
    """Return our home: `$HOLDFAST_HOME`, else `holdfast` in the user's configuration directory."""
    home = environ.get("HOLDFAST_HOME")
    return Path(home) if home else _base(environ, "XDG_CONFIG_HOME", ".config") / "holdfast"


def cache_home(environ: Mapping[str, str]) -> Path:
    """Return the directory for files that can be made again."""
    return _base(environ, "XDG_CACHE_HOME", ".cache") / "holdfast"


def _base(environ: Mapping[str, str], variable: str, below_home: str) -> Path:
    given = environ.get(variable, "")
    # The XDG specification says to ignore a relative one.
    return Path(given) if os.path.isabs(given) else user_home(environ) / below_home


def user_home(environ: Mapping[str, str]) -> Path:
    """Return the home directory that the variables name, else that of the user database."""
    return Path(environ.get("HOME") or os.path.expanduser("~"))


# Files named by options and by programs. Replaced as a whole, never changed: threads read it.
_named = OwnFiles((), ())

# Largest number of names kept. A program names a few; the bound is for one that generates them.
_MOST = 512


def keep_unchanged(path: str | os.PathLike[str], *, folder: bool = False) -> None:
    """
    Make a file of settings, rules or logs read-only in each sandbox from now on.

    Args:
        path: The file.
        folder: Protect its directory as well, unless a profile makes exactly that one writable. For
            a file that is replaced, or that may be missing.
    """
    global _named
    found = os.path.abspath(path)
    files, around = _named.files, _named.around
    if not folder or os.path.lexists(found):
        files = _added(files, found)
    if folder:
        around = _added(around, os.path.dirname(found))
    _named = OwnFiles((), files, around)


def _added(known: tuple[str, ...], path: str) -> tuple[str, ...]:
    return known if path in known else (*known, path)[-_MOST:]


_VARIABLES = (
    "HOLDFAST_HOME",
    "HOLDFAST_SH_HOME",
    "XDG_CONFIG_HOME",
    "XDG_STATE_HOME",
    "XDG_CACHE_HOME",
    "HOME",
)


def own_files(environ: Mapping[str, str]) -> OwnFiles:
    """Return the files of Holdfast for processes with these variables, and for those without."""
    folders = _folders(tuple([environ.get(name, "") for name in _VARIABLES]))
    return _named._replace(folders=folders)


@lru_cache(maxsize=16)
def _folders(values: tuple[str, ...]) -> tuple[str, ...]:
    environ = dict(zip(_VARIABLES, values, strict=True))
    found: list[Path] = []
    # The next command may be started with other variables, from a login shell or by cron.
    plain = {"HOME": environ["HOME"]}
    for variables in (environ, plain, {"HOME": database_home()}):
        home = user_home(variables)
        found += (
            holdfast_home(variables),
            _base(variables, "XDG_CONFIG_HOME", ".config") / "holdfast",
            _base(variables, "XDG_STATE_HOME", ".local/state") / "holdfast",
            cache_home(variables),
            # Programs that clients install by ssh.
            home / ".local/share/holdfast",
        )
    shell = environ["HOLDFAST_SH_HOME"]
    if shell:
        found.append(Path(shell))
    # Without a home, `expanduser` leaves the tilde where it is.
    absolute = (os.path.abspath(path) for path in found if path.parts[:1] != ("~",))
    return tuple(dict.fromkeys(path for path in absolute if path != "/"))


def settings_folders(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the directories of settings that have nothing else in them; they may be missing."""
    # `$HOLDFAST_HOME` may be a project or an installation, which commands need.
    plain = {"HOME": environ.get("HOME", "")}
    found = [_base(each, "XDG_CONFIG_HOME", ".config") / "holdfast" for each in (environ, plain)]
    return tuple(dict.fromkeys(map(str, found)))


def token_files(environ: Mapping[str, str]) -> Iterator[str]:
    """Yield the files in which users store tokens of servers; they may be missing."""
    for folder in own_files(environ).folders:
        yield f"{folder}/environments.toml"
    # Another client's, which has the token of a server of ours that it uses.
    folder = names.HOME_DIRECTORY
    homes = {user_home(environ) / folder, Path(database_home()) / folder}
    for home in (environ.get(names.HOME_VARIABLE, ""), *map(str, homes)):
        if os.path.isabs(home):
            yield f"{home}/environments.toml"


@cache
def database_home() -> str:
    """Return the home of this user in the user database; an empty string without an entry."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_dir
    except KeyError:
        return ""
