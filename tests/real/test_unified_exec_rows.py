"""
The library answers as the real Codex did: every recorded row, without Codex.

`tests/real/unified_exec/record.py` recorded the rows. Cases that wait are played side by side,
so all of them together take about as long as the longest.
"""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from tests.e2e.wire import serving
from tests.real.codex import codex_serving
from tests.real.unified_exec import record
from tests.real.unified_exec.cases import CASES
from tests.real.unified_exec.compare import differences
from tests.real.unified_exec.normal import Row
from tests.real.unified_exec.on_codex import HOME_FILES, base_environment, fill_workspace
from tests.real.unified_exec.on_library import play

pytestmark = [pytest.mark.slow, pytest.mark.together, pytest.mark.timeout(300)]

RECORDED = record.load()

_EXIT_ENDS_THE_CALL = "a call ends when its command has exited; what that left is ended"
_OWN_REASON = "how a connection ended is told in our own words"
_NOTHING_IS_LOST = "what an interrupted call had read goes to the next one"

ON_PURPOSE = {
    "waiting.grandchild@remote": _EXIT_ENDS_THE_CALL,
    "waiting.late-output@remote": _EXIT_ENDS_THE_CALL,
    "leaves.group@remote": _EXIT_ENDS_THE_CALL,
    "waiting.interrupted-output@local": _NOTHING_IS_LOST,
    "interrupt.write@local": _NOTHING_IS_LOST,
    "interrupt.write@remote": _NOTHING_IS_LOST,
    "server.terminate@remote": "a process is terminated once, not twice",
    "server.lost@remote": _OWN_REASON,
    "server.lost-in-a-call@remote": _OWN_REASON,
    "server.lost-before-a-start@remote": _OWN_REASON,
}
"""Rows in which ours is better, with the reason; `docs/compatibility.md` lists them by name."""

SIDE_BY_SIDE = 12

