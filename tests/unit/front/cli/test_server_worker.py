"""The files of a server's options, which its sandboxes keep as they are."""

import argparse
import os
import tempfile
from pathlib import Path

import pytest

from holdfast.base import own_files
from holdfast.base.own_files import OwnFiles
from holdfast.front.cli import server_worker


@pytest.fixture(autouse=True)
def _nothing_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_files, "_named", OwnFiles((), ()))
    monkeypatch.setattr(server_worker, "start_logging", lambda *args, **options: None)


def logging_to(file: int) -> tuple[str, ...]:
    """Return the files that are kept when stderr is an open file."""
    before = os.dup(2)
    try:
        os.dup2(file, 2)
        server_worker.set_log_level("error")
    finally:
        os.dup2(before, 2)
        os.close(before)
    return own_files.own_files({}).files


def test_the_log_of_a_server_is_kept(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as file:
        assert logging_to(file.fileno()) == (str(tmp_path / "log"),)


def test_a_log_without_a_name_is_none_to_keep() -> None:
    with tempfile.TemporaryFile() as file, Path(os.devnull).open("w") as null:
        assert logging_to(file.fileno()) == ()
        assert logging_to(null.fileno()) == ()


def test_files_of_the_options_are_kept(tmp_path: Path) -> None:
    default = tmp_path / "default.toml"
    default.touch()
    server_worker._keep_settings(
        argparse.Namespace(config="/x/serve.toml", default_config=str(default))
    )
    assert own_files.own_files({})[1:] == (("/x/serve.toml", str(default)), (str(tmp_path),))
    server_worker._keep_settings(argparse.Namespace())  # an app-server
