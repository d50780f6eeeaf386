"""Shells of this machine, by their kind."""

import os
from pathlib import Path

import pytest

from holdfast.base.errors import InvalidParams
from holdfast.environments.environment import Environment
from holdfast.environments.remote import RemoteEnvironment
from holdfast.environments.shell import find_shell, shell_kind
from holdfast.testing import ScriptedServer
from holdfast.testing.scripted import SESSION_ID
from holdfast.wire.protocol.handshake import ShellInfo

USERS = ShellInfo(name="bash", path="/somewhere/bash")


@pytest.mark.parametrize("kind", ["bash", "/usr/bin/bash", "bash.exe"])
def test_the_shell_of_the_user_is_taken_if_it_is_of_that_kind(kind: str) -> None:
    assert shell_kind(kind) == "bash"
    assert find_shell(kind, USERS) == USERS


def test_another_kind_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    zsh = tmp_path / "zsh"
    zsh.touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_shell("zsh", USERS) == ShellInfo(name="zsh", path=str(zsh))
    zsh.chmod(0o644)
    found = find_shell("zsh", USERS)
    assert found.path != str(zsh)
    assert os.access(found.path, os.X_OK)


@pytest.mark.parametrize("kind", ["", "python3", "fish", "/no/such/csh"])
def test_a_kind_that_is_not_known_is_the_plainest(kind: str) -> None:
    assert find_shell(kind, USERS) == ShellInfo(name="sh", path="/bin/sh")


async def test_a_server_without_a_shell_says_so() -> None:
    server = ScriptedServer()
    server.answers["initialize"] = lambda peer, request: peer.reply(
        request,
        {"sessionId": SESSION_ID, "environmentInfo": {"shell": {"name": "", "path": ""}}},
    )
    env: Environment
    async with RemoteEnvironment("far", server) as env:
        with pytest.raises(InvalidParams, match="environment `far` does not report a shell"):
            await env.shell()
