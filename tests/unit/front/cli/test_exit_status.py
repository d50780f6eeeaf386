"""Exit statuses of `holdfast run`."""

import errno

import pytest

from holdfast.base.errors import HoldfastError, InvalidParams, RemoteError, SpawnFailed
from holdfast.base.system_text import system_text
from holdfast.client.error_mapping import start_refusals
from holdfast.events import Reason, Verdict
from holdfast.front.cli.exit_status import Ended, of_verdict, refused


def told(code: int, message: str, data: object = None) -> HoldfastError:
    """Return what a client raises for a start that a server refused."""
    try:
        with start_refusals("p", "x"):
            raise RemoteError(code, message, data)
    except HoldfastError as error:
        return error


@pytest.mark.parametrize(
    ("verdict", "status"),
    [
        (Verdict(reason=Reason.EXITED, exit_code=0), 0),
        (Verdict(reason=Reason.EXITED, exit_code=255), 255),
        (Verdict(reason=Reason.SIGNALED, exit_code=1, signal=9), 137),
        (Verdict(reason=Reason.TERMINATED, exit_code=143), 143),
        (Verdict(reason=Reason.EXITED, exit_code=-1), 255),
        (Verdict(reason=Reason.LOST), 125),
        (Verdict(reason=Reason.LIMIT, exit_code=0), 137),
        (Verdict(reason=Reason.LIMIT, exit_code=3), 3),
    ],
)
def test_a_verdict_becomes_a_status(verdict: Verdict, status: int) -> None:
    assert of_verdict(verdict) == status


def _failed(number: int) -> SpawnFailed:
    return SpawnFailed(system_text(number), errno=number, program="x")


@pytest.mark.parametrize(
    ("program", "error", "status", "text"),
    [
        ("x", _failed(errno.ENOENT), 127, "x: command not found"),
        ("./x", _failed(errno.ENOENT), 127, "./x: No such file or directory"),
        ("x", _failed(errno.EACCES), 126, "x: Permission denied"),
        ("x", _failed(errno.ENOEXEC), 126, "x: Exec format error"),
        ("x", _failed(errno.E2BIG), 126, "x: Argument list too long"),
        ("x", _failed(errno.EMFILE), 125, "cannot start x: Too many open files"),
        (
            "x",
            told(-32603, 'Unable to spawn x because:\nNo viable candidates found in PATH "/a"'),
            127,
            "x: command not found",
        ),
        (
            "x",
            told(
                -32603,
                "Unable to spawn x because:\n/a/x exists but is not executable.\n"
                'No viable candidates found in PATH "/a"',
            ),
            126,
            "x: Permission denied",
        ),
        ("x", told(-32603, system_text(errno.ENOENT)), 127, "x: command not found"),
        (
            "ls | wc",
            SpawnFailed("no", errno=errno.ENOENT, program="ls | wc"),
            127,
            "ls | wc: command not found; a shell command needs `sh -c` before it",
        ),
        (
            "/bin/ls -l",
            SpawnFailed("no", errno=errno.ENOENT, program="/bin/ls -l"),
            127,
            "/bin/ls -l: No such file or directory; a shell command needs `sh -c` before it",
        ),
        (
            "x",
            SpawnFailed("the sandbox could not be completed: denied", errno=errno.EACCES),
            125,
            "cannot start x: the sandbox could not be completed: denied",
        ),
        (
            "x",
            SpawnFailed("no", errno=errno.ENOENT, program="x", path="/away"),
            125,
            "cannot run in /away: No such file or directory",
        ),
        ("", SpawnFailed("missing program for pipe spawn"), 125, "cannot start : missing program"),
        ("x", InvalidParams("no\n  sandbox"), 125, "cannot start x: no sandbox"),
    ],
)
def test_a_command_that_cannot_start_tells_why(
    program: str, error: HoldfastError, status: int, text: str
) -> None:
    end = refused(program, error)
    assert end.status == status
    assert end.text is not None
    assert end.text.startswith(text)


def test_what_an_environment_has_found_out_is_told() -> None:
    """Environments explain a failure in a text of their own, and tell of a missing folder."""
    said = SpawnFailed("Text busy (os error 26)", errno=errno.ETXTBSY, program="x")
    explained = SpawnFailed("cannot run `x`: busy", errno=errno.ETXTBSY, program="x")
    explained.__cause__ = said
    assert (refused("x", explained).status, refused("x", explained).text) == (
        126,
        "x: Text file busy",
    )
    explained.errno = said.errno = errno.ENOENT
    explained.path = "/away"
    assert refused("x", explained).text == "cannot run in /away: No such file or directory"
    explained.__cause__ = SpawnFailed("no sandbox", errno=errno.EACCES)
    explained.path = None
    assert refused("x", explained).text == "cannot start x: no sandbox"


def test_a_holdfast_server_tells_what_is_missing() -> None:
    data = {"kind": "spawnFailed", "errno": errno.ENOENT, "program": "x"}
    end = refused("x", told(-32603, "whatever", data))
    assert (end.status, end.text) == (127, "x: command not found")
    data["path"] = "file:///somewhere"
    end = refused("x", told(-32603, "whatever", data))
    assert (end.status, end.text) == (125, "cannot run in /somewhere: No such file or directory")


def test_what_is_said_is_one_line() -> None:
    assert Ended(125, "a\n  b\tc ").text == "a b c"
    assert Ended(0).text is None
