"""
The programs of the contract tests, played on fake processes.

A fake runs no shell: each script that a test starts has its counterpart here, under a
pattern of its text. A test with a new script adds one.
"""

import asyncio
import errno
import os
import re
from collections.abc import Awaitable, Callable
from functools import cache, partial
from pathlib import Path

from msgspec import UNSET

from holdfast.base.errors import SpawnFailed
from holdfast.base.system_text import system_text
from holdfast.events import LimitKind, Reason, Verdict, WaitingFor
from holdfast.testing import FakeBackend, FakeChild, FakeProcess
from holdfast.wire.protocol.process import StartParams
from tests.contract.writers import COUNTING, SINGLE_BYTES
from tests.e2e.wire import readable

Player = Callable[[FakeProcess, re.Match[str]], Awaitable[int | Verdict]]

_PLAYERS: list[tuple[re.Pattern[str], Player]] = []


def install(backend: FakeBackend) -> None:
    """Teach a backend all programs of the contract tests."""
    for number in (errno.ENOENT, errno.ENOTDIR, errno.EACCES):
        refusal = SpawnFailed(system_text(number), errno=number)
        backend.on(partial(_fails, number), refusal)
    backend.on(_has_nul, SpawnFailed("nul byte found in provided data"))
    for tty, kind in ((False, "pipe"), (True, "PTY")):
        missing = SpawnFailed(f"missing program for {kind} spawn")
        backend.on(partial(_is_nameless, tty), missing)
    backend.on(lambda params: _find(params) is not None, _play)
    backend.on(lambda params: params.tty, _NOT_IN_PATH)
    backend.on(lambda params: True, SpawnFailed(system_text(errno.ENOENT), errno=errno.ENOENT))


_NOT_IN_PATH = SpawnFailed(
    "Unable to spawn no-such because:\n"
    'No viable candidates found in PATH "/usr/local/bin:/usr/bin:/bin"',
    errno=errno.ENOENT,
)


def _fails(number: int, params: StartParams) -> bool:
    """Return True if the directory or the program of a start leads to this errno."""
    folder = Path(params.cwd.native)
    match number:
        case errno.ENOENT:
            return not folder.exists()
        case errno.ENOTDIR:
            return not folder.is_dir()
        case _:
            program = Path(params.argv[0])
            return program.is_absolute() and program.is_dir()


def _has_nul(params: StartParams) -> bool:
    return any("\0" in argument for argument in params.argv)


def _is_nameless(tty: bool, params: StartParams) -> bool:
    return params.argv[0] == "" and params.tty is tty


def plays(pattern: str) -> Callable[[Player], Player]:
    """Register what a command does whose text matches all of a pattern."""

    def register(player: Player) -> Player:
        _PLAYERS.append((re.compile(pattern, re.DOTALL), player))
        return player

    return register


def _text(params: StartParams) -> str:
    """Return the script of a shell, or the arguments as one text."""
    if params.argv[:2] == ["/bin/sh", "-c"]:
        return params.argv[2]
    return " ".join(params.argv)


def _find(params: StartParams) -> tuple[re.Match[str], Player] | None:
    for pattern, player in _PLAYERS:
        if found := pattern.fullmatch(_text(params)):
            return found, player
    return None


async def _play(process: FakeProcess) -> int | Verdict:
    found = _find(process.params)
    assert found is not None  # it was started
    match, player = found
    limits = process.params.limits
    if limits is None or limits.wall_time_ms is None:
        return await player(process, match)
    try:
        async with asyncio.timeout(limits.wall_time_ms / 1000):
            return await player(process, match)
    except TimeoutError:
        return _over(LimitKind.WALL_TIME)


def _over(kind: LimitKind) -> Verdict:
    return Verdict(reason=Reason.LIMIT, exit_code=137, signal=9, limit=kind, detail=kind.value)


