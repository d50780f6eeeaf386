"""
Bad input to the tools, here, on a Holdfast server and on a Codex one.

The contract's text comes in bounded time, other sessions go on, and nothing is left running.
"""

import asyncio
import os
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.agent.unified_exec import CallRefused, ExecResult, ToolError
from holdfast.agent.unified_exec.arguments.tool_arguments import ExecArguments, WriteArguments
from tests.contract.caller import LONG, Caller
from tests.e2e.wire import LIMIT, Fifo

pytestmark = pytest.mark.requirement("tools.bad-input")

PARSE = "failed to parse function arguments: "
STARTED = 'exec_command failed: CreateProcess { message: "Rejected(\\"'
NOT_STARTED = "Failed to create unified exec process: "


@pytest.fixture(autouse=True)
async def other_session(caller: Caller, tmp_path: Path) -> AsyncIterator[None]:
    """Fail a test if another session of the same model does not live through it."""
    with Fifo(tmp_path / "other") as go:
        session_id, _ = await caller.begin(
            f"echo ready; read x < {go.path}; echo untouched; exit 9", until="ready"
        )
        yield
        go.write()
        ended = await caller.end(session_id)
        assert (ended.exit_code, ended.output) == (9, "untouched\n")
        assert caller.nothing_is_open()


async def test_input_cannot_be_waited_for_without_a_terminal(caller: Caller) -> None:
    wanted = {"cmd": "cat", "login": False, "wait_for": {"input": True}}
    text = await caller.refused("exec_command", wanted)
    assert text == "`wait_for.input` needs a command with `tty`"


def not_started(caller: Caller, reason: str) -> str:
    """Return the text for a process that could not be started."""
    origin = "exec-server rejected request (-32603): " if caller.remote else ""
    return f'{STARTED}{NOT_STARTED}{origin}{reason}\\")" }}'


