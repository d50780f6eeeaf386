"""Conversion of a server's refusals into local exceptions."""

import errno
import os

import pytest

from holdfast.base.errors import (
    CannotEnforce,
    DuplicateProcess,
    HoldfastError,
    InvalidParams,
    InvalidPermissionPath,
    InvalidRequest,
    NotFound,
    OperationFailed,
    Refused,
    RemoteError,
    SpawnFailed,
    StdinClosed,
    UnknownProcess,
    Unsupported,
)
from holdfast.client.error_mapping import refusals, start_refusals
from holdfast.wire.protocol.paths import PathUri
from holdfast.wire.rpc.router import error_of

PATH = PathUri.from_path("/asked")


def raised(error: RemoteError, **about: object) -> HoldfastError:
    """Return the exception for an error of the server."""
    with pytest.raises(HoldfastError) as caught, refusals(**about):  # type: ignore[arg-type]
        raise error
    return caught.value


def at_start(error: RemoteError) -> HoldfastError:
    """The same for `process/start`."""
    with pytest.raises(HoldfastError) as caught, start_refusals("p", "tool"):
        raise error
    return caught.value


# A Holdfast server tells the error as data.


@pytest.mark.parametrize(
    "local",
    [
        NotFound("no", errno=errno.ENOENT, path="/f"),
        InvalidRequest("no", errno=errno.EACCES, path=os.fsdecode(b"/f\xff")),
        InvalidParams("no"),
        InvalidPermissionPath("no"),
        CannotEnforce("no"),
        OperationFailed("no", errno=errno.EROFS, path="/f"),
        SpawnFailed("no", errno=errno.ENOENT, program="x", path="/cwd"),
        StdinClosed("no"),
        UnknownProcess("p"),
        DuplicateProcess("p"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_one_side_raises_is_raised_on_the_other(local: Refused) -> None:
    code, text, data = error_of(local, "m")
    answer = RemoteError(code, text, data)
    error = raised(answer, process_id="p")
    assert type(error) is type(local)
    assert vars(error) == vars(local)
    assert str(error) == str(local)
    assert error.__cause__ is answer


def test_data_counts_and_not_the_text() -> None:
    data = {"kind": "operationFailed", "errno": 28}
    error = raised(RemoteError(-32603, "no (os error 5)", data), path=PATH)
    assert (error.errno, error.path) == (28, None)
    assert raised(RemoteError(-32603, "no (os error 5)", {"kind": "notFound"})).errno is None


def test_a_start_that_was_cancelled_is_no_duplicate() -> None:
    data = {"kind": "invalidRequest"}
    assert isinstance(at_start(RemoteError(-32600, "cancelled", data)), InvalidRequest)


def test_a_kind_of_a_newer_server_is_known_by_its_code() -> None:
    data = {"kind": "somethingElse", "errno": 2, "program": "x"}
    error = at_start(RemoteError(-32603, "no", data))
    assert isinstance(error, SpawnFailed)
    assert (error.errno, error.program) == (2, "x")
    assert isinstance(at_start(RemoteError(-32600, "no", data)), InvalidRequest)
    assert isinstance(raised(RemoteError(-32004, "no", data)), NotFound)


@pytest.mark.parametrize(
    "data",
    [
        {"kind": 1, "errno": "2", "path": 3, "program": []},
        {"kind": None, "errno": True, "path": None},
        {"kind": "operationFailed", "errno": 2.0},
    ],
)
def test_members_of_a_wrong_type_tell_nothing(data: dict[str, object]) -> None:
    error = raised(RemoteError(-32603, "no", data))
    assert isinstance(error, OperationFailed)
    assert (error.errno, error.path, error.program) == (None, None, None)


def test_without_an_id_there_is_no_process_to_name() -> None:
    error = raised(RemoteError(-32600, "no", {"kind": "unknownProcess"}))
    assert isinstance(error, InvalidRequest)


def test_a_path_of_another_machine_stays_as_it_is() -> None:
    data = {"kind": "notFound", "path": "file:///C:/x"}
    assert raised(RemoteError(-32004, "no", data)).path == "file:///C:/x"


# A Codex server has only a code and a text.


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (-32004, NotFound),
        (-32600, InvalidRequest),
        (-32602, InvalidParams),
        (-32603, OperationFailed),
    ],
)
def test_a_code_means_a_kind(code: int, kind: type[Refused]) -> None:
    answer = RemoteError(code, "no")
    error = raised(answer, path=PATH)
    assert isinstance(error, kind)
    assert (str(error), error.errno, error.path, error.program) == ("no", None, "/asked", None)
    assert error.__cause__ is answer


def test_what_is_no_refusal_stays_as_it_is() -> None:
    for answer in (
        Unsupported(-32601, "none"),
        RemoteError(-32010, "attached"),
        RemoteError(7, ""),
    ):
        assert raised(answer) is answer
        data = {"kind": "methodNotFound"}
        told = type(answer)(answer.code, answer.message, data)
        assert raised(told) is told


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("No such file or directory (os error 2)", 2),
        ("failed to signal process: Operation not permitted (os error 1)", 1),
        ("path `x (os error 5)` is not a file", None),
        ("os error 5", None),
        ("no (os error -5)", None),
        ("no (os error 99999999999999999999)", None),
        ("no (os error 5)\n", None),
    ],
)
def test_only_the_end_of_a_text_tells_a_number(text: str, number: int | None) -> None:
    assert raised(RemoteError(-32603, text)).errno == number


def test_an_internal_error_of_a_start_is_a_failed_spawn() -> None:
    error = at_start(RemoteError(-32603, "No such file or directory (os error 2)"))
    assert isinstance(error, SpawnFailed)
    assert (error.errno, error.path, error.program) == (errno.ENOENT, None, "tool")


def test_an_invalid_request_of_a_start_is_a_duplicate() -> None:
    error = at_start(RemoteError(-32600, "process p already exists"))
    assert isinstance(error, DuplicateProcess)
    assert error.process_id == "p"


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ('because:\nNo viable candidates found in PATH "/a"', errno.ENOENT),
        ("because:\nUnable to resolve the PATH", errno.ENOENT),
        (
            'because:\n/a/x exists but is not executable.\nNo viable candidates found in PATH "/a"',
            errno.EACCES,
        ),
        (
            'because:\n/a/x exists but is a directory.\nNo viable candidates found in PATH "/a"',
            errno.EACCES,
        ),
        (
            "because it doesn't exist on the filesystem (ENOENT: No such file or directory)",
            errno.ENOENT,
        ),
        ("because it does not exist", errno.ENOENT),
        ("because it is a directory", errno.EISDIR),
        ("because it is not executable", errno.EACCES),
        ("because it is not executable (EACCES: Permission denied)", errno.EACCES),
        ("because of something else", None),
    ],
)
def test_what_is_said_of_a_program_on_a_terminal_means_a_number(
    text: str, number: int | None
) -> None:
    text = f"Unable to spawn x {text}"
    assert at_start(RemoteError(-32603, text)).errno == number
    assert raised(RemoteError(-32603, text)).errno is None
