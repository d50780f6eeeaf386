"""Cutting bytes gives the very text that cutting the decoded text would give."""

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.agent.unified_exec.output.kept_output import KeptOutput
from holdfast.agent.unified_exec.text.truncate import (
    TruncationPolicy,
    cut_text,
    decode,
    fit_output,
    format_output,
    token_count,
    used_policy,
)
from holdfast.environments.collect.head_tail import Captured

TOKENS = TruncationPolicy("tokens", 10_000)


def tokens(number: int) -> TruncationPolicy:
    return TruncationPolicy("tokens", number)


# -- the table of the contract, word by word


def plain_cut(text: str, policy: TruncationPolicy) -> str:
    budget = policy.number * 4 if policy.unit == "tokens" else policy.number
    length = len(text.encode())
    if length <= budget:
        return text
    left = budget // 2
    right = budget - left
    starts = [0]
    for letter in text:
        starts.append(starts[-1] + len(letter.encode()))
    prefix = "".join(letter for letter, end in zip(text, starts[1:], strict=True) if end <= left)
    suffix = "".join(
        letter for letter, start in zip(text, starts, strict=False) if start >= length - right
    )
    if policy.unit == "tokens":
        return f"{prefix}…{math.ceil((length - budget) / 4)} tokens truncated…{suffix}"
    return f"{prefix}…{len(text) - len(prefix) - len(suffix)} chars truncated…{suffix}"


def plain_format(captured: Captured, policy: TruncationPolicy) -> str:
    text = bytes(captured).decode(errors="replace")
    budget = policy.number * 4 if policy.unit == "tokens" else policy.number
    length = len(text.encode())
    if length <= budget:
        return text
    cut = plain_cut(text, policy)
    if not captured.omitted:
        lines = text.split("\n")
        count = len(lines) - (lines[-1] == "")
        return (
            f"Warning: truncated output (original token count: {math.ceil(length / 4)})\n"
            f"Total output lines: {count}\n\n{cut}"
        )
    missing = f"... {captured.omitted} bytes omitted ..."
    first = f"Warning: truncated output (original token count: {math.ceil(captured.size / 4)})\n"
    return f"{first}\n{cut}" if missing in cut else f"{first}{missing}\n\n{cut}"


def plain_fit(
    captured: Captured, policy: TruncationPolicy, model: TruncationPolicy, header: str
) -> str:
    whole = math.ceil(model.number * 1.2) * (4 if model.unit == "tokens" else 1)
    room = max(0, whole - len(header.encode()) - 1)
    number = policy.number
    while True:
        text = plain_format(captured, TruncationPolicy(policy.unit, number))
        excess = len(text.encode()) - room
        if excess <= 0 or number == 0:
            return text
        number = max(0, number - (math.ceil(excess / 4) if policy.unit == "tokens" else excess))


# Whole letters of every length, halves of letters, bytes that are never UTF-8.
PIECES = st.sampled_from(
    [
        *(letter.encode() for letter in "a\né✓😀\ufffd"),
        b"\xc3",
        b"\xe2\x82",
        b"\xf0\x9f\x98",
        b"\xf0\x90",
        b"\x80",
        b"\xbf\x80\x80",
        b"\xff",
        b"\xed\xa0\x80",
        b"\xc0\xaf",
    ]
)
DATA = st.lists(PIECES, max_size=60).map(b"".join) | st.binary(max_size=120)
POLICIES = st.builds(TruncationPolicy, st.sampled_from(["tokens", "bytes"]), st.integers(0, 60))


def captured(data: bytes, kept: int) -> Captured:
    buffer = KeptOutput(max_bytes=kept)
    buffer.append(1, data)
    return buffer.transcript


@pytest.mark.requirement("unified-exec.truncation.table")
@given(DATA, POLICIES)
@example(b"\x80" * 40, tokens(3))
@example(b"a\xf0\x9f\x98" * 10, TruncationPolicy("bytes", 9))
@example("😀".encode() * 10, TruncationPolicy("bytes", 7))
def test_output_is_cut_like_its_text(data: bytes, policy: TruncationPolicy) -> None:
    whole = Captured(data)
    assert format_output(whole, policy) == plain_format(whole, policy)


