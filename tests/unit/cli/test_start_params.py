"""Start parameters of `holdfast run`."""

import argparse
import os
from pathlib import Path

import pytest

from holdfast.cli.exit_status import Ended
from holdfast.cli.parser import make_parser
from holdfast.cli.start_params import local_request, remote_request
from holdfast.cli.token import bearer_token
from holdfast.protocol.handshake import Capabilities, EnvironmentInfo, ShellInfo
from holdfast.protocol.process import TerminalSize

SHELL = ShellInfo(name="sh", path="/bin/sh")
INFO = EnvironmentInfo(
    shell=SHELL, cwd="file:///srv", capabilities=Capabilities(process_resize=True)
)


def _options(*arguments: str) -> argparse.Namespace:
    return make_parser().parse_args(["run", *arguments])


@pytest.fixture
def sized(monkeypatch: pytest.MonkeyPatch) -> TerminalSize:
    """There is a terminal of that size."""
    size = TerminalSize(rows=7, cols=9)
    monkeypatch.setattr("holdfast.cli.start_params.terminal_size", lambda: size)
    return size


# -- here


def test_here_it_gets_our_folder_and_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OURS", "1")
    request = local_request(_options("-e", "MORE=2", "cmd", "arg"))
    assert request.cwd.native == os.getcwd()
    assert request.env == {**os.environ, "MORE": "2"}
    assert request.env_policy is None
    assert request.argv == ["cmd", "arg"]
    assert not request.tty


def test_no_two_runs_have_the_same_id() -> None:
    options = _options("cmd")
    assert local_request(options).process_id != local_request(options).process_id


def test_a_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Ended) as end:
        local_request(_options("--cwd", str(tmp_path / "file"), "cmd"))
    assert end.value.text == f"cannot run in {tmp_path}/file: Not a directory"
    assert end.value.status == 125


def test_a_terminal_has_the_size_of_ours(sized: TerminalSize) -> None:
    request = local_request(_options("--tty", "cmd"))
    assert request.tty
    assert request.terminal_size == sized
    assert not request.pipe_stdin
    assert local_request(_options("cmd")).terminal_size is None


@pytest.mark.parametrize(
    ("program", "asked"),
    [("a/b", "./a/b"), ("./a", "./a"), ("../a", "../a"), ("/a/b", "/a/b"), ("a", "a")],
)
def test_on_a_terminal_too_a_path_is_a_path(program: str, asked: str) -> None:
    assert local_request(_options("--tty", program, "x")).argv == [asked, "x"]
    assert local_request(_options(program, "x")).argv == [program, "x"]


# -- on a server


def test_on_a_server_it_gets_the_servers_folder_and_environment() -> None:
    request = remote_request(_options("-e", "A=1", "cmd"), INFO)
    assert str(request.cwd) == "file:///srv"
    assert request.env == {"A": "1"}
    policy = request.env_policy
    assert policy is not None
    assert policy.inherit == "all"
    assert policy.ignore_default_excludes


@pytest.mark.parametrize(
    ("cwd", "uri"), [("/x y", "file:///x%20y"), ("sub", "file:///srv/sub"), ("..", "file:///")]
)
def test_a_folder_of_the_server_is_a_native_path(cwd: str, uri: str) -> None:
    assert str(remote_request(_options("--cwd", cwd, "cmd"), INFO).cwd) == uri


@pytest.mark.parametrize("info", [None, EnvironmentInfo(shell=SHELL)])
def test_a_server_that_does_not_tell_its_folder_needs_one(info: EnvironmentInfo | None) -> None:
    assert remote_request(_options("--cwd", "/x", "cmd"), info).cwd.native == "/x"
    with pytest.raises(Ended, match="--cwd"):
        remote_request(_options("cmd"), info)


def test_a_folder_of_another_kind_of_machine_is_passed_on_but_not_built_upon() -> None:
    info = EnvironmentInfo(shell=SHELL, cwd="file:///C:/x")
    assert str(remote_request(_options("cmd"), info).cwd) == "file:///C:/x"
    with pytest.raises(Ended, match="cannot run there"):
        remote_request(_options("--cwd", "sub", "cmd"), info)


def test_the_kind_of_our_terminal_goes_along(
    sized: TerminalSize, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "vt100")
    request = remote_request(_options("--tty", "cmd"), INFO)
    assert request.env == {"TERM": "vt100"}
    assert request.terminal_size == sized
    assert remote_request(_options("--tty", "-e", "TERM=x", "cmd"), INFO).env == {"TERM": "x"}
    assert remote_request(_options("cmd"), INFO).env == {}


@pytest.mark.usefixtures("sized")
def test_a_server_that_knows_no_sizes_is_told_none() -> None:
    info = EnvironmentInfo(shell=SHELL, cwd="file:///srv")
    assert remote_request(_options("--tty", "cmd"), info).terminal_size is None


@pytest.mark.parametrize("arguments", [["\udcff"], ["-e", "A=\udcff", "cmd"]])
def test_what_json_cannot_carry_is_refused(arguments: list[str]) -> None:
    with pytest.raises(Ended, match="UTF-8"):
        remote_request(_options(*arguments), INFO)
    local_request(_options(*arguments))


# -- tokens


def test_a_token_comes_from_the_file_before_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HOLDFAST_TOKEN", raising=False)
    assert bearer_token(_options("cmd")) is None
    monkeypatch.setenv("HOLDFAST_TOKEN", "variable")
    assert bearer_token(_options("cmd")) == "variable"
    file = tmp_path / "token"
    file.touch(0o600)
    file.write_text(" file\n")
    assert bearer_token(_options("--token-file", str(file), "cmd")) == "file"


@pytest.mark.parametrize(
    ("content", "text"),
    [(None, "No such file or directory"), (b"\n", "there is no token"), (b"\xff", "no text")],
)
def test_a_token_file_without_a_token_is_refused(
    tmp_path: Path, content: bytes | None, text: str
) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.touch(0o600)
        file.write_bytes(content)
    with pytest.raises(Ended, match=text):
        bearer_token(_options("--token-file", str(file), "cmd"))
