"""
The vocabulary of a case: calls a model makes, and what happens around them.

A case says nothing about who runs it. The recorder plays it on the real Codex, and the
comparing test on the library.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Mode = Literal["local", "remote", "both", "none"]
"""Environment of the commands: here, on an exec-server, on either of the two, or none."""

LOCAL: tuple[Mode, ...] = ("local",)
REMOTE: tuple[Mode, ...] = ("remote",)
EVERYWHERE: tuple[Mode, ...] = ("local", "remote")


@dataclass(frozen=True)
class Call:
    """One tool call; its arguments are members, or a text that is sent as it is."""

    id: str
    tool: str
    arguments: Mapping[str, Any] | str

    @property
    def members(self) -> Mapping[str, Any]:
        """The arguments as an object; empty where they are a mere text."""
        return {} if isinstance(self.arguments, str) else self.arguments


ActName = Literal[
    "list",  # the sessions that run
    "terminate",  # one of them; `target` is the call that started it, or an id
    "clean",  # terminate all
    "interrupt",  # the calls under way
    "pause",  # the clock, as while a person is asked something
    "resume",
    "cut",  # close the connection to the server; it may be opened again
    "lose",  # close it and let no other through
    "kill-server",
]


@dataclass(frozen=True)
class Act:
    """Something that is done beside the calls, `after` seconds into them."""

    name: ActName
    target: str = ""
    after: float = 0.0


@dataclass(frozen=True)
class Calls:
    """Calls that the model makes at once, and what is done while they run."""

    calls: tuple[Call, ...]
    meanwhile: tuple[Act, ...] = ()


Step = Calls | Act | float
"""A number is a pause in seconds."""


@dataclass(frozen=True)
class Case:
    """A named sequence of steps, and what is kept of it."""

    name: str
    steps: tuple[Step, ...]
    modes: tuple[Mode, ...] = LOCAL
    files: Mapping[str, str | None] = field(default_factory=dict)
    """Files of the workspace; None is a folder."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Configuration, by the name it has in `config.toml`."""
    sandbox: str = "danger-full-access"
    events: bool = False
    """Keep the events of each command."""
    events_of: tuple[str, ...] = ()
    """Keep the events of these commands only."""
    deltas: Literal["text", "none", "sizes", "count", "longest"] = "text"
    """Members of live output that are kept besides its text; its text is not kept with `count`."""
    wire: bool = False
    """Keep what is sent to the server."""
    schemas: bool = False
    """Keep the parameters of the tools as the model is told them."""
    timed: bool = True
    """Keep the class of each wall time."""
    busy: bool = False
    """It needs the processor: play nothing beside it."""
    loose: bool = False
    """Do not tell an end within the first 150 ms from one soon after."""
    note: str = ""
    """Why ours may differ, or what to know about it."""

    def calls(self) -> list[Call]:
        """Return every call in the order of the steps."""
        return [call for step in self.steps if isinstance(step, Calls) for call in step.calls]

    def wait(self) -> float:
        """Return about how many seconds it takes, to begin with the longest."""
        return sum(
            max((longest_wait(call, self.longest_poll()) or 0.0 for call in step.calls), default=0)
            if isinstance(step, Calls)
            else 0.0
            if isinstance(step, Act)
            else step
            for step in self.steps
        )

    def longest_poll(self) -> int:
        """Return the longest wait of a poll, in milliseconds."""
        return max(int(self.settings.get("background_terminal_max_timeout", 300_000)), 5_000)


def run(call_id: str, cmd: str, **options: Any) -> Call:
    """Return an `exec_command` whose shell reads no start files."""
    return Call(call_id, "exec_command", {"cmd": cmd, "login": False, **options})


def start(call_id: str, **options: Any) -> Call:
    """Return an `exec_command` with exactly these arguments."""
    return Call(call_id, "exec_command", options)


def write(call_id: str, session_of: str, chars: Any = None, **options: Any) -> Call:
    """Return a `write_stdin` to the session a call started; a poll without `chars`."""
    given = {} if chars is None else {"chars": chars}
    session = {"session_id": f"$session:{session_of}"}
    return Call(call_id, "write_stdin", {**session, **given, **options})


def send(call_id: str, **options: Any) -> Call:
    """Return a `write_stdin` with exactly these arguments."""
    return Call(call_id, "write_stdin", options)


def text(call_id: str, tool: str, arguments: str) -> Call:
    """Return a call whose arguments are this text, JSON or not."""
    return Call(call_id, tool, arguments)


def together(*calls: Call, meanwhile: Sequence[Act] = ()) -> Calls:
    """Return calls that are made at once."""
    return Calls(calls, tuple(meanwhile))


def case(name: str, *steps: Call | Step, **options: Any) -> Case:
    """Return a case; a call that stands alone is a step of its own."""
    return Case(
        name,
        tuple(Calls((step,)) if isinstance(step, Call) else step for step in steps),
        **options,
    )


def longest_wait(call: Call, longest_poll: int) -> float | None:
    """Return the seconds a call waits at most; None if its arguments are no object."""
    if isinstance(call.arguments, str):
        return None
    given = call.arguments.get("yield_time_ms")
    if call.tool == "exec_command":
        asked = given if isinstance(given, int) else 10_000
        return min(max(asked, 250), 30_000) / 1000
    asked = max(given if isinstance(given, int) else 250, 250)
    if call.arguments.get("chars"):
        return min(asked, 30_000) / 1000
    return min(max(asked, 5_000), longest_poll) / 1000


def argument_text(arguments: Mapping[str, Any] | str) -> str:
    """Return arguments as a model writes them: compact, members in the order given."""
    if isinstance(arguments, str):
        return arguments
    return json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))
