"""
Registry of this user's servers on this machine, with their tokens.

A server that listens writes a file into a directory that only its user can enter. Clients of the
user find the token of a server there, by its URL. Sandboxes hide the directory, the secret files it
names, and the sockets. A command that could use those could run anything outside its sandbox.

Servers may be started with different variables, and so use different directories. A server with an
unusual directory records that path in one of the user's usual ones, so that every sandbox of the
user finds it.

A server holds a lock on its file as long as it lives. A file that can be locked is stale, and
the next server that starts removes it.
"""

import errno
import fcntl
import hashlib
import json
import os
import re
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import contextmanager, suppress
from functools import lru_cache
from itertools import product
from typing import Final, NamedTuple

from holdfast.base.errors import HoldfastError
from holdfast.base.own_files import database_home, settings_folders, token_files, user_home
from holdfast.base.token_file import read_tokens
from holdfast.base.url_schemes import socket_path

__all__ = [
    "Listed",
    "Reachable",
    "UnusableRuntimeDirectory",
    "find_token",
    "hide",
    "list_server",
    "make_runtime_directories",
    "reachable",
    "runtime_directory",
]

# Largest size of a file in bytes; enough for a URL, a token and the paths of a few secrets.
_LARGEST: Final = 16 << 10

# Largest number of files read; the bound keeps a full directory from slowing down every start.
_MOST: Final = 256

# Seconds after which an unchanged mtime of the directory proves that nothing was added. The
# clock of a file system is coarse: two changes may carry the same time stamp.
_SETTLED: Final = 1.0

# The address in a URL. One with a user name is not matched, since `@` may disguise the host.
_ADDRESS: Final = re.compile(
    r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<host>[A-Za-z0-9.-]+)):(?P<port>[0-9]{1,5})"
)


class UnusableRuntimeDirectory(HoldfastError):
    """The directory cannot be created, or others can enter it; the text names it."""


class Reachable(NamedTuple):
    """Ways for a sandboxed command to leave its sandbox."""

    secrets: tuple[str, ...] = ()
    """Directories and files that no sandboxed command may read."""
    sockets: tuple[str, ...] = ()
    """Socket files that servers listen on."""
    open_urls: tuple[str, ...] = ()
    """Servers on the network of this machine that require no token."""
    settings: tuple[str, ...] = ()
    """Directories to hide with the secrets in them, unless a profile names a path there."""


# -- the directory


def runtime_directory(environ: Mapping[str, str]) -> str:
    """
    Return the path of our directory in the user's runtime directory; it may be missing.

    Without a runtime directory, as for root in a container, it is below the home.
    """
    return _folders(environ)[0]


def make_runtime_directories(environ: Mapping[str, str]) -> None:
    """Create the directories that servers of this user may use, if that is possible."""
    # A sandbox can only hide an existing directory. Without it, a command that runs now would see
    # the token of a server that starts later.
    for path in dict.fromkeys((*_folders(environ), *_usual_folders())):
        with suppress(UnusableRuntimeDirectory):
            os.close(_open_folder(path))


