"""Recorded conversations: our server says byte for byte what the real one said."""

from pathlib import Path

import pytest

from holdfast import Server
from tests.wire.conversation import FILES, converse, read


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
async def test_a_recorded_conversation_is_repeated_to_the_byte(file: Path) -> None:
    recorded = read(file)
    async with Server() as server:
        url = await server.listen("ws://127.0.0.1:0")
        assert await converse(url, recorded) == recorded
