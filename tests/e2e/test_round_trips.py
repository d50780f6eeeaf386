"""Requests that a call costs between two Holdfasts: on a slow line each of them is a wait."""

import os
from pathlib import Path

import pytest

import holdfast
from holdfast.server.app import Server


@pytest.mark.both_loops
@pytest.mark.parametrize("sandbox", [None, "read-only"])
async def test_a_file_is_read_by_one_request_up_to_4_mib(
    tmp_path: Path, sandbox: str | None
) -> None:
    data = os.urandom((4 << 20) + 1)
    for name, content in (("small", b"small"), ("large", data[1:]), ("larger", data)):
        (tmp_path / name).write_bytes(content)
    async with Server() as server:
        url = await server.listen("ws://127.0.0.1:0")
        async with holdfast.connect(url, cwd=str(tmp_path), sandbox=sandbox) as env:
            await env.wait_ready()
            totals = server.state.principals.totals

            before = totals.requests
            assert await env.files.read_text("small") == "small"
            assert totals.requests - before == 1

            before = totals.requests
            assert await env.files.read_bytes("large") == data[1:]
            assert totals.requests - before == 1

            before = totals.requests
            assert await env.files.read_bytes("larger") == data
            # The refusal, the opening, five blocks, those asked for behind the end, the close.
            assert totals.requests - before in range(8, 12)
