"""The real Codex uses `holdfast mcp`: as `codex exec`, and as an application's `app-server`."""

import asyncio
import json
import re
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.wire import HOLDFAST
from tests.real.approvals.record import config, one_turn
from tests.real.model import GOODBYE, Item, Model, Turn, playing, use
from tests.real.test_codex_client import play
from tests.real.unified_exec.on_codex import AppServer, app_server, base_environment

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.timeout(180)]


README = Path(__file__).parents[2] / "README.md"


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that is not below /tmp, where every sandbox may write."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as above:
        yield Path(above)


def server_config(workspace: Path, *flags: str, **keys: object) -> str:
    """The part of Codex's configuration that names our server."""
    argv = [*HOLDFAST, "mcp", "--cwd", str(workspace), *flags]
    settings = {
        "command": argv[0],
        "args": argv[1:],
        "required": True,
        "startup_timeout_sec": 60,
        **keys,
    }
    lines = (f"{name} = {json.dumps(value)}" for name, value in settings.items())
    return "\n".join(["[mcp_servers.holdfast]", *lines, ""])


def call(call_id: str, name: str, **arguments: object) -> Item:
    return use(call_id, name, server="holdfast", **arguments)


def run(call_id: str, cmd: str, **arguments: object) -> Item:
    return call(call_id, "exec_command", cmd=cmd, login=False, **arguments)


FULL = ("--sandbox", "danger-full-access", "--ask-for-approval", "never")


async def scripted(folder: Path, turns: Sequence[Turn], *flags: str, **keys: object) -> Model:
    """Let `codex exec` follow a script with our server."""
    ours = server_config(folder / "workspace", *flags, **keys)
    (folder / "workspace").mkdir(exist_ok=True)
    return await play(folder, turns, config=ours)


def found(model: Model, call_id: str) -> Any:
    """The result object of a call, which Codex gives to its model in place of the text."""
    return json.loads(model.outputs[call_id].partition("Output:\n")[2])


async def test_a_command_and_a_terminal(folder: Path) -> None:
    def typed(model: Model) -> list[Item]:
        number = found(model, "b")["session_id"]
        return [call("c", "write_stdin", session_id=number, chars="hello\n", yield_time_ms=500)]

    model = await scripted(
        folder,
        [
            [run("a", "echo here; exit 3")],
            [run("b", "stty -echo; cat", tty=True, yield_time_ms=500)],
            typed,
        ],
        *FULL,
    )
    assert found(model, "a")["exit_code"] == 3
    assert found(model, "a")["output"] == "here\n"
    assert "hello" in found(model, "c")["output"]


async def test_a_command_that_codex_gives_up_is_stopped(folder: Path) -> None:
    script = "trap 'touch trapped; exit' INT; touch began; while :; do sleep 0.05; done"
    model = await scripted(
        folder,
        [[run("a", script, yield_time_ms=30_000)], [run("b", "until [ -e trapped ]; do :; done")]],
        *FULL,
        tool_timeout_sec=3,
    )
    assert (folder / "workspace" / "began").exists()
    assert "timed out" in model.outputs["a"]
    assert found(model, "b")["exit_code"] == 0


async def test_codex_exec_declines_every_question_and_nothing_runs(folder: Path) -> None:
    model = await scripted(
        folder,
        [[run("a", "touch ../made", sandbox_permissions="require_escalated", justification="?")]],
    )
    assert "Rejected" in model.outputs["a"]
    assert not (folder / "made").exists()


async def test_the_configuration_of_the_readme_works_in_codex_exec(folder: Path) -> None:
    (sample,) = re.findall(
        r"^<!-- checked: mcp_servers -->\n```toml\n(.*?)^```$",
        README.read_text(),
        re.DOTALL | re.MULTILINE,
    )
    keys = tomllib.loads(sample)["mcp_servers"]["holdfast"]
    assert (keys.pop("command"), keys.pop("args")[:2]) == ("holdfast", ["mcp", "--cwd"])
    (folder / "workspace").mkdir()
    model = await play(
        folder,
        [[run("a", "echo here > made")]],
        config=server_config(folder / "workspace", **keys),
        # With full access Codex asks for no approval of a call, with or without our setting.
        sandbox="workspace-write",
    )
    assert found(model, "a")["exit_code"] == 0
    assert (folder / "workspace" / "made").read_text() == "here\n"


class Asked(AppServer):
    """An app-server that asks its application about calls, and for our server."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        super().__init__(process)
        self.questions: list[dict[str, Any]] = []
        self.action = "accept"

    def reply(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        if method != "mcpServer/elicitation/request":
            return super().reply(method, params)
        if (params.get("_meta") or {}).get("codex_approval_kind") == "mcp_tool_call":
            return {"result": {"action": "accept", "content": {}}}  # its own question
        self.questions.append(params)
        content = {"decision": "accept"} if self.action == "accept" else None
        return {"result": {"action": self.action, "content": content}}


@pytest.mark.parametrize("action", ["accept", "decline"])
async def test_an_application_answers_the_question_after_a_denial(
    folder: Path, action: str
) -> None:
    workspace, home, codex_home = (folder / name for name in ("workspace", "home", "codex"))
    for each in (workspace, home, codex_home, folder / "tmp"):
        each.mkdir()
    variables = {
        **base_environment(home),
        "TMPDIR": str(folder / "tmp"),
        "CODEX_HOME": str(codex_home),
    }
    async with playing([]) as model:
        ours = server_config(workspace, "--ask-after-denial")
        (codex_home / "config.toml").write_text(config(model.url) + ours)
        async with app_server(variables, workspace, Asked) as app, asyncio.timeout(150):
            app.action = action
            thread = await app.open(
                workspace, approvalPolicy="on-request", sandbox="workspace-write"
            )
            model.play_next([[run("a", "echo tried; echo made > ../made")], [GOODBYE]])
            await one_turn(app, thread)
    (question,) = app.questions
    assert "echo made > ../made" in question["message"]
    assert "command failed; retry without sandbox?" in question["message"]
    assert (folder / "made").exists() is (action == "accept")
    assert found(model, "a")["output"].startswith("tried\n")
    assert (found(model, "a")["exit_code"] == 0) is (action == "accept")
