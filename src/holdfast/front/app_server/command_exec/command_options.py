"""Options of commands: those of one start, and those that all commands of a client share."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal, TypedDict

from holdfast.base.dialect import limits
from holdfast.base.errors import InvalidParams
from holdfast.environments.commands.arguments import seconds
from holdfast.environments.path_uris import AnyPath
from holdfast.environments.sandbox import AnySandbox
from holdfast.wire.protocol.process import EnvPolicy, StreamsAtEnd

__all__ = [
    "CAP",
    "CODEX_0_166_0",
    "TIMEOUT",
    "CommandOptions",
    "DrainPolicy",
    "Extension",
    "Kill",
    "Setup",
    "with_defaults",
]

TIMEOUT = limits.EXEC_TIMEOUT
"""Seconds a command may take unless told otherwise."""

CAP = limits.EXEC_OUTPUT
"""Bytes of each stream that are kept or sent unless told otherwise."""

Extension = Literal["closeStdin", "resize", "size", "unset"]
"""A feature that a command may need and that only Holdfast has."""


class CommandOptions(TypedDict, total=False):
    """Keyword arguments of `CommandExec.start`; all may be left out."""

    process_id: str | None
    """By which `get` finds the command; any text, unique among those that are active."""
    cwd: AnyPath | None
    """Its directory, relative to that of the environment."""
    env: Mapping[str, str | None] | None
    """Variables to set, or with `None` to remove by exactly that name."""
    env_policy: EnvPolicy | None
    """Rules of inheritance from the environment; everything is inherited unless given."""
    codex_variables: bool
    """Also set the variables of the protocol, as by default: [command-exec.env.network]."""
    tty: bool
    """Give it a terminal; its input can be written and its output is streamed."""
    size: tuple[int, int] | None
    """Rows and columns of that; 24 by 80 unless given."""
    stdin: bool
    """Give it a pipe to read from instead of `/dev/null`."""
    stream: bool
    """Hand output out as it comes, by `Command.output`, instead of keeping it."""
    timeout: float | None
    """Seconds until it is killed and has exit code 124, 10 by default; `None` for no limit."""
    cap: int | None
    """Bytes of each stream to keep or hand out, 1 MiB by default; `None` for no limit."""
    sandbox: AnySandbox | None
    """As for `Environment.run`; unless given, that of the environment."""
    hold_id: bool
    """Keep the id taken until `Command.release`, not only until the end."""
    accept_missing: Collection[Extension]
    """Start it though the server lacks these; the control fails then."""


_DEFAULTS: CommandOptions = {
    "process_id": None,
    "cwd": None,
    "env": None,
    "env_policy": None,
    "codex_variables": True,
    "tty": False,
    "size": None,
    "stdin": False,
    "stream": False,
    "timeout": TIMEOUT,
    "cap": CAP,
    "sandbox": None,
    "hold_id": False,
    "accept_missing": (),
}


def with_defaults(options: CommandOptions) -> CommandOptions:
    """
    Return the options with the defaults of those that are left out.

    Raises:
        TypeError: There is no such option.
    """
    unknown = options.keys() - _DEFAULTS.keys()
    if unknown:
        raise TypeError(f"start() got an unexpected keyword argument {min(unknown)!r}")
    return {**_DEFAULTS, **options}


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainPolicy:
    """
    Time limits after an exit; each stream is drained on its own.

    A stream is drained until its end or its cap. Otherwise it is given up after `quiet` seconds
    without a byte, and at the latest `limit` seconds after the exit. Bytes that are ready then
    are still taken, up to `last_pass` pieces.
    """

    quiet: float | None = 0.05
    """Seconds of silence of a stream; each late byte starts them again. None for no window."""
    limit: float = limits.STREAM_DRAIN
    """Seconds after the exit."""
    last_pass: int = 256
    """Pieces that are taken after the limit, if they are ready."""

    def __post_init__(self) -> None:
        if self.quiet is not None:
            seconds(self.quiet, "quiet")
        seconds(self.limit, "limit")
        _check_pieces(self.last_pass)


def _check_pieces(value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"last_pass is a number of pieces, not {value!r}")
    if value < 0:
        raise InvalidParams(f"last_pass must not be negative, but is {value}")


CODEX_0_166_0 = DrainPolicy(quiet=None)
"""The policy of that server: a silent holder of the output costs the full limit."""


@dataclass(frozen=True, slots=True)
class Kill:
    """The way in which commands are killed."""

    tree: bool = True
    """Also kill descendants that left the process group."""
    streams: StreamsAtEnd = "close"
    """`keep` reads until the end of the output, whoever holds it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The settings of a command that matter after its start."""

    process_id: str | None
    environment_id: str
    tty: bool
    stdin: bool
    stream: bool
    timeout: float | None
    cap: int | None
    drain: DrainPolicy
    kill: Kill
