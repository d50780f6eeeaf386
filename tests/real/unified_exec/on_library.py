"""Plays a case on the library: `UnifiedExec`, locally and on a server that is given by its URL."""

import asyncio
import shlex
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

from holdfast.agent.unified_exec.options import Options
from holdfast.agent.unified_exec.sessions.session_events import (
    CommandBegan,
    CommandEnded,
    InputSent,
    Listener,
    OutputDelta,
    ToolEvent,
)
from holdfast.agent.unified_exec.text.answer import aborted_exec_text, aborted_write_text
from holdfast.agent.unified_exec.tools import UnifiedExec
from holdfast.environments.environment_manager import EnvironmentManager
from tests.real.unified_exec.normal import Events, Row, RunFolders, listing
from tests.real.unified_exec.script import Act, Call, Calls, Case, Mode, argument_text
from tests.real.unified_exec.settings import model_policy
from tests.real.unified_exec.wiretap import Wiretap, tapped

THREAD = "0199d8b5-2d7e-7c20-9d7e-6f6f6f6f6f6f"
_LISTENED = 20.0
_SETTLED = 3.0


async def play(case: Case, mode: Mode, *, workspace: Path, home: Path, server: str | None) -> Row:
    """
    Return what the library answers to a case.

    Args:
        case: The case.
        mode: Where its commands run.
        workspace: An empty folder with the files of the case.
        home: The home of the commands; the variables of this process name it.
        server: The URL of an exec-server, for the modes that need one.
    """
    async with AsyncExitStack() as stack:
        tap: Wiretap | None = None
        if mode in ("remote", "both"):
            assert server is not None
            tap = await stack.enter_async_context(tapped(server))
        manager = await stack.enter_async_context(_environments(mode, tap, workspace))
        tools = await stack.enter_async_context(UnifiedExec(manager, options=_options(case)))
        folders = RunFolders(
            case, workspace, home, {str(workspace.parent): "<ROOT>", THREAD: "<thread>"}
        )
        run = _Run(case, folders, tools, tap)
        listener = tools.listen()
        listening = asyncio.create_task(run.listen(listener))
        try:
            await run.play()
        finally:
            listener.close()
            async with asyncio.timeout(_LISTENED):
                await listening
        return run.row()


def _environments(mode: Mode, tap: Wiretap | None, workspace: Path) -> EnvironmentManager:
    config = workspace.parent / "config"
    config.mkdir()
    variables = {}
    if mode == "both":
        assert tap is not None
        written = f'[[environments]]\nid = "remote"\nurl = "{tap.url}"\n'
        (config / "environments.toml").write_text(written)
    elif mode == "remote":
        assert tap is not None
        variables["CODEX_EXEC_SERVER_URL"] = tap.url
    elif mode == "none":
        variables["CODEX_EXEC_SERVER_URL"] = "none"
    manager = EnvironmentManager.from_env(variables, home=config)
    for name in manager.ids:
        manager.require(name).cwd = workspace
    return manager


def _options(case: Case) -> Options:
    settings = case.settings
    return Options(
        thread_id=THREAD,
        allow_login_shell=settings.get("allow_login_shell", True),
        longest_poll=settings.get("background_terminal_max_timeout", 300_000) / 1000,
        model_policy=model_policy(settings),
        sandbox=None if case.sandbox == "danger-full-access" else case.sandbox,
    )


