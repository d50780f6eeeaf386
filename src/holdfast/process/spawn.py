"""
Starts a child by libc's `posix_spawn`, reached through ctypes.

Python's own ways either cannot give a child its controlling terminal without
running Python between fork and exec, or cannot change its folder. libc does both
in a vfork, whose price does not grow with the server's memory. Every descriptor
above 2 is closed in the child, but for those that are passed on.
"""

import ctypes
import errno
import fcntl
import os
import resource
import signal
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress

from holdfast.errors import SpawnFailed
from holdfast.system_text import system_text

__all__ = ["needs_descriptor_limit", "raise_descriptor_limit", "refuse_nul", "spawn"]

_libc = ctypes.CDLL(None, use_errno=True)

_SETSIGDEF = 0x04
_SETSIGMASK = 0x08
_SETSID = 0x80

_ATTR_SIZE = 512
_ACTIONS_SIZE = 256
"""Bytes; more than `posix_spawnattr_t` and `posix_spawn_file_actions_t` take in any libc."""

_SIGSET_SIZE = 128

_FIRST_PASSED = 3
"""Where the descriptors begin that are passed on beside the standard ones."""

_PIPE_DEFAULTS = (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE, signal.SIGXFSZ)
"""
Put back to their defaults in a child on pipes.

Python itself ignores the last two. Others, such as a hang-up that the server
was told to ignore, stay as they are [start.state.signals-stay-ignored].
"""

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

_FOLDER_FAULTS = frozenset(
    {errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.ELOOP, errno.ENAMETOOLONG}
)
"""Errors of the kernel for a working folder that cannot be entered."""

_own_limit: tuple[int, int] | None = None
"""The limit on descriptors as it was before `raise_descriptor_limit`, for children."""

_own_thread = 0
"""The thread that puts that limit back for the moment of a fork."""


def raise_descriptor_limit() -> None:
    """
    Allow this process as many descriptors as the system does.

    A thousand processes need four thousand. Children still get the limit that
    was in force before: programs that use `select` break above 1024.

    Call this in the thread that starts most children. A limit holds for all threads, so it
    cannot be put back for a start that may take for ever (see `needs_descriptor_limit`).
    """
    global _own_limit, _own_thread
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        _own_limit = (soft, hard)
        _own_thread = threading.get_ident()


def needs_descriptor_limit() -> tuple[int, int] | None:
    """Return the limit that a child of this thread has to set itself, if there is one."""
    return None if threading.get_ident() == _own_thread else _own_limit


