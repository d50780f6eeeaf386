"""
Truncates output to the budget of a model.

The result is as if everything was decoded, with U+FFFD for invalid UTF-8, and the text then
truncated to a number of UTF-8 bytes, keeping the beginning and the end. But only the shown parts
are decoded; the rest is measured in blocks.
"""

import codecs
from dataclasses import dataclass
from math import ceil
from typing import Literal

from holdfast.base.dialect import limits, texts
from holdfast.environments.collect.head_tail import Captured

__all__ = [
    "BYTES_PER_TOKEN",
    "DEFAULT_MODEL_POLICY",
    "DEFAULT_OUTPUT_TOKENS",
    "DENIAL_TOKENS",
    "TruncationPolicy",
    "cut_text",
    "decode",
    "fit_output",
    "format_output",
    "token_count",
    "used_policy",
]

BYTES_PER_TOKEN = limits.TOOL_BYTES_PER_TOKEN

DEFAULT_OUTPUT_TOKENS = limits.TOOL_OUTPUT_TOKENS
"""The default budget of a call."""

DENIAL_TOKENS = limits.TOOL_DENIAL_TOKENS
"""The budget of the output in a denial message: the whole buffer of 1 MiB."""

# Bytes to decode at once while measuring output.
_BLOCK = 64 << 10

# Bytes of the longest UTF-8 character.
_LONGEST = 4

# Factor by which a complete answer, including the header, may exceed the model's budget.
_ALLOWANCE = limits.TOOL_OUTPUT_ALLOWANCE


@dataclass(frozen=True, slots=True)
class TruncationPolicy:
    """Limit on the shown output in tokens or bytes."""

    unit: Literal["tokens", "bytes"]
    number: int

    @property
    def budget(self) -> int:
        """Most bytes to show."""
        return self.number * BYTES_PER_TOKEN if self.unit == "tokens" else self.number

    def lowered(self, excess: int) -> "TruncationPolicy":
        """Return the policy that shows `excess` bytes less, but at least 0."""
        less = token_count(excess) if self.unit == "tokens" else excess
        return TruncationPolicy(self.unit, max(0, self.number - less))

    def with_allowance(self) -> "TruncationPolicy":
        """Return the policy for a complete answer, including the header."""
        return TruncationPolicy(self.unit, ceil(self.number * _ALLOWANCE))


DEFAULT_MODEL_POLICY = TruncationPolicy("tokens", DEFAULT_OUTPUT_TOKENS)
"""The policy for most models; a few have 10,000 bytes."""


