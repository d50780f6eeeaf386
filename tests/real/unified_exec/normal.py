"""
Normalization for comparisons: answers and events without what differs between runs.

Chunk ids, wall times, session numbers and folders are replaced. A wall time leaves its class:
`zero` (ended within the 150 ms after the start), `short`, `<yield`, `~yield`, `>yield`.
"""

import base64
import re
import zlib
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from tests.real.unified_exec.script import Call, Case, longest_wait

_HEADER = re.compile(
    r"(?P<chunk>Chunk ID: [0-9a-f]{6}\n)?"
    r"Wall time: (?P<wall>\d+\.\d{4}) seconds\n"
    r"(?P<exit>Process exited with code -?\d+\n)?"
    r"(?:Process running with session ID (?P<session>\d+)\n)?"
    r"(?:Original token count: (?P<tokens>\d+)\n)?"
    r"Output:\n"
)
_ABORTED = re.compile(
    r"(?P<before>Wall time: |aborted by user after )\d+\.\d(?P<after> seconds\naborted by user|s)$"
)
_PROCESS = re.compile(r"((?:process id|process_id:) )(\d+)")
_COLUMN = re.compile(r"( at line \d+ column )(\d+)")
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_SERVER = re.compile(r"ws://127\.0\.0\.1:\d+")
_SHELL = re.compile(r"/usr/bin/(bash|sh|zsh)\b")
_LONG = 1_500
_VERY_LONG = 50_000

Row = dict[str, Any]


