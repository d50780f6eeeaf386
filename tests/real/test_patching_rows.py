"""
Patches do what they do in the real Codex: every recorded row, without Codex, and some with it.

`tests/real/patching/record.py` recorded the rows of the program, `record_calls.py` those of the
tool. What differs on purpose has its reason here, and `docs/compatibility.md` lists it.
"""

import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

import holdfast
from holdfast.agent.unified_exec import takeover
from holdfast.environments.local_environment import LocalEnvironment
from tests.real.codex import codex, codex_serving
from tests.real.patching import calls_on_library, on_library, record, record_calls
from tests.real.patching.calls import CALLS
from tests.real.patching.cases import CASES

pytestmark = [pytest.mark.timeout(60)]

RECORDED = record.load()
RECORDED_CALLS = record_calls.load()
RECORDED_TOOL = record_calls.load(record_calls.TOOL_ROWS)

_ALL_OR_NOTHING = "nothing is written if a later part does not fit"
_NOT_LOST = "a file that is moved onto itself is not lost"
_LINK = "a link that leads nowhere is not followed"
_TAB = "a tab in a name is part of it"
_WHERE_IT_LEADS = "a link counts as the file it leads to: it is asked about, and written if agreed"

ON_PURPOSE = {
    "add.link-nowhere": _LINK,
    "delete.twice": _ALL_OR_NOTHING,
    "update.twice-second-fails": _ALL_OR_NOTHING,
    "update.tab-in-name": _TAB,
    "move.onto-itself": _NOT_LOST,
    "move.onto-itself-spelled": _NOT_LOST,
    "fine.move-alias": _NOT_LOST,
    "several.second-missing": _ALL_OR_NOTHING,
    "several.second-not-found": _ALL_OR_NOTHING,
    "several.second-delete-missing": _ALL_OR_NOTHING,
    "several.second-add-over-folder": _ALL_OR_NOTHING,
}

TOOL_ON_PURPOSE = {
    name: reason
    for name, reason in ON_PURPOSE.items()
    if reason is not _ALL_OR_NOTHING or name == "several.second-add-over-folder"
}

CALLS_ON_PURPOSE = {
    "form.heredoc-fd": "a number before `<<` is left to the shell",
    "form.cd-tilde": "`~` is no directory of that name: it is left to the shell",
    "never.link-out": _WHERE_IT_LEADS,
    "never.link-file-out": _WHERE_IT_LEADS,
    "on-request.link-out.accept": _WHERE_IT_LEADS,
    "on-request.link-file-out.accept": _WHERE_IT_LEADS,
    "on-request.protected.accept": "what somebody agreed to is written",
}

SAMPLE = 12

_HOME = Path.home()


@pytest.fixture(autouse=True)
def no_start_files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Some commands are login shells: what a person's start files do is not compared."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
        yield


@pytest.fixture
def outside_of_tmp() -> Iterator[Path]:
    """A folder that is not below `/tmp`, where a sandbox lets everything be written."""
    with tempfile.TemporaryDirectory(prefix="patch", dir=_HOME) as root:
        yield Path(root).resolve()


@pytest.mark.slow
@pytest.mark.requirement("patching.program")
async def test_the_program(tmp_path: Path) -> None:
    assert set(RECORDED) == set(CASES)
    different = set()
    async with LocalEnvironment() as environment:
        for number, (name, case) in enumerate(CASES.items()):
            row = await on_library.play(case, tmp_path / str(number), environment.filesystem)
            if row != RECORDED[name]:
                different.add(name)
    assert different == set(ON_PURPOSE)


@pytest.mark.parametrize("name", sorted(ON_PURPOSE))
async def test_differences_lose_nothing(name: str, tmp_path: Path) -> None:
    """Where a text is the same and files differ, ours has all that was there before."""
    async with LocalEnvironment() as environment:
        row = await on_library.play(CASES[name], tmp_path, environment.filesystem)
    if row["exit_code"]:
        assert row["after"] == row["before"]
    else:
        assert set(row["after"]) >= set(row["before"])


@pytest.mark.slow
async def test_the_tool(tmp_path: Path) -> None:
    different = set()
    async with LocalEnvironment() as environment:
        for number, name in enumerate(RECORDED_TOOL):
            row = await on_library.play_tool(
                CASES[name], tmp_path / str(number), environment.filesystem
            )
            if row != RECORDED_TOOL[name]:
                different.add(name)
    assert different == set(TOOL_ON_PURPOSE)


@pytest.mark.slow
@pytest.mark.requirement("unified.3.patch")
async def test_calls(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A tenth of a second makes an output longer, of which one row tells the length.
    monkeypatch.setattr(takeover, "time", SimpleNamespace(monotonic=lambda: 0.0))
    assert set(RECORDED_CALLS) == set(CALLS)
    different = set()
    for name, case in CALLS.items():
        if case.sandbox == "danger-full-access":
            row = await calls_on_library.play(case, tmp_path_factory.mktemp("call"))
            if row != calls_on_library.expected(RECORDED_CALLS[name]):
                different.add(name)
    unsandboxed = {name for name in CALLS_ON_PURPOSE if name.startswith("form.")}
    assert different == unsandboxed


@pytest.mark.slow
@pytest.mark.requirement("unified.3.patch-questions")
async def test_sandboxed_calls(outside_of_tmp: Path) -> None:
    different = set()
    for number, (name, case) in enumerate(CALLS.items()):
        if case.sandbox != "danger-full-access":
            row = await calls_on_library.play(case, outside_of_tmp / str(number))
            if row != calls_on_library.expected(RECORDED_CALLS[name]):
                different.add(name)
    assert different == {name for name in CALLS_ON_PURPOSE if not name.startswith("form.")}


@pytest.mark.real
@pytest.mark.slow
async def test_a_sample_on_the_real_one(tmp_path: Path) -> None:
    """The recording still holds for the Codex that is here."""
    for number, name in enumerate(random.sample(sorted(CASES), SAMPLE)):
        root = tmp_path / str(number)
        root.mkdir()
        assert record.play(CASES[name], root, codex()) == RECORDED[name], name


@pytest.mark.real
@pytest.mark.slow
async def test_files_on_the_real_server(tmp_path: Path) -> None:
    with codex_serving(tmp_path / "home") as url:
        async with holdfast.connect(url) as environment:
            files = environment.filesystem
            assert await on_library.differences(files, tmp_path / "cases") == []