def running(marker: str) -> list[int]:
    """Return the processes whose command line has a marker."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            try:
                words = (folder / "cmdline").read_bytes()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if marker.encode() in words:
                found.append(int(folder.name))
    return found


# -- arguments


async def test_arguments_that_cannot_be_read(caller: Caller) -> None:
    for arguments, text in {
        "": "EOF while parsing a value at line 1 column 0",
        "{": "EOF while parsing an object at line 1 column 1",
        "{}": "missing field `cmd` at line 1 column 2",
        '{"cmd":1}': "invalid type: integer `1`, expected a string at line 1 column 8",
        '{"cmd":"x","tty":null}': "invalid type: null, expected a boolean at line 1 column 21",
        '{"cmd":"x","yield_time_ms":1000.0}': (
            "invalid type: floating point `1000.0`, expected u64 at line 1 column 33"
        ),
        '{"cmd":"x","yield_time_ms":-1}': (
            "invalid value: integer `-1`, expected u64 at line 1 column 29"
        ),
        '{"cmd":"\\ud800"}': "unexpected end of hex escape at line 1 column 15",
    }.items():
        assert await caller.refused("exec_command", arguments) == PARSE + text
    for arguments, text in {
        "{}": "missing field `session_id` at line 1 column 2",
        '{"session_id":1000.0}': (
            "invalid type: floating point `1000.0`, expected i32 at line 1 column 20"
        ),
        '{"session_id":"42"}': ('invalid type: string "42", expected i32 at line 1 column 18'),
        '{"session_id":99999999999}': (
            "invalid value: integer `99999999999`, expected i32 at line 1 column 25"
        ),
    }.items():
        assert await caller.refused("write_stdin", arguments) == PARSE + text
    assert await caller.refused("apply", "{}") == "unsupported call: apply"


async def test_arguments_that_are_no_json(caller: Caller) -> None:
    for value in (object(), {1, 2}, b"x", float("nan")):
        text = await caller.refused("exec_command", {"cmd": value})
        assert text.startswith(PARSE)


async def test_ids_that_nobody_has(caller: Caller) -> None:
    for session_id in (0, -1, 999, 2**31 - 1):
        text = await caller.refused("write_stdin", {"session_id": session_id, "chars": "x"})
        assert text == f"write_stdin failed: Unknown process id {session_id}"
    text = await caller.refused("exec_command", {"cmd": "true", "environment_id": "zz"})
    assert text == "unknown turn environment id `zz`"


async def test_half_a_surrogate_pair(caller: Caller) -> None:
    session_id, _ = await caller.begin("stty -echo; echo ready; cat", tty=True, until="ready")
    for name, arguments in (
        ("exec_command", {"cmd": "echo \ud800"}),
        ("exec_command", {"cmd": "true", "workdir": "\udfff"}),
        ("exec_command", {"cmd": "true", "shell": "\ud800"}),
        ("write_stdin", {"session_id": session_id, "chars": "\ud800"}),
    ):
        assert "hex escape" in await caller.refused(name, arguments)
    answer = await caller.write(session_id, "after\n", until="after")
    assert "after" in answer.output
    caller.tools.terminate(session_id)


async def test_half_a_surrogate_pair_from_a_program(caller: Caller) -> None:
    """Programs may call the tools without JSON; what no machine takes is refused all the same."""
    with pytest.raises(CallRefused, match="`cmd` has a lone surrogate at position 5"):
        await caller.tools.exec_command(ExecArguments(cmd="echo \ud800", login=False))
    with pytest.raises(CallRefused, match="`workdir` has a lone surrogate"):
        await caller.tools.exec_command(ExecArguments(cmd="true", workdir="\ud800", login=False))
    session_id, _ = await caller.begin("stty raw -echo; echo ready; cat", tty=True, until="ready")
    with pytest.raises(CallRefused, match="`chars` has a lone surrogate"):
        await caller.tools.write_stdin(WriteArguments(session_id=session_id, chars="\ud800"))
    caller.tools.terminate(session_id)


# -- commands that cannot be started


async def test_nul_in_a_command(caller: Caller) -> None:
    expected = not_started(caller, "nul byte found in provided data")
    assert await caller.refused("exec_command", {"cmd": "echo a\0b"}) == expected
    text = await caller.refused("exec_command", {"cmd": "pwd", "workdir": "a\0b"})
    assert text == "'a\0b' is invalid on 'linux'"


async def test_a_folder_that_is_none(caller: Caller, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    for workdir, reason in {
        "loop": "Symbolic link loop (os error 40)",
        "n" * 300: "Filename too long (os error 36)",
        "file": "Not a directory (os error 20)",
        "missing": "No such file or directory (os error 2)",
        "file/below": "Not a directory (os error 20)",
    }.items():
        text = await caller.refused("exec_command", {"cmd": "pwd", "workdir": workdir})
        assert text == not_started(caller, reason)
        on_a_terminal = await caller.run("pwd", workdir=workdir, tty=True)  # as the original
        assert on_a_terminal.output.strip() == str(Path.home())


async def test_an_unknown_shell(caller: Caller) -> None:
    for shell in ("python3", "", "a\0b", "/no/such/fish"):
        given = {"cmd": "echo $0", "shell": shell, "login": False, "yield_time_ms": LONG}
        result = await caller.tools.call("exec_command", given)
        if caller.remote:
            name = (await caller.environment.shell()).name
            assert isinstance(result, ToolError)
            expected = f"environment `{caller.environment.id}` only supports `{name}`"
            assert result.text() == expected
        else:
            assert isinstance(result, ExecResult)
            assert result.output == "/bin/sh\n"


async def test_a_command_that_is_too_long(caller: Caller) -> None:
    text = await caller.refused("exec_command", {"cmd": ": " + 3_000_000 * "x"})
    assert text == not_started(caller, "Argument list too long (os error 7)")
    assert (await caller.run("")).exit_code == 0


# -- output and input


async def test_a_line_of_10_megabytes(caller: Caller) -> None:
    result = await caller.run("head -c 10000000 /dev/zero | tr '\\0' x", max_output_tokens=10)
    assert result.exit_code == 0
    assert result.original_token_count == 2_500_000
    assert result.omitted_bytes == 10_000_000 - (1 << 20)
    assert len(result.text()) < 300


async def test_output_that_is_no_text(caller: Caller) -> None:
    result = await caller.run("printf 'a\\377\\376\\000\\001\\303'")
    assert result.raw_output == b"a\xff\xfe\x00\x01\xc3"
    assert result.output == "a��\x00\x01�"
    noise = await caller.run("head -c 200000 /dev/urandom")
    assert len(noise.raw_output) == 200_000
    assert noise.text().encode()


async def test_escape_sequences_pass_as_they_are(caller: Caller) -> None:
    script = "printf '\\033[31mred\\033[0m\\007\\033]0;title\\007\\033[2J'"
    expected = b"\x1b[31mred\x1b[0m\x07\x1b]0;title\x07\x1b[2J"
    assert (await caller.run(script)).raw_output == expected
    assert (await caller.run(script, tty=True)).raw_output == expected


async def test_a_command_that_reads(caller: Caller) -> None:
    assert (await caller.run("cat; read x; echo $?")).output == "1\n"
    assert (await caller.run("read x < /dev/tty || echo none", tty=False)).exit_code == 0


async def test_input_that_nobody_reads(caller: Caller) -> None:
    session_id, _ = await caller.begin("echo ready; exec sleep 1000", tty=True, until="ready")
    answers = []
    for _ in range(3):
        given = {"session_id": session_id, "chars": 3_000_000 * "x", "yield_time_ms": 250}
        answers.append(await caller.tools.call("write_stdin", given))
    for answer in answers:
        if isinstance(answer, ToolError):
            assert answer.text() == "write_stdin failed: failed to write to stdin"
        else:
            assert isinstance(answer, ExecResult)
            assert answer.session_id == session_id
    assert caller.tools.terminate(session_id)


async def test_input_to_a_terminal_that_is_gone(caller: Caller) -> None:
    script = "echo ready; exec 0<&- 1>&- 2>&-; sleep 1000"
    session_id, _ = await caller.begin(script, tty=True, until="ready")
    given = {"session_id": session_id, "chars": "x\n", "yield_time_ms": 250}
    answer = await caller.tools.call("write_stdin", given)
    assert isinstance(answer, ExecResult | ToolError)
    caller.tools.terminate(session_id)


# -- cancelled calls


async def test_a_call_that_is_cancelled_at_every_await(caller: Caller) -> None:
    """Nothing runs but what has a session; the others go with their calls."""
    marker = f"0{uuid.uuid4().int % 10**12}"
    for turns in range(0, 40, 2):
        call = asyncio.ensure_future(
            caller.call("exec_command", cmd=f"exec sleep 1000.{marker}", login=False)
        )
        for _ in range(turns):
            await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
    for info in caller.tools.sessions():
        if marker in info.script:
            caller.tools.terminate(info.session_id)
    async with asyncio.timeout(4 * LIMIT):
        while running(marker):  # noqa: ASYNC110 - nobody tells of it
            await asyncio.sleep(0.02)
