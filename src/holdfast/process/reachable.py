"""
Looks at the files of a start beforehand, where a mount may be dead.

A child is started in a `vfork`, so its `chdir` and its `execve` hold the event loop up. On a
network mount whose server is gone they never return. Where there are such mounts, a thread
touches the same files first, and only what comes back is started.
"""

import asyncio
import errno
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TypeVar

from holdfast.errors import SpawnFailed
from holdfast.process.program import DEFAULT_PATH
from holdfast.system_text import system_text

__all__ = ["call_in_daemon", "mounts_may_hang", "wait_reachable"]

T = TypeVar("T")

LOOK_LIMIT = 10.0
"""Seconds that a look at files may take."""

MAX_LOOKS = 64
"""Threads that look, those that never come back included; then a look fails at once."""

_MAY_HANG = frozenset(
    "9p afs autofs ceph cifs glusterfs lustre nfs nfs4 smb3 virtiofs".split()  # noqa: SIM905
)
"""Kinds of mounts that somebody else answers for; those of FUSE as well."""

_FRESH = 1.0
"""Seconds that the list of mounts is believed: a new one is not dead yet."""

_looking: set[threading.Thread] = set()
_seen: tuple[float, bool] = (-_FRESH, False)


def mounts_may_hang(table: str = "/proc/self/mountinfo") -> bool:
    """Return True if this process has a mount whose calls may never return."""
    global _seen
    now = time.monotonic()
    if now - _seen[0] >= _FRESH:
        _seen = (now, any(_may_hang(line) for line in _lines(table)))
    return _seen[1]


def _lines(table: str) -> list[str]:
    try:
        with open(table, encoding="utf-8", errors="surrogateescape") as file:
            return file.readlines()
    except OSError:
        return []  # without /proc nothing is known


def _may_hang(line: str) -> bool:
    _, _, kind = line.partition(" - ")
    name = kind.partition(" ")[0]
    return name in _MAY_HANG or name == "fuseblk" or name.partition(".")[0] == "fuse"


async def wait_reachable(
    argv: Sequence[str], cwd: str, env: Mapping[str, str], *, tty: bool
) -> None:
    """
    Wait until the folder and the program of a start have answered, whatever they are.

    Raises:
        SpawnFailed: One of them has not; its `path` says which.
    """
    program = argv[0]
    at = cwd

    def look() -> None:
        nonlocal at
        for at in _places(program, cwd, env, tty=tty):
            # What is wrong with it is found again by the start, which has the words for it.
            with suppress(OSError, ValueError):
                os.stat(at)

    try:
        await call_in_daemon(look)
    except TimeoutError:
        number = errno.ETIMEDOUT
        raise SpawnFailed(system_text(number), errno=number, path=at, program=program) from None


def _places(program: str, cwd: str, env: Mapping[str, str], *, tty: bool) -> Iterable[str]:
    yield cwd
    if tty and "HOME" in env:
        yield env["HOME"]  # where a terminal starts if its folder is missing
    folders = [""] if "/" in program else env.get("PATH", DEFAULT_PATH).split(":")
    for folder in folders:
        place = os.path.join(cwd, folder, program)
        yield place
        with suppress(ValueError):
            if os.access(place, os.X_OK):
                return  # the folders behind it are not looked at by the start


async def call_in_daemon(work: Callable[[], T]) -> T:
    """
    Return what `work` returns in a thread of its own, which the end of the program does not await.

    Raises:
        TimeoutError: It took longer than `LOOK_LIMIT`, or too many others do.
    """
    if len(_looking) >= MAX_LOOKS:
        raise TimeoutError(f"{MAX_LOOKS} calls of the system have not returned")
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if done.done():
            return  # nobody waits any more
        if error is None:
            done.set_result(result)  # type: ignore[arg-type]  # the result of `work`
        else:
            done.set_exception(error)

    def run() -> None:
        result, error = None, None
        try:
            result = work()
        except BaseException as raised:  # noqa: BLE001 - for whoever waits
            error = raised
        finally:
            _looking.discard(thread)
        with suppress(RuntimeError):  # the loop is over
            loop.call_soon_threadsafe(settle, result, error)

    thread = threading.Thread(target=run, name="holdfast-look", daemon=True)
    _looking.add(thread)
    thread.start()
    async with asyncio.timeout(LOOK_LIMIT):
        return await done
