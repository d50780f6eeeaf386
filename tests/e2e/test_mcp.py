"""The official client of the Model Context Protocol uses our server: eras and transports."""

import asyncio
import base64
import itertools
import json
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from mcp.client import Client
from mcp.shared.exceptions import MCPDeprecationWarning

from holdfast.environments.environment import Environment
from holdfast.front.mcp.mcp_options import ServerOptions
from holdfast.front.mcp.mcp_server import McpServer
from tests.e2e.mcp_clients import (
    HANDSHAKE,
    MODERN,
    Ending,
    Kind,
    ServedMcp,
    accepting,
    declining,
    serving,
    text,
)
from tests.e2e.wire import serving as exec_serving
from tests.images import png

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


@pytest.fixture(params=["stdio", "http"])
def kind(request: pytest.FixtureRequest) -> Kind:
    found: Kind = request.param
    return found


@pytest.fixture(params=[HANDSHAKE, MODERN])
def mode(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


ONE_MODE = pytest.mark.in_turn("mode", HANDSHAKE, MODERN)
"""For what both kinds of servers do in either mode: each is tried in one of them."""


async def run(client: Client, cmd: str, **arguments: Any) -> types.CallToolResult:
    return await client.call_tool("exec_command", {"cmd": cmd, "login": False, **arguments})


async def sessions(client: Client) -> list[int]:
    listed = await client.call_tool("list_sessions", {})
    return [each["session_id"] for each in listed.structured_content["sessions"]]


def session_id(result: types.CallToolResult) -> int:
    found: int = result.structured_content["session_id"]
    return found


async def test_a_command_and_its_result_as_text_and_as_an_object(
    kind: Kind, mode: str, tmp_path: Path
) -> None:
    async with serving(kind, mode, tmp_path) as served, served.client() as client:
        assert client.protocol_version == (MODERN if mode == MODERN else "2025-11-25")
        done = await run(client, "echo hello; exit 3")
        assert re.search(r"Process exited with code 3\n.*\nOutput:\nhello\n$", text(done))
        assert done.structured_content["exit_code"] == 3
        assert done.structured_content["output"] == "hello\n"
        assert not done.is_error


@ONE_MODE
async def test_long_output_is_cut_in_the_object_as_in_the_text(
    kind: Kind, mode: str, tmp_path: Path
) -> None:
    async with serving(kind, mode, tmp_path) as served, served.client() as client:
        # Over HTTP the official client takes no more than 1 MiB in one event.
        done = await run(client, "seq 1 200000")
        found = done.structured_content
        assert found["output"].startswith("Warning: truncated output (original token count: ")
        assert text(done).endswith(f"Output:\n{found['output']}")
        (note,) = found["notes"]
        assert note["kind"] == "cut"


@pytest.mark.requirement("security.mcp.annotations")
async def test_tools_tell_what_they_may_do(mode: str, tmp_path: Path) -> None:
    async with serving("stdio", mode, tmp_path) as served, served.client() as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert list(tools) == [
            "exec_command",
            "write_stdin",
            "read_output",
            "list_sessions",
            "kill_session",
            "read_file",
            "view_image",
            "write_file",
            "apply_patch",
        ]
        for name, tool in tools.items():
            hints = tool.annotations
            assert hints is not None
            reads = name in ("read_output", "list_sessions", "read_file", "view_image")
            assert hints.read_only_hint is reads
            assert hints.destructive_hint is not reads
            assert hints.open_world_hint is (name in ("exec_command", "write_stdin"))
            assert (tool.output_schema is None) == (name == "view_image")


@ONE_MODE
@pytest.mark.requirement("tools.images")
async def test_an_image_is_content_of_its_own(kind: Kind, mode: str, folder: Path) -> None:
    (folder / "dot.png").write_bytes(png())
    (folder.parent / "hidden.png").write_bytes(png())
    os.symlink(folder.parent / "hidden.png", folder / "link.png")
    profile = folder.parent / "profile.toml"
    profile.write_text(
        f'[[file_system.entries]]\npath = ":root"\naccess = "read"\n'
        f'[[file_system.entries]]\npath = "{folder.parent}/hidden.png"\naccess = "deny"\n'
    )
    async with (
        serving(kind, mode, folder, sandbox=str(profile)) as served,
        served.client() as client,
    ):
        seen = await client.call_tool("view_image", {"path": "dot.png"})
        (image,) = seen.content
        assert isinstance(image, types.ImageContent)
        assert (base64.b64decode(image.data), image.mime_type) == (png(), "image/png")
        assert seen.structured_content is None
        # The official client takes it, over HTTP too; one byte more is refused.
        largest = 750_000 if kind == "http" else 3_750_000
        for more, refused in ((0, False), (1, True)):
            (folder / "large.png").write_bytes(png().ljust(largest + more, b"\0"))
            seen = await client.call_tool("view_image", {"path": "large.png"})
            assert seen.is_error is refused
        for name in ("link.png", "../hidden.png", "profile.toml", "none"):
            seen = await client.call_tool("view_image", {"path": name})
            assert seen.is_error
            assert text(seen).startswith("unable to ")


@ONE_MODE
@pytest.mark.requirement("tools.notes")
async def test_a_result_says_what_happened_and_what_to_do(
    kind: Kind, mode: str, folder: Path
) -> None:
    sandboxed: dict[str, Any] = {"sandbox": "workspace-write", "ask_for_approval": "on-request"}
    async with serving(kind, mode, folder, **sandboxed) as served, served.client() as client:
        script = "touch /usr/file"
        done = await run(client, script)
        told = (
            "The sandbox does not let commands write `/usr/file`; to ask for it, call"
            " `exec_command` with `sandbox_permissions: require_escalated`."
        )
        assert text(done).startswith(f"{told}\nChunk ID: ")
        assert done.structured_content["notes"] == [{"kind": "denied", "text": told}]
        missing = await run(client, "true", workdir="missing")
        assert text(missing).endswith(
            f"\nThe working directory `{folder}/missing` does not exist; give another `workdir`,"
            " or create it first."
        )
        refused = await client.call_tool("write_file", {"path": "/usr/file", "content": "x"})
        assert text(refused).endswith(f"\n{told}")
        refused = await client.call_tool("write_file", {"path": "missing/", "content": "x"})
        assert "The sandbox" not in text(refused)
    asking_nobody = serving(kind, mode, folder, sandbox="workspace-write")
    async with asking_nobody as served, served.client() as client:
        (note,) = (await run(client, script)).structured_content["notes"]
        assert note["text"].endswith(
            "; no call can ask for it, only the user can allow it, with `--sandbox-write`."
        )
    plain = serving(kind, mode, folder, notes=False, **sandboxed)
    async with plain as served, served.client() as client:
        done = await run(client, script)
        assert text(done).startswith("Chunk ID: ")
        refused = await client.call_tool("write_file", {"path": "/usr/file", "content": "x"})
        assert "The sandbox" not in text(refused)


@pytest.mark.requirement("tools.notes")
@pytest.mark.parametrize(
    ("sandbox", "said"),
    [
        ("danger-full-access", "without a sandbox and may use the network."),
        ("read-only", "in the sandbox `read-only`: they may write nothing, and have no network. "),
        (
            "workspace-write",
            "in the sandbox `workspace-write`: they may write `{0}` (but not `.git` in it), `/tmp`,"
            " the temporary directory, and have no network. ",
        ),
    ],
)
async def test_the_instructions_say_what_commands_may_do(
    sandbox: str, said: str, tmp_path: Path
) -> None:
    sandboxed = serving("stdio", HANDSHAKE, tmp_path, sandbox=sandbox)
    async with sandboxed as served, served.client() as client:
        assert client.instructions is not None
        assert f"Commands run in `{tmp_path}` {said.format(tmp_path)}" in client.instructions


@ONE_MODE
async def test_a_long_command_tells_its_progress(kind: Kind, mode: str, tmp_path: Path) -> None:
    told: list[tuple[float, str | None]] = []
    halfway = asyncio.Event()

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        told.append((progress, message))
        if message is not None and message.endswith("bytes: halfway"):
            (tmp_path / "go").touch()
            halfway.set()

    async with serving(kind, mode, tmp_path) as served, served.client() as client:
        arguments = {
            "cmd": "echo halfway; until [ -e go ]; do sleep 0.05; done; echo end",
            "login": False,
            "yield_time_ms": 20_000,
        }
        done = await client.call_tool("exec_command", arguments, progress_callback=on_progress)
        assert halfway.is_set()
        assert done.structured_content["output"] == "halfway\nend\n"
        seconds = [each for each, _ in told]
        assert seconds == sorted(seconds)
        assert all(later - earlier > 0.2 for earlier, later in itertools.pairwise(seconds))


async def test_the_first_sandbox_is_prepared_before_the_first_call(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = asyncio.Event()
    prepare = Environment.prepare

    async def watched(self: Environment) -> None:
        await prepare(self)
        prepared.set()

    monkeypatch.setattr(Environment, "prepare", watched)
    async with (
        serving("stdio", MODERN, folder, sandbox="workspace-write") as served,
        served.client() as client,
        asyncio.timeout(20),
    ):
        await client.list_tools()
        await prepared.wait()


async def test_without_a_token_nothing_is_told(tmp_path: Path) -> None:
    heard: list[object] = []

    async def hear(message: object) -> None:
        heard.append(message)

    async with (
        serving("stdio", HANDSHAKE, tmp_path) as served,
        served.client(message_handler=hear) as client,
    ):
        await run(client, "echo a; sleep 0.6; echo b")
    assert not [each for each in heard if isinstance(each, types.ProgressNotification)]


@ONE_MODE
async def test_a_terminal_session_is_written_to_polled_and_ended(
    kind: Kind, mode: str, tmp_path: Path
) -> None:
    async with serving(kind, mode, tmp_path) as served, served.client() as client:
        began = await run(client, "stty -echo; echo ready; cat", tty=True, yield_time_ms=250)
        number = session_id(began)
        assert await sessions(client) == [number]
        said = await client.call_tool(
            "write_stdin", {"session_id": number, "chars": "hello\n", "yield_time_ms": 250}
        )
        assert "hello" in said.structured_content["output"]
        assert session_id(said) == number
        ended = await client.call_tool(
            "write_stdin", {"session_id": number, "chars": "\x04", "yield_time_ms": 10_000}
        )
        assert ended.structured_content["exit_code"] == 0
        kept = await client.call_tool("read_output", {"session_id": number})
        assert "hello" in text(kept)
        gone = await client.call_tool("kill_session", {"session_id": number})
        assert gone.is_error
        assert text(gone) == f"write_stdin failed: Unknown process id {number}"


async def test_a_session_is_killed(mode: str, tmp_path: Path) -> None:
    async with serving("stdio", mode, tmp_path) as served, served.client() as client:
        number = session_id(await run(client, "sleep 100", yield_time_ms=250))
        killed = await client.call_tool("kill_session", {"session_id": number})
        assert text(killed) == f"Session {number} was killed."
        assert await sessions(client) == []


@ONE_MODE
async def test_files_are_written_and_read(kind: Kind, mode: str, tmp_path: Path) -> None:
    async with serving(kind, mode, tmp_path) as served, served.client() as client:
        content = "".join(f"line {number}\n" for number in range(1, 10))
        made = await client.call_tool("write_file", {"path": "new/a.txt", "content": content})
        assert text(made) == f"Wrote {len(content)} bytes to new/a.txt."
        assert (tmp_path / "new/a.txt").read_text() == content
        part = await client.call_tool("read_file", {"path": "new/a.txt", "offset": 3, "limit": 2})
        assert text(part) == "line 3\nline 4\n"
        assert part.structured_content["next_line"] == 5
        assert part.structured_content["total_lines"] == 9


PATCH = """\
*** Begin Patch
*** Update File: a.txt
@@
-old
+new
*** Add File: sub/b.txt
+added
*** End Patch
"""


@ONE_MODE
async def test_a_patch_is_applied_as_a_whole_or_not_at_all(
    kind: Kind, mode: str, tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_text("old\n")
    async with serving(kind, mode, tmp_path) as served, served.client() as client:
        done = await client.call_tool("apply_patch", {"input": PATCH})
        assert text(done).endswith("Success. Updated the following files:\nA sub/b.txt\nM a.txt\n")
        assert done.structured_content == {
            "changes": [
                {"kind": "update", "path": str(tmp_path / "a.txt")},
                {"kind": "add", "path": str(tmp_path / "sub/b.txt")},
            ]
        }
        assert (tmp_path / "a.txt").read_text() == "new\n"
        (tmp_path / "sub/b.txt").unlink()
        again = await client.call_tool("apply_patch", {"input": PATCH})
        assert again.is_error
        assert text(again).startswith("apply_patch verification failed: ")
        assert not (tmp_path / "sub/b.txt").exists()


HUGE = "x" * 8_999_999


@pytest.mark.parametrize(
    ("tool", "arguments", "complaint"),
    [
        ("read_file", {"path": "absent"}, "cannot read absent: No such file"),
        ("read_file", {"path": "."}, "cannot read .: path "),
        ("read_file", {"path": ""}, "path is empty"),
        ("read_file", {"path": 3}, "failed to parse function arguments: "),
        ("read_file", {"path": "a", "offset": 0}, "failed to parse function arguments: "),
        ("read_file", {"path": "bytes"}, "bytes is not text: byte 1 is not UTF-8; it has 2 bytes"),
        ("write_file", {"path": "../out", "content": "x"}, "cannot write ../out: "),
        ("write_file", {"path": "link", "content": "x"}, "cannot write link: "),
        ("write_file", {"path": f"new/{'x' * 300}", "content": "x"}, "cannot write new/x"),
        ("write_file", {"path": "a\0b", "content": "x"}, "path has a NUL character"),
        ("apply_patch", {"input": "nonsense"}, "apply_patch verification failed: invalid patch"),
        (
            "apply_patch",
            {"input": "*** Begin Patch\n*** Add File: ../out\n+x\n*** End Patch\n"},
            "patch rejected: ",
        ),
        (
            "apply_patch",
            {"input": "*** Begin Patch\n*** Add File: link\n+x\n*** End Patch\n"},
            "Exit code: 1\nWall time: ",
        ),
        (
            "apply_patch",
            {"input": f"*** Begin Patch\n*** Add File: out\n+{HUGE}\n*** End Patch\n"},
            "apply_patch verification failed: invalid patch: it has 9000049 bytes",
        ),
        ("kill_session", {"session_id": "1"}, "failed to parse function arguments: "),
        ("kill_session", {}, "failed to parse function arguments: "),
        ("exec_command", {"cmd": 1}, "failed to parse function arguments: invalid type"),
        ("write_stdin", {"session_id": 4711}, "write_stdin failed: Unknown process id 4711"),
        ("no_such_tool", {}, "unsupported call: no_such_tool"),
    ],
)
async def test_bad_calls_are_told_and_do_nothing(
    tool: str, arguments: dict[str, Any], complaint: str, folder: Path
) -> None:
    (folder / "bytes").write_bytes(b"a\xff")
    (folder / "link").symlink_to("../out")
    async with (
        serving("stdio", MODERN, folder, sandbox="workspace-write") as served,
        served.client() as client,
    ):
        result = await client.call_tool(tool, arguments)
    assert result.is_error
    assert text(result).startswith(complaint), text(result)
    assert not (folder.parent / "out").exists()
    assert sorted(os.listdir(folder)) == ["bytes", "link"]


@ONE_MODE
async def test_sixty_one_calls_at_once(kind: Kind, mode: str, tmp_path: Path) -> None:
    async with serving(kind, mode, tmp_path) as served, served.client() as client:
        await client.list_tools()
        async with asyncio.TaskGroup() as calls:
            tasks = [calls.create_task(run(client, f"echo {number}")) for number in range(61)]
        assert [task.result().structured_content["output"] for task in tasks] == [
            f"{number}\n" for number in range(61)
        ]


# -- approvals

ESCALATED = {"sandbox_permissions": "require_escalated", "justification": "may I?"}
ASKING: dict[str, Any] = {"sandbox": "workspace-write", "ask_for_approval": "on-request"}


@pytest.fixture
def folder() -> Iterator[Path]:
    """A workspace that is not below /tmp, where every sandbox may write."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as above:
        work = Path(above, "work")
        work.mkdir()
        yield work


@pytest.mark.requirement("security.mcp.client")
@ONE_MODE
async def test_an_approval_that_is_accepted(kind: Kind, mode: str, folder: Path) -> None:
    asked: list[types.ElicitRequestFormParams] = []

    async def answer(params: types.ElicitRequestFormParams) -> types.ElicitResult:
        asked.append(params)
        assert not (folder.parent / "made").exists()
        return await accepting()(params)

    async with serving(kind, mode, folder, **ASKING) as served, served.client(answer) as client:
        done = await run(client, "touch ../made", **ESCALATED)
    assert done.structured_content["exit_code"] == 0
    assert (folder.parent / "made").exists()
    (question,) = asked
    assert "touch ../made" in question.message
    assert "may I?" in question.message
    if mode == HANDSHAKE:
        meta: Any = question.meta
        assert meta["holdfast/approval"]["cwd"] == str(folder)


@pytest.mark.requirement("security.mcp.client")
@ONE_MODE
async def test_an_approval_that_is_declined(kind: Kind, mode: str, folder: Path) -> None:
    async with serving(kind, mode, folder, **ASKING) as served, served.client(declining) as client:
        done = await run(client, "touch ../made", **ESCALATED)
    assert done.is_error
    assert "rejected by user" in text(done)
    assert not (folder.parent / "made").exists()


@ONE_MODE
async def test_a_command_that_its_sandbox_denied_is_approved(
    kind: Kind, mode: str, folder: Path
) -> None:
    asking = {**ASKING, "ask_after_denial": True}
    async with (
        serving(kind, mode, folder, **asking) as served,
        served.client(accepting()) as client,
    ):
        done = await run(client, "echo once >> count; echo made > ../made")
    assert done.structured_content["exit_code"] == 0
    assert (folder.parent / "made").read_text() == "made\n"
    assert (folder / "count").read_text() == "once\nonce\n"


@ONE_MODE
async def test_a_denial_that_is_declined_gives_the_first_output(
    kind: Kind, mode: str, folder: Path
) -> None:
    asking = {**ASKING, "ask_after_denial": True}
    async with serving(kind, mode, folder, **asking) as served, served.client(declining) as client:
        done = await run(client, "echo first | tee -a count; echo made > ../made")
    assert done.structured_content["exit_code"] == 1
    assert "first\n" in done.structured_content["output"]
    assert (folder / "count").read_text() == "first\n"
    assert not (folder.parent / "made").exists()


async def test_who_cannot_be_asked_is_told_which_flag_helps(mode: str, folder: Path) -> None:
    async with serving("stdio", mode, folder, **ASKING) as served, served.client() as client:
        done = await run(client, "touch ../made", **ESCALATED)
    assert done.is_error
    assert "--ask-for-approval never" in text(done)
    assert "--rules FILE" in text(done)


# -- ends


@ONE_MODE
async def test_a_cancelled_command_is_stopped(kind: Kind, mode: str, tmp_path: Path) -> None:
    async with serving(kind, mode, tmp_path) as served, served.client() as client:
        script = (
            "trap 'echo interrupted > trapped; exit' INT; touch began; while :; do sleep 0.05; done"
        )
        call = asyncio.ensure_future(run(client, script, yield_time_ms=30_000))
        await there(tmp_path / "began")
        call.cancel()
        await there(tmp_path / "trapped")
        assert await sessions(client) == []


async def test_a_cancelled_command_that_ignores_interrupts_is_killed(tmp_path: Path) -> None:
    async with serving("stdio", MODERN, tmp_path) as served, served.client() as client:
        script = "trap '' INT; echo $$ > pid; mv pid began; while :; do sleep 0.05; done"
        call = asyncio.ensure_future(run(client, script, yield_time_ms=30_000))
        await there(tmp_path / "began")
        ending = Ending(int((tmp_path / "began").read_text()))
        call.cancel()
        await ending.wait()


async def test_a_cancelled_command_may_be_kept(tmp_path: Path) -> None:
    async with (
        serving("stdio", MODERN, tmp_path, on_cancel="keep") as served,
        served.client() as client,
    ):
        async with client.listen(resources_list_changed=True) as events, asyncio.timeout(20):
            call = asyncio.ensure_future(
                run(client, "touch began; cat", tty=True, yield_time_ms=30_000)
            )
            await there(tmp_path / "began")
            call.cancel()
            await anext(aiter(events))  # it has a number now
        found = await sessions(client)
        line = {"session_id": found[0], "chars": "hello\n", "yield_time_ms": 250}
        said = await client.call_tool("write_stdin", line)
        assert "hello" in said.structured_content["output"]


@ONE_MODE
async def test_a_cancelled_poll_ends_the_wait_only(kind: Kind, mode: str, tmp_path: Path) -> None:
    async with serving(kind, mode, tmp_path) as served, served.client() as client:
        began = await run(client, "stty -echo; cat", tty=True, yield_time_ms=250)
        number = session_id(began)
        poll = {"session_id": number, "yield_time_ms": 40_000}
        call = asyncio.ensure_future(client.call_tool("write_stdin", poll))
        await asyncio.sleep(0)  # it is on its way
        call.cancel()
        # Calls of one session wait for each other: this one is behind the poll.
        line = {"session_id": number, "chars": "hello\n", "yield_time_ms": 250}
        async with asyncio.timeout(20):
            said = await client.call_tool("write_stdin", line)
        assert "hello" in said.structured_content["output"]


async def test_no_call_lasts_longer_than_the_longest_wait(mode: str, tmp_path: Path) -> None:
    assert ServerOptions().max_wait == 50.0  # clients give up after 60 s
    async with serving("stdio", mode, tmp_path, max_wait=0.5) as served, served.client() as client:
        began = await run(client, "sleep 100", yield_time_ms=30_000)
        number = session_id(began)
        assert began.structured_content["wall_time_seconds"] < 15
        polled = await client.call_tool(
            "write_stdin", {"session_id": number, "yield_time_ms": 60_000}
        )
        assert session_id(polled) == number
        assert polled.structured_content["wall_time_seconds"] < 15


async def there(path: Path) -> None:
    """Wait for a file that a command makes."""
    async with asyncio.timeout(20):
        while not os.path.exists(path):  # noqa: ASYNC110, ASYNC240 - it is another process
            await asyncio.sleep(0.02)


# -- resources


@ONE_MODE
async def test_sessions_are_resources_with_updates(kind: Kind, mode: str, tmp_path: Path) -> None:
    updated: asyncio.Queue[str] = asyncio.Queue()

    async def hear(message: object) -> None:
        if isinstance(message, types.ResourceUpdatedNotification):
            updated.put_nowait(str(message.params.uri))

    async with (
        serving(kind, mode, tmp_path) as served,
        served.client(message_handler=hear) as client,
    ):
        script = "echo ready; until [ -e go ]; do sleep 0.05; done; echo more; sleep 100"
        number = session_id(await run(client, script, yield_time_ms=250))
        uri = f"holdfast://sessions/{number}"
        listed = (await client.list_resources()).resources
        assert [str(each.uri) for each in listed] == [uri]
        if mode == HANDSHAKE:
            with pytest.warns(MCPDeprecationWarning):
                await client.subscribe_resource(uri)
            (tmp_path / "go").touch()
            async with asyncio.timeout(20):
                assert await updated.get() == uri
        else:
            async with client.listen(resource_subscriptions=[uri]) as events, asyncio.timeout(20):
                (tmp_path / "go").touch()
                assert (await anext(aiter(events))).uri == uri  # type: ignore[union-attr]
        (content,) = (await client.read_resource(uri, cache_mode="bypass")).contents
        assert isinstance(content, types.TextResourceContents)
        state = json.loads(content.text)
        assert state["running"] is True
        assert state["output"] == "ready\nmore\n"


# -- elsewhere


@pytest.mark.requirement("mcp.wide-workspace")
async def test_the_home_of_another_machine_is_no_workspace_unless_it_is_named(
    tmp_path: Path,
) -> None:
    with exec_serving(cwd=tmp_path, env={**os.environ, "HOME": str(tmp_path)}) as other:
        for cwd in (None, str(tmp_path)):
            chosen = ServerOptions(cwd=cwd, environment=other.url, ask_for_approval="never")
            async with McpServer(chosen) as server:
                served = ServedMcp("stdio", MODERN, server, "")
                async with served.client() as client:
                    done = await run(client, "touch made")
            assert done.is_error is (cwd is None)
            assert (tmp_path / "made").exists() is (cwd is not None)
            if cwd is None:
                assert f"the workspace would be {tmp_path}, a home directory" in text(done)


@pytest.mark.requirement("security.mcp.client")
async def test_commands_and_files_of_another_machine(tmp_path: Path) -> None:
    with exec_serving(cwd=tmp_path) as other:
        async with (
            serving("stdio", MODERN, tmp_path, environment=other.url) as served,
            served.client() as client,
        ):
            await client.call_tool("write_file", {"path": "a.txt", "content": "here\n"})
            done = await run(client, "cat a.txt; echo $PPID")
            told, parent = done.structured_content["output"].split()
            assert told == "here"
            assert int(parent) == other.serving_pid