def _folders(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return our directory first, then those that servers with other variables may use."""
    # Cached for a second, since every sandbox asks.
    return _folders_at(
        int(time.monotonic()),
        environ.get("XDG_RUNTIME_DIR", ""),
        environ.get("XDG_STATE_HOME", ""),
        environ.get("HOME", ""),
    )


@lru_cache(maxsize=64)
def _folders_at(second: int, runtime: str, state: str, home: str) -> tuple[str, ...]:
    bases = [runtime, f"/run/user/{os.geteuid()}"]
    private = [base for base in bases if base.startswith("/") and _is_private_base(base)]
    if not state.startswith("/"):
        state = f"{home or os.path.expanduser('~')}/.local/state"
    # The host name is part of it, since a home may be shared by several machines.
    below_home = f"{os.path.realpath(state)}/holdfast/run-{os.uname().nodename}"
    found = [*(f"{os.path.realpath(base)}/holdfast" for base in private), below_home]
    return tuple(dict.fromkeys(found))


def _usual_folders() -> tuple[str, ...]:
    """Return the directories of servers that are started without special variables."""
    return _usual_folders_at(int(time.monotonic()), database_home())


@lru_cache(maxsize=2)
def _usual_folders_at(second: int, home: str) -> tuple[str, ...]:
    found = _folders({"HOME": home})
    # Some users, such as `nobody`, have no home. Their servers find each other in `/tmp`.
    shared = f"/tmp/holdfast-{os.geteuid()}"  # noqa: S108 - refused unless private
    return found if _is_private_base(home) else (*found[:-1], shared)


def _is_private_base(path: str) -> bool:
    """Return True if a directory belongs to this user."""
    # `su` keeps `XDG_RUNTIME_DIR` of the previous user.
    try:
        about = os.stat(path)
    except OSError:
        return False
    return (
        stat.S_ISDIR(about.st_mode)
        and about.st_uid == os.geteuid()
        and not about.st_mode & 0o022
        and os.access(path, os.W_OK | os.X_OK)
    )


def _open_folder(path: str) -> int:
    """
    Create the directory if it is missing, and open it.

    Raises:
        UnusableRuntimeDirectory: It cannot be created, or others can enter it.
    """
    try:
        with suppress(FileExistsError):
            _make_parents(os.path.dirname(path))
            os.mkdir(path, 0o700)
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        is_other = error.errno == errno.ENOTDIR
        reason = "it is not a directory, or a symbolic link" if is_other else error.strerror
        raise UnusableRuntimeDirectory(
            f"cannot use the directory {path} for the server's token: {reason}",
            errno=error.errno,
            path=path,
        ) from error
    # Checked on the descriptor: a path could be exchanged between check and use.
    about = os.fstat(descriptor)
    if about.st_uid != os.geteuid() or about.st_mode & 0o077:
        os.close(descriptor)
        raise UnusableRuntimeDirectory(
            f"cannot use the directory {path} for the server's token:"
            f" it is not private to this user (uid {about.st_uid},"
            f" mode {stat.S_IMODE(about.st_mode):04o})",
            path=path,
        )
    return descriptor


def _make_parents(path: str) -> None:
    """
    Create the parents of our directory, but never a missing home.

    Raises:
        FileNotFoundError: There is no such home, or no state directory.
    """
    missing = []
    while not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path)
    if any(os.path.basename(folder) not in (".local", "state", "holdfast") for folder in missing):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), missing[-1])
    for folder in reversed(missing):
        with suppress(FileExistsError):
            os.mkdir(folder, 0o700)


# -- what a server records


class _LockedFile:
    """A file in a runtime directory, locked by this process."""

    def __init__(self, folder: int, name: str, file: int, path: str) -> None:
        self.path = path
        self._folder = folder
        self._name = name
        self._file = file

    def remove(self) -> None:
        """Remove the file, unless another server has replaced it."""
        with suppress(OSError):
            about = os.stat(self._name, dir_fd=self._folder, follow_symlinks=False)
            if os.path.samestat(about, os.fstat(self._file)):
                os.unlink(self._name, dir_fd=self._folder)
        os.close(self._file)
        os.close(self._folder)


class Listed:
    """The registration of a server; ends with `remove` or with the process."""

    def __init__(self, entry: _LockedFile, pointer: _LockedFile | None) -> None:
        self.path = entry.path
        """The file of the registration."""
        self._entries = (entry,) if pointer is None else (pointer, entry)

    def remove(self) -> None:
        """Remove the registration, unless another server has replaced it."""
        for entry in self._entries:
            entry.remove()


def list_server(
    url: str,
    environ: Mapping[str, str],
    *,
    token: str | None = None,
    token_file: str | None = None,
    secrets: tuple[str, ...] = (),
    is_open: bool = False,
) -> Listed:
    """
    Register a server, so that clients of this user find its token and sandboxes hide it.

    Args:
        url: Its address.
        environ: Names the directory.
        token: The token that clients need.
        token_file: The file that holds the token, instead.
        secrets: Other files that no sandboxed command may read.
        is_open: True if it requires no token.

    Raises:
        UnusableRuntimeDirectory: The file cannot be written.
    """
    path = runtime_directory(environ)
    about = {
        "url": url,
        "token": token,
        "tokenFile": None if token_file is None else os.path.abspath(token_file),
        "secrets": _names(secrets),
        "open": is_open,
    }
    entry = _write(path, _name(_key(url)), about)
    return Listed(entry, _point_to(path, _key(url)))


def _names(secrets: tuple[str, ...]) -> list[str]:
    """Return secret files both as they are named and as they are now: links may change later."""
    paths = (path for one in secrets for path in (os.path.abspath(one), os.path.realpath(one)))
    return list(dict.fromkeys(paths))


def _point_to(path: str, key: str) -> _LockedFile | None:
    """Leave the path of an unusual directory where sandboxes of other servers look for it."""
    usual = _usual_folders()
    if path in usual:
        return None
    for place in usual:
        with suppress(UnusableRuntimeDirectory):
            return _write(place, _name(f"{path} {key}"), {"folder": path})
    return None


def _write(path: str, name: str, about: Mapping[str, object]) -> _LockedFile:
    """
    Write and lock a file in a runtime directory.

    Raises:
        UnusableRuntimeDirectory: The file cannot be written.
    """
    folder = _open_folder(path)
    beside = f".{name}.{os.urandom(8).hex()}"
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    file = -1
    try:
        _remove_abandoned(folder)
        file = os.open(beside, flags, 0o600, dir_fd=folder)
        fcntl.flock(file, fcntl.LOCK_EX)
        os.write(file, json.dumps(about).encode())
        # An older file is stale, since we have its address. The rename is atomic and happens
        # under the lock, so that a reader never takes this server for a dead one.
        os.rename(beside, name, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError as error:
        with suppress(OSError):
            os.unlink(beside, dir_fd=folder)
        if file >= 0:
            os.close(file)
        os.close(folder)
        raise UnusableRuntimeDirectory(
            f"cannot write the server's token into {path}: {error.strerror}",
            errno=error.errno,
            path=path,
        ) from error
    return _LockedFile(folder, name, file, f"{path}/{name}")


def _remove_abandoned(folder: int) -> None:
    """Remove the files of servers that were killed."""
    for name in os.listdir(folder)[:_MOST]:
        try:
            file = os.open(
                name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder
            )
        except OSError:
            continue
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # A file that is being written is unlocked and empty for a moment.
            if os.fstat(file).st_size or time.time() - os.fstat(file).st_mtime > 60:
                os.unlink(name, dir_fd=folder)
        except OSError:
            continue
        finally:
            os.close(file)


# -- what clients and sandboxes read


def find_token(url: str, environ: Mapping[str, str]) -> str | None:
    """
    Return the token of a server of this user on this machine; None if there is no such server.

    Raises:
        BadTokenFile: The server has its token in a file that can no longer be used.
    """
    # Several directories: a server started at boot had no runtime directory before the login.
    for folder, key in product(_folders(environ), _keys(url)):
        about = _read(folder, _name(key))
        if about is None or not about["alive"]:
            continue
        token = about.get("token")
        if isinstance(token, str) and token.isascii() and token.isprintable():
            return token
        path = about.get("tokenFile")
        if isinstance(path, str):
            return read_tokens(path)[0].token
    return None


class _Hiding:
    """Secrets and sockets of this process."""

    def __init__(self, what: Reachable) -> None:
        self.what = what._replace(secrets=tuple(_names(what.secrets)))

    def follow(self) -> Reachable:
        """Return the paths, plus the current and earlier targets of links."""
        # What was in use before a renewal may still be valid.
        known = self.what.secrets
        new = [real for path in known if (real := os.path.realpath(path)) not in known]
        if new:
            self.what = self.what._replace(secrets=(*known, *dict.fromkeys(new)))
        return self.what


# Replaced as a whole, never changed: other threads read it.
_own: tuple[_Hiding, ...] = ()


@contextmanager
def hide(what: Reachable) -> Iterator[None]:
    """Hide paths of this process from commands in its sandboxes, for the duration of the block."""
    global _own
    hiding = _Hiding(what)
    _own = (*_own, hiding)
    try:
        yield
    finally:
        _own = tuple(one for one in _own if one is not hiding)


class _Known(NamedTuple):
    """Content of some runtime directories, with the state they were read in."""

    changed: tuple[int, ...]
    """Times of the last change of each directory; 0 for a missing one."""
    folders: tuple[str, ...]
    """All directories, including those that entries of the others name."""
    listed: tuple[dict[str, object], ...]


_known: dict[tuple[str, ...], _Known] = {}

# Combinations of variables to cache; the callers of a server use only a few.
_MAX_KNOWN: Final = 64


def reachable(environ: Mapping[str, str], *others: Mapping[str, str]) -> Reachable:
    """
    Return what sandboxes have to hide or to report: our own paths, and those of listed servers.

    They include files in which users store tokens, such as `environments.toml`. Links to secret
    files are followed at each call: they may lead elsewhere after a renewal. A directory that
    exists for such files alone is hidden with them.

    Args:
        environ: Variables of this process.
        others: Variables of other processes, which may name further directories.
    """
    places = (folder for each in (environ, *others) for folder in _folders(each))
    known = _look(tuple(dict.fromkeys((*places, *_usual_folders()))))
    every = [*(one.follow() for one in _own), *map(_reachable_by, known.listed)]
    secrets = {os.path.realpath(path) for one in every for path in one.secrets}
    written = {path for each in (environ, *others) for path in token_files(each)}
    secrets.update(os.path.realpath(path) for path in written if _is_kind(path, stat.S_ISREG))
    folders = {path for each in (environ, *others) for path in settings_folders(each)}
    homes = {str(user_home(each)) for each in (environ, *others)} | {database_home()}
    alone = {path for path in map(os.path.dirname, secrets) if _has_only(path, secrets)}
    # Commands look for their settings in a home, so it stays visible even if it is otherwise empty.
    folders |= alone - {os.path.realpath(path) for path in homes if path}
    return Reachable(
        tuple(sorted(secrets.union(known.folders))),
        tuple(sorted({path for one in every for path in one.sockets})),
        tuple(sorted({url for one in every for url in one.open_urls})),
        # A file that replaces a hidden one would be visible: the kernel unmounts what hides the old
        # one.
        tuple(sorted(real for path in folders if _holds(real := os.path.realpath(path), secrets))),
    )


def _has_only(folder: str, files: Set[str]) -> bool:
    """Return True if a directory contains some of these files and nothing else."""
    try:
        if os.stat(folder).st_mode & stat.S_IWOTH:
            # Such as an empty `/tmp`, which commands need.
            return False
        with os.scandir(folder) as entries:
            # Stops at the first other entry, of perhaps thousands.
            return all(
                entry.path in files and entry.is_file(follow_symlinks=False) for entry in entries
            )
    except OSError:
        return False


def _holds(folder: str, files: Set[str]) -> bool:
    return folder in map(os.path.dirname, files)


def _look(folders: tuple[str, ...]) -> _Known:
    """Return the servers that are listed in some directories, and in those they point to."""
    known = _known.get(folders)
    if known is not None and known.changed == tuple(map(_changed, known.folders)):
        return known
    found = dict.fromkeys(folders)
    # A pointer leads to a directory with servers, which has no pointers.
    for about in [about for path in folders for about in _listed(path)]:
        path = about.get("folder")
        if isinstance(path, str) and _is_private_directory(path):
            found[path] = None
    # Taken before reading, so that a change in between is noticed.
    changed = tuple(map(_changed, found))
    fresh = _Known(changed, tuple(found), tuple(one for path in found for one in _listed(path)))
    # A younger time stamp may still hide a later change, so the result is not cached.
    if time.time() - max(changed, default=0) / 1e9 > _SETTLED:
        if len(_known) >= _MAX_KNOWN:
            _known.clear()
        _known[folders] = fresh
    return fresh


def _changed(path: str) -> int:
    try:
        return os.lstat(path).st_mtime_ns
    except OSError:
        return 0


def _is_private_directory(path: str) -> bool:
    """Return True for a directory that a server could have listed itself in."""
    try:
        about = os.lstat(path)
    # ValueError: the path has a NUL.
    except (OSError, ValueError):
        return False
    private = about.st_uid == os.geteuid() and not about.st_mode & 0o077
    return path.startswith("/") and stat.S_ISDIR(about.st_mode) and private


def _listed(path: str) -> Iterator[dict[str, object]]:
    """Yield the servers that are listed in a directory."""
    with suppress(OSError):
        for name in sorted(os.listdir(path))[:_MOST]:
            about = None if name.startswith(".") else _read(path, name)
            if about is not None:
                yield about


def _reachable_by(about: Mapping[str, object]) -> Reachable:
    url, path, more = about.get("url"), about.get("tokenFile"), about.get("secrets")
    files = [path, *(more if isinstance(more, list) else ())]
    # Only existing regular files and sockets: a forged entry could otherwise deny access to a home.
    secrets = tuple(one for one in files if isinstance(one, str) and _is_kind(one, stat.S_ISREG))
    if not isinstance(url, str):
        return Reachable(secrets)
    socket = socket_path(url)
    sockets = (socket,) if socket is not None and _is_kind(socket, stat.S_ISSOCK) else ()
    return Reachable(
        secrets, sockets, (url,) if about.get("open") is True and about["alive"] else ()
    )


def _is_kind(path: str, is_kind: Callable[[int], bool]) -> bool:
    try:
        return path.startswith("/") and is_kind(os.stat(path).st_mode)
    except (OSError, ValueError):
        return False


def _read(folder: str, name: str) -> dict[str, object] | None:
    """
    Return the content of a file; None if it is missing, malformed or accessible to others.

    `alive` is added: False if the server is gone, so that another user may have its port.
    """
    # O_NONBLOCK, so that a FIFO put there does not block the open.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(f"{folder}/{name}", flags)
    except OSError:
        return None
    try:
        about = os.fstat(descriptor)
        private = about.st_uid == os.geteuid() and not about.st_mode & 0o077
        if not stat.S_ISREG(about.st_mode) or not private:
            return None
        content = json.loads(os.read(descriptor, _LARGEST))
        alive = _is_locked(descriptor)
    except (OSError, ValueError):
        return None
    finally:
        os.close(descriptor)
    return {**content, "alive": alive} if isinstance(content, dict) else None


def _is_locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


# -- names of files


def _name(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()[:32]


def _key(url: str) -> str:
    """Return the address of a URL in one spelling, whatever the scheme."""
    if socket_path(url) is not None:
        return url
    rest = url.partition("://")[2]
    found = _ADDRESS.fullmatch(re.split(r"[/?#]", rest, maxsplit=1)[0])
    if found is None:
        return url
    host = found["v6"] or found["host"]
    return f"{host.lower()} {found['port']}"


def _keys(url: str) -> list[str]:
    """Return the keys that the server of a URL may be listed under."""
    # A server that listens on all addresses is listed under `0.0.0.0` or `::`.
    key = _key(url)
    host, _, port = key.partition(" ")
    if host == "localhost":
        return [f"{one} {port}" for one in ("127.0.0.1", "::1", "0.0.0.0", "::")]  # noqa: S104
    if host == "::1" or host.startswith("127."):
        return [key, f"0.0.0.0 {port}", f":: {port}"]
    return [key]
