"""Capability discovery on the wire [discovery.*]."""

import os
from pathlib import Path

import pytest

from tests.e2e.wire import Client, ServerProcess, connect, file_uri, serving
from tests.unit.codex.discovery.trees import home, roots

PYTHON = {name: value for name, value in os.environ.items() if name.startswith("PYTHON")}
"""Variables by which a server finds itself, wherever it is tested."""

ROOTS = "capabilityRoots/discoverV1"
INSTALLED = "capabilities/discoverV2"

DISABLED = {"permissions": {"type": "disabled"}, "windowsSandboxLevel": "disabled"}
RESTRICTED = {
    "permissions": {
        "type": "managed",
        "file_system": {"type": "restricted", "entries": []},
        "network": "restricted",
    },
    "windowsSandboxLevel": "disabled",
}


@pytest.mark.requirement("discovery.handshake")
async def test_it_comes_after_the_handshake(server: ServerProcess) -> None:
    async with connect(server.url, initialize=False) as client:
        for method, params in ((ROOTS, {"roots": []}), (INSTALLED, {"cwd": "file:///"})):
            text = "client must call initialize before using capability discovery methods"
            assert await client.refusal(method, params) == (-32600, text)


async def test_the_server_says_that_it_knows_how(server: ServerProcess) -> None:
    async with connect(server.url, initialize=False) as client:
        capabilities = (await client.initialize())["environmentInfo"]["capabilities"]
    assert capabilities["capabilityDiscoveryV2"] is True
    assert capabilities["capabilityDiscoverySandbox"] is True


@pytest.mark.requirement("discovery.roots.order")
async def test_folders_are_answered_in_their_order(client: Client, tmp_path: Path) -> None:
    names = roots(tmp_path)
    asked = [{"id": name, "path": f"file://{tmp_path}/{name}"} for name in names]
    answer = await client.call(ROOTS, {"roots": asked})
    assert [root["id"] for root in answer["roots"]] == names
    first = answer["roots"][0]
    assert list(first) == [
        "id",
        "path",
        "plugin",
        "skills",
        "namespaceManifests",
        "warnings",
        "error",
    ]
    assert first["plugin"]["mcpConfig"] == {
        "path": f"file://{tmp_path}/a/.mcp.json",
        "contents": "{}",
    }


@pytest.mark.requirement("discovery.roots.limit", "discovery.installed.sandbox-cwd")
@pytest.mark.parametrize(
    ("method", "params", "code", "text"),
    [
        (ROOTS, {}, -32602, "missing field `roots`"),
        (ROOTS, {"roots": [{"id": "a"}]}, -32602, "missing field `path`"),
        (
            ROOTS,
            {"roots": [{"id": "", "path": "file:///x"}] * 129},
            -32600,
            "capability root discovery accepts at most 128 roots",
        ),
        (INSTALLED, {}, -32602, "missing field `cwd`"),
        (INSTALLED, {"cwd": "file:///", "sandbox": {}}, -32602, "missing field `permissions`"),
        (INSTALLED, {"cwd": "file:///", "sandbox": DISABLED}, -32602, "missing field `cwd`"),
    ],
)
async def test_what_is_asked_wrongly_is_refused(
    client: Client, method: str, params: object, code: int, text: str
) -> None:
    assert await client.refusal(method, params) == (code, text)


@pytest.mark.requirement("security.discovery")
async def test_a_sandbox_is_never_ignored(client: Client, tmp_path: Path) -> None:
    sandbox = {**RESTRICTED, "cwd": file_uri(tmp_path)}
    answer = await client.call(INSTALLED, {"cwd": "file:///", "sandbox": sandbox})
    assert answer == {"plugins": [], "skills": [], "warnings": []}
    asked = {"id": "", "path": file_uri(tmp_path), "sandbox": RESTRICTED}
    (root,) = (await client.call(ROOTS, {"roots": [asked]}))["roots"]
    assert root["error"].startswith("failed to inspect capability root ")


@pytest.mark.requirement("discovery.installed")
async def test_what_is_installed_is_found(tmp_path: Path) -> None:
    codex = home(tmp_path)
    env = {"CODEX_HOME": str(codex), "HOME": str(tmp_path / "user"), "PATH": "/usr/bin:/bin"}
    with serving(env={**env, **PYTHON}) as server:
        async with connect(server.url) as client:
            sandbox = {**DISABLED, "cwd": "file:///"}
            for params in ({"cwd": "file:///C:/x"}, {"cwd": "file:///", "sandbox": sandbox}):
                answer = await client.call(INSTALLED, params)
                assert list(answer) == ["plugins", "skills", "warnings"]
                assert "ver@m" in [plugin["id"] for plugin in answer["plugins"]]
                assert answer["skills"][0] == {
                    "name": "sys",
                    "description": "about sys",
                    "shortDescription": None,
                    "path": f"file://{codex}/skills/.system/sys/SKILL.md",
                    "discoveryRoot": {
                        "id": "codex-home-skills",
                        "path": f"file://{codex}/skills",
                    },
                    "dependencies": None,
                    "policy": None,
                }
