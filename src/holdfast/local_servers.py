"""
The servers of this user on this machine: where each is written down, with its token.

A server that listens writes a file into a folder that only its user can enter. Clients of
the user find the token of a server there, by its URL. Sandboxes hide the folder, the
files with secrets that it names, and the sockets: a command that could use them would
have anything run outside of its sandbox.

A server holds a lock on its file as long as it lives. A file that can be locked belongs
to nobody any more, and is removed by the next server that starts.
"""

import errno
import fcntl
import hashlib
import json
import os
import re
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache
from itertools import product
from typing import Final, NamedTuple

from holdfast.errors import HoldfastError
from holdfast.token_file import read_tokens

__all__ = [
    "Listed",
    "Reachable",
    "UnusableRuntimeFolder",
    "find_token",
    "hide",
    "list_server",
    "make_runtime_folder",
    "reachable",
    "runtime_folder",
]

_LARGEST: Final = 16 << 10
"""Bytes of a file."""

_MOST: Final = 256
"""Files that are looked at; a user with more servers than that has other worries."""

_SETTLED: Final = 1.0
"""Seconds after which an unchanged time stamp of a folder means that nothing was added."""

_ADDRESS: Final = re.compile(
    r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<host>[A-Za-z0-9.-]+)):(?P<port>[0-9]{1,5})"
)
"""The address that a client connects to. One with a user in it is none of ours: `@` may mislead."""


class UnusableRuntimeFolder(HoldfastError):
    """The folder cannot be made, or is not only its user's; the text names it."""


class Reachable(NamedTuple):
    """The ways by which a sandboxed command could leave its sandbox."""

    secrets: tuple[str, ...] = ()
    """Folders and files that no command may read."""
    sockets: tuple[str, ...] = ()
    """Socket files that servers listen on."""
    open_urls: tuple[str, ...] = ()
    """Servers on the network of this machine that ask for no token."""


# -- the folder


def runtime_folder(environ: Mapping[str, str]) -> str:
    """
    Return the path of our folder in the user's runtime directory; it may be missing.

    A user without one, such as root in a container, has it below the home.
    """
    return _folders(environ)[0]


def make_runtime_folder(environ: Mapping[str, str]) -> None:
    """
    Make the folder if that is possible.

    A sandbox can only hide what is there: without the folder, a command that is in one by
    now would see the token of a server that starts later.
    """
    with suppress(UnusableRuntimeFolder):
        os.close(_open_folder(runtime_folder(environ)))


