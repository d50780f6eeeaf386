"""Commands that managed requirements let only a person allow, in the programs that ask."""

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from mcp.client.session import ClientSession

from holdfast.front.drop_in import judging
from holdfast.front.drop_in.caller import Caller
from holdfast.front.drop_in.judging import Judge, LineRefused
from holdfast.front.drop_in.quiet_terminal import Terminals
from holdfast.front.drop_in.settings import ShellSettings
from holdfast.front.mcp import mcp_principals as principals
from tests.e2e.mcp_clients import HANDSHAKE, MODERN, Kind, accepting, serving, text

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(60),
    pytest.mark.requirement("approvals.human.once"),
]

REQUIREMENTS = """\
[rules]
prefix_rules = [
  {pattern = [{token = "touch"}], decision = "prompt-user", justification = "files matter"},
]
"""
ASKING: dict[str, Any] = {"sandbox": "workspace-write", "ask_for_approval": "on-request"}
Write = Callable[[str], int]
MADE = {"cmd": "touch made", "login": False}


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as above:
        work = Path(above, "work")
        work.mkdir()
        yield work


@pytest.fixture(autouse=True)
def requirements(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    file = tmp_path / "requirements.toml"
    file.write_text(REQUIREMENTS)
    for module in (principals, judging):
        monkeypatch.setattr(module, "REQUIREMENTS_FILE", file)
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path / "home"))
    return file.write_text


