"""Attributes of every error."""

import errno
import os
import pickle

import pytest

from holdfast.base import errors
from holdfast.base.errors import (
    HoldfastError,
    InvalidConfig,
    InvalidRequest,
    NotFound,
    OperationFailed,
    Refused,
    RemoteError,
    SpawnFailed,
    UnknownProcess,
)


@pytest.mark.parametrize("kind", [Refused, InvalidRequest, NotFound, OperationFailed, SpawnFailed])
def test_an_error_tells_what_it_knows(kind: type[Refused]) -> None:
    error = kind("no", errno=errno.ENOENT, path="/f", program="x")
    assert (str(error), error.errno, error.path, error.program) == ("no", 2, "/f", "x")
    error = kind("no")
    assert (error.errno, error.path, error.program) == (None, None, None)


@pytest.mark.parametrize(
    ("kind", "number", "builtin"),
    [
        (NotFound, errno.ENOENT, FileNotFoundError),
        (InvalidRequest, errno.EACCES, PermissionError),
        (InvalidRequest, errno.EPERM, PermissionError),
        (OperationFailed, errno.EEXIST, FileExistsError),
        (OperationFailed, errno.ENOTDIR, NotADirectoryError),
        (OperationFailed, errno.EISDIR, IsADirectoryError),
        (OperationFailed, errno.ENOSPC, OSError),
        (SpawnFailed, errno.ENOENT, FileNotFoundError),
    ],
)
def test_an_error_of_the_system_is_the_built_in_one_too(
    kind: type[Refused], number: int, builtin: type[OSError]
) -> None:
    error = kind("cannot do it", errno=number, path="/f")
    assert isinstance(error, kind)
    assert isinstance(error, builtin)
    assert type(error).__name__ == kind.__name__
    assert (str(error), error.errno, error.filename) == ("cannot do it", number, "/f")
    assert error.strerror == os.strerror(number)
    assert not isinstance(kind("cannot do it"), OSError)


def test_a_wait_that_is_over_or_a_pipe_that_broke_means_something_else() -> None:
    for number in (errno.ETIMEDOUT, errno.EPIPE, errno.ECONNRESET):
        error = OperationFailed("no", errno=number)
        assert isinstance(error, OSError)
        assert not issubclass(type(error), (TimeoutError, ConnectionError))


def test_every_error_can_be_asked() -> None:
    for error in (RemoteError(1, "no"), UnknownProcess("p"), HoldfastError("no")):
        assert (error.errno, error.path, error.program) == (None, None, None)
    config = InvalidConfig("no", "do this", errno=errno.EACCES, path="/c")
    assert (config.advice, config.errno, config.path) == ("do this", 13, "/c")


def test_an_error_survives_being_pickled() -> None:
    error = pickle.loads(pickle.dumps(SpawnFailed("no", errno=2, path="/f", program="x")))
    assert isinstance(error, SpawnFailed)
    assert isinstance(error, FileNotFoundError)
    assert (str(error), error.errno, error.path, error.program) == ("no", 2, "/f", "x")


def test_the_names_of_the_tree_are_all_listed() -> None:
    found = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, HoldfastError)
    }
    assert found == set(errors.__all__)
