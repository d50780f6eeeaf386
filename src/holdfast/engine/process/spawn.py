"""
Starts a child by libc's `posix_spawn`, called through ctypes.

`subprocess` cannot give a child its controlling terminal without running Python between fork
and exec; `os.posix_spawn` cannot change its working directory. libc does both in a vfork, whose
cost does not grow with the server's memory. The child's descriptors above 2 are closed, except
for those that are passed on.
"""

import _signal  # type: ignore[import-not-found]
import ctypes
import errno
import fcntl
import os
import resource
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import TypeAlias

from holdfast.base.errors import SpawnFailed
from holdfast.base.system_text import system_text

__all__ = ["Caller", "needs_descriptor_limit", "raise_descriptor_limit", "refuse_nul", "spawn"]

Caller: TypeAlias = Callable[[Callable[[], int]], int]
"""Calls a function and returns its result."""

_libc = ctypes.CDLL(None, use_errno=True)

# Values of <spawn.h>, the same in glibc and musl.
_SETSIGDEF = 0x04
_SETSIGMASK = 0x08
_SETSID = 0x80

# Bytes for opaque structures; more than `posix_spawnattr_t`, `posix_spawn_file_actions_t` and
# `sigset_t` need in any libc.
_ATTR_SIZE = 512
_ACTIONS_SIZE = 256
_SIGSET_SIZE = 128
_WORD_BITS = ctypes.sizeof(ctypes.c_ulong) * 8

# First descriptor number after the standard streams.
_FIRST_PASSED = 3

# All signals that can be ignored, as plain numbers.
_SIGNALS = [int(number) for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}]
_IGNORED = int(signal.SIG_IGN)

# Signals that libc keeps for itself (musl also the third). `posix_spawn` leaves them ignored in the
# child, and in all that it starts, unless it has to reset them.
_OF_LIBC = (32, 33, 34)

# Signals reset to their default action in a child on pipes, ignored or not. Python ignores the
# last two. Others, such as a SIGHUP that the server ignores, stay ignored
# [start.state.signals-stay-ignored].
_PIPE_DEFAULTS = (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE, signal.SIGXFSZ)

# A terminal adds those that its job control needs [start.state.signals].
_TERMINAL_DEFAULTS = (
    *_PIPE_DEFAULTS,
    signal.SIGCHLD,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGALRM,
    signal.SIGTSTP,
    signal.SIGTTIN,
    signal.SIGTTOU,
    signal.SIGCONT,
)

# Errors of `chdir` for a working directory that cannot be entered.
_FOLDER_FAULTS = frozenset(
    {errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.ELOOP, errno.ENAMETOOLONG}
)

# RLIMIT_NOFILE as it was before `raise_descriptor_limit`. Children get this one.
_own_limit: tuple[int, int] | None = None

# The thread that restores `_own_limit` for the moment of a fork.
_own_thread = 0


def raise_descriptor_limit() -> None:
    """
    Raise RLIMIT_NOFILE of this process to its hard limit.

    A thousand processes need four thousand descriptors. Children still get the previous limit:
    programs that use `select` break above 1024.

    Call this in the thread that starts most children. The rlimit holds for all threads, so no
    other thread may lower it for a start that may block (see `needs_descriptor_limit`).
    """
    global _own_limit, _own_thread
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        _own_limit = (soft, hard)
        _own_thread = threading.get_ident()


def needs_descriptor_limit() -> tuple[int, int] | None:
    """Return the RLIMIT_NOFILE that a child of this thread has to set itself, or None."""
    return None if threading.get_ident() == _own_thread else _own_limit


def refuse_nul(program: str, argv: Sequence[str], cwd: str) -> None:
    """
    Refuse texts with a NUL, which would end them early in the kernel.

    Raises:
        SpawnFailed: A text has a NUL.
    """
    if "\0" in "".join([program, cwd, *argv]):
        raise SpawnFailed("nul byte found in provided data", program=program)


