"""A parsed command, and its pending here-documents."""

from dataclasses import dataclass, field

from holdfast.agent.approvals.split.budget import AmbiguousError
from holdfast.agent.approvals.split.words import Word

__all__ = ["Document", "ReadCommand"]


@dataclass(slots=True)
class ReadCommand:
    """One simple command, without its assignments and redirections."""

    words: list[Word] = field(default_factory=list)
    input_texts: list[str] = field(default_factory=list)
    """Known input of the command: here-documents and here-strings."""
    awaits_input: bool = False
    """A here-document of the command begins on a later line."""
    for_zsh: str | None = None
    """Instead of a command, the reason why zsh may run a hidden command here."""

    def add_input(self, text: Word) -> None:
        """Add an expanded text, with its unknown parts marked and as if they were not set."""
        self.input_texts.append(text.text)
        if any(piece.unknown and piece.text for piece in text.pieces):
            self.input_texts.append("".join([piece.text for piece in text.pieces]))


@dataclass(slots=True)
class Document:
    """A here-document whose text begins after the current line."""

    delimiter: str
    quoted: bool
    strip_tabs: bool
    command: ReadCommand

    def refuse_joined_end(self, text: str, line: str) -> None:
        """Raise if `text`, which is joined to one `line`, is the end for some shells only."""
        lines = [line, *(part.rstrip("\\").lstrip("\t") for part in text.split("\n"))]
        if self.delimiter in lines:
            raise AmbiguousError("shells disagree about the end of a here-document")
