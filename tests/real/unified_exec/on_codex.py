"""Plays a case on the real Codex: `codex app-server`, a scripted model, and its exec-server."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from tests.real.codex import codex
from tests.real.model import GOODBYE, Item, Model, playing
from tests.real.unified_exec.normal import Events, Row, RunFolders, listing
from tests.real.unified_exec.script import Act, Call, Calls, Case, Mode, argument_text
from tests.real.unified_exec.wiretap import Wiretap, tapped

KNOWN_MODEL = "gpt-5.5"
"""A model of the binary's own catalogue, with a budget of 10,000 tokens."""

AppServerT = TypeVar("AppServerT", bound="AppServer")

_LINE = 64 << 20
_LIMIT = 60.0

HOME_FILES = {".profile": "FROM_PROFILE=yes\n", ".bashrc": "FROM_RC=yes\n"}
"""Start files of the shells, so that a login shell can be told from another."""

VARIABLES = {
    "SHELL": "/bin/bash",
    "TERM": "xterm-256color",
    "LANG": "en_US.UTF-8",
    "LC_CTYPE": "en_US.UTF-8",
    "COLORTERM": "truecolor",
    "PAGER": "less",
    "PROBE_PLAIN": "inherited",
    "PROBE_API_KEY": "visible",
    "NODE_REPL_AUTH_TOKEN": "hidden",
    "NO_PROXY": "127.0.0.1,localhost",
    "no_proxy": "127.0.0.1,localhost",
}
"""Variables of whoever starts commands, the same in every run."""

_DROPPED = ("CODEX_", "OPENAI_", "BASH_", "LC_", "PS1", "PROMPT_COMMAND", "ENV", "OLDPWD", "PROBE_")


