"""Writes lines, tables and raw output of commands to the terminal of a person."""

import codecs
from collections.abc import Callable, Mapping, Sequence
from typing import BinaryIO, Final, TextIO, TypeAlias

__all__ = ["Screen", "Table", "wants_colours"]

Table: TypeAlias = Callable[[Sequence[str], Sequence[Sequence[str]]], list[str]]
"""Function that returns the lines of a table from its head and its rows."""

# SGR parameters: faint, green, red, cyan, bold.
_CODES: Final = {"dim": "2", "good": "32", "bad": "31", "note": "36", "head": "1"}


def wants_colours(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """Return True if a stream is a terminal with colours, and `NO_COLOR` is not set."""
    if environ.get("NO_COLOR") or environ.get("TERM", "dumb") == "dumb":
        return False
    return stream.isatty()


class Screen:
    """Output for a person."""

    def __init__(self, stream: TextIO, *, colours: bool, table: Table) -> None:
        self._stream = stream
        # Output of commands is written as bytes, without decoding.
        self._raw: BinaryIO | None = getattr(stream, "buffer", None)
        self._colours = colours
        self._table = table
        self._at_start = True
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def fresh_line(self) -> None:
        """Write a line end if the output of a command does not end with one."""
        if not self._at_start:
            self._stream.write("\n")
            self._stream.flush()
            self._at_start = True

    def line(self, text: str, style: str | None = None) -> None:
        """Write a line, starting on a fresh one."""
        self.fresh_line()
        self._stream.write(f"{self._painted(text, style)}\n")
        self._stream.flush()

    def table(self, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Write a table."""
        first, *others = self._table(head, rows)
        self.line(first, "head")
        for line in others:
            self.line(line)

    def output(self, data: bytes) -> None:
        """Write output of a command."""
        if not data:
            return
        if self._raw is not None:
            # Text before it is in the buffer of the text layer.
            self._stream.flush()
            self._raw.write(data)
            self._raw.flush()
        else:
            self._stream.write(self._decoder.decode(data))
        self._at_start = data.endswith(b"\n")

    def _painted(self, text: str, style: str | None) -> str:
        # The text may quote a command with escape sequences, which the terminal must not see.
        text = "".join([one if one.isprintable() or one == "\n" else "\ufffd" for one in text])
        if style is None or not self._colours:
            return text
        return f"\x1b[{_CODES[style]}m{text}\x1b[0m"
