"""
Compiles regular expressions from a model.

The engine is RE2, which takes linear time for any pattern. But a byte may cost 15 µs if the
automaton becomes too large. So only short texts are searched in the event loop, all others in a
`SearchThread`, and a pattern that proves too slow is given up. RE2 comes with the extra `patterns`
and is imported with the first pattern.
"""

from collections.abc import Iterator
from importlib.util import find_spec
from itertools import islice
from time import thread_time
from typing import TYPE_CHECKING, Protocol

from holdfast.base.errors import InvalidParams
from holdfast.base.late_import import late_module
from holdfast.base.version import install_command

if TYPE_CHECKING:
    import re2  # type: ignore[import-untyped]
else:
    # An optional dependency (extra `patterns`).
    re2 = late_module("re2")

__all__ = [
    "PATTERN_CHARACTERS",
    "PATTERN_INSTRUCTIONS",
    "SLOW_BYTE",
    "SLOW_SECONDS",
    "Engine",
    "Pattern",
    "compile_pattern",
    "patterns_available",
]

PATTERN_CHARACTERS = 1000
"""Most characters in a pattern."""

PATTERN_INSTRUCTIONS = 1500
"""
Most instructions of a compiled pattern.

A few patterns make the engine fall back from its automaton to simulating all alternatives, which
takes time proportional to this number. Common patterns have fewer than a hundred; a Unicode class
such as `\\pL` has 1,200.
"""

SLOW_SECONDS = 0.2
"""CPU seconds for a pattern before checking whether it is too slow."""

SLOW_BYTE = 1.5e-6
"""
CPU seconds per byte above which a pattern is too slow.

Common patterns take a nanosecond. Many short lines of which every second one matches take 0.3 µs,
because each match takes a call.
"""

# Most steps of the engine in one search: instructions times bytes.
_STEPS = 2_000_000

# Steps that take at most 5 ms with the slowest patterns found.
_QUICK_STEPS = 500_000

# Bytes that take at most 5 ms if every second line matches and lines have a few bytes.
_QUICK_BYTES = 16 << 10

# Range of the number of bytes to search at once.
_LEAST, _MOST = 4 << 10, 64 << 10

# Bytes that each call of the engine adds to those searched, since lines may be empty.
_CALL_BYTES = 16

# Matches between two reads of the clock.
_COUNTED = 64

# Bytes of memory for one pattern in the engine, which caches up to 128 patterns.
_MEMORY = 1 << 20

# Bytes of memory sufficient to compile a pattern within `PATTERN_INSTRUCTIONS`. The engine holds
# the GIL while it compiles, so a larger pattern has to fail soon.
_TRIAL_MEMORY = 256 << 10

# Most Unicode classes such as `\pL` in a pattern: each takes 50 µs to parse, and few patterns with
# more than one are within `PATTERN_INSTRUCTIONS`.
_CLASSES = 32


class Match(Protocol):
    """A match returned by RE2."""

    def span(self) -> tuple[int, int]: ...


class Engine(Protocol):
    """The used methods of a compiled RE2 expression."""

    @property
    def programsize(self) -> int: ...

    def search(
        self, text: bytes, pos: int | None = None, endpos: int | None = None, /
    ) -> Match | None: ...

    def finditer(self, text: bytes, pos: int | None = None, /) -> Iterator[Match]: ...