def base_environment(home: Path) -> dict[str, str]:
    """Return the environment in which both Codex and the library play."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(_DROPPED) and not name.lower().endswith("_proxy")
    }
    return {**kept, "HOME": str(home), **VARIABLES}


def lay_out(case: Case, root: Path) -> RunFolders:
    """Make the folders of a run and return them."""
    workspace, home = root / "ws", root / "home"
    for folder in (workspace, home, root / "tmp", root / "codex"):
        folder.mkdir(parents=True)
    for name, content in HOME_FILES.items():
        (home / name).write_text(content)
    fill_workspace(case, workspace)
    return RunFolders(case, workspace, home, {str(root / "tmp"): "<TMP>", str(root): "<ROOT>"})


def fill_workspace(case: Case, workspace: Path) -> None:
    """Make the files a case wants."""
    for name, content in case.files.items():
        target = workspace / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if content is None:
            target.mkdir()
        else:
            target.write_text(content)


async def play(case: Case, mode: Mode, root: Path) -> Row:
    """Return what the real Codex answers to a case."""
    folders = lay_out(case, root)
    variables = {
        **base_environment(folders.home),
        "TMPDIR": str(root / "tmp"),
        "CODEX_HOME": str(root / "codex"),
    }
    async with AsyncExitStack() as stack:
        model = await stack.enter_async_context(playing([]))
        config = root / "codex" / "config.toml"
        config.write_text(_config(case, model.url))
        tap: Wiretap | None = None
        server: asyncio.subprocess.Process | None = None
        if mode in ("remote", "both"):
            server, url = await stack.enter_async_context(
                _exec_server(variables, folders.workspace)
            )
            tap = await stack.enter_async_context(tapped(url))
        if mode == "both":
            environments = f'[[environments]]\nid = "remote"\nurl = "{tap and tap.url}"\n'
            (root / "codex" / "environments.toml").write_text(environments)
        elif mode == "remote":
            assert tap is not None
            variables["CODEX_EXEC_SERVER_URL"] = tap.url
        elif mode == "none":
            variables["CODEX_EXEC_SERVER_URL"] = "none"
        app = await stack.enter_async_context(app_server(variables, folders.workspace, AppServer))
        run = _Run(case, folders, model, app, tap, server)
        async with asyncio.timeout(_LIMIT + 2 * sum(map(_patience, case.steps))):
            await run.play()
        return run.row()


def _patience(step: Calls | Act | float) -> float:
    if isinstance(step, Calls):
        return 31.0
    return step if isinstance(step, float) else 1.0


def _config(case: Case, url: str) -> str:
    settings = {"model": KNOWN_MODEL, **case.settings}
    lines = [f"{name} = {json.dumps(value)}" for name, value in settings.items()]
    return "\n".join(
        [
            *lines,
            'model_provider = "scripted"',
            'approval_policy = "never"',
            f'sandbox_mode = "{case.sandbox}"',
            "check_for_update_on_startup = false",
            "[analytics]",
            "enabled = false",
            "[features]",
            "shell_snapshot = false",
            "[model_providers.scripted]",
            'name = "scripted"',
            f'base_url = "{url}"',
            'wire_api = "responses"',
            "request_max_retries = 0",
            "stream_max_retries = 0",
            "",
        ]
    )


@asynccontextmanager
async def _exec_server(
    variables: dict[str, str], folder: Path
) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    process = await asyncio.create_subprocess_exec(
        codex(),
        "exec-server",
        "--listen",
        "ws://127.0.0.1:0",
        env=variables,
        cwd=folder,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(_LIMIT):
            url = (await process.stdout.readline()).decode().strip()
        yield process, url
    finally:
        await _ended(process)


@asynccontextmanager
async def app_server(
    variables: dict[str, str], folder: Path, kind: "type[AppServerT]"
) -> AsyncIterator["AppServerT"]:
    """Start the app-server, with an object of this class to talk to it."""
    process = await asyncio.create_subprocess_exec(
        codex(),
        "app-server",
        env=variables,
        cwd=folder,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        limit=_LINE,
    )
    app = kind(process)
    reading = asyncio.create_task(app.read())
    try:
        yield app
    finally:
        assert process.stdin is not None
        process.stdin.close()
        await _ended(process, gently=True)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


async def _ended(process: asyncio.subprocess.Process, *, gently: bool = False) -> None:
    """Wait for the end of a process that was asked for it, and insist after five seconds."""
    if process.returncode is None and not gently:
        process.terminate()
    try:
        async with asyncio.timeout(5):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


class AppServer:
    """A conversation with `codex app-server` on its standard streams."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._numbers = count(1)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._completed = asyncio.Condition()
        self._turns: set[str] = set()
        self.events: Events | None = None
        self.capabilities: dict[str, object] = {"experimentalApi": True}
        self.changed = asyncio.Event()

    async def read(self) -> None:
        """Take every message until the process closes its output."""
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            message = json.loads(line)
            if "method" not in message:
                self._waiting.pop(message["id"]).set_result(message)
            elif "id" in message:
                reply = self.reply(message["method"], message.get("params") or {})
                self._send({"id": message["id"], **reply})
            else:
                await self._notice(message["method"], message.get("params") or {})

    async def _notice(self, method: str, params: dict[str, Any]) -> None:
        if method == "turn/completed":
            async with self._completed:
                self._turns.add(params["turn"]["id"])
                self._completed.notify_all()
        elif self.events is not None:
            _note(self.events, method, params)
            self.changed.set()

    def reply(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to a request of the server: here, that it is not handled."""
        return {"error": {"code": -32601, "message": "not handled"}}

    def _send(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message).encode() + b"\n")

    async def ask(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Send a request and return the whole answer: a result or an error."""
        number = next(self._numbers)
        future = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        self._send({"id": number, "method": method, "params": params})
        answer: dict[str, Any] = await future
        return answer

    async def call(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Send a request that has to succeed and return its result."""
        answer = await self.ask(method, params)
        assert "result" in answer, (method, answer)
        result: dict[str, Any] = answer["result"]
        return result

    async def open(self, folder: Path, **options: object) -> str:
        """Introduce us and return the id of a new thread."""
        hello = {
            "clientInfo": {"name": "holdfast-recorder", "version": "1"},
            "capabilities": self.capabilities,
        }
        await self.call("initialize", hello)
        self._send({"method": "initialized"})
        started = await self.call("thread/start", {"cwd": str(folder), **options})
        return str(started["thread"]["id"])

    async def completed(self, turn: str) -> None:
        """Wait until a turn has ended."""
        async with self._completed:
            await self._completed.wait_for(lambda: turn in self._turns)


def _note(events: Events, method: str, params: dict[str, Any]) -> None:
    item = params.get("item") or {}
    if method == "item/commandExecution/outputDelta":
        events.delta(params["itemId"], params["delta"])
    elif method == "item/commandExecution/terminalInteraction":
        events.interaction(params["itemId"], session=params["processId"], stdin=params["stdin"])
    elif item.get("type") != "commandExecution":
        return
    elif method == "item/started":
        events.begin(
            item["id"],
            session=item["processId"],
            command=item["command"],
            cwd=item["cwd"],
            source=item["source"],
        )
    elif method == "item/completed":
        events.end(
            item["id"],
            session=item["processId"],
            status=item["status"],
            exit_code=item["exitCode"],
            output=item["aggregatedOutput"],
        )


class _Run:
    """One case under way."""

    def __init__(
        self,
        case: Case,
        folders: RunFolders,
        model: Model,
        app: AppServer,
        tap: Wiretap | None,
        server: asyncio.subprocess.Process | None,
    ) -> None:
        self._case = case
        self._place = folders
        self._model = model
        self._app = app
        self._tap = tap
        self._server = server
        self._events = Events(folders)
        self._acts: list[Any] = []
        self._thread = ""
        self._turn = ""

    async def play(self) -> None:
        """Play every step, then wait for the last answers and events."""
        self._app.events = self._events
        self._thread = await self._app.open(self._place.workspace)
        for step in self._case.steps:
            if isinstance(step, Calls):
                await self._turn_with(step)
            elif isinstance(step, Act):
                await self._act(step)
            else:
                await asyncio.sleep(step)
        if any(call.id not in self._model.outputs for call in self._case.calls()):
            # What an interrupted call was answered with is told with the next request.
            await self._turn_with(Calls(()))
        if self._case.events:
            with suppress(TimeoutError):
                async with asyncio.timeout(3):
                    while self._events.unfinished:
                        self._app.changed.clear()
                        await self._app.changed.wait()

    async def _turn_with(self, step: Calls) -> None:
        items = [self._item(call) for call in step.calls]
        self._model.play_next([items, [GOODBYE]] if items else [[GOODBYE]])
        hello = [{"type": "text", "text": "go"}]
        asked = {"threadId": self._thread, "input": hello}
        self._turn = (await self._app.call("turn/start", asked))["turn"]["id"]
        async with asyncio.TaskGroup() as acting:
            for act in step.meanwhile:
                acting.create_task(self._act(act))
            await self._app.completed(self._turn)
        for call in self._case.calls():
            if call.id in self._model.outputs:
                self._place.learn_from(call, self._model.outputs[call.id])

    def _item(self, call: Call) -> Item:
        return {
            "type": "function_call",
            "id": f"fc-{call.id}",
            "call_id": call.id,
            "name": call.tool,
            "arguments": argument_text(self._place.fill(call.arguments)),
        }

    async def _act(self, act: Act) -> None:
        await asyncio.sleep(act.after)
        thread = {"threadId": self._thread}
        match act.name:
            case "list":
                found = await self._app.call("thread/backgroundTerminals/list", thread)
                self._acts.append(listing([self._listed(entry) for entry in found["data"]]))
            case "terminate":
                number = self._place.sessions.get(act.target, act.target)
                asked = {**thread, "processId": str(number)}
                done = await self._app.ask("thread/backgroundTerminals/terminate", asked)
                answer = done.get("result", done.get("error"))
                self._acts.append({"terminate": act.target, "answer": answer})
            case "clean":
                done = await self._app.call("thread/backgroundTerminals/clean", thread)
                self._acts.append({"clean": done})
            case "interrupt":
                await self._app.ask("turn/interrupt", {**thread, "turnId": self._turn})
            case "pause":
                await self._app.call("thread/increment_elicitation", thread)
            case "resume":
                await self._app.call("thread/decrement_elicitation", thread)
            case "cut" | "lose":
                assert self._tap is not None
                self._tap.cut(for_good=act.name == "lose")
            case "kill-server":
                assert self._server is not None
                self._server.send_signal(signal.SIGKILL)

    def _listed(self, entry: dict[str, Any]) -> Row:
        return {
            "item": entry["itemId"],
            "session": int(entry["processId"]),
            "command": self._place.hide(entry["command"]),
            "cwd": self._place.hide(entry["cwd"]),
        }

    def row(self) -> Row:
        """Return what is kept of the run."""
        folders, case = self._place, self._case
        folders.more[self._thread] = "<thread>"
        row: Row = {
            "answers": {
                call.id: folders.answer(call, self._model.outputs[call.id]) for call in case.calls()
            }
        }
        if self._acts:
            row["acts"] = self._acts
        if case.events:
            row["events"] = self._events.rows()
        if case.wire:
            assert self._tap is not None
            row["wire"] = [
                folders.sent(method, params)
                for method, params in self._tap.requests
                if method.startswith("process/") and method != "process/read"
            ]
        if case.schemas:
            row["schemas"] = _schemas(json.loads(self._model.told))
        return row


def _schemas(request: dict[str, Any]) -> Row:
    """Return the parameters of both tools, without their descriptions."""
    wanted = ("exec_command", "write_stdin")
    found = {tool["name"]: tool for tool in request["tools"] if tool.get("name") in wanted}
    return {
        name: _undescribed({key: tool[key] for key in ("type", "name", "strict", "parameters")})
        for name, tool in sorted(found.items())
    }


def _undescribed(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: _undescribed(item)
            for key, item in value.items()
            if key != "description" or not isinstance(item, str)
        }
    return value