def refuse_nul(program: str, argv: Sequence[str], cwd: str) -> None:
    """
    Refuse texts that the kernel would take for shorter ones.

    Raises:
        SpawnFailed: There is a NUL in one of them.
    """
    if any("\0" in text for text in argv) or "\0" in program or "\0" in cwd:
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
) -> int:
    """
    Start a program as the leader of a session and group of its own.

    Args:
        program: The file to execute; a relative one is found from `cwd`.
        argv: What the program sees, its own name first.
        cwd: Its working folder.
        env: All of its environment.
        stdio: Three descriptors for 0, 1 and 2 (a negative one stands for
            `/dev/null`), or the name of a terminal.
        pass_fds: Descriptors that the program finds as 3, 4 and so on, in this
            order (a negative one stands for `/dev/null`).
        controlling: Whether a terminal becomes the controlling one of the
            program's session.

    Returns:
        The pid, which is also that of the session and the group.

    Raises:
        SpawnFailed: Nothing was started. Its `path` is `cwd` if that is at fault.
    """
    refuse_nul(program, argv, cwd)
    variables = [f"{name}={value}" for name, value in env.items()]
    if any("\0" in text for text in variables):
        raise SpawnFailed("data provided contains a nul byte", program=program)

    actions = ctypes.create_string_buffer(_ACTIONS_SIZE)
    _check(_libc.posix_spawn_file_actions_init(actions))
    moved: list[int] = []
    try:
        first_free = _FIRST_PASSED + len(pass_fds)
        if not isinstance(stdio, str):
            # Before the others, whose numbers these may have.
            for target, source in enumerate(stdio):
                _put(actions, source, target)
        for target, source in enumerate(pass_fds, _FIRST_PASSED):
            if 0 <= source < first_free:
                # It could be replaced by another one before its turn comes.
                source = fcntl.fcntl(source, fcntl.F_DUPFD_CLOEXEC, first_free)
                moved.append(source)
            _put(actions, source, target)
        if isinstance(stdio, str):
            attributes = _TERMINAL_ATTRIBUTES
            # Also frees the numbers below the limit that is in force in the child.
            _close_others(actions, first_free if pass_fds else 0)
            # A session leader without a terminal that opens one gets it as its own.
            mode = os.O_RDWR if controlling else os.O_RDWR | os.O_NOCTTY
            _check(_add_open(actions, 0, os.fsencode(stdio), mode, 0))
            _check(_add_dup(actions, 0, 1))
            _check(_add_dup(actions, 0, 2))
        else:
            attributes = _PIPE_ATTRIBUTES
            _close_others(actions, first_free)
        _check(_add_chdir(actions, os.fsencode(cwd)))
        return _posix_spawn(os.fsencode(program), actions, attributes, argv, variables)
    except SpawnFailed as error:
        error.program = program
        # libc tells only that one of its steps failed, not which.
        if error.errno in _FOLDER_FAULTS and not _can_enter(cwd):
            error.path = cwd
        raise
    finally:
        _libc.posix_spawn_file_actions_destroy(actions)
        for fd in moved:
            os.close(fd)


def _put(actions: ctypes.Array[ctypes.c_char], source: int, target: int) -> None:
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
) -> int:
    pid = ctypes.c_int()
    arguments = (ctypes.c_char_p * (len(argv) + 1))(*map(_encode, argv), None)
    environment = (ctypes.c_char_p * (len(variables) + 1))(*map(_encode, variables), None)
    # The limit is inherited at the very moment of the fork, so it is put back
    # for just that long. What is open above it stays open.
    lowered = _own_limit if threading.get_ident() == _own_thread else None
    if lowered is not None:
        resource.setrlimit(resource.RLIMIT_NOFILE, lowered)
    try:
        number = _libc.posix_spawn(
            ctypes.byref(pid), program, actions, attributes, arguments, environment
        )
    finally:
        if lowered is not None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (lowered[1], lowered[1]))
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
    """Close what the child has no business with."""
    if _add_close_from is not None:
        _check(_add_close_from(actions, first))
        return
    # Before glibc 2.34. What is not inheritable goes by itself.
    for fd in map(int, os.listdir("/proc/self/fd")):
        with suppress(OSError):  # the one the list was read with
            if fd >= max(first, _FIRST_PASSED) and os.get_inheritable(fd):
                _check(_add_close(actions, fd))


def _attributes(defaults: Sequence[int]) -> ctypes.Array[ctypes.c_char]:
    """Made once: own session, empty signal mask, these signals at their defaults."""
    attributes = ctypes.create_string_buffer(_ATTR_SIZE)
    _check(_libc.posix_spawnattr_init(attributes))
    signals = ctypes.create_string_buffer(_SIGSET_SIZE)
    _libc.sigemptyset(signals)
    _check(_libc.posix_spawnattr_setsigmask(attributes, signals))
    for number in defaults:
        _libc.sigaddset(signals, int(number))
    _check(_libc.posix_spawnattr_setsigdefault(attributes, signals))
    flags = _SETSIGDEF | _SETSIGMASK | _SETSID
    _check(_libc.posix_spawnattr_setflags(attributes, ctypes.c_short(flags)))
    return attributes


_PIPE_ATTRIBUTES = _attributes(_PIPE_DEFAULTS)
_TERMINAL_ATTRIBUTES = _attributes(_TERMINAL_DEFAULTS)
