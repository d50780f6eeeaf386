"""The view of a command in its sandbox: the same on the real server and on ours."""

import json
import os
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.engine.sandbox.bubblewrap.landlock import OLDEST_ABI, landlock_abi
from tests.e2e.wire import Client, connect, file_uri, serving
from tests.real.codex import codex_serving
from tests.real.versions import each_version

pytestmark = [pytest.mark.slow, pytest.mark.timeout(60)]

READ_ALL = {"path": {"type": "special", "value": {"kind": "root"}}, "access": "read"}
WRITE_ALL = {**READ_ALL, "access": "write"}
WRITE_ROOTS = {"path": {"type": "special", "value": {"kind": "project_roots"}}, "access": "write"}

PYTHON = "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else sys.executable

FACTS = """
import json, os, sys
status = dict(line.split(":\\t") for line in open("/proc/self/status").read().splitlines())
kinds = ["ipc", "mnt", "net", "pid", "user"]
mounts = [line.split() for line in open("/proc/self/mountinfo")]
print(json.dumps({
    "namespaces": {kind: os.readlink(f"/proc/self/ns/{kind}") for kind in kinds},
    "filter": int(status["Seccomp"]),
    "no_new_privs": int(status["NoNewPrivs"]),
    "capabilities": [int(status[f"Cap{which}"], 16) for which in ("Inh", "Prm", "Eff", "Bnd")],
    "ids": [os.getuid(), os.getgid()],
    "processes": sum(map(str.isdigit, os.listdir("/proc"))),
    "devices": os.listdir("/dev"),
    "shm": os.listdir("/dev/shm"),
    "options": [mount[5] for mount in mounts if mount[4] == sys.argv[1]],
}))
"""


def managed(ws: Path, *entries: dict[str, Any], network: str = "restricted") -> dict[str, Any]:
    files = {"type": "restricted", "entries": entries}
    return context(ws, {"type": "managed", "file_system": files, "network": network})


def context(ws: Path, permissions: dict[str, Any]) -> dict[str, Any]:
    return {
        "permissions": permissions,
        "cwd": file_uri(ws),
        "workspaceRoots": [file_uri(ws)],
        "windowsSandboxLevel": "disabled",
    }


@pytest.fixture(scope="module", params=["holdfast", *each_version()])
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if request.param == "holdfast":
        with serving() as server:
            yield server.url
    else:
        with codex_serving(tmp_path_factory.mktemp("codex")) as url:
            yield url


@pytest.fixture
def ours(request: pytest.FixtureRequest, url: str) -> bool:
    """True for our server."""
    return "holdfast" in request.node.callspec.id


@pytest.fixture
async def client(url: str) -> AsyncIterator[Client]:
    async with connect(url) as client:
        yield client


@pytest.fixture
def ws(tmp_path: Path) -> Path:
    folder = tmp_path.resolve() / "ws"
    folder.mkdir()
    return folder


async def facts(client: Client, ws: Path, sandbox: dict[str, Any] | None) -> dict[str, Any]:
    argv = [PYTHON, "-I", "-S", "-c", FACTS, str(ws)]
    run = await client.run(argv, cwd=file_uri(ws), sandbox=sandbox)
    assert run.exit_code == 0, run
    found: dict[str, Any] = json.loads(run.stdout)
    own = {kind: os.readlink(f"/proc/self/ns/{kind}") for kind in found["namespaces"]}
    found["namespaces"] = {k for k, name in found["namespaces"].items() if name != own[k]}
    return found


ALL = {"ipc", "mnt", "net", "pid", "user"}


@pytest.mark.requirement(
    "sandbox.layers.restricted", "sandbox.layers.root-write", "sandbox.full-write"
)
@pytest.mark.parametrize("network", ["restricted", "enabled"])
@pytest.mark.parametrize("entries", [(READ_ALL,), (READ_ALL, WRITE_ROOTS), (WRITE_ALL, READ_ALL)])
async def test_a_restricted_profile_has_namespaces_and_a_filter(
    client: Client, ws: Path, entries: tuple[dict[str, Any], ...], network: str
) -> None:
    if WRITE_ALL in entries:
        (ws / "kept").mkdir()
        kept = {"path": {"type": "path", "path": file_uri(ws / "kept")}, "access": "read"}
        entries = (WRITE_ALL, kept)
    found = await facts(client, ws, managed(ws, *entries, network=network))
    assert found["namespaces"] == (ALL if network == "restricted" else ALL - {"net"})
    assert (found["filter"], found["no_new_privs"]) == (2, 1)


@pytest.mark.requirement("sandbox.layers.nothing", "sandbox.full-write")
async def test_what_restricts_nothing_has_no_layer(client: Client, ws: Path) -> None:
    without = await facts(client, ws, None)
    for permissions in (
        {"type": "disabled"},
        {"type": "external", "network": "enabled"},
        {"type": "managed", "file_system": {"type": "unrestricted"}, "network": "enabled"},
        managed(ws, WRITE_ALL, network="enabled")["permissions"],
    ):
        found = await facts(client, ws, context(ws, permissions))
        assert found["namespaces"] == set()
        for name in ("filter", "no_new_privs", "capabilities"):
            assert found[name] == without[name]


