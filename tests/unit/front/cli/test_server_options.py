"""The environment that options mean, also if they name none."""

import argparse
import os
from pathlib import Path

import pytest

from holdfast.front.cli.exit_status import Ended
from holdfast.front.cli.parser import make_parser
from holdfast.front.cli.server_options import choose_environment, is_remote


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of our own, and no variables that name a environment."""
    for name in list(os.environ):
        if name.startswith(("HOLDFAST_EXEC", "CODEX_EXEC")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path))
    return tmp_path


def chosen(*words: str) -> argparse.Namespace:
    options = make_parser().parse_args(["run", *words, "true"])
    choose_environment(options)
    return options


def write(home: Path, default: str) -> None:
    (home / "environments.toml").write_text(
        f'default = "{default}"\n[[environments]]\nid = "build"\nurl = "ws://127.0.0.1:1"\n'
    )


def test_without_a_file_or_a_variable_it_is_this_machine(home: Path) -> None:
    assert not is_remote(chosen())


def test_the_default_of_the_file_is_meant_unless_another_is_named(home: Path) -> None:
    write(home, "build")
    assert chosen().on == "build"
    assert not is_remote(chosen("--on", "local"))
    assert chosen("--url", "ws://h:1").on is None
    write(home, "local")
    assert not is_remote(chosen())


def test_the_server_of_the_variable_is_meant(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_EXEC_SERVER_URL", "ws://127.0.0.1:2")
    options = chosen("--token-file", "/some/file")
    assert (options.url, options.on) == ("ws://127.0.0.1:2", None)


@pytest.mark.parametrize(
    ("default", "words", "text"),
    [
        ("none", [], "there is no default environment: use --on NAME"),
        ("bulid", [], "default environment `bulid` is not configured"),
        (
            "build",
            ["--token-file", "f"],
            "--token-file requires --url, and cannot be used for `build`",
        ),
        (
            "local",
            ["--token-file", "f"],
            "--token-file requires --url, and cannot be used for this machine",
        ),
    ],
)
def test_what_cannot_be_meant_is_told(
    home: Path, default: str, words: list[str], text: str
) -> None:
    write(home, default)
    with pytest.raises(Ended) as end:
        chosen(*words)
    assert end.value.status == 125
    assert text in str(end.value.text)