_SHOWN: list[tuple[pytest.MarkDecorator, *tuple[str, ...]]] = [
    (pytest.mark.requirement("unified.1.least-wait"), "waits.least", "waits.ten"),
    (pytest.mark.requirement("unified.1.default-wait"), "waits.default", "waits.write-default"),
    (pytest.mark.requirement("unified.1.longest-wait"), "waits.most", "waits.write-most"),
    (pytest.mark.requirement("unified.1.poll-wait"), "waits.poll-least", "waits.poll-over-30"),
    (
        pytest.mark.requirement("unified.1.poll-configured"),
        "waits.poll-most-configured",
        "waits.poll-most-configured-low",
    ),
    (pytest.mark.requirement("unified.2.parameters"), "tools.schemas"),
    (pytest.mark.requirement("unified.2.environment-parameter"), "tools.schemas-two-environments"),
    (pytest.mark.requirement("unified.2.parallel"), "tools.61-at-once"),
    (pytest.mark.requirement("unified.3.unknown-members"), "arguments.unknown-members"),
    (pytest.mark.requirement("unified.3.null"), "arguments.null", "arguments.null-input"),
    (
        pytest.mark.requirement("unified.3.integers"),
        "arguments.numbers",
        "arguments.session-number",
    ),
    (pytest.mark.requirement("unified.3.failure-text"), "arguments.missing", "arguments.types"),
    (pytest.mark.requirement("unified.3.order"), "arguments.order"),
    (pytest.mark.requirement("unified.3.justification"), "arguments.justification"),
    (pytest.mark.requirement("unified.3.unknown-environment"), "arguments.unknown-environment"),
    (pytest.mark.requirement("unified.3.chosen-environment"), "arguments.chosen-environment"),
    (pytest.mark.requirement("unified.3.no-environment"), "arguments.no-environment"),
    (pytest.mark.requirement("unified.3.nul"), "arguments.nul"),
    (pytest.mark.requirement("unified.3.workdir"), "workdir.forms", "workdir.link"),
    (pytest.mark.requirement("unified.3.workdir-literal"), "workdir.not-expanded"),
    (pytest.mark.requirement("unified.4.kind"), "shell.kinds"),
    (pytest.mark.requirement("unified.4.login"), "shell.login"),
    (pytest.mark.requirement("unified.4.login-disabled"), "shell.login-disabled"),
    (pytest.mark.requirement("unified.4.login-listed"), "tools.schemas-no-login"),
    (pytest.mark.requirement("unified.4.server-kind"), "shell.kinds-on-a-server"),
    (pytest.mark.requirement("unified.5.forced"), "environment.forced"),
    (pytest.mark.requirement("unified.5.own"), "environment.own", "environment.call-id"),
    (pytest.mark.requirement("unified.5.inherited"), "environment.inherited"),
    (pytest.mark.requirement("unified.5.network-mark"), "environment.network-mark"),
    (pytest.mark.requirement("unified.6.spawn"), "environment.own-session"),
    (pytest.mark.requirement("unified.6.merged"), "exec.both-streams"),
    (pytest.mark.requirement("unified.6.grace"), "exec.grace"),
    (pytest.mark.requirement("unified.6.exit-ends-wait"), "exec.codes", "exec.exit-ends-the-wait"),
    (pytest.mark.requirement("unified.6.early-denial"), "exec.denied-early"),
    (pytest.mark.requirement("unified.6.late-denial"), "exec.denied-late"),
    (pytest.mark.requirement("unified.7.closed"), "input.closed"),
    (
        pytest.mark.requirement("unified.7.interrupt"),
        "input.interrupt-pipe",
        "input.interrupt-pipe-trapped",
    ),
    (
        pytest.mark.requirement("unified.7.terminal"),
        "input.terminal",
        "input.interrupt-terminal",
        "input.large",
    ),
    (pytest.mark.requirement("unified.7.state"), "input.state"),
    (pytest.mark.requirement("unified.7.lock"), "input.queue"),
    (pytest.mark.requirement("unified.7.parallel"), "input.side-by-side"),
    (
        pytest.mark.requirement("unified.7.reported-end"),
        "input.unseen-end-poll",
        "input.unknown-session",
    ),
    (
        pytest.mark.requirement("unified.7.unseen-end"),
        "input.unseen-end-pipe",
        "input.unseen-end-interrupt",
        "input.unseen-end-terminal",
    ),
    (pytest.mark.requirement("unified.8.output-alone"), "waiting.output-alone"),
    (pytest.mark.requirement("unified.8.grandchild"), "waiting.grandchild", "waiting.late-output"),
    (
        pytest.mark.requirement("unified.8.pause"),
        "waiting.pause",
        "waiting.pause-hides-the-exit",
        "waiting.pause-poll",
    ),
    (pytest.mark.requirement("unified.8.cancelled"), "waiting.interrupted-output"),
    (
        pytest.mark.requirement("unified.9.one-mebibyte"),
        "buffers.one-mebibyte",
        "buffers.lines",
        "buffers.terminal",
    ),
    (pytest.mark.requirement("unified.9.between-calls"), "buffers.between-two-calls"),
    (
        pytest.mark.requirement("unified.9.transcript"),
        "events.early-output-is-not-live",
        "buffers.transcript",
    ),
    (pytest.mark.requirement("unified.10.lines"), "text.encoding", "text.character-in-halves"),
    (pytest.mark.requirement("unified.10.cut"), "text.vectors"),
    (pytest.mark.requirement("unified.10.known-model"), "text.known-model"),
    (pytest.mark.requirement("unified.10.unknown-model"), "text.unknown-model"),
    (
        pytest.mark.requirement("unified.10.configured"),
        "text.configured-limit",
        "text.configured-limit-unknown-model",
        "text.configured-limit-large",
    ),
    (pytest.mark.requirement("unified.11.64"), "store.64-are-kept"),
    (
        pytest.mark.requirement("unified.11.prune"),
        "store.65th-ends-the-oldest",
        "store.used-is-newer",
    ),
    (
        pytest.mark.requirement("unified.11.exited-first"),
        "store.exited-goes-first",
        "store.exited-but-recent",
    ),
    (pytest.mark.requirement("unified.11.list"), "store.list"),
    (
        pytest.mark.requirement("unified.11.terminate"),
        "store.terminate",
        "store.terminate-first-call",
        "store.terminate-poll",
    ),
    (pytest.mark.requirement("unified.11.clean"), "store.clean", "store.clean-first-call"),
    (pytest.mark.requirement("unified.12.grace"), "events.grace"),
    (pytest.mark.requirement("unified.12.early-output"), "events.early-output-is-not-live"),
    (pytest.mark.requirement("unified.12.delta-size"), "events.cut-at-8192"),
    (pytest.mark.requirement("unified.12.delta-characters"), "events.cut-between-characters"),
    (
        pytest.mark.requirement("unified.12.interaction"),
        "events.interactions",
        "events.last-poll-is-no-interaction",
    ),
    (pytest.mark.requirement("unified.12.over-turns"), "events.over-turns"),
    (pytest.mark.requirement("unified.12.command"), "events.quoting"),
    (
        pytest.mark.requirement("unified.12.killed"),
        "store.terminate",
        "store.clean",
        "store.65th-ends-the-oldest",
    ),
    (pytest.mark.requirement("unified.12.failed"), "server.lost", "server.lost-in-a-call"),
    (pytest.mark.requirement("unified.12.spawn-failure"), "workdir.missing"),
    (pytest.mark.requirement("unified.13.start"), "server.start", "server.start-policy"),
    (pytest.mark.requirement("unified.13.terminate"), "server.terminate"),
    (pytest.mark.requirement("unified.13.resume"), "server.cut", "server.cut-between-calls"),
    (
        pytest.mark.requirement("unified.13.lost"),
        "server.lost",
        "server.lost-in-a-call",
        "server.lost-before-a-start",
    ),
    (
        pytest.mark.requirement("unified.16.interrupt"),
        "interrupt.exec",
        "interrupt.poll",
        "interrupt.write",
    ),
    (
        pytest.mark.requirement("unified.16.interrupt-text"),
        "interrupt.exec",
        "interrupt.poll",
        "interrupt.write",
    ),
    (
        pytest.mark.requirement("unified.17.missing-folder"),
        "workdir.missing",
        "workdir.missing-terminal",
        "workdir.file",
    ),
    (pytest.mark.requirement("unified.17.signals"), "exec.signals", "exec.signals-terminal"),
    (pytest.mark.requirement("unified.17.too-long"), "exec.too-long"),
    (
        pytest.mark.requirement("unified.20.left"),
        "leaves.group",
        "leaves.own-session",
        "leaves.terminal",
    ),
]


