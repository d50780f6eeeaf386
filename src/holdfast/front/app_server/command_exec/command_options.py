"""Options of a start, and options shared by all commands of a client."""

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
"""Default timeout of a command in seconds."""

CAP = limits.EXEC_OUTPUT
"""Default number of bytes of each stream to keep or send."""

Extension = Literal["closeStdin", "resize", "size", "unset"]
"""A feature that a command may need and that only Holdfast has."""


class CommandOptions(TypedDict, total=False):
    """Keyword arguments of `CommandExec.start`; all are optional."""

    process_id: str | None
    """Id for `get`; any string that is unique among active commands."""
    cwd: AnyPath | None
    """Its directory, relative to that of the environment."""
    env: Mapping[str, str | None] | None
    """Variables to set or, with `None`, to remove by exact name."""
    env_policy: EnvPolicy | None
    """Which variables to inherit from the environment; by default all."""
    codex_variables: bool
    """Also set the variables of the protocol, as by default: [command-exec.env.network]."""
    tty: bool
    """Use a terminal; its input can be written and its output is streamed."""
    size: tuple[int, int] | None
    """Rows and columns of the terminal; 24 by 80 by default."""
    stdin: bool
    """Use a pipe for stdin, instead of `/dev/null`."""
    stream: bool
    """Deliver output through `Command.output` as it arrives, instead of keeping it."""
    timeout: float | None
    """Seconds until it is killed and has exit code 124, 10 by default; `None` for no limit."""
    cap: int | None
    """Bytes of each stream to keep or deliver, 1 MiB by default; `None` for no limit."""
    sandbox: AnySandbox | None
    """As for `Environment.run`; by default that of the environment."""
    hold_id: bool
    """Keep the id in use until `Command.release`, not only until the end."""
    accept_missing: Collection[Extension]
    """Start it even if the server lacks these; their controls then fail."""


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
    Return the options with defaults for missing ones.

    Raises:
        TypeError: An option is unknown.
    """
    unknown = options.keys() - _DEFAULTS.keys()
    if unknown:
        raise TypeError(f"start() got an unexpected keyword argument {min(unknown)!r}")
    return {**_DEFAULTS, **options}


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainPolicy:
    """
    Time limits after an exit; each stream is drained separately.

    A stream is drained until its end or cap, or given up after `quiet` seconds of silence, and at
    the latest `limit` seconds after the exit. Output that is available then is still read, up to
    `last_pass` pieces.
    """

    quiet: float | None = 0.05
    """Seconds of silence of a stream, restarted by each late byte; None for no window."""
    limit: float = limits.STREAM_DRAIN
    """Seconds after the exit."""
    last_pass: int = 256
    """Maximum pieces to read after the limit, if available."""

    def __post_init__(self) -> None:
        if self.quiet is not None:
            seconds(self.quiet, "quiet")
        seconds(self.limit, "limit")
        _check_pieces(self.last_pass)


def _check_pieces(value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"last_pass must be a number of pieces, not {value!r}")
    if value < 0:
        raise InvalidParams(f"last_pass must not be negative, but is {value}")


CODEX_0_166_0 = DrainPolicy(quiet=None)
"""The policy of that server: a silent holder of the output costs the full limit."""


@dataclass(frozen=True, slots=True)
class Kill:
    """Method of killing commands."""

    tree: bool = True
    """Also kill descendants that left the process group."""
    streams: StreamsAtEnd = "close"
    """`keep` reads until the end of the output, even if other processes hold it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Settings of a command that apply after its start."""

    process_id: str | None
    environment_id: str
    tty: bool
    stdin: bool
    stream: bool
    timeout: float | None
    cap: int | None
    drain: DrainPolicy
    kill: Kill