@dataclass
class RunFolders:
    """The folders of one run, and the session numbers seen in it."""

    case: Case
    workspace: Path
    home: Path
    more: dict[str, str] = field(default_factory=dict)
    """Other texts to replace, with what takes their place."""
    sessions: dict[str, int] = field(default_factory=dict)
    """The number of each session, by the id of the call that started it."""

    def fill(self, value: Any) -> Any:
        """Return arguments with real folders and numbers where a case has stand-ins."""
        if isinstance(value, str):
            if value.startswith("$session:"):
                return self.sessions.get(value.partition(":")[2], 0)
            return value.replace("@WS@", str(self.workspace))
        if isinstance(value, list):
            return [self.fill(item) for item in value]
        if isinstance(value, dict):
            return {key: self.fill(item) for key, item in value.items()}
        return value

    def hide(self, value: Any) -> Any:
        """Return a value with stand-ins where it has folders of this run."""
        if isinstance(value, str):
            for folder, name in (
                (str(self.workspace), "<WS>"),
                (str(self.home), "<HOME>"),
                *self.more.items(),
            ):
                value = value.replace(folder, name)
            value = _SERVER.sub("<SERVER>", value)
            return _SHELL.sub(r"/bin/\1", value)
        if isinstance(value, list):
            return [self.hide(item) for item in value]
        if isinstance(value, dict):
            return {self.hide(key): self.hide(item) for key, item in value.items()}
        return value

    def learn(self, call_id: str, number: int | str | None) -> None:
        """Remember which call started a session."""
        if number is not None:
            self.sessions[call_id] = int(number)

    def learn_from(self, call: Call, answer: str) -> None:
        """Remember the session an answer names, as a model would."""
        found = _HEADER.match(answer)
        if found and call.tool == "exec_command":
            self.learn(call.id, found["session"])

    def label(self, number: int | str | None) -> str | None:
        """Return the name of a session: by the call that started it."""
        if number is None:
            return None
        known = [call for call, session in self.sessions.items() if session == int(number)]
        return f"<session:{known[-1]}>" if known else str(number)

    def answer(self, call: Call, answer: str) -> Row:
        """Return what is compared of the text a call was answered with."""
        found = _HEADER.match(answer)
        if found is None:
            return {"text": self._plain(call, answer)}
        body = answer[found.end() :]
        head = "Chunk ID: <chunk>\n" if found["chunk"] else ""
        head += "Wall time: <wall> seconds\n" + (found["exit"] or "")
        if found["session"]:
            head += f"Process running with session ID {self.label(found['session'])}\n"
        if found["tokens"]:
            head += f"Original token count: {self._count(found['tokens'], body)}\n"
        row: Row = {"text": pack(self.hide(head + "Output:\n" + body))}
        if self.case.timed:
            row["wall"] = self._wall(float(found["wall"]), call)
        return row

    def _count(self, shown: str, body: str) -> str:
        """Return a token count, unless folders of this run are part of what it counts."""
        counted = int(shown) == -(-len(body.encode()) // 4)
        return "<of the output>" if counted and self.hide(body) != body else shown

    def _plain(self, call: Call, answer: str) -> str:
        aborted = _ABORTED.match(answer)
        if aborted:
            return f"{aborted['before']}<wall>{aborted['after']}"
        answer = _PROCESS.sub(lambda found: f"{found[1]}{self.label(found[2])}", answer)
        given = call.members.get("session_id")
        if isinstance(given, str) and given.startswith("$session:"):
            # As if every number had five digits.
            shift = 5 - len(str(self.fill(given)))
            answer = _COLUMN.sub(lambda found: f"{found[1]}{int(found[2]) + shift}", answer)
        return str(self.hide(answer))

    def _wall(self, seconds: float, call: Call) -> str:
        limit = longest_wait(call, self.case.longest_poll())
        early = limit is None or seconds < limit * 0.96 - 0.02
        if self.case.loose and early and seconds < 1.5:
            return "short"
        if call.tool == "exec_command" and seconds < 0.01:
            return "zero"
        if call.tool == "write_stdin" and early and seconds < 0.09:
            return "short"
        if early:
            return "<yield"
        assert limit is not None
        return "~yield" if seconds <= limit * 1.1 + 0.6 else ">yield"

    def sent(self, method: str, params: Any) -> Row:
        """Return what is compared of a message to the server."""
        params = dict(params or {})
        if "chunk" in params:
            params["chunk"] = base64.b64decode(params["chunk"]).decode()
        number, dash, rest = str(params.get("processId", "")).partition("-")
        if dash and number.isdigit():
            params["processId"] = f"{self.label(number)}-{rest}"
        if "env" in params:
            params["env"] = dict(sorted(params["env"].items()))
        shown: Row = _without_uuids(self.hide(params))
        return {"method": method, "params": shown}


@dataclass
class Events:
    """The events of each command, as they come."""

    folders: RunFolders
    items: dict[str, Row] = field(default_factory=dict)

    def begin(
        self, item: str, *, session: int | str | None, command: str, cwd: str, source: str
    ) -> None:
        """Note the begin of a command."""
        self.folders.learn(item, session)
        row = self._item(item, "begin")
        row["begin"] = {
            "session": self.folders.label(session),
            "command": self.folders.hide(command),
            "cwd": self.folders.hide(cwd),
            "source": source,
        }

    def delta(self, item: str, text: str) -> None:
        """Note live output."""
        row = self.items.setdefault(item, {"order": []})
        row.setdefault("deltas", []).append(text)

    def interaction(self, item: str, *, session: int | str | None, stdin: str) -> None:
        """Note the end of a `write_stdin`."""
        row = self._item(item, "interaction")
        row.setdefault("stdin", []).append([self.folders.label(session), stdin])

    def end(
        self,
        item: str,
        *,
        session: int | str | None,
        status: str,
        exit_code: int | None,
        output: str | None,
    ) -> None:
        """Note the end of a command."""
        row = self._item(item, "end")
        row["end"] = {
            "session": self.folders.label(session),
            "status": status,
            "exit_code": exit_code,
            "output": None if output is None else pack(self.folders.hide(output)),
        }

    @property
    def unfinished(self) -> list[str]:
        """The commands whose end has not come."""
        return [item for item, row in self.items.items() if "end" not in row]

    def rows(self) -> Row:
        """Return the events by command; deltas are joined."""
        rows = {}
        case = self.folders.case
        for item, row in sorted(self.items.items()):
            if case.events_of and item not in case.events_of:
                continue
            deltas = row.get("deltas", [])
            sizes = [len(delta.encode()) for delta in deltas]
            match case.deltas:
                case "none":
                    rows[item] = {**row, "deltas": ""}
                    continue
                case "count":
                    rows[item] = {**row, "deltas": "", "count": len(deltas)}
                    continue
                case "sizes":
                    row = {**row, "sizes": sizes}
                case "longest":
                    row = {**row, "longest": max(sizes, default=0)}
            rows[item] = {**row, "deltas": pack(self.folders.hide("".join(deltas)))}
        return rows

    def _item(self, item: str, event: str) -> Row:
        row = self.items.setdefault(item, {"order": []})
        row["order"].append(event)
        return row


def listing(sessions: list[Row]) -> Row:
    """Return a list of sessions by their calls: their numbers, and so their order, are random."""
    numbers = [session.pop("session") for session in sessions]
    return {
        "list": sorted(sessions, key=lambda session: str(session["item"])),
        "by number": numbers == sorted(numbers),
    }


def pack(text: str) -> str | Row:
    """Return a text; of a long one a compressed form, of a very long one its hash."""
    if len(text) <= _LONG:
        return text
    packed: Row = {"characters": len(text), "starts": text[:160], "ends": text[-80:]}
    if len(text) > _VERY_LONG:
        return {**packed, "sha256": sha256(text.encode()).hexdigest()}
    return {**packed, "zlib": base64.b64encode(zlib.compress(text.encode(), 9)).decode()}


def unpack(value: str | Row) -> str:
    """Return the text that `pack` was given, or for a very long one what is known of it."""
    if isinstance(value, str):
        return value
    if "sha256" in value:
        return str(value)
    return zlib.decompress(base64.b64decode(value["zlib"])).decode()


def _without_uuids(value: Any) -> Any:
    if isinstance(value, str):
        return _UUID.sub("<uuid>", value)
    if isinstance(value, list):
        return [_without_uuids(item) for item in value]
    if isinstance(value, dict):
        return {key: _without_uuids(item) for key, item in value.items()}
    return value
