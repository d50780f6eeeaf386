"""What every error can tell."""

import errno
import pickle

import pytest

from holdfast import errors
from holdfast.errors import (
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


def test_every_error_can_be_asked() -> None:
    for error in (RemoteError(1, "no"), UnknownProcess("p"), HoldfastError("no")):
        assert (error.errno, error.path, error.program) == (None, None, None)
    config = InvalidConfig("no", "do this", errno=errno.EACCES, path="/c")
    assert (config.advice, config.errno, config.path) == ("do this", 13, "/c")


def test_an_error_survives_being_pickled() -> None:
    error = pickle.loads(pickle.dumps(SpawnFailed("no", errno=2, path="/f", program="x")))
    assert type(error) is SpawnFailed
    assert (str(error), error.errno, error.path, error.program) == ("no", 2, "/f", "x")


def test_the_names_of_the_tree_are_all_listed() -> None:
    found = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, HoldfastError)
    }
    assert found == set(errors.__all__)