def _parameters() -> Iterator[object]:
    for mark, *names in _SHOWN:
        for name in names:
            for row in (f"{name}@{mode}" for mode in CASES[name].modes):
                if row not in ON_PURPOSE:
                    yield pytest.param(row, marks=mark, id=f"{mark.args[0]}-{row}")


class Played:
    """The rows of the library, played together."""

    def __init__(self, root: Path, home: Path, server: str, *, knows_the_end: bool) -> None:
        """
        Args:
            root: For the folders of the commands.
            home: Their home.
            server: The URL of the server for remote rows.
            knows_the_end: True if the server says that a command left nothing behind. Then
                nobody has to end what is not there, as is done on a Codex server.
        """
        self._knows_the_end = knows_the_end
        self._root = root
        self._home = home
        self._server = server
        self._rows: dict[str, Row | Exception] = {}
        self._repeated: set[str] = set()
        self._runs = 0

    async def play(self, names: list[str]) -> None:
        """Play rows side by side, those that need the processor one after the other."""
        waiting, busy = asyncio.Semaphore(SIDE_BY_SIDE), asyncio.Semaphore(1)

        async def play(name: str) -> None:
            async with busy if CASES[name.partition("@")[0]].busy else waiting:
                await self._play_one(name)

        async with asyncio.TaskGroup() as playing:
            for name in sorted(names, key=lambda name: -CASES[name.partition("@")[0]].wait()):
                playing.create_task(play(name))

    async def _play_one(self, name: str) -> None:
        self._runs += 1
        folder = self._root / f"{self._runs}"
        case_name, _, mode = name.partition("@")
        case = CASES[case_name]
        workspace = folder / "ws"
        workspace.mkdir(parents=True)
        fill_workspace(case, workspace)
        try:
            self._rows[name] = await play(
                case,
                mode,  # type: ignore[arg-type] # part of the row's name
                workspace=workspace,
                home=self._home,
                server=self._server,
            )
        except Exception as error:  # noqa: BLE001 - told by the test of this row
            self._rows[name] = error

    async def differences(self, name: str) -> list[str]:
        """Return how ours differs; what a busy machine may have disturbed is played alone."""
        found = self._differences(name)
        if found and name not in self._repeated:
            self._repeated.add(name)
            await self._play_one(name)
            found = self._differences(name)
        return found

    def _differences(self, name: str) -> list[str]:
        ours = self._rows[name]
        if isinstance(ours, Exception):
            raise ours
        rows = (RECORDED[name], ours)
        if self._knows_the_end:
            rows = (_without_ends(rows[0]), _without_ends(rows[1]))
        return differences(*rows)


