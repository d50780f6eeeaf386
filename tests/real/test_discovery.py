"""Our server and the real one look at the same folders and say the same."""

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.client.client import ExecServerClient
from holdfast.wire.protocol.discovery import (
    CapabilityRoot,
    DiscoverInstalledParams,
    DiscoverRootsParams,
)
from holdfast.wire.protocol.methods import CAPABILITIES_DISCOVER, CAPABILITY_ROOTS_DISCOVER
from holdfast.wire.protocol.paths import PathUri
from holdfast.wire.protocol.wire_types import Method
from tests.e2e.wire import HOLDFAST
from tests.real.codex import codex
from tests.unit.codex.discovery.trees import home, roots

pytestmark = pytest.mark.real

RAW_ROOTS: Method[DiscoverRootsParams, Any] = Method(
    CAPABILITY_ROOTS_DISCOVER.name, DiscoverRootsParams, dict
)
RAW_INSTALLED: Method[DiscoverInstalledParams, Any] = Method(
    CAPABILITIES_DISCOVER.name, DiscoverInstalledParams, dict
)


@pytest.fixture
async def both(tmp_path: Path) -> AsyncIterator[list[ExecServerClient]]:
    """The real server and ours, with the same homes."""
    home(tmp_path)
    env = [f"CODEX_HOME={tmp_path}/codex", f"HOME={tmp_path}/user", f"PATH={os.environ['PATH']}"]
    path = f"PYTHONPATH={os.environ.get('PYTHONPATH', '')}"
    servers = [[codex(), "exec-server"], [*HOLDFAST, "exec-server"]]
    clients: list[ExecServerClient] = []
    for server in servers:
        argv = ["/usr/bin/env", *env, path, *server, "--listen", "stdio"]
        clients.append(await ExecServerClient.connect(argv))
    yield clients
    for client in clients:
        await client.aclose()


async def test_what_is_below_folders(both: list[ExecServerClient], tmp_path: Path) -> None:
    names = roots(tmp_path / "roots")
    base = f"file://{tmp_path}/roots"
    params = DiscoverRootsParams(
        roots=[CapabilityRoot(id=name, path=PathUri.parse(f"{base}/{name}")) for name in names]
    )
    theirs, ours = [await client._session.call(RAW_ROOTS, params) for client in both]
    for their_root, our_root in zip(theirs["roots"], ours["roots"], strict=True):
        assert our_root == their_root
        assert list(our_root) == list(their_root)


async def test_what_is_installed(both: list[ExecServerClient]) -> None:
    params = DiscoverInstalledParams(cwd=PathUri.parse("file:///"))
    theirs, ours = [await client._session.call(RAW_INSTALLED, params) for client in both]
    for kind in ("plugins", "skills"):
        for their_one, our_one in zip(theirs[kind], ours[kind], strict=True):
            assert our_one == their_one
            assert list(our_one) == list(their_one)
    assert ours["warnings"] == theirs["warnings"]


def test_both_claim_to_know_how(both: list[ExecServerClient]) -> None:
    for client in both:
        assert client.environment is not None
        assert client.environment.capabilities.capability_discovery_v2