class _Run:
    """One case under way."""

    def __init__(
        self, case: Case, folders: RunFolders, tools: UnifiedExec, tap: Wiretap | None
    ) -> None:
        self._case = case
        self._place = folders
        self._tools = tools
        self._tap = tap
        self._events = Events(folders)
        self._changed = asyncio.Event()
        self._acts: list[Any] = []
        self._answers: dict[str, str] = {}
        self._under_way: list[asyncio.Task[None]] = []
        self._pause: AsyncExitStack | None = None

    async def listen(self, listener: Listener) -> None:
        """Note every event until the listener is closed."""
        async for event in listener:
            self._note(event)
            self._changed.set()

    def _note(self, event: ToolEvent) -> None:
        match event:
            case CommandBegan():
                self._events.begin(
                    event.call_id,
                    session=event.session_id,
                    command=shlex.join(event.command),
                    cwd=event.cwd,
                    source="unifiedExecStartup",
                )
            case OutputDelta():
                self._events.delta(event.call_id, event.text)
            case InputSent():
                self._events.interaction(event.call_id, session=event.session_id, stdin=event.stdin)
            case CommandEnded():
                self._events.end(
                    event.call_id,
                    session=event.session_id,
                    status="completed" if event.ok else "failed",
                    exit_code=event.exit_code,
                    output=event.text or None,
                )

    async def play(self) -> None:
        """Play every step, then wait for the last events."""
        for step in self._case.steps:
            if isinstance(step, Calls):
                await self._calls(step)
            elif isinstance(step, Act):
                await self._act(step)
            else:
                await asyncio.sleep(step)
        if self._case.events:
            with suppress(TimeoutError):
                async with asyncio.timeout(_SETTLED):
                    while self._events.unfinished:
                        self._changed.clear()
                        await self._changed.wait()

    async def _calls(self, step: Calls) -> None:
        self._under_way = [asyncio.create_task(self._call(call)) for call in step.calls]
        acting = [asyncio.create_task(self._act(act)) for act in step.meanwhile]
        await asyncio.gather(*self._under_way)
        await asyncio.gather(*acting)

    async def _call(self, call: Call) -> None:
        arguments = argument_text(self._place.fill(call.arguments))
        clock = asyncio.get_running_loop()
        since = clock.time()
        try:
            result = await self._tools.call(call.tool, arguments, call_id=call.id)
        except asyncio.CancelledError:
            # Worded by whoever interrupts, as in the original.
            aborted = aborted_exec_text if call.tool == "exec_command" else aborted_write_text
            self._answers[call.id] = aborted(clock.time() - since)
            return
        self._answers[call.id] = result.text()
        self._place.learn_from(call, self._answers[call.id])

    async def _act(self, act: Act) -> None:
        await asyncio.sleep(act.after)
        match act.name:
            case "list":
                # Codex lists them by number, ours are in the order of their starts.
                sessions = sorted(self._tools.sessions(), key=lambda one: one.session_id)
                listed = [
                    {
                        "item": session.call_id,
                        "session": session.session_id,
                        "command": self._place.hide(session.script),
                        "cwd": self._place.hide(session.cwd),
                    }
                    for session in sessions
                ]
                self._acts.append(listing(listed))
            case "terminate":
                number = self._place.sessions.get(act.target)
                done = self._tools.terminate(int(act.target) if number is None else number)
                self._acts.append({"terminate": act.target, "answer": {"terminated": done}})
            case "clean":
                self._tools.clean()
                self._acts.append({"clean": {}})
            case "interrupt":
                for task in self._under_way:
                    task.cancel()
            case "pause":
                self._pause = AsyncExitStack()
                await self._pause.enter_async_context(self._tools.paused())
            case "resume":
                assert self._pause is not None
                await self._pause.aclose()
            case "cut" | "lose":
                assert self._tap is not None
                self._tap.cut(for_good=act.name == "lose")
            case "kill-server":
                raise NotImplementedError("the server is shared by all cases")

    def row(self) -> Row:
        """Return what is compared of the run."""
        case, folders = self._case, self._place
        row: Row = {
            "answers": {
                call.id: folders.answer(call, self._answers[call.id]) for call in case.calls()
            }
        }
        if self._acts:
            row["acts"] = self._acts
        if case.events:
            row["events"] = self._events.rows()
        if case.wire:
            assert self._tap is not None
            row["wire"] = [folders.sent(method, params) for method, params in self._tap.requests]
        if case.schemas:
            row["schemas"] = {str(tool["name"]): tool for tool in self._tools.schemas("openai")}
        return row
