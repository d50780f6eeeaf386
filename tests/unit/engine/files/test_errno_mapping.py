"""Errors of the kernel as a kind of refusal and a text."""

import errno

import pytest

from holdfast.base.errors import InvalidRequest, NotFound, OperationFailed, Refused
from holdfast.engine.files.errno_mapping import about, refusal


@pytest.mark.requirement("fs.errors.codes", "fs.errors.text")
@pytest.mark.parametrize(
    ("number", "kind", "text"),
    [
        (errno.ENOENT, NotFound, "No such file or directory (os error 2)"),
        (errno.EINVAL, InvalidRequest, "Invalid argument (os error 22)"),
        (errno.EACCES, InvalidRequest, "Permission denied (os error 13)"),
        (errno.EPERM, InvalidRequest, "Operation not permitted (os error 1)"),
        (errno.EEXIST, OperationFailed, "File exists (os error 17)"),
        (errno.EROFS, OperationFailed, "Read-only file system (os error 30)"),
        (errno.EIO, OperationFailed, "I/O error (os error 5)"),
        (errno.ENAMETOOLONG, OperationFailed, "Filename too long (os error 36)"),
        (errno.ELOOP, OperationFailed, "Symbolic link loop (os error 40)"),
    ],
)
def test_an_error_has_a_kind_and_the_words_of_the_real_server(
    number: int, kind: type[Refused], text: str
) -> None:
    refused = refusal(OSError(number, "worded otherwise"))
    assert isinstance(refused, kind)
    assert str(refused) == text
    assert refused.errno == number


def test_the_path_is_what_was_asked_for_or_what_the_system_call_was_given() -> None:
    assert refusal(OSError(errno.EIO, "", "/behind"), "/asked").path == "/asked"
    assert refusal(OSError(errno.EIO, "", "/behind")).path == "/behind"
    # A name in an open folder, or a descriptor, is no path.
    assert refusal(OSError(errno.EIO, "", "name")).path is None
    assert refusal(OSError(errno.EIO, "", 5)).path is None
    assert refusal(OSError("no number"), "/asked").path == "/asked"


def test_an_error_of_an_operation_gets_its_path() -> None:
    with pytest.raises(NotFound) as missing, about("/asked"):
        raise FileNotFoundError(errno.ENOENT, "")
    assert (missing.value.errno, missing.value.path) == (errno.ENOENT, "/asked")
    with pytest.raises(InvalidRequest) as refused, about("/asked"):
        raise InvalidRequest("no")
    assert (refused.value.errno, refused.value.path) == (None, "/asked")
    with pytest.raises(InvalidRequest) as known, about("/asked"):
        raise InvalidRequest("no", path="/already")
    assert known.value.path == "/already"
    with pytest.raises(KeyError), about("/asked"):
        raise KeyError