@pytest.mark.requirement("sandbox.inside")
async def test_a_command_is_the_same_user_without_any_privilege(client: Client, ws: Path) -> None:
    found = await facts(client, ws, managed(ws, READ_ALL, WRITE_ROOTS))
    assert found["ids"] == [os.getuid(), os.getgid()]
    assert found["capabilities"] == [0, 0, 0, 0]
    assert found["processes"] <= 3  # the launcher's, the command's, and on Codex one between
    assert {"nosuid", "nodev"} <= set(found["options"][-1].split(","))


@pytest.mark.requirement("sandbox.devices")
async def test_devices_are_the_harmless_ones(client: Client, ws: Path) -> None:
    found = await facts(client, ws, managed(ws, READ_ALL))
    harmless = {"full", "null", "random", "tty", "urandom", "zero"}
    links = {"core", "fd", "ptmx", "pts", "shm", "stderr", "stdin", "stdout"}
    assert set(found["devices"]) - {"console"} == harmless | links
    assert found["shm"] == []


@pytest.mark.requirement("sandbox.protected.nested")
async def test_a_repository_below_the_workspace_is_not_protected(client: Client, ws: Path) -> None:
    (ws / "sub" / ".git").mkdir(parents=True)
    run = await client.run_shell(
        "echo x > sub/.git/config", cwd=file_uri(ws), sandbox=managed(ws, READ_ALL, WRITE_ROOTS)
    )
    assert run.exit_code == 0
    assert (ws / "sub" / ".git" / "config").read_text() == "x\n"


@pytest.mark.requirement("sandbox.globs.snapshot")
async def test_a_file_that_comes_to_match_a_pattern_later_can_be_read(
    client: Client, ws: Path
) -> None:
    pattern = {"path": {"type": "glob_pattern", "pattern": f"{ws}/**/*.env"}, "access": "deny"}
    (ws / "old.env").write_text("secret")
    run = await client.run_shell(
        "echo new > new.env; cat new.env; cat old.env",
        cwd=file_uri(ws),
        sandbox=managed(ws, READ_ALL, WRITE_ROOTS, pattern),
    )
    assert run.stdout == b"new\n"
    assert b"Permission denied" in run.stderr


@pytest.mark.requirement("sandbox.globs.to-read")
async def test_patterns_to_read_or_write_open_nothing(client: Client, ws: Path) -> None:
    pattern = {"path": {"type": "glob_pattern", "pattern": f"{ws}/*"}, "access": "write"}
    run = await client.run_shell(
        "echo x > x", cwd=file_uri(ws), sandbox=managed(ws, READ_ALL, pattern)
    )
    assert run.exit_code != 0
    assert not (ws / "x").exists()


@pytest.mark.requirement("sandbox.unknown-path")
async def test_places_that_a_newer_client_knows_open_nothing(client: Client, ws: Path) -> None:
    value = {"kind": "unknown", "path": ":new_place", "subpath": "x"}
    unknown = {"path": {"type": "special", "value": value}, "access": "write"}
    run = await client.run_shell(
        "cat /etc/passwd > /dev/null && echo x > x",
        cwd=file_uri(ws),
        sandbox=managed(ws, READ_ALL, unknown),
    )
    assert b"Read-only file system" in run.stderr


# -- what the real one does not stop, and ours not everywhere


async def test_a_fifo_that_exists_is_written_to_on_the_real_server_only(
    client: Client, ws: Path, ours: bool
) -> None:
    fifo = ws / "fifo"
    os.mkfifo(fifo)
    reading = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    try:
        run = await client.run_shell(
            "echo out > fifo", cwd=file_uri(ws), sandbox=managed(ws, READ_ALL)
        )
        if ours and landlock_abi() >= OLDEST_ABI:
            assert b"Permission denied" in run.stderr
            assert os.read(reading, 100) == b""
        else:
            assert run.exit_code == 0
            assert os.read(reading, 100) == b"out\n"
    finally:
        os.close(reading)


@pytest.mark.requirement("sandbox.hard-links")
async def test_a_denied_file_has_its_other_names(client: Client, ws: Path) -> None:
    (ws / "denied").write_text("secret")
    (ws / "other").hardlink_to(ws / "denied")
    denied = {"path": {"type": "path", "path": file_uri(ws / "denied")}, "access": "deny"}
    run = await client.run_shell(
        "cat other; cat denied", cwd=file_uri(ws), sandbox=managed(ws, READ_ALL, denied)
    )
    assert run.stdout == b"secret"
    assert b"Permission denied" in run.stderr


@pytest.mark.requirement("sandbox.sockets-with-network")
async def test_with_the_network_a_socket_that_can_be_seen_can_be_used(
    client: Client, ws: Path
) -> None:
    script = "import socket, sys; socket.socket(socket.AF_UNIX).connect(sys.argv[1])"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(ws / "socket"))
        listening.listen()
        argv = [PYTHON, "-I", "-S", "-c", script, "socket"]
        for network, reached in (("enabled", True), ("restricted", False)):
            sandbox = managed(ws, READ_ALL, network=network)
            run = await client.run(argv, cwd=file_uri(ws), sandbox=sandbox)
            assert (run.exit_code == 0) is reached