def _without_ends(row: Row) -> Row:
    """Return a row without the requests that end what a command left behind."""
    if "wire" not in row:
        return row
    wire = [request for request in row["wire"] if request["method"] != "process/terminate"]
    return {**row, "wire": wire}


def _play(
    request: pytest.FixtureRequest,
    test: str,
    root: Path,
    home: Path,
    server: str,
    *,
    knows_the_end: bool,
) -> Played:
    """Play the rows that the selected ones of a test need."""
    selected = [
        item
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.originalname == test
    ]
    rows = Played(root, home, server, knows_the_end=knows_the_end)
    asyncio.run(rows.play(sorted({str(item.callspec.params["row"]) for item in selected})))
    return rows


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A home for commands; the variables of this process are those of the recorded runs."""
    home = tmp_path_factory.mktemp("home")
    for name, content in HOME_FILES.items():
        (home / name).write_text(content)
    variables = {**base_environment(home), "CODEX_HOME": str(home / "codex")}
    with mock.patch.dict(os.environ, variables, clear=True):
        yield home


@pytest.fixture(scope="module")
def played(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, home: Path
) -> Iterator[Played]:
    """Rows of the library, on this machine and on a Holdfast server."""
    root = tmp_path_factory.mktemp("rows")
    with serving("--listen", "ws://127.0.0.1:0", cwd=root) as server:
        yield _play(request, "test_ours_is_the_same", root, home, server.url, knows_the_end=True)


@pytest.fixture(scope="module")
def played_on_codex(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    home: Path,
    codex_version: str | None,
) -> Iterator[Played]:
    """Rows of the library on a real Codex server."""
    root = tmp_path_factory.mktemp("rows")
    with codex_serving(home / f"codex-{codex_version}") as url:
        test = "test_ours_is_the_same_on_a_codex_server"
        yield _play(request, test, root, home, url, knows_the_end=False)


@pytest.mark.parametrize("row", list(_parameters()))
def test_ours_is_the_same(row: str, played: Played) -> None:
    found = asyncio.run(played.differences(row))
    assert not found, "\n".join(found)


@pytest.mark.real
@pytest.mark.parametrize(
    "row", [name for name in RECORDED if name.endswith("@remote") and name not in ON_PURPOSE]
)
def test_ours_is_the_same_on_a_codex_server(row: str, played_on_codex: Played) -> None:
    found = asyncio.run(played_on_codex.differences(row))
    assert not found, "\n".join(found)


def test_every_case_is_recorded_and_shown() -> None:
    shown = {name for _, *names in _SHOWN for name in names}
    assert [name for name in CASES if name not in shown and not CASES[name].note] == []
    rows = {f"{name}@{mode}" for name, case in CASES.items() for mode in case.modes}
    assert rows == RECORDED.keys()


def test_rows_that_differ_on_purpose_are_listed() -> None:
    listed = (Path(__file__).parents[2] / "docs" / "compatibility.md").read_text()
    assert [row for row in ON_PURPOSE if f"`{row}`" not in listed] == []