def spawn(
    program: str,
    argv: Sequence[str],
    *,
    cwd: str,
    env: Mapping[str, str],
    stdio: tuple[int, int, int] | str,
    pass_fds: Sequence[int] = (),
    controlling: bool = True,
    call: Caller | None = None,
) -> int:
    """
    Start a program as the leader of its own session and group.

    Args:
        program: The file to execute; a relative path is resolved from `cwd`.
        argv: The argument list of the program, its own name first.
        cwd: Its working directory.
        env: Its complete environment.
        stdio: Three descriptors for 0, 1 and 2 (a negative one stands for
            `/dev/null`), or the name of a terminal.
        pass_fds: Descriptors that the program gets as 3, 4 and so on, in this
            order (a negative one stands for `/dev/null`).
        controlling: True if the terminal becomes the controlling terminal of the session.
        call: Calls a function in another thread, whose namespaces the child then has.

    Returns:
        The pid, which is also the id of the session and the process group.

    Raises:
        SpawnFailed: Nothing was started. Its `path` is `cwd` if that directory is at fault.
    """
    refuse_nul(program, argv, cwd)
    variables = [f"{name}={value}" for name, value in env.items()]
    if "\0" in "".join(variables):
        raise SpawnFailed("data provided contains a nul byte", program=program)

    actions = ctypes.create_string_buffer(_ACTIONS_SIZE)
    _check(_libc.posix_spawn_file_actions_init(actions))
    # Duplicates of passed descriptors, closed again after the spawn.
    moved: list[int] = []
    try:
        _add_streams(actions, stdio, pass_fds, moved, controlling=controlling)
        _check(_add_chdir(actions, os.fsencode(cwd)))
        attributes = _attributes(_ignored_signals(), terminal=isinstance(stdio, str))
        return _posix_spawn(os.fsencode(program), actions, attributes, argv, variables, call)
    except SpawnFailed as error:
        error.program = program
        # libc reports the error of the step that failed, but not which step that was.
        if error.errno in _FOLDER_FAULTS and not _can_enter(cwd):
            error.path = cwd
        raise
    finally:
        _libc.posix_spawn_file_actions_destroy(actions)
        for fd in moved:
            os.close(fd)


def _add_streams(
    actions: ctypes.Array[ctypes.c_char],
    stdio: tuple[int, int, int] | str,
    pass_fds: Sequence[int],
    moved: list[int],
    *,
    controlling: bool,
) -> None:
    """
    Add the steps that set up the child's descriptors and close all others.

    Appends to `moved` the descriptors that the caller has to close after the spawn.
    """
    first_free = _FIRST_PASSED + len(pass_fds)
    if not isinstance(stdio, str):
        # Before `pass_fds`, whose target numbers the descriptors of `stdio` may have.
        for target, source in enumerate(stdio):
            _put(actions, source, target)
    for target, source in enumerate(pass_fds, _FIRST_PASSED):
        if 0 <= source < first_free:
            # Its number is a target: an earlier step could replace it before its turn.
            source = fcntl.fcntl(source, fcntl.F_DUPFD_CLOEXEC, first_free)
            moved.append(source)
        _put(actions, source, target)
    if isinstance(stdio, str):
        # Closed before the terminal is opened: `open` needs a number below the child's limit,
        # and all of these may be taken.
        _close_others(actions, first_free if pass_fds else 0)
        # A session leader without a controlling terminal gets the first one that it opens.
        mode = os.O_RDWR if controlling else os.O_RDWR | os.O_NOCTTY
        _check(_add_open(actions, 0, os.fsencode(stdio), mode, 0))
        _check(_add_dup(actions, 0, 1))
        _check(_add_dup(actions, 0, 2))
    else:
        _close_others(actions, first_free)


def _put(actions: ctypes.Array[ctypes.c_char], source: int, target: int) -> None:
    """Add the step that makes `target` a duplicate of `source`, or `/dev/null` if negative."""
    if source < 0:
        _check(_add_open(actions, target, b"/dev/null", os.O_RDWR, 0))
    else:
        _check(_add_dup(actions, source, target))


