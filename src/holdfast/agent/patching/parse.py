"""
Parses the text of a patch.

    *** Begin Patch
    *** Add File: PATH          lines with `+` follow
    *** Delete File: PATH
    *** Update File: PATH       chunks follow
    *** Move to: PATH           directly after an update
    @@ [CONTEXT]                begins a chunk; the first one of a file may lack it
    *** End of File             ends a chunk that belongs at the end of its file
    *** End Patch
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from holdfast.agent.patching.patch_errors import InvalidPatch
from holdfast.agent.patching.whitespace import strip, strip_end

__all__ = [
    "LARGEST_PATCH",
    "MOST_FILES",
    "MOST_PATCH_LINES",
    "AddFile",
    "ChunkLine",
    "DeleteFile",
    "Hunk",
    "Patch",
    "UpdateChunk",
    "UpdateFile",
    "hunk_text",
    "parse_patch",
]

LARGEST_PATCH = 8 << 20
"""Most bytes of a patch in UTF-8."""

MOST_PATCH_LINES = 500_000
"""Most lines of a patch."""

MOST_FILES = 2_000
"""Most files that one patch may name."""

_BEGIN = "*** Begin Patch"
_END = "*** End Patch"
_ENVIRONMENT = "*** Environment ID: "
_ADD = "*** Add File: "
_DELETE = "*** Delete File: "
_UPDATE = "*** Update File: "
_MOVE = "*** Move to: "
_END_OF_FILE = "*** End of File"
_AT = "@@"

_NO_BEGIN = f"The first line of the patch must be '{_BEGIN}'"
_NO_END = f"The last line of the patch must be '{_END}'"
_HERE_DOCUMENTS = frozenset({"<<EOF", "<<'EOF'", '<<"EOF"'})


@dataclass(frozen=True, slots=True)
class ChunkLine:
    """A kept, removed or added line of a chunk."""

    mark: Literal[" ", "-", "+"]
    text: str


@dataclass(frozen=True, slots=True)
class UpdateChunk:
    """A change of consecutive lines of a file."""

    context: str | None
    """Line above the chunk, after which the search starts."""
    lines: tuple[ChunkLine, ...]
    at_end: bool = False
    """True if the chunk ends with the last line of the file."""

    @property
    def old(self) -> list[str]:
        """The lines expected in the file."""
        return [line.text for line in self.lines if line.mark != "+"]


@dataclass(frozen=True, slots=True)
class AddFile:
    """A file to create or replace."""

    path: str
    content: str


@dataclass(frozen=True, slots=True)
class DeleteFile:
    """A file to remove."""

    path: str


@dataclass(frozen=True, slots=True)
class UpdateFile:
    """A file to change and possibly rename."""

    path: str
    chunks: tuple[UpdateChunk, ...]
    move_to: str | None = None


Hunk: TypeAlias = AddFile | DeleteFile | UpdateFile


@dataclass(frozen=True, slots=True)
class Patch:
    """Parsed patch."""

    hunks: tuple[Hunk, ...]
    environment_id: str | None = None


def hunk_text(hunk: Hunk) -> str:
    """Return the lines of a hunk as they were parsed; none for a removal."""
    match hunk:
        case AddFile():
            # Each line of the content ends with a newline.
            return "\n".join(f"+{line}" for line in hunk.content.split("\n")[:-1])
        case DeleteFile():
            return ""
    lines = []
    for chunk in hunk.chunks:
        lines.append(_AT if chunk.context is None else f"{_AT} {chunk.context}")
        lines += (line.mark + line.text for line in chunk.lines)
        if chunk.at_end:
            lines.append(_END_OF_FILE)
    return "\n".join(lines)


def parse_patch(text: str) -> Patch:
    """
    Parse a patch.

    Raises:
        InvalidPatch: The text is not a patch, or too large; the message names the line.
    """
    # A character has at most four bytes, so a short text fits without being measured.
    if len(text) > LARGEST_PATCH // 4:
        size = len(text.encode(errors="surrogatepass"))
        if size > LARGEST_PATCH:
            raise InvalidPatch(f"it has {size} bytes, the limit is {LARGEST_PATCH}")
    count = text.count("\n")
    if count > MOST_PATCH_LINES:
        raise InvalidPatch(f"it has {count} lines, the limit is {MOST_PATCH_LINES}")
    return _Parser(_framed(_lines(strip(text)))).parse()


def _lines(text: str) -> list[str]:
    """Return the lines of a patch without trailing carriage returns."""
    if not text:
        return []
    return [line.rstrip("\r") for line in text.split("\n")]


def _framed(lines: list[str]) -> list[str]:
    """
    Return the lines of a patch, without a here document around it.

    Raises:
        InvalidPatch: The first or the last line is missing.
    """
    # Models sometimes pass the whole here document.
    if len(lines) >= 4 and lines[0] in _HERE_DOCUMENTS and lines[-1].endswith("EOF"):
        lines = lines[1:-1]
    if lines and strip(lines[0]) != _BEGIN:
        raise InvalidPatch(_NO_BEGIN)
    if len(lines) < 2 or strip(lines[-1]) != _END:
        raise InvalidPatch(_NO_END)
    return [*lines[:-1], _END]


class _Parser:
    """Parser for the lines of one patch."""

    def __init__(self, lines: Sequence[str]) -> None:
        self._lines = lines
        # Index of the next line; `*** Begin Patch` is skipped. Line numbers are one higher.
        self._at = 1

    def parse(self) -> Patch:
        environment_id = self._environment()
        hunks: list[Hunk] = []
        while (hunk := self._hunk()) is not None:
            hunks.append(hunk)
            if len(hunks) > MOST_FILES:
                raise InvalidPatch(f"it names more than {MOST_FILES} files")
        # Only blank lines may follow the end of the patch.
        if any(strip(line) not in ("", _END) for line in self._lines[self._at :]):
            raise InvalidPatch(_NO_END)
        return Patch(tuple(hunks), environment_id)

    def _environment(self) -> str | None:
        found: str | None = None
        while (line := strip(self._lines[self._at])).startswith(_ENVIRONMENT.rstrip()):
            if found is not None:
                raise InvalidPatch("apply_patch environment_id cannot be specified more than once")
            found = strip(line[len(_ENVIRONMENT.rstrip()) :])
            if not found:
                raise InvalidPatch("apply_patch environment_id cannot be empty")
            self._at += 1
        return found

    def _hunk(self) -> Hunk | None:
        """Parse the next hunk; return None at the end of the patch."""
        number = self._at + 1
        line = strip(self._lines[self._at])
        if line == _END:
            return None
        self._at += 1
        if line.startswith(_ADD):
            return AddFile(line[len(_ADD) :], self._added())
        if line.startswith(_DELETE):
            return DeleteFile(line[len(_DELETE) :])
        if line.startswith(_UPDATE):
            return self._update(line[len(_UPDATE) :], number)
        raise InvalidPatch(
            f"'{line}' is not a valid hunk header. Valid hunk headers: '{_ADD}{{path}}',"
            f" '{_DELETE}{{path}}', '{_UPDATE}{{path}}'",
            line=number,
        )

    def _added(self) -> str:
        first = self._at
        while self._lines[self._at].startswith("+"):
            self._at += 1
        return "".join(f"{line[1:]}\n" for line in self._lines[first : self._at])

    def _update(self, path: str, number: int) -> UpdateFile:
        move_to: str | None = None
        # Not `strip`: a line that begins with a blank is a context line.
        line = strip_end(self._lines[self._at])
        if line.startswith(_MOVE):
            move_to = line[len(_MOVE) :]
            self._at += 1
        chunks: list[UpdateChunk] = []
        while not self._at_header():
            if chunks and not self._lines[self._at]:
                # An empty line after the last chunk of a file is allowed.
                self._at += 1
                continue
            chunks.append(self._chunk(first=not chunks))
        if not chunks:
            raise InvalidPatch(f"Update file hunk for path '{path}' is empty", line=number)
        return UpdateFile(path, tuple(chunks), move_to)

    def _at_header(self) -> bool:
        line = strip_end(self._lines[self._at])
        return line == _END or line.startswith((_ADD, _DELETE, _UPDATE))

    def _chunk(self, *, first: bool) -> UpdateChunk:
        line = self._lines[self._at]
        context: str | None = None
        if strip_end(line) == _AT:
            self._at += 1
        elif line.startswith(f"{_AT} "):
            context = line[len(_AT) + 1 :]
            self._at += 1
        # Only the first chunk of a file may lack its `@@`.
        elif not first:
            raise InvalidPatch(
                f"Expected update hunk to start with a @@ context marker, got: '{line}'",
                line=self._at + 1,
            )
        lines, at_end = self._chunk_lines()
        return UpdateChunk(context, lines, at_end)

    def _chunk_lines(self) -> tuple[tuple[ChunkLine, ...], bool]:
        found: list[ChunkLine] = []
        while True:
            line = self._lines[self._at]
            mark = line[:1]
            if mark in (" ", "-", "+"):
                found.append(ChunkLine(mark, line[1:]))  # type: ignore[arg-type]  # one of them
            # Editors strip trailing blanks, so an empty line stands for an empty context line.
            elif not mark:
                found.append(ChunkLine(" ", ""))
            elif found and strip_end(line) == _END_OF_FILE:
                self._at += 1
                return tuple(found), True
            else:
                break
            self._at += 1
        if not found:
            self._refuse_empty(line)
        return tuple(found), False

    def _refuse_empty(self, line: str) -> None:
        """
        Refuse a chunk without lines.

        Raises:
            InvalidPatch: Always; the message depends on the line in its place.
        """
        number = self._at + 1
        if strip_end(line) in (_END, _END_OF_FILE):
            raise InvalidPatch("Update hunk does not contain any lines", line=number)
        raise InvalidPatch(
            f"Unexpected line found in update hunk: '{line}'. Every line should start with ' '"
            " (context line), '+' (added line), or '-' (removed line)",
            line=number,
        )