def _folders(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return ours first, and then those that servers with other variables may have."""
    names = ("XDG_RUNTIME_DIR", "XDG_STATE_HOME", "HOME")
    return _known_folders(*(environ.get(name, "") for name in names))


@lru_cache(maxsize=8)
def _known_folders(runtime: str, state: str, home: str) -> tuple[str, ...]:
    bases = [runtime, f"/run/user/{os.geteuid()}"]
    private = [base for base in bases if base.startswith("/") and _is_private_base(base)]
    if not state.startswith("/"):
        state = f"{home or os.path.expanduser('~')}/.local/state"
    # A home may be on several machines at once.
    below_home = f"{os.path.realpath(state)}/holdfast/run-{os.uname().nodename}"
    found = [*(f"{os.path.realpath(base)}/holdfast" for base in private), below_home]
    return tuple(dict.fromkeys(found))


def _is_private_base(path: str) -> bool:
    """Return True if a directory is this user's: `su` leaves variables of another one behind."""
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
    Make the folder if it is missing, and open it.

    Raises:
        UnusableRuntimeFolder: It cannot be had, or is not only this user's.
    """
    try:
        with suppress(FileExistsError):
            _make_parents(os.path.dirname(path))
            os.mkdir(path, 0o700)
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        reason = "it is no folder, or a link" if error.errno == errno.ENOTDIR else error.strerror
        raise UnusableRuntimeFolder(
            f"cannot use the folder {path} for the server's token: {reason}",
            errno=error.errno,
            path=path,
        ) from error
    about = os.fstat(descriptor)
    if about.st_uid != os.geteuid() or about.st_mode & 0o077:
        os.close(descriptor)
        raise UnusableRuntimeFolder(
            f"cannot use the folder {path} for the server's token:"
            f" it is not only this user's (uid {about.st_uid},"
            f" mode {stat.S_IMODE(about.st_mode):04o})",
            path=path,
        )
    return descriptor


def _make_parents(path: str) -> None:
    """
    Make the folders that lead to ours, but never a home that is not there.

    Raises:
        FileNotFoundError: There is no such home, or directory of state.
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


# -- what a server writes down


class Listed:
    """A server that is written down, until it is removed or its process ends."""

    def __init__(self, folder: int, name: str, file: int, path: str) -> None:
        self.path = path
        """The file that it is written down in."""
        self._folder = folder
        self._name = name
        self._file = file

    def remove(self) -> None:
        """Take the server off the list, unless another one has its place by now."""
        with suppress(OSError):
            about = os.stat(self._name, dir_fd=self._folder, follow_symlinks=False)
            if os.path.samestat(about, os.fstat(self._file)):
                os.unlink(self._name, dir_fd=self._folder)
        os.close(self._file)
        os.close(self._folder)


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
    Write a server down, so that clients of this user find its token and sandboxes hide it.

    Args:
        url: Where it listens.
        environ: Says where the folder is.
        token: What a client has to show.
        token_file: The file that holds it, instead.
        secrets: Other files that no sandboxed command may read.
        is_open: It asks for no token.

    Raises:
        UnusableRuntimeFolder: It cannot be written down.
    """
    path = runtime_folder(environ)
    folder = _open_folder(path)
    about = {
        "url": url,
        "token": token,
        "tokenFile": None if token_file is None else os.path.realpath(token_file),
        "secrets": [os.path.realpath(one) for one in secrets],
        "open": is_open,
    }
    name = _name(_key(url))
    beside = f".{name}.{os.urandom(8).hex()}"
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    file = -1
    try:
        _remove_abandoned(folder)
        file = os.open(beside, flags, 0o600, dir_fd=folder)
        fcntl.flock(file, fcntl.LOCK_EX)
        os.write(file, json.dumps(about).encode())
        # Whatever is there is of a server that is gone: the address is ours.
        os.rename(beside, name, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError as error:
        with suppress(OSError):
            os.unlink(beside, dir_fd=folder)
        if file >= 0:
            os.close(file)
        os.close(folder)
        raise UnusableRuntimeFolder(
            f"cannot write the server's token into {path}: {error.strerror}",
            errno=error.errno,
            path=path,
        ) from error
    return Listed(folder, name, file, f"{path}/{name}")


def _remove_abandoned(folder: int) -> None:
    """Remove the files of servers that were killed before they could do so."""
    for name in os.listdir(folder)[:_MOST]:
        try:
            file = os.open(
                name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder
            )
        except OSError:
            continue
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # One that is being written has no lock for a moment, and is empty then.
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
        BadTokenFile: The server has its token in a file that cannot be used any more.
    """
    # A server that was started at boot had no runtime directory, which came with the login.
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


_own: tuple[Reachable, ...] = ()
"""The ways to reach this very process. Replaced, never changed: threads read it."""


@contextmanager
def hide(what: Reachable) -> Iterator[None]:
    """Hide something of this process from the commands in its sandboxes, during the block."""
    global _own
    secrets, sockets, open_urls = what
    real = Reachable(tuple(map(os.path.realpath, secrets)), sockets, open_urls)
    _own = (*_own, real)
    try:
        yield
    finally:
        _own = tuple(one for one in _own if one is not real)


class _Known(NamedTuple):
    """The servers that were found, and the folders they were found in."""

    folder: str
    changed: int
    own: tuple[Reachable, ...]
    found: Reachable


_known: _Known | None = None


def reachable(environ: Mapping[str, str]) -> Reachable:
    """Return what sandboxes have to hide or to tell of: this process's own, and what is listed."""
    global _known
    folders, own, known = _folders(environ), _own, _known
    path = folders[0]
    try:
        changed = os.lstat(path).st_mtime_ns
    except OSError:
        changed = 0
    if known is not None and known[:2] == (path, changed) and known.own is own:
        return known.found
    every = [Reachable(secrets=folders), *own, *(_listed(path) if changed else ())]
    found = Reachable(
        *(tuple(sorted({one for each in every for one in each[place]})) for place in range(3))
    )
    if time.time() - changed / 1e9 > _SETTLED:
        _known = _Known(path, changed, own, found)
    return found


def _listed(path: str) -> Iterator[Reachable]:
    """Look at the servers of a folder."""
    with suppress(OSError):
        for name in sorted(os.listdir(path))[:_MOST]:
            about = None if name.startswith(".") else _read(path, name)
            if about is not None:
                yield _reachable_by(about)


def _reachable_by(about: Mapping[str, object]) -> Reachable:
    url, path, more = about.get("url"), about.get("tokenFile"), about.get("secrets")
    files = [path, *(more if isinstance(more, list) else ())]
    # Nothing else is believed: whoever writes such a file could have a home denied.
    secrets = tuple(one for one in files if isinstance(one, str) and _is_kind(one, stat.S_ISREG))
    if not isinstance(url, str):
        return Reachable(secrets)
    socket = url.removeprefix("unix://")
    sockets = (socket,) if socket.startswith("/") and _is_kind(socket, stat.S_ISSOCK) else ()
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
    Return what a file says; None if it is missing, not only this user's or makes no sense.

    `alive` is added: False if the server is gone, and another user may have its port by now.
    """
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
    """Return what stands for the address in a URL, whatever its scheme and spelling."""
    scheme, _, rest = url.partition("://")
    if scheme == "unix":
        return url
    found = _ADDRESS.fullmatch(re.split(r"[/?#]", rest, maxsplit=1)[0])
    if found is None:
        return url
    host = found["v6"] or found["host"]
    return f"{host.lower()} {found['port']}"


def _keys(url: str) -> list[str]:
    """Return what the server of a URL may be listed as: it may listen on all addresses."""
    key = _key(url)
    host, _, port = key.partition(" ")
    if host == "localhost":
        return [f"{one} {port}" for one in ("127.0.0.1", "::1", "0.0.0.0", "::")]  # noqa: S104
    if host == "::1" or host.startswith("127."):
        return [key, f"0.0.0.0 {port}", f":: {port}"]
    return [key]
