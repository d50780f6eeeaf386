"""Chunks are found where they are, whatever the file: compared with a slow and plain search."""

import random

import pytest

from holdfast.agent.patching.match import ChunkNotFound, updated_text
from holdfast.agent.patching.parse import ChunkLine, UpdateChunk

WAYS = (str, str.rstrip, str.strip)


def plainly(lines: list[str], wanted: list[str], start: int) -> int | None:
    for way in WAYS:
        for position in range(start, len(lines) - len(wanted) + 1):
            if [way(line) for line in lines[position : position + len(wanted)]] == [
                way(line) for line in wanted
            ]:
                return position
    return None


def test_against_a_plain_search() -> None:
    for seed in range(2_000):
        compare(random.Random(seed))


def compare(dice: random.Random) -> None:
    words = ["a", "a ", " a", "b", "b  ", "c"]
    lines = [dice.choice(words) for _ in range(dice.randint(1, 12))]
    chunks, expected, cursor, done = [], [], 0, 0
    for _ in range(dice.randint(1, 3)):
        wanted = [dice.choice(words) for _ in range(dice.randint(1, 3))]
        chunks.append(
            UpdateChunk(None, (*(ChunkLine("-", one) for one in wanted), ChunkLine("+", "new")))
        )
        position = plainly(lines, wanted, cursor)
        if position is None:
            with pytest.raises(ChunkNotFound):
                updated_text("".join(f"{line}\n" for line in lines), chunks)
            return
        expected += [*lines[done:position], "new"]
        cursor = done = position + len(wanted)
    expected += lines[done:]
    content = "".join(f"{line}\n" for line in lines)
    assert updated_text(content, chunks) == "".join(f"{line}\n" for line in expected)
