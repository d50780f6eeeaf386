"""
The cases recorded from the real server, played against ours.

They are no part of the project: `HOLDFAST_CONFORMANCE` names the folder that has them.
What fails must be what docs/compatibility.md says, case by case.
"""

import os
import re
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.wire import HOLDFAST, serving
from tests.real.stranger import stranger
from tests.real.versions import codex
from tests.warm import DRIVER

ROOT = Path(__file__).parents[2]
PROCESSES = "exec_server_conformance"
FILES = "fs_http_conformance"
SANDBOXES = "sandbox_conformance"
STRICTER = "sandbox_conformance, stricter"
TOOLS = "unified_exec_conformance"
OVER_MCP = "unified_exec_conformance, over MCP"
CODEX = "real_client"
COMMANDS = "command_exec_conformance"
NAME = re.compile(r"`([\w.-]+)`")
LISTED = re.compile(r"- `[\w.-]+`(?:, `[\w.-]+`)*")
SUMMARY = re.compile(r"^(\d+) passed, (\d+) failed$", re.MULTILINE)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.skipif(
        not os.environ.get("HOLDFAST_CONFORMANCE"),
        reason="HOLDFAST_CONFORMANCE does not name a folder with the conformance cases",
    ),
]


def deliberate(cases: str) -> set[str]:
    """The cases of a set that the page on compatibility says are different on purpose."""
    found = inside = False
    names: set[str] = set()
    for line in (ROOT / "docs" / "compatibility.md").read_text().splitlines():
        if line.startswith("#"):
            inside = line.strip("#` ") == cases
            found |= inside
        elif inside and line.startswith("|"):
            names.update(NAME.findall(line.split("|")[1]))
        elif inside and (item := LISTED.match(line)):
            names.update(NAME.findall(item[0]))
    assert found, f"the page has no heading for {cases}"
    return names


def output(cases: str, *options: str, limit: float) -> str:
    """Return the output of a set of cases."""
    script = recorded(f"{cases}.py")
    return printed([sys.executable, str(script), *options], limit=limit, env=without_proxies())


def recorded(name: str) -> Path:
    return Path(os.environ["HOLDFAST_CONFORMANCE"], name)


def printed(command: Sequence[str], *, limit: float, **popen: Any) -> str:
    done: subprocess.CompletedProcess[str] = subprocess.run(
        command, **popen, capture_output=True, text=True, timeout=limit, check=False
    )
    assert done.stdout, done.stderr
    return done.stdout


def without_proxies() -> dict[str, str]:
    """The environment the cases were recorded in has no proxy for calls."""
    return {name: v for name, v in os.environ.items() if not name.upper().endswith("_PROXY")}


def starting(lines: Sequence[str], *words: str) -> set[str]:
    """The second word of each line that starts with one of these."""
    split = (line.split() for line in lines)
    return {line[1].rstrip(":") for line in split if len(line) > 1 and line[0] in words}


def played(cases: str, play: Callable[[Sequence[str]], tuple[set[str], set[str]]]) -> set[str]:
    """
    Play a set of cases, compare what failed with the page, and return all that ran.

    Some of them allow a fraction of a second, which is not enough on a busy machine: one that
    fails and ought to pass gets a second chance.

    Args:
        cases: What the page calls the set.
        play: Plays the cases with these names, or all of them without any, and returns all
            that ran, and those that failed.
    """
    ran, failed = play(())
    if suspects := failed - deliberate(cases):
        failed -= suspects - play(sorted(suspects))[1]
    check(cases, ran, failed)
    return ran


def only(names: Sequence[str]) -> list[str]:
    return [option for name in names for option in ("--only", name)]


WHOLE = bool(os.environ.get("HOLDFAST_CONFORMANCE_WHOLE"))
"""Play all cases in every way; without it, a way that most of them do not depend on plays some."""

FULL = 1
THIRD = 3


def share(names: Iterable[str], part: int, *, always: tuple[str, ...] = ()) -> list[str]:
    """Return one of so many parts of the cases, and those whose names begin with these words."""
    return [
        name
        for name in names
        if WHOLE or name.startswith(always) or zlib.crc32(name.encode()) % part == 0
    ]


def play_processes(
    *options: str, limit: float, part: int = FULL, always: tuple[str, ...] = ()
) -> set[str]:
    """The cases on processes, or a part of them (`share`)."""
    listed = output(PROCESSES, *options[:2], "--list", limit=limit).splitlines()
    chosen = share([line.split()[0] for line in listed[:-1]], part, always=always)

    def play(names: Sequence[str]) -> tuple[set[str], set[str]]:
        text = output(PROCESSES, *options, *only(names or chosen), "--verbose", limit=limit)
        assert SUMMARY.search(text), text[-500:]
        failed = starting(text.splitlines(), "FAIL")
        ran = failed | starting(text.splitlines(), "PASS", "pass", "ok")
        return ran, failed

    return played(PROCESSES, play)


