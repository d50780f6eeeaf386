"""
Cuts output to what a model may be shown.

The result is that of decoding everything, with U+FFFD for what is not UTF-8, and cutting the text
by the bytes it has in UTF-8. Only the shown ends are decoded: the rest is measured in blocks. A
cut keeps the beginning and the end.
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
"""The budget of a call that names none."""

DENIAL_TOKENS = limits.TOOL_DENIAL_TOKENS
"""The budget of the output in a denial message: the whole buffer of 1 MiB."""

# Bytes that are decoded at a time while output is measured.
_BLOCK = 64 << 10

# Bytes of the longest character in UTF-8.
_LONGEST = 4

# Factor by which a whole answer, header included, may exceed the model's budget.
_ALLOWANCE = limits.TOOL_OUTPUT_ALLOWANCE


@dataclass(frozen=True, slots=True)
class TruncationPolicy:
    """Limit on the shown output: a number of tokens, or of bytes."""

    unit: Literal["tokens", "bytes"]
    number: int

    @property
    def budget(self) -> int:
        """The bytes that may be shown."""
        return self.number * BYTES_PER_TOKEN if self.unit == "tokens" else self.number

    def lowered(self, excess: int) -> "TruncationPolicy":
        """Return the policy that shows `excess` bytes less, at least nothing."""
        less = token_count(excess) if self.unit == "tokens" else excess
        return TruncationPolicy(self.unit, max(0, self.number - less))

    def with_allowance(self) -> "TruncationPolicy":
        """Return the policy for a whole answer, which has a header too."""
        return TruncationPolicy(self.unit, ceil(self.number * _ALLOWANCE))


DEFAULT_MODEL_POLICY = TruncationPolicy("tokens", DEFAULT_OUTPUT_TOKENS)
"""The policy of most models; a few have 10,000 bytes."""


def token_count(size: int) -> int:
    """Return about how many tokens so many bytes are."""
    return -(-size // BYTES_PER_TOKEN)


def used_policy(max_output_tokens: int | None, model: TruncationPolicy) -> TruncationPolicy:
    """Return the smaller one of what a call asks for and what the model allows."""
    tokens = DEFAULT_OUTPUT_TOKENS if max_output_tokens is None else max_output_tokens
    requested = TruncationPolicy("tokens", tokens)
    return requested if requested.budget < model.budget else model


def decode(captured: Captured) -> str:
    """Return the whole output as text, with the marker where bytes are missing."""
    return _CapturedText(captured).whole()


def format_output(captured: Captured, policy: TruncationPolicy) -> str:
    """
    Return the output as a model is shown it, cut if it is longer than the policy allows.

    A cut output begins with a warning and an empty line.
    """
    return _format(_CapturedText(captured), captured, policy)


def fit_output(
    captured: Captured, policy: TruncationPolicy, *, model: TruncationPolicy, header: str
) -> str:
    """
    Return the output, cut so far that the whole answer is within the model's allowance.

    Args:
        captured: The output.
        policy: See `used_policy`.
        model: What the model allows.
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
    """Return a text without its middle if it is longer than the policy allows."""
    if len(text) * _LONGEST <= policy.budget:
        return text
    return _cut(_CapturedText(Captured(text.encode())), policy)


def _format(source: "_CapturedText", captured: Captured, policy: TruncationPolicy) -> str:
    # Decoding never makes bytes fewer, so most output needs no measuring.
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
    The bytes of an output with their marker, and the text that they would be.

    `size` and `characters` are those of the text; they are computed when first asked for.
    """

    def __init__(self, captured: Captured) -> None:
        self.gap = captured.marker.replace("{}", str(captured.omitted)) if captured.omitted else ""
        tail = captured.tail if captured.omitted else b""
        # The marker begins and ends with a newline, so no character reaches over it.
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
        """Lines of the text; a newline at its end begins no further one."""
        if not self._parts:
            return 0
        return sum(part.count(b"\n") for part in self._parts) + (self._parts[-1][-1:] != b"\n")

    def whole(self) -> str:
        return b"".join(self._parts).decode(errors="replace")

    def first(self, size: int) -> str:
        """Return the whole characters within the first `size` bytes of the text."""
        # Bytes never become fewer by decoding, so as many bytes of the source are enough,
        # and the longest character more: one at the end must not look like half of one.
        text = self._slice(0, size + _LONGEST).decode(errors="replace").encode()
        while size < len(text) and _continues(text[size]):
            size -= 1
        return text[:size].decode()

    def last(self, size: int) -> str:
        """Return the characters that begin within the last `size` bytes of the text."""
        start = max(0, self.raw_size - size - _LONGEST)
        raw = self._slice(start, self.raw_size)
        # A byte that continues no character is one of its own. After four such bytes this
        # is certain; before that a character that begins earlier may own them.
        skipped = 0
        while start and skipped < min(_LONGEST - 1, len(raw)) and _continues(raw[skipped]):
            skipped += 1
        text = raw[skipped:].decode(errors="replace").encode()
        start = max(0, len(text) - size)
        while start < len(text) and _continues(text[start]):
            start += 1
        return text[start:].decode()

    def _slice(self, start: int, end: int) -> bytes:
        """Return a part of the joined bytes without joining all of them."""
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
    """Return whether a byte of UTF-8 belongs to the character of the byte before it."""
    return byte & 0xC0 == 0x80


def _measure(data: bytes) -> tuple[int, int]:
    """Return the size and the number of characters of the text that the bytes become."""
    if data.isascii():
        return len(data), len(data)
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    size = characters = 0
    for start in range(0, len(data), _BLOCK):
        text = decoder.decode(data[start : start + _BLOCK], start + _BLOCK >= len(data))
        size += _size(text)
        characters += len(text)
    return size, characters
