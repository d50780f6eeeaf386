"""From what a person says to the environment that is meant."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast
from holdfast.base.errors import ConnectFailed, EnvironmentClosed, InvalidConfig, InvalidParams
from holdfast.client.target import CommandTarget, UnixTarget
from holdfast.client.websocket_target import WebSocketTarget
from holdfast.environments.connect import connect
from holdfast.environments.environment import Environment
from holdfast.environments.local_environment import LocalEnvironment
from holdfast.environments.path_uris import below, folder_of_server
from holdfast.environments.remote import RemoteEnvironment
from holdfast.wire.protocol.handshake import EnvironmentInfo, ShellInfo
from holdfast.wire.protocol.paths import PathUri
from tests.e2e.wire import HOLDFAST, serving


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of our own, without a file and without variables that name a environment."""
    for name in list(os.environ):
        if name.startswith(("HOLDFAST_EXEC", "CODEX_EXEC")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path))
    return tmp_path


def target_of(environment: Environment) -> object:
    assert isinstance(environment, RemoteEnvironment)
    return environment._shared._target


@pytest.mark.parametrize("where", [None, "local"])
async def test_nothing_and_local_mean_this_machine(where: str | None, home: Path) -> None:
    async with connect(where) as env:
        assert isinstance(env, LocalEnvironment)
        assert (await env.run("echo $PPID")).stdout == f"{os.getpid()}\n"