def play_files(url: str, *, limit: float, part: int = FULL) -> set[str]:
    """The cases on files and HTTP, or a part of them; they name only what failed."""
    listed = output(FILES, "--list", limit=limit).splitlines()
    chosen = share([line.split()[1] for line in listed[:-1]], part)

    def play(names: Sequence[str]) -> tuple[set[str], set[str]]:
        ran = set(names or chosen)
        text = output(FILES, "--url", url, *only(sorted(ran)), limit=limit)
        failed = starting(text.splitlines(), "MISMATCH")
        summary = SUMMARY.search(text)
        assert summary, text[-500:]
        assert int(summary[2]) == len(failed)
        assert int(summary[1]) == len(ran - failed)
        return ran, failed

    return played(FILES, play)


def check_sandboxes(listed: str, text: str) -> None:
    """
    Compare what the cases on sandboxes printed with the page.

    One that is stricter than the real server, where the cases know that to be weak, has passed.
    """
    lines = text.splitlines()
    names = {line.split()[0] for line in listed.splitlines()[:-1]}
    failed, stricter = starting(lines, "FAIL"), starting(lines, "STRICTER")
    passed = starting(lines, "PASS") | stricter
    summary = SUMMARY.search(text)
    assert summary, text[-500:]
    assert (int(summary[1]), int(summary[2])) == (len(passed), len(failed))
    assert names == passed | failed | starting(lines, "SKIP")
    check(SANDBOXES, passed | failed, failed)
    assert stricter <= deliberate(STRICTER)
    assert deliberate(SANDBOXES) | deliberate(STRICTER) <= names, "a case on the page is none"


def server(*options: str) -> str:
    return " ".join([*HOLDFAST, "exec-server", *options])


NOT_ALWAYS = {"output.5MB_over_pipes"}
"""Differ by how much a read finds in a pipe, which is less on a busy machine."""


def check(cases: str, ran: set[str], failed: set[str]) -> None:
    assert len(ran) > len(failed)
    expected = deliberate(cases) & ran
    assert failed - NOT_ALWAYS == expected - NOT_ALWAYS
    assert failed <= expected


ONE_AT_A_TIME = ("--concurrent-requests", "1")
"""As the recorded server handles requests; ours handles many at once if it is not told so."""


@pytest.mark.timeout(240)
def test_a_server_that_the_cases_start() -> None:
    ran = play_processes("--spawn", server(), limit=110)
    assert deliberate(PROCESSES) <= ran, "a case on the page is none"


@pytest.mark.timeout(240)
def test_a_server_that_handles_one_request_at_a_time() -> None:
    orders = ("envelope.pipelined", "read.", "spawn.concurrent")
    play_processes("--spawn", server(*ONE_AT_A_TIME), limit=110, part=THIRD, always=orders)


@pytest.mark.timeout(240)
def test_a_server_on_its_standard_streams() -> None:
    command = server("--listen", "stdio")
    own = ("stdio.", "envelope.", "lifecycle.")
    play_processes("--cmd", command, limit=110, part=THIRD, always=own)


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_a_server_that_listens_with_the_slow_cases() -> None:
    with serving() as listening:
        play_processes("--url", listening.url, "--slow", limit=140)


@pytest.mark.timeout(240)
def test_files_and_http() -> None:
    with serving(env=without_proxies(), umask=0o022) as listening:
        ran = play_files(listening.url, limit=110)
    assert deliberate(FILES) <= ran, "a case on the page is none"


@pytest.mark.timeout(240)
def test_files_and_http_with_one_request_at_a_time() -> None:
    with serving(*ONE_AT_A_TIME, env=without_proxies(), umask=0o022) as listening:
        play_files(listening.url, limit=110, part=THIRD)


def play_commands(*options: str, names: Sequence[str] = ()) -> tuple[set[str], set[str]]:
    """The cases on the app-server's commands; returns all that ran, and those that failed."""
    command = " ".join([*HOLDFAST, "app-server", *options])
    chosen = ["--only", f"^({'|'.join(names)})$"] if names else []
    text = output(COMMANDS, "--cmd", command, *chosen, limit=150)
    lines = text.splitlines()
    failed, passed = starting(lines, "FAIL"), starting(lines, "PASS")
    summary = SUMMARY.search(text)
    assert summary, text[-500:]
    assert (int(summary[1]), int(summary[2])) == (len(passed), len(failed))
    return passed | failed, failed


@pytest.mark.timeout(320)
def test_commands_of_the_app_server() -> None:
    ran = played(COMMANDS, lambda names: play_commands(names=names))
    assert deliberate(COMMANDS) <= ran, "a case on the page is none"


@pytest.mark.timeout(320)
def test_commands_of_the_app_server_as_codex_runs_them() -> None:
    options = ("--compat", "codex-0.166.0")
    _, failed = play_commands(*options)
    if failed:  # a busy machine: they get a second chance
        _, failed = play_commands(*options, names=sorted(failed))
    assert not failed


