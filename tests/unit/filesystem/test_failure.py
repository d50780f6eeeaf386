"""What the kernel said, as a kind of refusal and a text."""

import errno

import pytest

from holdfast.errors import InvalidRequest, NotFound, OperationFailed, Refused
from holdfast.filesystem.failure import refusal


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
    assert type(refused) is kind
    assert str(refused) == text