def test_nothing_means_the_server_that_a_variable_names(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_EXEC_SERVER_URL", "ws://127.0.0.1:1")
    monkeypatch.setenv("HOLDFAST_TOKEN", "secret")
    target = target_of(connect())
    assert isinstance(target, WebSocketTarget)
    assert target._headers == {"Authorization": "Bearer secret"}
    assert isinstance(target_of(connect("remote")), WebSocketTarget)
    assert isinstance(connect("local"), LocalEnvironment)


def test_nothing_means_the_default_of_the_file(home: Path) -> None:
    file = home / "environments.toml"
    file.write_text(
        'default = "build"\n[[environments]]\nid = "build"\nurl = "unix:///run/build.sock"\n'
    )
    assert isinstance(target_of(connect()), UnixTarget)
    assert repr(connect()) == (
        "<RemoteEnvironment 'build' at unix:///run/build.sock, not connected>"
    )
    file.write_text('default = "none"\n')
    with pytest.raises(InvalidConfig, match="there is no default environment"):
        connect()
    assert repr(connect("local", cwd="/srv")) == (
        "<LocalEnvironment 'local' at this machine, in /srv, ready>"
    )


@pytest.mark.parametrize(
    ("where", "meant"),
    [
        ("biuld", "build"),
        ("http://example.com", "ws://example.com"),
        ("https://example.com", "wss://example.com"),
        ("unix://run/socket", "unix:///run/socket"),
        ("locla", "local"),
    ],
)
def test_a_typo_is_answered_with_what_may_be_meant(home: Path, where: str, meant: str) -> None:
    (home / "environments.toml").write_text(
        '[[environments]]\nid = "build"\nurl = "ws://127.0.0.1:1"\n'
    )
    with pytest.raises((InvalidConfig, InvalidParams)) as caught:
        connect(where)
    assert f"did you mean `{meant}`?" in str(caught.value)
    assert "protocol error" not in str(caught.value)


def test_each_kind_of_place_is_known_by_its_look() -> None:
    assert isinstance(target_of(connect("ws://127.0.0.1:1")), WebSocketTarget)
    assert isinstance(target_of(connect("wss://example.com", bearer_token="t")), WebSocketTarget)
    assert isinstance(target_of(connect("unix:///run/socket")), UnixTarget)
    assert isinstance(target_of(connect(["ssh", "host", "serve"])), CommandTarget)
    assert connect(["ssh", "a b"]).id == "ssh 'a b'"
    assert connect("ws://127.0.0.1:1").id == "ws://127.0.0.1:1"


def test_a_name_is_looked_up_in_the_file(home: Path) -> None:
    (home / "environments.toml").write_text(
        '[[environments]]\nid = "build"\nurl = "ws://127.0.0.1:1"\n'
        '[[environments]]\nid = "box"\nprogram = "docker"\n'
    )
    assert isinstance(target_of(connect("build")), WebSocketTarget)
    assert isinstance(target_of(connect("box")), CommandTarget)
    assert connect("box").id == "box"
    with pytest.raises(InvalidConfig, match=r"unknown environment id `.*:1` .*`ws://h:1`\?"):
        connect("h:1")
    with pytest.raises(InvalidConfig, match="unknown environment id `other`") as caught:
        connect("other")
    assert "`local`, `build`, `box`" in str(caught.value.advice)


@pytest.mark.parametrize("where", ["", "  ", "http://example.com", "unix://relative"])
def test_what_is_no_place_is_refused_with_what_could_be_one(where: str, home: Path) -> None:
    with pytest.raises(InvalidParams, match=r"is not an environment.*: expected `local`, ws://"):
        connect(where)


def test_a_command_that_is_empty_is_refused() -> None:
    with pytest.raises(InvalidParams, match="empty"):
        connect([])


@pytest.mark.parametrize("where", [None, "unix:///x", ["serve"], "name", "ssh://host"])
def test_a_token_goes_with_a_url_only(where: str | list[str] | None) -> None:
    with pytest.raises(InvalidParams, match="a bearer token can only be used with"):
        connect(where, bearer_token="t")


def test_only_a_host_can_be_installed_on() -> None:
    assert connect("ssh://someone@host:22", install=True).is_remote
    with pytest.raises(InvalidParams, match="behind ssh://"):
        connect("ws://127.0.0.1:1", install=True)


@pytest.mark.slow
async def test_a_block_connects_and_closes() -> None:
    with serving() as server:
        async with connect(server.url) as env:
            assert (await env.status()).state == "ready"
            assert (await env.run("echo $PPID")).stdout == f"{server.serving_pid}\n"
            process = await env.start(["sleep", "600"])
        with pytest.raises(EnvironmentClosed):
            await env.run("true")
        # It was ended by us, and not later by the server.
        assert process.verdict is not None


async def test_a_block_that_cannot_connect_fails_at_its_beginning() -> None:
    with pytest.raises(ConnectFailed):
        async with connect("ws://127.0.0.1:1"):
            raise AssertionError("it has connected")


@pytest.mark.slow
async def test_relative_paths_begin_in_the_folder_of_the_server(tmp_path: Path) -> None:
    command = [
        *("/usr/bin/env", "-C", str(tmp_path)),
        *HOLDFAST,
        *("serve", "--listen", "stdio"),
    ]
    async with connect(command) as env:
        assert (await env.uri()).native == str(tmp_path)
        await env.files.write("x", "hello")
        assert (await env.run("cat x")).stdout == "hello"
    (tmp_path / "sub").mkdir()
    async with connect(command, cwd="sub") as env:
        assert (await env.run("pwd")).stdout == f"{tmp_path}/sub\n"


async def test_relative_paths_begin_here_in_the_folder_of_this_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    async with connect(cwd="sub") as env:
        assert (await env.run("pwd")).stdout == f"{tmp_path}/sub\n"
        assert (await env.uri("x/../y")).native == f"{tmp_path}/sub/y"
        assert (await env.uri(Path("/x"))).native == "/x"
        uri = PathUri.from_path("/z")
        assert await env.uri(uri) is uri
    async with connect(cwd=uri) as env:
        assert await env.uri() is uri


@pytest.mark.parametrize(
    ("told", "folder"),
    [
        ({"cwd": "file:///srv"}, "file:///srv"),
        ({"cwd": "/srv"}, "file:///srv"),
        ({"user_home_dir": "file:///home/x"}, "file:///home/x"),
        ({"cwd": "not a uri", "user_home_dir": "file:///home/x"}, "file:///home/x"),
        ({}, "file:///"),
    ],
)
def test_the_folder_of_a_server_is_what_it_tells(told: dict[str, str], folder: str) -> None:
    info = EnvironmentInfo(shell=ShellInfo(name="sh", path="/bin/sh"), **told)  # type: ignore[arg-type]
    assert str(folder_of_server(info)) == folder


def test_nothing_is_below_a_folder_of_another_kind_of_machine() -> None:
    with pytest.raises(InvalidParams, match="give a PathUri"):
        below(PathUri.parse("file:///C:/work"), "x")


def test_the_package_offers_it_without_loading_it() -> None:
    code = (
        "import holdfast, sys;"
        "print([m for m in sys.modules if m.startswith('holdfast.')]);"
        "print(holdfast.connect.__name__, holdfast.sync.connect.__name__)"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=10, check=True
    )
    loaded = ["holdfast.base", "holdfast.base.late_import", "holdfast.base.version"]
    assert found.stdout == f"{loaded}\nconnect connect\n"
    assert holdfast.connect is connect


def test_a_token_does_not_cross_a_network_in_the_clear() -> None:
    with pytest.raises(InvalidConfig, match="require wss:// or a loopback destination"):
        connect("ws://example.com", bearer_token="t")


def test_a_sandbox_is_looked_at_before_anything_is_connected(tmp_path: Path) -> None:
    assert connect().sandbox is None
    assert connect(sandbox="read-only").sandbox is not None
    with pytest.raises(InvalidParams, match="unknown sandbox profile `none`"):
        connect(sandbox="none")
    with pytest.raises(InvalidParams, match="No such file"):
        connect(sandbox=tmp_path / "ci.toml")


@pytest.mark.parametrize("where", [5, ["ssh", 5], {"url": "ws://127.0.0.1:1"}])
def test_a_place_is_a_text_or_a_command(where: object) -> None:
    with pytest.raises(
        TypeError, match="where must be a string, or a command as a list of strings"
    ):
        connect(where)  # type: ignore[arg-type]