class Capable:
    """Lets clients declare that a person answers them, which the official one cannot."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.declared = True
        build = ClientSession._build_capabilities

        def built(session: ClientSession, *arguments: Any) -> types.ClientCapabilities:
            found = build(session, *arguments)
            if not self.declared:
                return found
            return found.model_copy(update={"experimental": {"requiredHumanApproval": {}}})

        monkeypatch.setattr(ClientSession, "_build_capabilities", built)


@pytest.fixture
def capable(monkeypatch: pytest.MonkeyPatch) -> Capable:
    return Capable(monkeypatch)


@pytest.mark.both_loops
@pytest.mark.parametrize(("kind", "mode"), [("stdio", HANDSHAKE), ("http", MODERN)])
async def test_a_client_is_asked_each_time(
    kind: Kind, mode: str, folder: Path, capable: Capable
) -> None:
    asked: list[Any] = []
    answers = ["accept", "accept", "acceptForSession", "decline"]

    async def answer(params: types.ElicitRequestFormParams) -> types.ElicitResult:
        asked.append(params)
        return types.ElicitResult(action="accept", content={"decision": answers.pop(0)})

    async with (
        serving(kind, mode, folder, **ASKING) as served,
        served.client(answer) as client,
    ):
        for _ in range(2):
            done = await client.call_tool("exec_command", MADE)
            assert not done.is_error
            (folder / "made").unlink()
        longer = await client.call_tool("exec_command", MADE)
        assert "requires a one-time human approval." in text(longer)
        declined = await client.call_tool("exec_command", MADE)
        assert "rejected by user" in text(declined)
    assert not (folder / "made").exists()
    first = asked[0]
    assert first.requested_schema["properties"]["decision"]["enum"] == ["accept", "decline"]
    assert "Only a person may allow it, and only this once." in first.message
    assert "requires human approval: files matter" in first.message


@pytest.mark.parametrize(("kind", "mode"), [("stdio", HANDSHAKE), ("http", MODERN)])
async def test_a_client_without_the_capability_is_not_asked(
    kind: Kind, mode: str, folder: Path
) -> None:
    async def answer(params: types.ElicitRequestFormParams) -> types.ElicitResult:
        raise AssertionError("it was asked")

    async with (
        serving(kind, mode, folder, **ASKING) as served,
        served.client(answer) as client,
    ):
        refused = await client.call_tool("exec_command", MADE)
    assert refused.is_error
    assert "approval request failed: only a person may allow this command" in text(refused)
    assert not (folder / "made").exists()


async def test_another_client_of_a_token_cannot_answer_for_a_person(
    folder: Path, capable: Capable
) -> None:
    accepted: Any = {
        "approval": types.ElicitResult(action="accept", content={"decision": "accept"})
    }
    token = "t" * 32
    async with (
        serving("http", MODERN, folder, tokens=[token], **ASKING) as served,
        served.client(accepting(), token=token) as client,
    ):
        asked = await client.session.call_tool("exec_command", MADE, allow_input_required=True)
        assert isinstance(asked, types.InputRequiredResult)
        capable.declared = False
        async with served.client(accepting(), token=token) as other:
            refused = await other.session.call_tool(
                "exec_command",
                MADE,
                input_responses=accepted,
                request_state=asked.request_state,
                allow_input_required=True,
            )
    assert isinstance(refused, types.CallToolResult)
    assert "approval request failed" in text(refused)
    assert not (folder / "made").exists()


async def test_a_server_with_broken_requirements_runs_nothing(
    folder: Path, requirements: Write
) -> None:
    requirements("[rules]\n")
    async with (
        serving("stdio", HANDSHAKE, folder, **ASKING) as served,
        served.client(accepting()) as client,
    ):
        refused = await client.call_tool("exec_command", {"cmd": "echo ran", "login": False})
    assert refused.is_error
    assert "requirements.toml: Object missing required field `prefix_rules`" in text(refused)


# -- holdfast-sh


def caller(folder: Path, number: int | None) -> Caller:
    found = Caller(
        pid=os.getpid(),
        argv=("sh", "-c", "touch made"),
        environ={"HOME": str(folder)},
        cwd=str(folder),
        cwd_exists=True,
        descriptors=frozenset(),
        signal_mask=0,
        group=0,
        terminal_device=0,
        terminal_group=0,
        namespaces=(0, 0),
    )
    # The standard descriptors of this process are no terminal.
    vars(found)["terminal"] = number
    return found


@pytest.mark.both_loops
async def test_a_shell_asks_on_the_terminal_each_time(folder: Path) -> None:
    judge = Judge(Terminals())
    settings = ShellSettings(policy="on-request")
    person, terminal = os.openpty()
    try:
        for answer, runs in ((b"y\n", True), (b"s\na\nn\n", False), (b"n\n", False)):
            asking = asyncio.ensure_future(judge.admit(caller(folder, terminal), settings, None))
            shown = b""
            while b"[c]ancel the call: " not in shown:
                shown += await asyncio.to_thread(os.read, person, 4096)
            assert b"Only a person may allow it, and only this once." in shown
            assert b"[s]ession" not in shown
            os.write(person, answer)
            if runs:
                await asking
            else:
                with pytest.raises(LineRefused, match="rejected by user"):
                    await asking
    finally:
        os.close(person)
        os.close(terminal)


async def test_a_shell_without_a_terminal_refuses(folder: Path, requirements: Write) -> None:
    settings = ShellSettings(policy="on-request")
    with pytest.raises(LineRefused, match="only a person may allow it, and there is no terminal"):
        await Judge(Terminals()).admit(caller(folder, None), settings, None)
    requirements("rules = 3\n")
    with pytest.raises(LineRefused, match=r"requirements\.toml: Expected"):
        await Judge(Terminals()).admit(caller(folder, None), settings, None)


# -- the file of the machine


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can put a file into /etc of a namespace")
@pytest.mark.requirement("rules.requirements")
def test_the_requirements_of_the_machine_are_read(tmp_path: Path) -> None:
    managed = tmp_path / "etc"
    managed.mkdir()
    (managed / "requirements.toml").write_text(REQUIREMENTS)
    program = f"{sys.executable} -m holdfast.front.cli policy check touch x"
    script = (
        "set -e; mount --make-rprivate /; mount -t tmpfs none /etc; mkdir /etc/holdfast;"
        f" mount --bind {managed} /etc/holdfast; {program};"
        f" echo 'rules = 3' > /etc/holdfast/requirements.toml; {program}"
    )
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert done.stdout == (
        '{"matchedRules":[{"prefixRuleMatch":{"matchedPrefix":["touch"],"decision":"prompt-user",'
        '"justification":"files matter"}}],"decision":"prompt-user"}\n'
    )
    assert done.returncode != 0
    assert done.stderr.startswith("holdfast: /etc/holdfast/requirements.toml: ")
    assert "Traceback" not in done.stderr
