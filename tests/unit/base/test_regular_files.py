"""Reading of files that may be something else."""

import os
import pty
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast.base.regular_files import read_regular


@contextmanager
def piped(*data: bytes, ends: bool = True) -> Iterator[str]:
    """Yield the path of a pipe with data in it, as `<(command)` of a shell has one."""
    reader, writer = os.pipe()
    try:
        for each in data:
            os.write(writer, each)
        if ends:
            os.close(writer)
        yield f"/dev/fd/{reader}"
    finally:
        os.close(reader)
        if not ends:
            os.close(writer)


def refusal(path: object, *, largest: int = 10, pipe_within: float | None = None) -> str:
    with pytest.raises(OSError) as caught:  # noqa: PT011 - the text is returned
        read_regular(str(path), largest=largest, pipe_within=pipe_within)
    return str(caught.value.strerror)


def test_a_file_is_read_to_its_limit(tmp_path: Path) -> None:
    file, link = tmp_path / "file", tmp_path / "link"
    file.write_bytes(b"0123456789")
    link.symlink_to(file)
    assert read_regular(link, largest=10) == b"0123456789"
    assert refusal(file, largest=9) == "it has more than 9 bytes"
    assert read_regular("/dev/null", largest=0) == b""


@pytest.mark.requirement("auth.secret.regular")
def test_what_could_block_is_refused(tmp_path: Path) -> None:
    fifo, link = tmp_path / "fifo", tmp_path / "link"
    os.mkfifo(fifo)
    link.symlink_to(fifo)
    terminal, other = pty.openpty()
    try:
        paths = (fifo, link, "/dev/zero", os.ttyname(other))
        # A FIFO with a name is refused wherever a pipe is not.
        found = {refusal(path, pipe_within=within) for path in paths for within in (None, 60.0)}
    finally:
        os.close(terminal)
        os.close(other)
    assert found == {"it is not a regular file"}
    assert refusal(tmp_path) == "Is a directory"
    assert refusal(tmp_path / "missing") == "No such file or directory"


@pytest.mark.requirement("auth.secret.pipe")
def test_a_pipe_is_read_to_its_end_where_that_is_asked_for() -> None:
    with piped(b"one\n", b"two") as path:
        assert read_regular(path, largest=10, pipe_within=60.0) == b"one\ntwo"
    with piped(b"one") as path:
        assert refusal(path) == "it is a pipe, which can be read only once"
    with piped(b"0123456789A", ends=False) as path:
        assert refusal(path, pipe_within=60.0) == "it has more than 10 bytes"
    with piped(b"one", ends=False) as path:
        assert refusal(path, pipe_within=0.01) == "it is a pipe that does not end"