async def opened(path: str) -> None:
    """Wait in `read` for a line of a FIFO."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        await readable(descriptor)
        os.read(descriptor, 1)
    finally:
        os.close(descriptor)


def tell(process: FakeProcess, text: str) -> None:
    """Write a line to standard output."""
    process.output(text.encode() + (b"\r\n" if process.params.tty else b"\n"))


async def until_signal(process: FakeProcess, *names: str) -> None:
    """Wait for one of some signals; others are ignored."""
    while await process.next_signal() not in names:
        pass


# -- output and exit


@plays("true")
async def _true(process: FakeProcess, match: re.Match[str]) -> int:
    return 0


@plays(r"exit (\d+)")
async def _exit(process: FakeProcess, match: re.Match[str]) -> int:
    return int(match[1])


@plays(r"echo (\w+); echo (\w+) >&2; exit (\d+)")
async def _both_streams(process: FakeProcess, match: re.Match[str]) -> int:
    process.output(match[1].encode() + b"\n", "stdout")
    process.output(match[2].encode() + b"\n", "stderr")
    return int(match[3])


@plays(r"printf '(.*)'")
async def _printf(process: FakeProcess, match: re.Match[str]) -> int:
    process.output(b"\x00\xff\xc3\x28\r\n")
    return 0


@plays(r"kill -9 \$\$")
async def _kill_itself(process: FakeProcess, match: re.Match[str]) -> Verdict:
    return Verdict(reason=Reason.SIGNALED, exit_code=1 if process.params.tty else 128 + 9, signal=9)


@plays("env")
async def _env(process: FakeProcess, match: re.Match[str]) -> int:
    params = process.params
    without = set() if params.unset is UNSET else set(params.unset)
    for name, value in params.env.items():
        if name not in without:
            tell(process, f"{name}={value}")
    return 0


@plays("pwd")
async def _pwd(process: FakeProcess, match: re.Match[str]) -> int:
    tell(process, process.params.cwd.native)
    return 0


@plays(r"echo \$\$")
async def _own_pid(process: FakeProcess, match: re.Match[str]) -> int:
    tell(process, str(process.pid))
    return 0


@cache
def _numbers(last: int) -> bytes:
    return "".join(f"{number}\n" for number in range(1, last + 1)).encode()


@plays(r"seq 1 (\d+)(?: \| head -c (\d+))?")
async def _seq(process: FakeProcess, match: re.Match[str]) -> int | Verdict:
    data = _numbers(int(match[1]))
    if match[2]:
        data = data[: int(match[2])]
    limits = process.params.limits
    if limits is not None and limits.output_bytes is not None and len(data) > limits.output_bytes:
        await process.flow(data[: limits.output_bytes])
        return _over(LimitKind.OUTPUT)
    await process.flow(data)
    return 0


@plays(r"head -c (\d+) /dev/zero")
async def _zeros(process: FakeProcess, match: re.Match[str]) -> int:
    await process.flow(bytes(int(match[1])))
    return 0


@plays(r".*" + re.escape(SINGLE_BYTES) + r" (\d+)")
async def _single_bytes(process: FakeProcess, match: re.Match[str]) -> int:
    for _ in range(int(match[1])):
        await process.flow(b"x")
        await process.line.changes.wait(lambda: process.pipe_bytes < 16)  # packets in a pipe
    return 0


@plays(r".*" + re.escape(COUNTING) + r" (\S+)")
async def _counting(process: FakeProcess, match: re.Match[str]) -> int:
    count = os.open(match[1], os.O_WRONLY | os.O_CREAT)
    try:
        for blocks in range(1, 2001):
            await process.flow(bytes(4096))
            os.pwrite(count, str(blocks * 4096).encode(), 0)
    finally:
        os.close(count)
    return 0


@plays(r"echo out; exec >&-; read x < (\S+); echo err >&2")
async def _closes_stdout(process: FakeProcess, match: re.Match[str]) -> int:
    process.output(b"out\n")
    process.stream_ended("stdout")
    await opened(match[1])
    process.output(b"err\n", "stderr")
    return 0


# -- input


@plays(r"head -(c|n) (\d+)( \| wc -c)?")
async def _head(process: FakeProcess, match: re.Match[str]) -> int:
    wanted, data = int(match[2]), b""
    while (len(data) if match[1] == "c" else data.count(b"\n")) < wanted:
        piece = await process.next_input()
        if not piece:
            break
        data += piece
    tell(process, str(len(data))) if match[3] else process.output(data)
    return 0


@plays("cat")
async def _cat(process: FakeProcess, match: re.Match[str]) -> int:
    process.waits_for = WaitingFor.LINE  # on a terminal
    while data := await process.next_input():
        await process.flow(data)
    return 0


@plays("stty -echo; echo ready; read x; echo =\\$x")
async def _read_line(process: FakeProcess, match: re.Match[str]) -> int:
    tell(process, "ready")
    line = await process.next_input()
    tell(process, "=" + line.decode().removesuffix("\r"))
    return 0


# -- terminals


@plays("test -t 0 -a -t 1 -a -t 2 && stty size; .*; exit 4")
async def _is_terminal(process: FakeProcess, match: re.Match[str]) -> int:
    if process.params.tty:
        tell(process, "24 80")
    tell(process, "err")
    tell(process, "tty")
    return 4


@plays("stty size")
async def _stty_size(process: FakeProcess, match: re.Match[str]) -> int:
    size = process.params.terminal_size
    tell(process, "24 80" if size is None else f"{size.rows} {size.cols}")
    return 0


@plays("trap 'stty size; exit 0' WINCH; echo ready; .*")
async def _tells_size(process: FakeProcess, match: re.Match[str]) -> int:
    tell(process, "ready")
    await until_signal(process, "SIGWINCH")
    tell(process, "{} {}".format(*process.sizes[-1]))
    return 0


# -- signals


@plays(r"trap '(echo caught; )?exit (\d+)' (INT|HUP); echo ready; .*")
async def _traps(process: FakeProcess, match: re.Match[str]) -> int:
    tell(process, "ready")
    if process.params.tty:
        assert await process.next_input() == b"\x03"  # which the terminal makes an interrupt
    else:
        await until_signal(process, f"SIG{match[3]}")
    if match[1]:
        tell(process, "caught")
    return int(match[2])


@plays(r"(trap '' TERM INT HUP; echo ready; )?sleep 60")
async def _sleep(process: FakeProcess, match: re.Match[str]) -> int:
    if match[1]:
        tell(process, "ready")
    await asyncio.sleep(60)
    return 0


# -- children


@plays(r"setsid sh -c 'echo \$\$; exec sleep 60' & wait")
async def _child_of_its_own(process: FakeProcess, match: re.Match[str]) -> int:
    child = process.child(own_session=True)
    tell(process, str(child.pid))
    child.play(partial(asyncio.sleep, 60))
    await process.line.changes.wait(lambda: not child.alive)
    return 0


@plays(r"setsid sh -c 'echo \$\$; read x < (\S+); echo late' & wait")
async def _late_child_of_its_own(process: FakeProcess, match: re.Match[str]) -> int:
    child = process.child(own_session=True)
    tell(process, str(child.pid))
    child.play(partial(_late, process, match[1]))
    await process.line.changes.wait(lambda: not child.alive)
    return 0


@plays(r"\(read x; echo late\) < (\S+) & echo early")
async def _late_child(process: FakeProcess, match: re.Match[str]) -> int:
    process.child().play(partial(_late, process, match[1]))
    tell(process, "early")
    return 0


async def _late(process: FakeProcess, path: str) -> None:
    await opened(path)
    tell(process, "late")


@plays(r"sleep 60( >/dev/null 2>&1)? & echo \$!")
async def _leaves_a_child(process: FakeProcess, match: re.Match[str]) -> int:
    child: FakeChild = process.child(holds_output=not match[1])
    child.play(partial(asyncio.sleep, 60))
    tell(process, str(child.pid))
    return 0


@plays(r"read x < (\S+); echo news; sleep 60")
async def _news(process: FakeProcess, match: re.Match[str]) -> int:
    await opened(match[1])
    tell(process, "news")
    await asyncio.sleep(60)
    return 0


# -- waiting for input


@plays(r"bash -c read -p 'name\? ' x|bash -c sleep 60 \| cat /dev/tty|.* p\.poll\(\); input\(\)")
async def _wants_line(process: FakeProcess, match: re.Match[str]) -> int:
    process.waits_for = WaitingFor.LINE
    await process.next_input()
    return 0


@plays(r".*getpass.*")
async def _wants_password(process: FakeProcess, match: re.Match[str]) -> int:
    process.waits_for = WaitingFor.PASSWORD
    await process.next_input()
    return 0


@plays(r"bash -c read -n 1 x|python3 -i")
async def _wants_key(process: FakeProcess, match: re.Match[str]) -> int:
    process.waits_for = WaitingFor.KEY
    await process.next_input()
    return 0


@plays(r".*echo ready; (exec sleep 60|while :.*|sleep 60 \| cat)|.*select\.select\(.*")
async def _wants_nothing(process: FakeProcess, match: re.Match[str]) -> int:
    tell(process, "ready")
    await asyncio.sleep(60)
    return 0


@plays(r"read x; echo got; exec sleep 60")
async def _wants_line_once(process: FakeProcess, match: re.Match[str]) -> int:
    process.waits_for = WaitingFor.LINE
    await process.next_input()
    process.waits_for = WaitingFor.NONE
    tell(process, "got")
    await asyncio.sleep(60)
    return 0