@pytest.mark.requirement("unified-exec.truncation.omitted")
@given(DATA, st.integers(1, 80), POLICIES)
def test_output_with_omitted_bytes_is_cut_like_its_text(
    data: bytes, kept: int, policy: TruncationPolicy
) -> None:
    some = captured(data, kept)
    assert format_output(some, policy) == plain_format(some, policy)
    assert decode(some) == bytes(some).decode(errors="replace")


@pytest.mark.requirement("unified-exec.truncation.whole-answer")
@given(DATA, POLICIES, POLICIES, st.integers(0, 60))
def test_a_whole_answer_is_lowered_like_its_text(
    data: bytes, policy: TruncationPolicy, model: TruncationPolicy, header: int
) -> None:
    whole = Captured(data)
    assert fit_output(whole, policy, model=model, header="h" * header) == plain_fit(
        whole, policy, model, "h" * header
    )


@given(st.text(max_size=80), POLICIES)
def test_a_text_is_cut_alike(text: str, policy: TruncationPolicy) -> None:
    assert cut_text(text, policy) == plain_cut(text, policy)


@given(st.integers(0, 2000), DATA, st.integers(0, 400))
def test_large_output_is_measured_over_the_borders_of_blocks(
    before: int, piece: bytes, number: int
) -> None:
    data = b"x" * (65_536 - before) + piece + "é".encode() * 300 + piece
    policy = TruncationPolicy("bytes", number)
    text = data.decode(errors="replace")
    shown = format_output(Captured(data), policy)
    assert f"(original token count: {math.ceil(len(text.encode()) / 4)})" in shown
    removed = len(text) - len(plain_ends(text, number))
    assert f"…{removed} chars truncated…" in shown


def plain_ends(text: str, budget: int) -> str:
    raw = text.encode()
    left = raw[: budget // 2].decode(errors="ignore")
    right = raw[len(raw) - (budget - budget // 2) :].decode(errors="ignore")
    return left + right


@pytest.mark.requirement("unified-exec.truncation.vectors")
@pytest.mark.parametrize(
    ("data", "number", "shown"),
    [
        (b"hi\n", 0, "1)\nTotal output lines: 1\n\n…1 tokens truncated…"),
        (
            b"x" * 401,
            100,
            f"101)\nTotal output lines: 1\n\n{'x' * 200}…1 tokens truncated…{'x' * 200}",
        ),
        (
            "".join(f"{number}\n" for number in range(1, 12_001)).encode(),
            1,
            "15224)\nTotal output lines: 12000\n\n1\n…15223 tokens truncated…0\n",
        ),
        (b"a\nb\nc\nd\ne\nf", 1, "3)\nTotal output lines: 6\n\na\n…2 tokens truncated…\nf"),
        (b"\n" * 6, 1, "2)\nTotal output lines: 6\n\n\n\n…1 tokens truncated…\n\n"),
    ],
)
def test_the_vectors_of_the_contract(data: bytes, number: int, shown: str) -> None:
    assert format_output(Captured(data), tokens(number)) == (
        f"Warning: truncated output (original token count: {shown}"
    )


def test_what_fits_stays_as_it_is() -> None:
    assert format_output(Captured(b"x" * 400), tokens(100)) == "x" * 400
    assert format_output(Captured(b""), tokens(0)) == ""


@pytest.mark.parametrize(
    ("asked", "model", "used"),
    [
        (None, TOKENS, TOKENS),
        (100, TOKENS, tokens(100)),
        (2**64 - 1, TOKENS, TOKENS),
        (None, TruncationPolicy("bytes", 10_000), TruncationPolicy("bytes", 10_000)),
        (2_499, TruncationPolicy("bytes", 10_000), tokens(2_499)),
        (2_500, TruncationPolicy("bytes", 10_000), TruncationPolicy("bytes", 10_000)),
    ],
)
def test_the_smaller_budget_is_used(
    asked: int | None, model: TruncationPolicy, used: TruncationPolicy
) -> None:
    assert used_policy(asked, model) == used


def test_tokens_are_rounded_up() -> None:
    assert [token_count(size) for size in (0, 1, 4, 5)] == [0, 1, 1, 2]
