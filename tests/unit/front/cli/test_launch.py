"""Starts of `holdfast run`: what the options ask of an environment."""

import argparse
import os
from pathlib import Path
from typing import cast

import pytest

from holdfast.backends import ExecProcess
from holdfast.client.target import MemoryTarget
from holdfast.environments.environment import Environment
from holdfast.environments.local_environment import LocalEnvironment
from holdfast.environments.remote import RemoteEnvironment
from holdfast.front.cli.exit_status import Ended
from holdfast.front.cli.parser import make_parser
from holdfast.front.cli.run_foreground import launch
from holdfast.front.cli.token import bearer_token
from holdfast.server.app import Server
from holdfast.wire.protocol.handshake import Capabilities, EnvironmentInfo, ShellInfo
from holdfast.wire.protocol.process import StartParams, TerminalSize

SHELL = ShellInfo(name="sh", path="/bin/sh")
INFO = EnvironmentInfo(
    shell=SHELL,
    cwd="file:///srv",
    user_home_dir="file:///home/me",
    capabilities=Capabilities(process_resize=True),
)


class Recorder:
    """In place of a backend: remembers what is started."""

    started: StartParams

    async def start(self, params: StartParams) -> ExecProcess:
        self.started = params
        return cast(ExecProcess, self)


class Here(LocalEnvironment):
    """This machine, but nothing is started."""

    backend = Recorder()  # type: ignore[assignment]


class There(RemoteEnvironment):
    """A server of which only its description is known."""

    def __init__(self, info: EnvironmentInfo) -> None:
        super().__init__("there", MemoryTarget(lambda transport: Server().accept(transport)))
        self._info = info
        self.backend = Recorder()

    async def info(self) -> EnvironmentInfo:
        return self._info


def _options(*arguments: str) -> argparse.Namespace:
    return make_parser().parse_args(["run", *arguments])


async def _asked(environment: Environment, *arguments: str) -> StartParams:
    said: list[str] = []
    process = await launch(_options(*arguments), environment, said.append)
    assert not said
    return cast(Recorder, process).started


async def here(*arguments: str) -> StartParams:
    return await _asked(Here(guarded=True), *arguments)


async def there(*arguments: str, info: EnvironmentInfo = INFO) -> StartParams:
    return await _asked(There(info), *arguments)


@pytest.fixture
def sized(monkeypatch: pytest.MonkeyPatch) -> TerminalSize:
    """There is a terminal of that size."""
    size = TerminalSize(rows=7, cols=9)
    monkeypatch.setattr("holdfast.front.cli.run_foreground.terminal_size", lambda: size)
    return size


# -- here


async def test_here_it_gets_our_folder_and_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OURS", "1")
    request = await here("-e", "MORE=2", "cmd", "arg")
    assert request.cwd.native == os.getcwd()
    assert request.env == {**os.environ, "MORE": "2"}
    assert request.argv == ["cmd", "arg"]
    assert not request.tty


async def test_no_two_runs_have_the_same_id() -> None:
    assert (await here("cmd")).process_id != (await here("cmd")).process_id


async def test_a_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Ended) as end:
        await here("--cwd", str(tmp_path / "file"), "cmd")
    assert end.value.text == f"cannot run in {tmp_path}/file: Not a directory"
    assert end.value.status == 125


async def test_a_terminal_has_the_size_of_ours(sized: TerminalSize) -> None:
    request = await here("--tty", "cmd")
    assert request.tty
    assert request.terminal_size == sized
    assert not request.pipe_stdin
    assert (await here("cmd")).terminal_size is None


@pytest.mark.parametrize(
    ("program", "asked"),
    [("a/b", "./a/b"), ("./a", "./a"), ("../a", "../a"), ("/a/b", "/a/b"), ("a", "a")],
)
async def test_on_a_terminal_too_a_path_is_a_path(program: str, asked: str) -> None:
    assert (await here("--tty", program, "x")).argv == [asked, "x"]
    assert (await here(program, "x")).argv == [program, "x"]


