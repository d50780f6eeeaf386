"""Cgroups to divide, and servers in them. `scripts/test-vm` boots a machine that has some."""

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.wire import Client, ServerProcess, connect, file_uri, serving
from tests.vm.tree import Cgroup


@pytest.fixture(scope="session")
def delegated() -> Cgroup:
    """Return the cgroup that the tests may divide; all of these processes are in one part of it."""
    given = os.environ.get("HOLDFAST_DELEGATED")
    if given is None:
        pytest.skip("no cgroup to divide: scripts/test-vm has one")
    cgroup = Cgroup(Path(given))
    cgroup.enable("memory", "pids")
    return cgroup


@pytest.fixture(scope="session")
def server_cgroup(delegated: Cgroup) -> Iterator[Cgroup]:
    """That of the one server for most tests."""
    with delegated.divided("server") as cgroup:
        yield cgroup


@pytest.fixture(scope="session")
def server(server_cgroup: Cgroup) -> Iterator[ServerProcess]:
    """A server that is alone in a cgroup that it may divide."""
    with serving(command=server_cgroup.serve()) as server:
        yield server
        assert server.stop() == 0
        assert server.errors == ""


@pytest.fixture
async def client(server: ServerProcess) -> AsyncIterator[Client]:
    async with connect(server.url) as client:
        yield client


@pytest.fixture
async def nothing_stays(server: ServerProcess, server_cgroup: Cgroup) -> AsyncIterator[None]:
    """Assert that the cgroups of a test's commands are gone soon after them."""
    yield
    await server_cgroup.has_only(f"holdfast-{server.serving_pid}-self")


@pytest.fixture
def cgroup(delegated: Cgroup) -> Iterator[Cgroup]:
    """One that is as it was at the end: for a server of the test's own."""
    with delegated.divided("own") as cgroup:
        yield cgroup


@pytest.fixture(params=["free", "sandboxed"])
def sandbox(request: pytest.FixtureRequest, read_only: dict[str, Any]) -> dict[str, Any] | None:
    """Return the sandbox in which commands are started, or None."""
    return None if request.param == "free" else read_only


@pytest.fixture
def read_only(tmp_path: Path) -> dict[str, Any]:
    """A sandbox in which all can be read."""
    root = {"path": {"type": "special", "value": {"kind": "root"}}, "access": "read"}
    files = {"type": "restricted", "entries": [root]}
    return {
        "permissions": {"type": "managed", "file_system": files, "network": "restricted"},
        "cwd": file_uri(tmp_path),
        "workspaceRoots": [file_uri(tmp_path)],
        "windowsSandboxLevel": "disabled",
    }
