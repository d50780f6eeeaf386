"""Parses lines of the prompt: commands with a colon, and shell commands to run."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

__all__ = ["HELP", "LineError", "TypedLine", "completions", "parse_line"]

HELP: dict[str, tuple[str, str]] = {
    "run": ("COMMAND", "run a line, as a line without `:` does"),
    "tty": ("COMMAND", "run a line with a terminal"),
    "list": ("", "show the commands that run"),
    "attach": ("[ID]", "follow a command and type into it; Ctrl-] comes back"),
    "poll": ("[ID] [SECONDS]", "wait for output, as an empty write_stdin does"),
    "send": ("ID TEXT", "send a line of input, as write_stdin does"),
    "interrupt": ("[ID]", "send Ctrl-C"),
    "kill": ("ID|all", "end a command, or all of them"),
    "read": ("[ID] [FROM [TO]]", "show lines of what a command wrote, also after its end"),
    "text": ("", "show what a model would have read as the last answer"),
    "json": ("", "show the last answer as JSON"),
    "wait": ("SECONDS", "how long a line is waited for before it goes on in the background"),
    "help": ("", "show this"),
    "quit": ("", "end all commands and leave; so do Ctrl-D and `exit`"),
}
"""Arguments and description of each command of the prompt."""


class LineError(ValueError):
    """An invalid line; the text says why."""


@dataclass(frozen=True, slots=True)
class TypedLine:
    """Parsed line."""

    command: str
    """Name in `HELP`; empty for an empty line."""
    text: str = ""
    """Text after the command, as it was typed."""

    def words(self, most: int) -> list[str]:
        """
        Return the words after the command.

        Raises:
            LineError: There are more than `most` words.
        """
        words = self.text.split()
        if len(words) > most:
            raise LineError(f":{self.command} takes {HELP[self.command][0] or 'nothing'}")
        return words


def parse_line(typed: str) -> TypedLine:
    """
    Parse a line; without a leading `:` it is a shell command to run.

    Raises:
        LineError: There is no such command of the prompt.
    """
    text = typed.strip()
    if not text:
        return TypedLine("")
    # A shell that runs only this line would end, and nothing would happen.
    if text == "exit":
        return TypedLine("quit")
    if not text.startswith(":"):
        return TypedLine("run", text)
    name, _, rest = text[1:].partition(" ")
    # A unique prefix is enough, but a full name wins over longer ones.
    found = [one for one in HELP if one.startswith(name)] if name else []
    if name in HELP:
        found = [name]
    if not found:
        raise LineError(f"there is no `:{name}`; `:help` shows what there is")
    if len(found) > 1:
        raise LineError(f"`:{name}` may be {', '.join(f':{one}' for one in found)}")
    return TypedLine(found[0], rest.strip())


def completions(typed: str, sessions: Iterable[int]) -> Sequence[str]:
    """Return completions of the last word: commands of the prompt, or session numbers."""
    if not typed.startswith(":"):
        return []
    name, blank, rest = typed[1:].partition(" ")
    if not blank:
        return [f":{one}" for one in HELP if one.startswith(name)]
    arguments = HELP.get(name, ("", ""))[0]
    # Only the first argument of a command is a session.
    if "ID" not in arguments or " " in rest:
        return []
    known = [str(one) for one in sessions] + (["all"] if name == "kill" else [])
    return [one for one in known if one.startswith(rest)]