async def test_where_it_runs_is_told_if_wanted(tmp_path: Path) -> None:
    said: list[str] = []
    options = _options("-v", "--cwd", str(tmp_path), "cmd")
    await launch(options, Here(guarded=True), said.append)
    assert said == [f"running on this machine, in {tmp_path}"]


# -- on a server


async def test_on_a_server_it_gets_the_servers_folder_and_environment() -> None:
    request = await there("-e", "A=1", "cmd")
    assert str(request.cwd) == "file:///srv"
    assert request.env == {"A": "1"}
    policy = request.env_policy
    assert policy is not None
    assert policy.inherit == "all"
    assert policy.ignore_default_excludes


@pytest.mark.parametrize(
    ("cwd", "uri"), [("/x y", "file:///x%20y"), ("sub", "file:///srv/sub"), ("..", "file:///")]
)
async def test_a_folder_of_the_server_is_a_native_path(cwd: str, uri: str) -> None:
    assert str((await there("--cwd", cwd, "cmd")).cwd) == uri


async def test_a_server_that_does_not_tell_its_folder_needs_one() -> None:
    info = EnvironmentInfo(shell=SHELL)
    assert (await there("--cwd", "/x", "cmd", info=info)).cwd.native == "/x"
    with pytest.raises(Ended, match="--cwd"):
        await there("cmd", info=info)


async def test_a_folder_of_another_kind_of_machine_is_passed_on_but_not_built_upon() -> None:
    info = EnvironmentInfo(shell=SHELL, cwd="file:///C:/x")
    assert str((await there("cmd", info=info)).cwd) == "file:///C:/x"
    with pytest.raises(Ended, match="cannot run there"):
        await there("--cwd", "sub", "cmd", info=info)


async def test_the_kind_of_our_terminal_goes_along(
    sized: TerminalSize, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "vt100")
    request = await there("--tty", "cmd")
    assert request.env == {"TERM": "vt100"}
    assert request.terminal_size == sized
    assert (await there("--tty", "-e", "TERM=x", "cmd")).env == {"TERM": "x"}
    assert (await there("cmd")).env == {}


@pytest.mark.usefixtures("sized")
async def test_a_server_that_knows_no_sizes_is_told_none() -> None:
    info = EnvironmentInfo(shell=SHELL, cwd="file:///srv")
    assert (await there("--tty", "cmd", info=info)).terminal_size is None


@pytest.mark.parametrize("arguments", [["\udcff"], ["-e", "A=\udcff", "cmd"]])
async def test_what_json_cannot_carry_is_refused(arguments: list[str]) -> None:
    with pytest.raises(Ended, match="UTF-8"):
        await there(*arguments)
    await here(*arguments)


# -- sandboxes


async def test_a_sandbox_has_the_folder_of_the_command_as_its_workspace(tmp_path: Path) -> None:
    assert (await here("cmd")).sandbox is None
    request = await here("--sandbox", "workspace-write", "--cwd", str(tmp_path), "cmd")
    assert request.sandbox is not None
    assert request.sandbox.cwd == request.cwd
    assert request.sandbox.workspace_roots == (request.cwd,)
    assert (await here("--sandbox", "disabled", "cmd")).sandbox is None
    remote = await there("--sandbox", "read-only", "--cwd", "sub", "cmd")
    assert remote.sandbox is not None
    assert remote.sandbox.workspace_roots == (remote.cwd,)


async def test_a_profile_that_is_none_is_no_error_of_the_command() -> None:
    with pytest.raises(Ended) as end:
        await here("--sandbox", "nonsense", "cmd")
    assert end.value.status == 125
    assert end.value.text is not None
    assert "nonsense" in end.value.text
    assert not end.value.text.startswith("cannot start")


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
    [
        (None, "No such file or directory"),
        (b"\n", "there is no token"),
        (b"\xff", "not valid UTF-8"),
    ],
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