@pytest.mark.timeout(60)
def test_sandboxes() -> None:
    with serving(env=without_proxies(), umask=0o022) as listening:
        text = output(SANDBOXES, "--url", listening.url, limit=50)
    check_sandboxes(output(SANDBOXES, "--list", limit=10), text)


@pytest.mark.timeout(60)
@pytest.mark.skipif(os.geteuid() != 0, reason="the one before is played by an ordinary user here")
def test_sandboxes_of_an_ordinary_user() -> None:
    with stranger() as user:
        user.copy(recorded(f"{SANDBOXES}.py"), recorded(f"{SANDBOXES}.golden.json"))
        script = [user.python, str(user.folder / f"{SANDBOXES}.py")]
        serve = [user.python, "-m", "holdfast.front.cli", "exec-server"]
        with serving(command=serve, **user.popen) as listening:
            text = printed([*script, "--url", listening.url], limit=50, **user.popen)
    check_sandboxes(output(SANDBOXES, "--list", limit=10), text)


QUICK = (
    *("exit.", "output.", "cut.", "shell.", "workdir.", "env.", "args.", "background."),
    "permissions.",
)
LONG = (
    *("rules.", "patch."),
    *("big.", "yield.", "poll.", "input.", "sessions.", "prune.", "login.", "sandbox."),
    *("danger.", "approval."),
)
TOOL_CASES = QUICK + LONG if WHOLE else QUICK
"""
Cases of the tools by their areas.

Those that wait for long, and those that are played over MCP anyway, are played if the variable
asks for it. So is `interrupt.` by hand: it cancels a call after 1.5 s, when a driver on a busy
machine may not have begun.
"""


@pytest.mark.timeout(600)
def test_the_tools_of_a_model() -> None:
    driver = " ".join(DRIVER)

    def play(names: Sequence[str]) -> tuple[set[str], set[str]]:
        filters = [option for name in names or TOOL_CASES for option in ("--filter", name)]
        lines = output(TOOLS, "--call", driver, "--strict", *filters, limit=280).splitlines()
        failed = {name for name in starting(lines, "FAIL") if name.startswith(TOOL_CASES)}
        ran = {name for name in starting(lines, "ok") if name.startswith(TOOL_CASES)}
        return ran | failed, failed

    played(TOOLS, play)


MCP_CASES = ("approval.", "patch.", "rules.", "interrupt.")
"""Where a client has a part in it; `HOLDFAST_CONFORMANCE_WHOLE` plays all of them over MCP too."""


@pytest.mark.timeout(1200)
def test_the_tools_over_mcp() -> None:
    # Codex has no notes.
    command = " ".join([*HOLDFAST, "mcp", "--no-notes"])

    def play(names: Sequence[str]) -> tuple[set[str], set[str]]:
        chosen = names or (() if WHOLE else MCP_CASES)
        filters = [option for name in chosen for option in ("--filter", name)]
        lines = output(TOOLS, "--mcp", command, "--jobs", "2", *filters, limit=900).splitlines()
        failed, passed = starting(lines, "FAIL"), starting(lines, "ok")
        return passed | failed, failed

    ran, failed = play(())
    known = deliberate(TOOLS) | deliberate(OVER_MCP)
    if suspects := failed - known:  # a busy machine: they get a second chance
        failed -= suspects - play(sorted(suspects))[1]
    assert failed == known & ran


def play_codex(chosen: Callable[[str], bool], *, limit: float) -> None:
    """Let the real Codex play those of its recorded scenarios on our server that are chosen."""
    script = [sys.executable, str(recorded(CODEX) / "run_real_client.py")]
    listed = printed([*script, "--list"], limit=10).splitlines()
    all_names = [name for name in (line.split()[0] for line in listed if line) if chosen(name)]

    def play(names: Sequence[str]) -> tuple[set[str], set[str]]:
        options = [option for name in names or all_names for option in ("--scenario", name)]
        serve = ["--serve", " ".join([*HOLDFAST, "exec-server"])]
        env = {**without_proxies(), "CODEX_BIN": codex()}
        text = printed([*script, *serve, *options], limit=limit, env=env)
        failed = starting(text.splitlines(), "FAIL")
        ran = failed | starting(text.splitlines(), "pass")
        assert ran == set(names or all_names)
        return ran, failed

    played(CODEX, play)


def needs_sandbox(name: str) -> bool:
    return name.startswith(("sandbox", "apply_patch"))


@pytest.mark.real
@pytest.mark.timeout(120)
def test_codex_in_a_sandbox() -> None:
    play_codex(needs_sandbox, limit=50)


@pytest.mark.real
@pytest.mark.soak
@pytest.mark.timeout(300)
def test_codex() -> None:
    play_codex(lambda name: not needs_sandbox(name), limit=140)