class Pattern:
    """A regular expression to search in UTF-8 bytes, in linear time."""

    def __init__(self, text: str, engine: Engine) -> None:
        self.text = text
        self.given_up = False
        """True if the pattern proved too slow: nothing matches from then on."""
        self.window = min(max(_STEPS // max(engine.programsize, 1), _LEAST), _MOST)
        """Bytes to search at once, so that a slow pattern is given up soon."""
        self._quick = min(_QUICK_STEPS // max(engine.programsize, 1), _QUICK_BYTES)
        self._engine = engine
        self._seconds = 0.0
        self._bytes = 0

    def __repr__(self) -> str:
        return f"Pattern({self.text!r})"

    def is_quick(self, size: int) -> bool:
        """Return True if so many bytes can be searched in the event loop."""
        return self.given_up or size <= self._quick

    def search(self, data: bytes, start: int = 0, end: int | None = None) -> tuple[int, int] | None:
        """
        Return the start and end of the first match, or None.

        A match is within `start` and `end`. But `^`, `$` and `\\b` see the bytes around them: they
        do not treat `start` and `end` as the start and end of the text.
        """
        if self.given_up:
            return None
        begun = thread_time()
        match = self._engine.search(data, start, end)
        found = None if match is None else match.span()
        seen = found[1] if found else len(data) if end is None else end
        self._count(seen - start + _CALL_BYTES, thread_time() - begun)
        return found

    def spans(self, data: bytes, start: int = 0) -> Iterator[tuple[int, int]]:
        """Yield the start and end of all non-overlapping matches from `start` on."""
        matches = self._engine.finditer(data, start)
        while not self.given_up:
            begun = thread_time()
            found = [match.span() for match in islice(matches, _COUNTED)]
            over = len(found) < _COUNTED
            end = len(data) if over else found[-1][1]
            size = end - start + _CALL_BYTES * (len(found) + over)
            self._count(size, thread_time() - begun)
            yield from found
            if over:
                return
            start = end

    def _count(self, size: int, seconds: float) -> None:
        self._bytes += size
        self._seconds += seconds
        self.given_up = self._seconds > max(SLOW_SECONDS, SLOW_BYTE * self._bytes)


def patterns_available() -> bool:
    """Return True if RE2 is installed, without loading it."""
    return find_spec("re2") is not None


def compile_pattern(text: str, *, within_lines: bool = False, wrap: str = "{}") -> Pattern:
    """
    Return the compiled pattern; `^` and `$` match at the start and end of lines.

    Args:
        text: In the syntax of RE2: Perl's without look-around and backreferences.
        within_lines: True if nothing in the pattern, such as `\\s`, may match a newline.
        wrap: An expression around the pattern, with `{}` in its place.

    Raises:
        InvalidParams: The text is not a valid pattern, the pattern is too large, or RE2 is not
            installed.
    """
    try:
        options = re2.Options()
    except ImportError as missing:
        raise InvalidParams(
            "patterns need the package google-re2, the extra `patterns` of Holdfast:"
            f" {install_command('patterns')}"
        ) from missing
    if len(text) > PATTERN_CHARACTERS:
        raise InvalidParams(
            f"pattern {text[:40]!r}... has {len(text):,} characters,"
            f" {PATTERN_CHARACTERS:,} are allowed"
        )
    if text.count("\\p") + text.count("\\P") > _CLASSES:
        raise InvalidParams(f"pattern {text!r} is too large")
    options.max_mem = _TRIAL_MEMORY
    options.log_errors = False
    options.never_capture = True
    options.never_nl = within_lines

    def compiled(expression: str) -> Engine:
        engine: Engine = re2.compile(expression.encode(), options)
        return engine

    try:
        # First without the wrapping, which must not close an open bracket of the pattern.
        compiled(text)
        options.max_mem = _MEMORY
        engine = compiled(f"(?m){text}")
        if wrap != "{}":
            before, after = wrap.split("{}")
            try:
                engine = compiled(f"(?m){before}(?:{text}){after}")
            except re2.error:
                # `\Q` without `\E` is only valid at the end.
                engine = compiled(f"(?m){before}(?:{text}\\E){after}")
    except UnicodeEncodeError:
        raise InvalidParams(f"pattern {text!r} is not valid Unicode") from None
    except re2.error as error:
        reason = error.args[0] if error.args else ""
        said = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        raise InvalidParams(f"pattern {text!r} cannot be used: {said}") from None
    if engine.programsize > PATTERN_INSTRUCTIONS:
        raise InvalidParams(f"pattern {text!r} is too large")
    return Pattern(text, engine)
