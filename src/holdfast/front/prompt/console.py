"""
The loop of the prompt: reads a line, calls a tool and shows the result.

One task shows the live output of the foreground command. Other commands are announced when they
end.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from holdfast.agent.unified_exec import (
    CommandBegan,
    CommandEnded,
    ExecArguments,
    ExecResult,
    Listener,
    OutputDelta,
    OutputMissing,
    SessionInfo,
    ToolEvent,
    UnifiedExec,
    UnifiedExecError,
    WriteArguments,
)
from holdfast.agent.unified_exec.session_manager import new_call_id
from holdfast.agent.unified_exec.tool_errors import exec_failure_text, write_failure_text
from holdfast.backends import ExecProcess
from holdfast.base.errors import HoldfastError
from holdfast.front.prompt.prompt_lines import HELP, LineError, TypedLine, parse_line
from holdfast.front.prompt.reading import LineReader
from holdfast.front.prompt.screen import Screen

__all__ = ["Attach", "Console"]

# The byte that a terminal turns into SIGINT.
_CTRL_C: Final = "\x03"
# Milliseconds to wait for output after an interrupt or a line of input.
_INTERRUPT_WAIT: Final = 1_000

# Lines that `:read` shows by default.
_READ_LINES: Final = 200

# Seconds that `:wait` and `:poll` accept.
_LONGEST_WAIT: Final = 3_600.0

# Notes that wait for the next prompt; further ones are dropped, since a person may be away.
_MOST_NOTES: Final = 1_000

Attach = Callable[[SessionInfo, ExecProcess], Awaitable[None]]
"""Function that passes keys to a command until a person types Ctrl-]."""


@dataclass(slots=True)
class _Last:
    """Arguments and result of the last call."""

    arguments: dict[str, object]
    text: str
    answer: dict[str, object] | None


class Console:
    """Prompt for one `UnifiedExec`."""

    def __init__(
        self,
        tools: UnifiedExec,
        *,
        reader: LineReader,
        screen: Screen,
        attach: Attach | None = None,
        wait: float = 10.0,
        login: bool = False,
        model_text: bool = False,
    ) -> None:
        """
        Args:
            tools: Tools that run the commands; the caller closes them.
            reader: Source of lines.
            screen: Output for the person.
            attach: Passes keys to a command; without it, `:attach` only shows output.
            wait: Seconds until a command continues in the background.
            login: True to run commands in a login shell.
            model_text: True to show the text for a model after each call, instead of live output.
        """
        self._tools = tools
        self._reader = reader
        self._screen = screen
        self._attach_keys = attach
        self._wait = wait
        self._login = login
        self._model_text = model_text
        # Id of the call whose command is in the foreground.
        self._front: str | None = None
        self._ended: dict[str, asyncio.Event] = {}
        self._calls: dict[int, str] = {}
        self._call: asyncio.Task[ExecResult] | None = None
        # Set by Ctrl-C while the user is attached to a command.
        self._interrupted = asyncio.Event()
        self._latest: int | None = None
        # Texts about background commands, to be shown before the next prompt.
        self._notes: list[str] = []
        self._last: _Last | None = None

    async def run(self) -> None:
        """Read and execute lines until `:quit` or the end of input."""
        listener = self._tools.listen()
        showing = asyncio.create_task(self._show_events(listener))
        try:
            while True:
                # Only between two prompts: output in between would tear the line being typed.
                for note in self._notes:
                    self._screen.line(note, "dim")
                self._notes.clear()
                self._screen.fresh_line()
                typed = await self._reader.read("holdfast> ")
                if typed is None:
                    return
                try:
                    line = parse_line(typed)
                    if line.command == "quit":
                        return
                    await self._obey(line)
                # An error ends the line, not the prompt.
                except LineError as error:
                    self._screen.line(str(error), "bad")
                except HoldfastError as error:
                    self._screen.line(str(error), "bad")
        finally:
            listener.close()
            showing.cancel()
            await asyncio.gather(showing, return_exceptions=True)

    def interrupt(self) -> bool:
        """Interrupt the foreground command, as Ctrl-C does; return False if there is none."""
        if self._call is not None:
            self._call.cancel()
        elif self._front is not None:
            self._interrupted.set()
        return self._front is not None

    # -- events

    async def _show_events(self, events: Listener) -> None:
        async for event in events:
            self._show(event)

    def _show(self, event: ToolEvent) -> None:
        if isinstance(event, CommandBegan):
            if event.session_id is not None:
                self._calls[event.session_id] = event.call_id
                self._latest = event.session_id
            if self._is_shown(event.call_id):
                self._screen.output(bytes(event.early))
        elif isinstance(event, OutputDelta):
            if self._is_shown(event.call_id):
                self._screen.output(event.data)
        elif isinstance(event, OutputMissing):
            self._note(f"[{event.session_id}] output is lost")
        elif isinstance(event, CommandEnded):
            ended = self._ended.pop(event.call_id, None)
            if ended is not None:
                ended.set()
            # The result of the foreground command is shown by `_report`.
            if event.call_id != self._front and event.session_id is not None:
                how = "killed" if event.exit_code < 0 else f"exit {event.exit_code}"
                self._note(f"[{event.session_id}] ended, {how}")

    def _note(self, text: str) -> None:
        """Add a text for the next prompt: a person may be typing at this one."""
        if len(self._notes) < _MOST_NOTES:
            self._notes.append(text)

    def _is_shown(self, call_id: str) -> bool:
        return call_id == self._front and not self._model_text

    # -- commands

    async def _obey(self, line: TypedLine) -> None:
        if line.command in ("", "help"):
            if line.command:
                rows = [(f":{name} {HELP[name][0]}".rstrip(), HELP[name][1]) for name in HELP]
                self._screen.table(("COMMAND", "WHAT IT DOES"), rows)
            return
        if line.command in ("run", "tty"):
            await self._run(line.text, tty=line.command == "tty")
            return
        obey: dict[str, Callable[[TypedLine], Awaitable[None]]] = {
            "list": self._list,
            "attach": self._attach,
            "poll": self._poll,
            "send": self._send,
            "interrupt": self._interrupt,
            "kill": self._kill,
            "read": self._read,
            "text": self._show_text,
            "json": self._show_json,
            "wait": self._set_wait,
        }
        # `parse_line` returns names of `HELP` only, so each has its function here.
        await obey[line.command](line)

    async def _run(self, command: str, *, tty: bool) -> None:
        if not command:
            raise LineError("there is nothing to run")
        arguments = ExecArguments(
            cmd=command, tty=tty, yield_time_ms=int(self._wait * 1000), login=self._login
        )
        call_id = new_call_id()
        shown = {"cmd": command, "tty": tty, "yield_time_ms": arguments.yield_time_ms}
        await self._wait_for(
            self._tools.exec_command(arguments, call_id=call_id),
            {"name": "exec_command", "arguments": shown | {"login": self._login}},
            call_id,
            exec_failure_text,
        )

    async def _write(self, session: int, chars: str, milliseconds: int) -> None:
        arguments = WriteArguments(session_id=session, chars=chars, yield_time_ms=milliseconds)
        shown = {"session_id": session, "chars": chars, "yield_time_ms": milliseconds}
        await self._wait_for(
            self._tools.write_stdin(arguments),
            {"name": "write_stdin", "arguments": shown},
            self._calls.get(session, ""),
            write_failure_text,
        )

    async def _wait_for(
        self,
        call: Awaitable[ExecResult],
        arguments: dict[str, object],
        front: str,
        failure: Callable[[UnifiedExecError], str],
    ) -> None:
        """Wait for a call, and show live output; Ctrl-C interrupts the command."""
        self._front = front
        self._call = asyncio.ensure_future(call)
        try:
            result = await self._call
        except UnifiedExecError as error:
            text = failure(error)
            self._last = _Last(arguments, text, None)
            self._screen.line(text, "bad")
            return
        except asyncio.CancelledError:
            # Ctrl-C cancels only the call. If this task is cancelled, the prompt ends.
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            self._call = None
            await self._after_interrupt(front)
            return
        finally:
            self._call = None
            # Events of the call may still be in the queue: they belong to the foreground.
            await _settle()
            if self._front == front:
                self._front = None
        self._report(result, arguments)

    async def _after_interrupt(self, call_id: str) -> None:
        """Pass Ctrl-C to the command of a cancelled call, which is still running."""
        found = [one for one in self._tools.sessions() if one.call_id == call_id]
        if not found:
            self._screen.line("interrupted before it ran", "dim")
            return
        await self._write(found[0].session_id, _CTRL_C, _INTERRUPT_WAIT)

    def _report(self, result: ExecResult, arguments: dict[str, object]) -> None:
        self._last = _Last(arguments, result.text(), result.object())
        if self._model_text:
            self._screen.line(result.text())
            return
        # One line after the live output, which has shown the rest.
        seconds = f"{result.wall_time:.1f} s"
        if result.session_id is not None:
            self._latest = result.session_id
            self._screen.line(f"[{result.session_id}] runs on after {seconds}", "note")
            return
        verdict = result.verdict
        how = "killed" if result.killed else f"exit {result.exit_code}"
        if verdict is not None and verdict.denial is not None:
            how += f", denied by the sandbox: {verdict.denial}"
        good = result.exit_code == 0 and not result.killed
        self._screen.line(f"{how} after {seconds}", "good" if good else "bad")

    async def _list(self, line: TypedLine) -> None:
        line.words(0)
        sessions = self._tools.sessions()
        if not sessions:
            self._screen.line("nothing runs", "dim")
            return
        rows = [
            (
                str(one.session_id),
                "-" if one.pid is None else str(one.pid),
                "yes" if one.tty else "no",
                one.environment_id,
                one.cwd,
                one.script,
            )
            for one in sessions
        ]
        self._screen.table(("ID", "PID", "TTY", "WHERE", "FOLDER", "COMMAND"), rows)

    async def _poll(self, line: TypedLine) -> None:
        words = line.words(2)
        session = self._session(words[:1])
        seconds = _seconds(words[1]) if len(words) > 1 else self._wait
        await self._write(session, "", int(seconds * 1000))

    async def _send(self, line: TypedLine) -> None:
        number, _, text = line.text.partition(" ")
        # With a line end, as a person would type it.
        session = self._session([number])
        await self._write(session, f"{text}\n", _INTERRUPT_WAIT)

    async def _interrupt(self, line: TypedLine) -> None:
        await self._write(self._session(line.words(1)), _CTRL_C, _INTERRUPT_WAIT)

    async def _kill(self, line: TypedLine) -> None:
        words = line.words(1)
        if not words:
            raise LineError(":kill takes the number of a command, or `all`")
        # The events of all commands follow as notes.
        if words == ["all"]:
            self._tools.clean()
            return
        session = self._session(words)
        if not self._tools.terminate(session):
            raise LineError(f"there is no command {session}")
        await _settle()

    async def _read(self, line: TypedLine) -> None:
        words = line.words(3)
        numbers = [_number(word) for word in words]
        key = numbers[0] if numbers else self._latest
        if key is None:
            raise LineError("nothing was run yet")
        first = numbers[1] if len(numbers) > 1 else 1
        last = numbers[2] if len(numbers) > 2 else first + _READ_LINES - 1
        call = self._calls.get(key)
        # By the call if known, since a call id identifies a single command.
        page = await self._tools.read_output(key if call is None else call, lines=(first, last))
        self._screen.output(page.output.encode("utf-8", "replace"))
        self._screen.line(
            f"lines {page.first_line or 0} to {page.last_line or 0} of {page.total_lines}", "dim"
        )

    async def _attach(self, line: TypedLine) -> None:
        session = self._session(line.words(1))
        found = [one for one in self._tools.sessions() if one.session_id == session]
        if not found:
            if session not in self._calls:
                raise LineError(f"there is no command {session}; :list shows those that run")
            raise LineError(f"command {session} has ended; :poll {session} shows how")
        (info,) = found
        process = self._tools.session(session).process
        self._front = info.call_id
        ended = self._ended.setdefault(info.call_id, asyncio.Event())
        self._screen.line(f"attached to {session}; Ctrl-] comes back", "note")
        # An interrupt from before must not end the attachment at once.
        self._interrupted.clear()
        # `CommandEnded` comes only with the next call, so the exit of the process counts, too.
        waits: list[Awaitable[object]] = [ended.wait(), process.wait(), self._interrupted.wait()]
        if self._attach_keys is not None:
            waits.append(self._attach_keys(info, process))
        tasks = [asyncio.ensure_future(wait) for wait in waits]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._ended.pop(info.call_id, None)
            self._front = None
        if self._interrupted.is_set():
            await self._write(session, _CTRL_C, _INTERRUPT_WAIT)
        elif not any(one.session_id == session for one in self._tools.sessions()):
            await self._write(session, "", 0)

    async def _show_text(self, line: TypedLine) -> None:
        line.words(0)
        self._screen.line(self._answer().text)

    async def _show_json(self, line: TypedLine) -> None:
        line.words(0)
        last = self._answer()
        shown = {"call": last.arguments, "text": last.text, "object": last.answer}
        self._screen.line(json.dumps(shown, ensure_ascii=False, indent=2))

    async def _set_wait(self, line: TypedLine) -> None:
        words = line.words(1)
        if not words:
            self._screen.line(f"{self._wait:g} s")
            return
        self._wait = _seconds(words[0])

    def _answer(self) -> _Last:
        if self._last is None:
            raise LineError("there was no answer yet")
        return self._last

    def _session(self, words: list[str]) -> int:
        """Return the session that is named, or the latest one."""
        if words:
            return _number(words[0])
        # The command that the user last interacted with, if it still runs.
        running = self._tools.sessions()
        if self._latest is not None and any(one.session_id == self._latest for one in running):
            return self._latest
        if running:
            return running[-1].session_id
        if self._latest is None:
            raise LineError("nothing runs")
        return self._latest


async def _settle() -> None:
    """Let the task that shows events catch up."""
    # An event passes a queue and two tasks, each of which takes an iteration of the loop.
    for _ in range(4):
        await asyncio.sleep(0)


def _number(word: str) -> int:
    try:
        return int(word)
    except ValueError:
        raise LineError(f"`{word}` is not the number of a command") from None


def _seconds(word: str) -> float:
    try:
        value = float(word)
    except ValueError:
        value = -1.0
    if not 0 <= value <= _LONGEST_WAIT:
        raise LineError(f"`{word}` is not a number of seconds from 0 to {_LONGEST_WAIT:g}")
    return value
