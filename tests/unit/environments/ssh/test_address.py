"""Hosts as people write them down, for `ssh` and for its URL."""

import pytest

from holdfast.base.errors import ConnectFailed
from holdfast.environments.ssh.address import SERVE, SshAddress, SshCommand


@pytest.mark.parametrize(
    ("url", "destination", "options"),
    [
        ("ssh://host", "host", ()),
        ("ssh://host/", "host", ()),
        ("ssh://Alias", "Alias", ()),
        ("ssh://me@host.example:2222", "me@host.example", ("-p", "2222")),
        ("ssh://a%40b@host", "a@b@host", ()),
        ("ssh://[::1]:22", "::1", ("-p", "22")),
    ],
)
def test_a_url_names_a_host(url: str, destination: str, options: tuple[str, ...]) -> None:
    assert SshAddress.of_url(url) == SshAddress(destination, ("ssh", *options))


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("ssh://", "it names no host"),
        ("http://host", "it has another scheme"),
        ("ssh://host:99999", "Port out of range 0-65535"),
        ("ssh://host/folder", "nothing may follow the host and its port"),
        ("ssh://me:secret@host", "it must not contain a password; use a key"),
        ("ssh://-oProxyCommand=x", "a name must not begin with a dash"),
        ("ssh://-l@host", "a name must not begin with a dash"),
    ],
)
def test_a_url_that_is_none_of_a_host_is_refused(url: str, why: str) -> None:
    with pytest.raises(ConnectFailed) as caught:
        SshAddress.of_url(url)
    assert str(caught.value) == (
        f"`{url.replace('secret', '***')}` is not the URL of a host: {why}; expected `ssh://[USER@]HOST[:PORT]`"
    )


def test_a_command_for_a_host_cannot_be_taken_for_an_option() -> None:
    argv = SshAddress("me@host", ("ssh", "-p", "2222")).argv("echo hello")
    assert argv[-3:] == ["--", "me@host", "echo hello"]
    # One that we started as the master of others would take them along when it ends.
    assert "ControlMaster=no" in argv


@pytest.mark.parametrize(
    ("address", "command"),
    [
        (SshAddress.of_url("ssh://me@host:22"), "holdfast connect ssh://me@host:22"),
        (SshAddress.of_url("ssh://[::1]"), "holdfast connect 'ssh://[::1]'"),
        (
            SshAddress("host", ("ssh", "-J", "gate")),
            "holdfast connect --ssh 'ssh -J gate' ssh://host",
        ),
    ],
)
def test_a_person_is_told_what_to_type(address: SshAddress, command: str) -> None:
    assert address.connect_command == command


@pytest.mark.parametrize(
    ("argv", "ssh", "destination", "arguments"),
    [
        (["ssh", "dev", "holdfast serve --listen stdio"], ["ssh"], "dev", SERVE),
        (["/usr/bin/ssh", "dev", "holdfast", *SERVE], ["/usr/bin/ssh"], "dev", SERVE),
        (
            [
                "ssh",
                "-vp",
                "22",
                "-oBatchMode=yes",
                "-i",
                "key",
                "--",
                "me@dev",
                "holdfast",
                *SERVE,
            ],
            ["ssh", "-vp", "22", "-oBatchMode=yes", "-i", "key"],
            "me@dev",
            SERVE,
        ),
        (
            ["ssh", "dev", "/home/me/.local/share/holdfast/deployed/1.0/bin/holdfast exec-server"],
            ["ssh"],
            "dev",
            ("exec-server",),
        ),
    ],
)
def test_an_ssh_that_starts_a_holdfast_is_known(
    argv: list[str], ssh: list[str], destination: str, arguments: tuple[str, ...]
) -> None:
    assert SshCommand.of_argv(argv) == SshCommand(SshAddress(destination, tuple(ssh)), arguments)


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["ssh"],
        ["ssh", "dev"],
        ["ssh", "dev", "codex exec-server --listen stdio"],
        ["ssh", "dev", "/opt/holdfast/bin/holdfast serve --listen stdio"],
        ["ssh", "dev", "cd work && holdfast serve --listen stdio"],
        ["ssh", "dev", "holdfast serve --listen $LISTEN"],
        ["docker", "exec", "-i", "box", "holdfast", *SERVE],
    ],
)
def test_anything_else_is_taken_as_it_is(argv: list[str]) -> None:
    assert SshCommand.of_argv(argv) is None


@pytest.mark.parametrize(
    ("arguments", "can"),
    [
        (SERVE, True),
        (("exec-server", "--listen=stdio://"), True),
        (("serve", "--concurrent-requests", "1", "--listen", "stdio"), True),
        (("serve", "--listen", "ws://127.0.0.1:0"), False),
        (("serve", "--listen"), False),
        (("serve",), False),
        ((*SERVE, "--keep"), False),
        ((*SERVE, "--attach", "/x"), False),
        (("doctor",), False),
        ((), False),
    ],
)
def test_only_a_server_on_its_streams_can_outlive_them(
    arguments: tuple[str, ...], can: bool
) -> None:
    assert SshCommand(SshAddress("dev"), arguments).can_keep is can


def test_an_option_of_the_user_comes_before_ours() -> None:
    argv = SshAddress("dev", ("ssh", "-o", "ServerAliveInterval=3")).argv("true")
    found = [word for word in argv if word.startswith("ServerAliveInterval=")]
    assert found == ["ServerAliveInterval=3", "ServerAliveInterval=10"]
