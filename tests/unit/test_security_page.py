"""
docs/security.md: each sentence is backed by an id of the ledger, and its figures are the code's.

A sentence that is new or reworded fails here. Read the tests of its id again, or find an id for
it, and quote it as `page` in tests/requirements.toml; or list it there as an explanation.
"""

import tomllib
from pathlib import Path

import pytest

from holdfast.agent.approvals.dangerous import danger_of
from holdfast.agent.approvals.split import split_command
from holdfast.agent.approvals.split.budget import MAX_COMMANDS, MAX_DEPTH, MAX_SECONDS, MAX_TEXT
from holdfast.agent.approvals.split.wrappers import _MAX_OPTIONS
from holdfast.codex.limits import JWT_SKEW, SECRET_BYTES
from holdfast.engine.files import nowait, threads, watch
from holdfast.engine.files.handle import MAX_FILE
from holdfast.engine.http.local_http import MAX_BODY
from holdfast.engine.process.io import input_budget, stdin
from holdfast.engine.process.process_table import MAX_OUTPUT
from holdfast.engine.process.start_threads import CALL_LIMIT, MAX_CALLS, MAX_THREADS
from holdfast.server.dispatch import MAX_WAITING_BYTES, TURN
from holdfast.server.sessions import EXPIRY, SILENT_EXPIRY
from holdfast.server.state import DEFAULT_CONCURRENT_REQUESTS
from holdfast.wire.protocol.secret_variables import COMMAND_SECRETS, HEADER_SECRETS
from holdfast.wire.transports.tls import MAX_HANDSHAKES
from holdfast.wire.transports.websocket_listener import HEAD_TIMEOUT
from scripts.checks.markdown import sentences
from tests.unit.test_requirements import LEDGER, entries

PAGE = Path(__file__).parents[2] / "docs" / "security.md"

REPORTS = {
    "Tests and comparison",
    "Where it does not work at once",
    "Next to the worst client",
    "Attacks on the server",
    "Scripts that get through",
}
"""Headings above what was measured or found out once, and above what other tests compare."""


@pytest.fixture(scope="module")
def page() -> list[str]:
    found = list(sentences(PAGE.read_text()))
    assert {heading for heading, _ in found} >= REPORTS
    return [sentence for heading, sentence in found if heading not in REPORTS]


@pytest.mark.requirement("security.page")
def test_every_sentence_is_quoted_or_explains(page: list[str]) -> None:
    ledger = tomllib.loads(LEDGER.read_text())
    explained = ledger.pop("explanations")["security"]
    backing = {identity: entry for identity, entry in entries(ledger) if "page" in entry}
    quoted = {quote for entry in backing.values() for quote in entry["page"]}
    assert [identity for identity, entry in backing.items() if "gap" in entry] == []
    assert [sentence for sentence in page if sentence not in quoted.union(explained)] == []
    assert [quote for quote in (*quoted, *explained) if quote not in page] == []
    assert quoted.intersection(explained) == set()


