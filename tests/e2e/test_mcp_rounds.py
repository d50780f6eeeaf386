"""Second rounds of 2026-07-28: an answer counts for what was asked, once, and for nobody else."""

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from mcp.client import Client

from tests.e2e.mcp_clients import MODERN, accepting, serving, text

pytestmark = [pytest.mark.slow, pytest.mark.timeout(60)]

ASKING: dict[str, Any] = {"sandbox": "workspace-write", "ask_for_approval": "on-request"}
ACCEPTED = {"approval": types.ElicitResult(action="accept", content={"decision": "accept"})}

Result = types.CallToolResult | types.InputRequiredResult


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as above:
        work = Path(above, "work")
        work.mkdir()
        yield work


def command(cmd: str) -> dict[str, Any]:
    return {"cmd": cmd, "login": False, "sandbox_permissions": "require_escalated"}


async def first(client: Client, arguments: dict[str, Any]) -> str:
    """Begin a call that asks, and return its state."""
    asked = await second(client, arguments, None, None)
    assert isinstance(asked, types.InputRequiredResult)
    assert asked.request_state is not None
    return asked.request_state


async def second(
    client: Client,
    arguments: dict[str, Any],
    state: str | None,
    answers: dict[str, Any] | None,
    name: str = "exec_command",
) -> Result:
    found: Result = await client.session.call_tool(
        name,
        arguments,
        input_responses=answers,
        request_state=state,
        allow_input_required=True,
    )
    return found


def refused(result: Result) -> None:
    assert isinstance(result, types.CallToolResult)
    assert result.is_error
    assert "nothing was run" in text(result)


@pytest.mark.requirement("security.mcp.rounds")
async def test_the_answer_is_used_once(folder: Path) -> None:
    arguments = command("echo ran >> ../count")
    async with (
        serving("stdio", MODERN, folder, **ASKING) as served,
        served.client(accepting()) as client,
    ):
        state = await first(client, arguments)
        done = await second(client, arguments, state, ACCEPTED)
        assert isinstance(done, types.CallToolResult)
        assert not done.is_error
        refused(await second(client, arguments, state, ACCEPTED))
    assert (folder.parent / "count").read_text() == "ran\n"


async def test_changed_arguments_are_asked_anew(folder: Path) -> None:
    async with (
        serving("http", MODERN, folder, **ASKING) as served,
        served.client(accepting()) as client,
    ):
        state = await first(client, command("touch ../a"))
        again = await second(client, command("touch ../b"), state, ACCEPTED)
        assert isinstance(again, types.InputRequiredResult)
        assert again.input_requests is not None
        question: Any = again.input_requests["approval"].params
        assert "touch ../b" in question.message
        assert again.meta is not None
        # The first question is closed with it.
        refused(await second(client, command("touch ../a"), state, ACCEPTED))
        assert not list(folder.parent.glob("[ab]"))
        done = await second(client, command("touch ../b"), again.request_state, ACCEPTED)
        assert isinstance(done, types.CallToolResult)
    assert [each.name for each in folder.parent.glob("[ab]")] == ["b"]


async def test_a_round_without_an_answer_asks_again(folder: Path) -> None:
    arguments = command("touch ../a")
    async with (
        serving("stdio", MODERN, folder, **ASKING) as served,
        served.client(accepting()) as client,
    ):
        state = await first(client, arguments)
        again = await second(client, arguments, state, None)
        assert isinstance(again, types.InputRequiredResult)
        assert not (folder.parent / "a").exists()
        await second(client, arguments, again.request_state, ACCEPTED)
    assert (folder.parent / "a").exists()


async def test_a_state_is_good_for_its_client_and_tool_only(folder: Path) -> None:
    arguments = command("touch ../a")
    async with (
        serving("http", MODERN, folder, tokens=["one", "two"], **ASKING) as served,
        served.client(accepting(), token="one") as mine,
        served.client(accepting(), token="two") as other,
    ):
        state = await first(mine, arguments)
        refused(await second(other, arguments, state, ACCEPTED))
        refused(await second(mine, arguments, state, ACCEPTED, name="write_stdin"))
        refused(await second(mine, arguments, state[:-4] + "AAAA", ACCEPTED))
        refused(await second(mine, arguments, "", ACCEPTED))
        assert not (folder.parent / "a").exists()
        await second(mine, arguments, state, ACCEPTED)
    assert (folder.parent / "a").exists()


async def test_an_open_question_holds_up_no_other_call(folder: Path) -> None:
    async with (
        serving("stdio", MODERN, folder, max_wait=40, **ASKING) as served,
        served.client(accepting()) as client,
    ):
        await first(client, command("touch ../a"))
        async with asyncio.timeout(20):
            done = await client.call_tool("exec_command", {"cmd": "sleep 0.3; echo b"})
        assert "b\n" in done.structured_content["output"]


async def test_who_vanishes_in_a_question_runs_nothing(folder: Path) -> None:
    async with (
        serving("http", MODERN, folder, **ASKING) as served,
        served.client(accepting()) as client,
    ):
        await first(client, command("touch ../a"))
    assert not (folder.parent / "a").exists()


async def test_questions_that_nobody_answers_are_bounded(folder: Path) -> None:
    async with (
        serving("stdio", MODERN, folder, **ASKING) as served,
        served.client(accepting()) as client,
    ):
        arguments = [command(f"touch ../{number}") for number in range(66)]
        states = [await first(client, each) for each in arguments]
        # Those that have waited longest made room.
        for number in (0, 1):
            refused(await second(client, arguments[number], states[number], ACCEPTED))
        for number in (2, 65):
            done = await second(client, arguments[number], states[number], ACCEPTED)
            assert isinstance(done, types.CallToolResult)
    assert sorted(each.name for each in folder.parent.iterdir()) == ["2", "65", "work"]
