"""The one form of an operating system error's text."""

import errno

from holdfast.base.system_text import system_text, without_number


def test_a_number_has_the_words_of_the_real_server() -> None:
    assert system_text(errno.ENOENT) == "No such file or directory (os error 2)"
    assert system_text(errno.EIO) == "I/O error (os error 5)"
    assert system_text(errno.ELOOP) == "Symbolic link loop (os error 40)"


def test_an_exception_has_the_words_of_its_number() -> None:
    error = OSError(errno.ENOENT, "worded by an event loop")
    assert system_text(error) == "No such file or directory (os error 2)"


def test_an_exception_without_a_number_has_its_own_words() -> None:
    assert system_text(OSError("nobody answers")) == "nobody answers"
    assert system_text(OSError(0, "nobody answers")) == "nobody answers"


def test_a_person_does_not_need_the_number() -> None:
    text = f"cannot signal: {system_text(errno.EPERM)}"
    assert without_number(text, errno.EPERM) == "cannot signal: Operation not permitted"
    assert without_number(text, errno.ENOENT) == text
    assert without_number(text, None) == text