@pytest.mark.requirement(
    "security.tls.handshakes",
    "security.sandbox.recent",
    "security.others.turns",
    "security.others.files",
    "security.others.starts",
    "security.others.input",
    "limits.closed-output",
    "security.others.requests",
    "security.others.watches",
    "security.http.body",
)
def test_the_bounds_are_those_of_the_code(page: list[str]) -> None:
    mebibyte, milliseconds = 1 << 20, 1000
    for bound in (
        f"the event loop | {TURN * milliseconds:.0f} ms for one connection at a time",
        f"files that do not answer | {threads.SHARE} calls of a connection in progress, further"
        f" ones wait; {threads.LIMIT} threads in all",
        f"starts that do not answer | {MAX_CALLS} of a session in progress; each fails after"
        f" {CALL_LIMIT:.0f} s; {MAX_THREADS} threads in all",
        f"input that no process reads | {stdin.MAX_QUEUED_BYTES // mebibyte} MiB for a process,"
        f" {input_budget.MAX_OWNER_BYTES // mebibyte} MiB for a session,"
        f" {input_budget.MAX_TOTAL_BYTES // mebibyte} MiB in all;"
        f" each session keeps {input_budget.SHARE_BYTES // mebibyte} MiB",
        f"output of closed processes | {MAX_OUTPUT // mebibyte} MiB for a session;",
        f"requests that wait | {DEFAULT_CONCURRENT_REQUESTS:,} of a connection, and"
        f" {MAX_WAITING_BYTES // mebibyte} MiB;",
        f"watches | one inotify instance in all; {watch.MAX_MISSING} paths and"
        f" {watch.MAX_WATCHED:,} directories for a connection",
        f"A client has {HEAD_TIMEOUT:.0f} s for the TLS handshake, and {HEAD_TIMEOUT:.0f} s for",
        f"At most {MAX_HANDSHAKES} handshakes are in progress",
        f"A session that lost its connection can be resumed for {EXPIRY:.0f} s by",
        f"as in a debugger, is kept for {SILENT_EXPIRY:.0f} s.",
        f"The secret has at least {SECRET_BYTES} bytes.",
        f"`--ws-max-clock-skew-seconds` ({JWT_SKEW}) are added",
        f"kernel's memory for {nowait._MOMENT * milliseconds:.0f} ms after that",
        f"may have up to {MAX_FILE // mebibyte} MiB.",
        f"may have up to {MAX_BODY // mebibyte} MiB.",
        f"more than {MAX_TEXT // 1024} KiB, {MAX_COMMANDS:,} commands, {MAX_DEPTH} levels or"
        f" {MAX_SECONDS} s of processor time",
        f"more than {_MAX_OPTIONS} options of a wrapper",
    ):
        assert any(bound in sentence for sentence in page), bound


@pytest.mark.requirement("env.reserved", "http.request.variables.secret")
@pytest.mark.parametrize(
    ("start", "variables"),
    [
        ("whatever the case of the letters: `CODEX", COMMAND_SECRETS),
        ("Refused, whatever the case of the letters, are ", HEADER_SECRETS),
    ],
)
def test_the_variables_are_those_of_the_code(
    page: list[str], start: str, variables: frozenset[str]
) -> None:
    (sentence,) = [one for one in page if one.startswith(start)]
    assert set(sentence.split("`")[1::2]) == variables


WRAPPED = {
    "repeat": "repeat 2 rm -f x",
    "chroot": "chroot /d rm -f x",
    "gosu": "gosu user rm -f x",
    "runuser": "runuser -u user -- rm -f x",
    "setuidgid": "setuidgid user rm -f x",
    "sg": "sg group 'rm -f x'",
    "su": "su -c 'rm -f x'",
    "su-exec": "su-exec user rm -f x",
    "chrt": "chrt 1 rm -f x",
    "flock": "flock /f rm -f x",
    "script": "script -c 'rm -f x'",
    "taskset": "taskset 1 rm -f x",
    "timeout": "timeout 1 rm -f x",
    "compgen -C": "compgen -C 'rm -f x'",
    "find -exec": "find . -exec rm -f x ';'",
    "mapfile -C": "mapfile -C 'rm -f x'",
    "split --filter": "split --filter='rm -f x'",
    "sched": "sched +1 rm -f x",
    "zargs": "zargs -- x -- rm -f",
    "zpty": "zpty name rm -f x",
    "zstyle -e": "zstyle -e context style 'rm -f x'",
}
"""Scripts that run `rm -f x` by a wrapper; by default it is the wrapper and these words."""

WRAPPERS = (
    "of the shell: ",
    "users and roots: ",
    "surroundings: ",
    "tracers and loaders: ",
    "those that call others: ",
)


@pytest.mark.requirement("approvals.evasions.noticed")
def test_wrappers_are_looked_through(page: list[str]) -> None:
    listed = [one for one in page if one.startswith(WRAPPERS)]
    assert len(listed) == len(WRAPPERS)
    names = [name for one in listed for name in one.split("`")[1::2]]
    scripts = [WRAPPED.get(name, f"{name} rm -f x") for name in names]
    scripts.append("/lib64/ld-linux-x86-64.so.2 /bin/rm -f x")  # the dynamic loader
    for script in scripts:
        split = split_command(["bash", "-c", script])
        assert any(map(danger_of, split.literals)), script
