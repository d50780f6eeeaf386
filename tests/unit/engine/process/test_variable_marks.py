"""Processes that a command left behind, found by their mark."""

import os
import select
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from holdfast.engine.process.variable_marks import (
    MARK_VARIABLE,
    FirstCommand,
    is_mark,
    kill_by_variable,
    with_mark,
)

OWNER = "0123456789abcdef"


@contextmanager
def sleeping(value: str | None) -> Iterator[subprocess.Popen[bytes]]:
    env = {"PATH": "/usr/bin:/bin", **({} if value is None else {MARK_VARIABLE: value})}
    # Started through `sh`, so that `environ` is that of the new program when this goes on.
    command = ["sh", "-c", "echo; exec sleep 600"]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield process
        finally:
            process.kill()


def has_ended(process: subprocess.Popen[bytes]) -> bool:
    watched = os.pidfd_open(process.pid)
    try:
        return bool(select.select([watched], [], [], 5)[0])
    finally:
        os.close(watched)


def test_all_of_an_owner_or_one_command_is_found() -> None:
    with (
        sleeping(f"{OWNER}-1") as first,
        sleeping(f"{OWNER}-11") as other,
        sleeping(with_mark("fedcba9876543210-7", f"{OWNER}-2")) as nested,
        sleeping(f"{'0' * 16}-1") as foreign,
        sleeping(None) as plain,
    ):
        assert kill_by_variable(f"{OWNER}-1", FirstCommand.now(first.pid)) == 1
        assert has_ended(first)
        assert kill_by_variable(OWNER) == 2
        assert has_ended(other)
        assert has_ended(nested)
        assert foreign.poll() is None
        assert plain.poll() is None


def test_a_command_inside_of_another_is_found_by_both_marks() -> None:
    with sleeping(with_mark(f"{OWNER}-3", "fedcba9876543210-1")) as nested:
        assert kill_by_variable(f"{OWNER}-3") == 1
        assert has_ended(nested)


@pytest.mark.parametrize("text", ["", "a", OWNER.upper(), f"{OWNER}-", f"{OWNER}-x", OWNER + "0"])
def test_only_a_mark_is_one(text: str) -> None:
    assert not is_mark(text)
    with pytest.raises(AssertionError):
        kill_by_variable(text)
