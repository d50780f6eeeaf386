"""
Errors of `command_exec`, a class per reason [app-server.controls].

Their texts are those of `command/exec`. A server with other texts, such as `process/*`, uses the
classes and their attributes.
"""

import json
from typing import Final

from holdfast.base.errors import ConnectionLost, HoldfastError

__all__ = [
    "EXTENSIONS",
    "CommandExecClosed",
    "CommandExecError",
    "CommandLost",
    "DuplicateCommand",
    "EmptyCommand",
    "ExtensionMissing",
    "InvalidSize",
    "NegativeTimeout",
    "NoLongerRunning",
    "NotATerminal",
    "SizeNeedsTerminal",
    "SpawnRefused",
    "StdinAlreadyClosed",
    "StdinNotStreamed",
    "UnknownCommand",
    "quoted_id",
]


def quoted_id(process_id: str) -> str:
    """Return an id as shown in messages: a JSON string, without escaping non-ASCII letters."""
    return json.dumps(process_id, ensure_ascii=False)


class CommandExecError(HoldfastError):
    """A command was not started, or a control was refused."""


# -- before a start


# In the order of the checks.
class EmptyCommand(CommandExecError):
    """The command has no program."""

    def __init__(self) -> None:
        super().__init__("command must not be empty")


class SizeNeedsTerminal(CommandExecError):
    """An initial size was given for a command without a terminal."""

    def __init__(self) -> None:
        super().__init__("command/exec size requires tty: true")


class InvalidSize(CommandExecError):
    """A terminal has at least one row and one column, and at most 65,535 of each."""

    def __init__(self, rows: int, cols: int) -> None:
        text = "command/exec size rows and cols must be greater than 0"
        if rows > 0 and cols > 0:
            text = f"command/exec size rows and cols must be at most 65535, got {rows} and {cols}"
        super().__init__(text)
        self.rows = rows
        self.cols = cols


class NegativeTimeout(CommandExecError):
    """The timeout is negative."""

    def __init__(self, milliseconds: int) -> None:
        super().__init__(f"command/exec timeoutMs must be non-negative, got {milliseconds}")
        self.milliseconds = milliseconds


class DuplicateCommand(CommandExecError):
    """Another command, whose response was not sent yet, uses the id."""

    def __init__(self, process_id: str) -> None:
        super().__init__(f"duplicate active command/exec process id: {quoted_id(process_id)}")
        self.process_id = process_id


class ExtensionMissing(CommandExecError):
    """
    The server of a remote environment lacks a feature the command needs; nothing was started.

    `extension` is `closeStdin`, `resize`, `size` or `unset`.
    """

    def __init__(self, extension: str, environment_id: str) -> None:
        super().__init__(
            f"environment `{environment_id}` does not support {EXTENSIONS[extension]} ({extension})"
        )
        self.extension = extension
        self.environment_id = environment_id


EXTENSIONS: Final = {
    "closeStdin": "closing the stdin of a command",
    "resize": "resizing the terminal of a command",
    "size": "an initial terminal size",
    "unset": "removing a variable by its exact name",
}
"""Descriptions of the extensions that a command may need."""


class SpawnRefused(CommandExecError):
    """
    The program could not be started; the id is free again.

    `reason` is the system's text, such as `No such file or directory (os error 2)`.
    """

    def __init__(
        self,
        reason: str,
        *,
        errno: int | None = None,
        path: str | None = None,
        program: str | None = None,
    ) -> None:
        super().__init__(
            f"failed to spawn command: {reason}", errno=errno, path=path, program=program
        )
        self.reason = reason


class CommandExecClosed(CommandExecError):
    """The `CommandExec` was closed, and cannot start commands."""

    def __init__(self) -> None:
        super().__init__("command/exec is closed")


# -- controls


class UnknownCommand(CommandExecError):
    """No command has that id, or its response was already sent."""

    def __init__(self, process_id: str) -> None:
        super().__init__(f"no active command/exec for process id {quoted_id(process_id)}")
        self.process_id = process_id


class NoLongerRunning(CommandExecError):
    """The process has exited; the response follows when its output is drained."""

    def __init__(self, process_id: str) -> None:
        super().__init__(f"command/exec {quoted_id(process_id)} is no longer running")
        self.process_id = process_id


class StdinNotStreamed(CommandExecError):
    """The command was started without a writable stdin."""

    def __init__(self, process_id: str) -> None:
        super().__init__("stdin streaming is not enabled for this command/exec")
        self.process_id = process_id


class StdinAlreadyClosed(CommandExecError):
    """Data was written after stdin was closed."""

    def __init__(self, process_id: str) -> None:
        super().__init__("stdin is already closed")
        self.process_id = process_id


class NotATerminal(CommandExecError):
    """A command on pipes cannot be resized."""

    def __init__(self, process_id: str) -> None:
        super().__init__("failed to resize PTY: process is not attached to a PTY")
        self.process_id = process_id


# -- afterwards


class CommandLost(ConnectionLost, CommandExecError):
    """
    The connection to a command's environment is lost, or the environment has lost the command.

    Its end is unknown. A server that can do so still kills it at its timeout. `reason` says what
    happened.
    """

    def __init__(self, process_id: str, environment_id: str, error: HoldfastError) -> None:
        name = f" {quoted_id(process_id)}" if process_id else ""
        super().__init__(f"command/exec{name} on environment `{environment_id}` is lost: {error}")
        self.process_id = process_id
        self.environment_id = environment_id
        self.reason = str(error)
