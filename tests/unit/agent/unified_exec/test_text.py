"""The answers are those that the real binary gave for the same output and budget."""

import hashlib
import json
from pathlib import Path
from typing import Literal

import pytest

from holdfast.agent.unified_exec.output.kept_output import KeptOutput
from holdfast.agent.unified_exec.text.answer import (
    aborted_exec_text,
    aborted_write_text,
    answer_object,
    answer_text,
    denial_message,
)
from holdfast.agent.unified_exec.text.truncate import TruncationPolicy
from holdfast.codex import texts
from holdfast.environments.collect.head_tail import Captured

RECORDED: list[tuple[Literal["tokens", "bytes"], int, str, int | None, str]] = json.loads(
    Path(__file__).with_name("recorded_answers.json").read_text()
)
"""The model's budget, name of the output, `max_output_tokens`, and the answer or its hash."""


def numbers(last: int) -> bytes:
    return "".join(f"{number}\n" for number in range(1, last + 1)).encode()


OUTPUTS = {
    "10 x": b"x" * 10,
    "100 x": b"x" * 100,
    "150 x": b"x" * 150,
    "400 x": b"x" * 400,
    "3000 x": b"x" * 3000,
    "2000 é": "é".encode() * 2000,
    "numbers to 300": numbers(300),
    "numbers to 400000": numbers(400_000),
    "13000 invalid bytes": b"\xff" * 13_000,
    "10000 lines of é and one byte": "é\n".encode() * 10_000 + b"\xc3",
}


def kept(data: bytes) -> Captured:
    buffer = KeptOutput(max_bytes=1 << 20)
    buffer.append(1, data)
    return buffer.transcript


@pytest.mark.requirement("unified-exec.truncation.recorded")
def test_every_recorded_budget_gives_the_recorded_answer() -> None:
    outputs = {name: kept(data) for name, data in OUTPUTS.items()}
    for unit, number, name, asked, expected in RECORDED:
        shown = answer_text(
            outputs[name],
            chunk_id="abcdef",
            wall_time=0.0,
            exit_code=0,
            max_output_tokens=asked,
            model=TruncationPolicy(unit, number),
        )
        if expected.startswith("sha256:"):
            shown = f"sha256:{hashlib.sha256(shown.encode()).hexdigest()}"
        assert shown == expected, (unit, number, name)


@pytest.mark.requirement("unified-exec.answer.lines")
def test_the_lines_of_an_answer() -> None:
    assert answer_text(
        Captured(b"hi\r\n"), chunk_id="5e0315", wall_time=0.25096, session_id=4711
    ) == (
        "Chunk ID: 5e0315\n"
        "Wall time: 0.2510 seconds\n"
        "Process running with session ID 4711\n"
        "Original token count: 1\n"
        "Output:\n"
        "hi\r\n"
    )
    assert answer_text(Captured(), chunk_id="", wall_time=0, exit_code=-1) == (
        "Wall time: 0.0000 seconds\nProcess exited with code -1\nOriginal token count: 0\nOutput:\n"
    )


def test_a_header_for_a_patch_has_two_lines() -> None:
    assert (
        texts.answer_header(
            chunk_id="", wall_time=0, exit_code=None, session_id=None, original_tokens=None
        )
        == "Wall time: 0.0000 seconds\nOutput:"
    )


def test_notes_come_first() -> None:
    shown = answer_text(Captured(b"x"), chunk_id="", wall_time=0, exit_code=0, notes=("one", "two"))
    assert shown.startswith("one\ntwo\nWall time:")


@pytest.mark.requirement("unified-exec.answer.tokens-before-decoding")
def test_tokens_are_counted_in_bytes_before_decoding_with_what_was_omitted() -> None:
    assert "count: 2\n" in answer_text(Captured(b"\xff" * 5), chunk_id="", wall_time=0, exit_code=0)
    buffer = KeptOutput(max_bytes=10)
    buffer.append(1, b"0123456789ab")
    shown = answer_text(buffer.transcript, chunk_id="", wall_time=0, exit_code=0)
    assert shown.endswith("Original token count: 3\nOutput:\n01234\n... 2 bytes omitted ...\n789ab")


def test_code_mode_gets_uncut_output_unless_it_asked() -> None:
    output = Captured(b"x" * 50_000)
    whole = answer_object(output, chunk_id="c", wall_time=1.5, exit_code=0)
    assert whole == {
        "chunk_id": "c",
        "wall_time_seconds": 1.5,
        "exit_code": 0,
        "original_token_count": 12_500,
        "output": "x" * 50_000,
    }
    cut = answer_object(output, chunk_id="", wall_time=0.0, session_id=3, max_output_tokens=0)
    assert cut["session_id"] == 3
    assert "chunk_id" not in cut
    assert str(cut["output"]).endswith("…12500 tokens truncated…")


@pytest.mark.requirement("unified-exec.denial-message")
def test_a_denial_says_the_output_or_how_the_command_ended() -> None:
    assert denial_message(Captured(b"no\xff"), 1) == "no\ufffd"
    assert denial_message(Captured(), 77) == "Process exited with code 77"
    assert denial_message(Captured(), None) == "Process exited with code -1"
    long = denial_message(kept(b"x" * (1 << 20) + b"y"), 1)
    assert long.startswith("Warning: truncated output (original token count: 262145)\n")


@pytest.mark.requirement("unified-exec.aborted")
def test_an_interrupted_call_says_so() -> None:
    assert aborted_exec_text(0.72) == "Wall time: 0.7 seconds\naborted by user"
    assert aborted_write_text(1.5) == "aborted by user after 1.5s"