def _posix_spawn(
    program: bytes,
    actions: ctypes.Array[ctypes.c_char],
    attributes: ctypes.Array[ctypes.c_char],
    argv: Sequence[str],
    variables: Sequence[str],
    call: Caller | None,
) -> int:
    pid = ctypes.c_int()
    arguments = (ctypes.c_char_p * (len(argv) + 1))(*map(_encode, argv), None)
    environment = (ctypes.c_char_p * (len(variables) + 1))(*map(_encode, variables), None)
    values = (ctypes.byref(pid), program, actions, attributes, arguments, environment)
    lowered = _own_limit if threading.get_ident() == _own_thread else None

    def start() -> int:
        if lowered is None:
            return int(_libc.posix_spawn(*values))
        # The rlimit is inherited at the moment of the fork, so it is lowered for just that long.
        # Descriptors above the limit stay open, but no thread gets a new one meanwhile.
        resource.setrlimit(resource.RLIMIT_NOFILE, lowered)
        try:
            return int(_libc.posix_spawn(*values))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (lowered[1], lowered[1]))

    number = start() if call is None else call(start)
    _check(number)
    return pid.value


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _check(number: int) -> None:
    if number:
        raise SpawnFailed(system_text(number), errno=number)


def _can_enter(folder: str) -> bool:
    return os.path.isdir(folder) and os.access(folder, os.X_OK)


_add_open = _libc.posix_spawn_file_actions_addopen
_add_dup = _libc.posix_spawn_file_actions_adddup2
_add_chdir = _libc.posix_spawn_file_actions_addchdir_np
_add_close = _libc.posix_spawn_file_actions_addclose
_add_close_from = getattr(_libc, "posix_spawn_file_actions_addclosefrom_np", None)


def _close_others(actions: ctypes.Array[ctypes.c_char], first: int) -> None:
    """Add the steps that close all descriptors from `first` on."""
    if _add_close_from is not None:
        _check(_add_close_from(actions, first))
        return
    # Before glibc 2.34. Descriptors with FD_CLOEXEC are closed by the exec itself.
    for fd in map(int, os.listdir("/proc/self/fd")):
        # The listing contains its own descriptor, which is closed now.
        with suppress(OSError):
            if fd >= max(first, _FIRST_PASSED) and os.get_inheritable(fd):
                _check(_add_close(actions, fd))


def _ignored_signals() -> tuple[int, ...]:
    """Return the signals that this process ignores now."""
    # `signal.getsignal` makes an enum of each answer, which takes thirty times as long.
    return tuple([number for number in _SIGNALS if _signal.getsignal(number) == _IGNORED])


@lru_cache(maxsize=16)
def _attributes(ignored: tuple[int, ...], *, terminal: bool) -> ctypes.Array[ctypes.c_char]:
    """
    Return spawn attributes: a new session, an empty signal mask, and signals to be reset.

    The exec resets every signal that is not ignored. libc queries each of them first unless it has
    to reset it: those sixty system calls are a sixth of the time of a spawn.
    """
    defaults = {*_SIGNALS} - {*ignored} | {*(_TERMINAL_DEFAULTS if terminal else _PIPE_DEFAULTS)}
    attributes = ctypes.create_string_buffer(_ATTR_SIZE)
    _check(_libc.posix_spawnattr_init(attributes))
    signals = ctypes.create_string_buffer(_SIGSET_SIZE)
    _libc.sigemptyset(signals)
    _check(_libc.posix_spawnattr_setsigmask(attributes, signals))
    for number in defaults:
        _libc.sigaddset(signals, int(number))
    for number in _OF_LIBC:
        # `sigaddset` refuses them. A set is an array of bits, from signal 1 on.
        at, bit = divmod(number - 1, _WORD_BITS)
        word = ctypes.c_ulong.from_buffer(signals, at * ctypes.sizeof(ctypes.c_ulong))
        word.value |= 1 << bit
    _check(_libc.posix_spawnattr_setsigdefault(attributes, signals))
    flags = _SETSIGDEF | _SETSIGMASK | _SETSID
    _check(_libc.posix_spawnattr_setflags(attributes, ctypes.c_short(flags)))
    return attributes