def token_count(size: int) -> int:
    """Return the approximate number of tokens in `size` bytes."""
    return -(-size // BYTES_PER_TOKEN)


def used_policy(max_output_tokens: int | None, model: TruncationPolicy) -> TruncationPolicy:
    """Return the smaller of the budgets of the call and the model."""
    tokens = DEFAULT_OUTPUT_TOKENS if max_output_tokens is None else max_output_tokens
    requested = TruncationPolicy("tokens", tokens)
    return requested if requested.budget < model.budget else model


def decode(captured: Captured) -> str:
    """Return the whole output as text, with a marker where bytes are missing."""
    return _CapturedText(captured).whole()


def format_output(captured: Captured, policy: TruncationPolicy) -> str:
    """
    Return the output as shown to a model, truncated if it exceeds the policy.

    Truncated output starts with a warning and an empty line.
    """
    return _format(_CapturedText(captured), captured, policy)


def fit_output(
    captured: Captured, policy: TruncationPolicy, *, model: TruncationPolicy, header: str
) -> str:
    """
    Return the output, truncated so that the complete answer is within the model's allowance.

    Args:
        captured: The output.
        policy: See `used_policy`.
        model: The budget of the model.
        header: The text before the output, without its last newline.
    """
    room = max(0, model.with_allowance().budget - len(header.encode()) - 1)
    source = _CapturedText(captured)
    while True:
        text = _format(source, captured, policy)
        excess = _size(text) - room
        if excess <= 0 or policy.number == 0:
            return text
        policy = policy.lowered(excess)


def cut_text(text: str, policy: TruncationPolicy) -> str:
    """Return a text, without its middle if it exceeds the policy."""
    if len(text) * _LONGEST <= policy.budget:
        return text
    return _cut(_CapturedText(Captured(text.encode())), policy)


def _format(source: "_CapturedText", captured: Captured, policy: TruncationPolicy) -> str:
    # Decoding at most triples the bytes, so most output need not be measured.
    if source.raw_size * 3 <= policy.budget or source.size <= policy.budget:
        return source.whole()
    shown = _cut(source, policy)
    tokens = token_count(captured.size if captured.omitted else source.size)
    head = texts.truncated(tokens)
    if not captured.omitted:
        return f"{head}Total output lines: {source.lines}\n\n{shown}"
    missing = source.gap.strip("\n")
    if missing in shown:
        return f"{head}\n{shown}"
    return f"{head}{missing}\n\n{shown}"


def _cut(source: "_CapturedText", policy: TruncationPolicy) -> str:
    budget = policy.budget
    if source.size <= budget:
        return source.whole()
    left = source.first(budget // 2)
    right = source.last(budget - budget // 2)
    if policy.unit == "tokens":
        return f"{left}…{token_count(source.size - budget)} tokens truncated…{right}"
    return f"{left}…{source.characters - len(left) - len(right)} chars truncated…{right}"


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


class _CapturedText:
    """
    The bytes of an output with the marker, and measures of their decoded text.

    `size` and `characters` refer to the text and are computed on first use.
    """

    def __init__(self, captured: Captured) -> None:
        self.gap = captured.marker.replace("{}", str(captured.omitted)) if captured.omitted else ""
        tail = captured.tail if captured.omitted else b""
        # The marker starts and ends with a newline, so no character spans it.
        self._parts = tuple(filter(None, (captured.head, self.gap.encode(), tail)))
        self.raw_size = sum(map(len, self._parts))
        self._measured: tuple[int, int] | None = None

    @property
    def size(self) -> int:
        return self._measure()[0]

    @property
    def characters(self) -> int:
        return self._measure()[1]

    @property
    def lines(self) -> int:
        """Number of lines in the text; a newline at its end does not start another."""
        if not self._parts:
            return 0
        return sum(part.count(b"\n") for part in self._parts) + (self._parts[-1][-1:] != b"\n")

    def whole(self) -> str:
        return b"".join(self._parts).decode(errors="replace")

    def first(self, size: int) -> str:
        """Return the whole characters within the first `size` bytes of the text."""
        # Decoding never reduces the number of bytes, so as many source bytes are enough, plus the
        # longest character, so that the last character is not cut off.
        text = self._slice(0, size + _LONGEST).decode(errors="replace").encode()
        while size < len(text) and _continues(text[size]):
            size -= 1
        return text[:size].decode()

    def last(self, size: int) -> str:
        """Return the characters that start within the last `size` bytes of the text."""
        start = max(0, self.raw_size - size - _LONGEST)
        raw = self._slice(start, self.raw_size)
        # Continuation bytes may belong to a character that starts earlier. After four of them that
        # is impossible: they are invalid, and each becomes a separate U+FFFD.
        skipped = 0
        while start and skipped < min(_LONGEST - 1, len(raw)) and _continues(raw[skipped]):
            skipped += 1
        text = raw[skipped:].decode(errors="replace").encode()
        start = max(0, len(text) - size)
        while start < len(text) and _continues(text[start]):
            start += 1
        return text[start:].decode()

    def _slice(self, start: int, end: int) -> bytes:
        """Return a slice of the joined bytes without joining all of them."""
        found: list[bytes] = []
        for part in self._parts:
            found.append(part[max(0, start) : max(0, end)])
            start -= len(part)
            end -= len(part)
        return b"".join(found)

    def _measure(self) -> tuple[int, int]:
        if self._measured is None:
            sizes = [_measure(part) for part in self._parts]
            self._measured = (sum(size for size, _ in sizes), sum(count for _, count in sizes))
        return self._measured


def _continues(byte: int) -> bool:
    """Return True for a UTF-8 continuation byte."""
    return byte & 0xC0 == 0x80


def _measure(data: bytes) -> tuple[int, int]:
    """Return the size and the number of characters of the decoded text."""
    if data.isascii():
        return len(data), len(data)
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    size = characters = 0
    for start in range(0, len(data), _BLOCK):
        text = decoder.decode(data[start : start + _BLOCK], start + _BLOCK >= len(data))
        size += _size(text)
        characters += len(text)
    return size, characters
