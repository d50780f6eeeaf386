"""Paths of the files of `holdfast-sh`, and its settings."""

import os
import platform
from pathlib import Path

import pytest

from holdfast.engine.linux.syscall_numbers import MACHINES
from holdfast.front.drop_in.launcher import make_launcher
from holdfast.front.drop_in.settings import InvalidSettings, ShellSettings, read_settings
from holdfast.front.drop_in.shell_paths import UnusableShellFolder, find_shell_paths


@pytest.mark.requirement("security.shell.private")
def test_the_launcher_is_in_the_cache_and_the_socket_in_the_runtime_directory(
    tmp_path: Path,
) -> None:
    runtime = tmp_path / "run"
    runtime.mkdir(mode=0o700)
    paths = find_shell_paths({"HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(runtime)})
    # Claude Code takes a shell by this word in its path.
    assert "bash" in str(paths.launcher)
    assert paths.launcher.parent == tmp_path / ".cache/holdfast/bash"
    assert paths.socket.parent == runtime / "holdfast-sh"
    assert os.stat(paths.socket.parent).st_mode & 0o777 == 0o700


@pytest.mark.requirement("security.shell.private")
def test_a_runtime_directory_that_others_may_enter_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir(mode=0o755)
    paths = find_shell_paths({"HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path / "run")})
    assert paths.socket.parent == paths.launcher.parent


@pytest.mark.requirement("security.shell.private")
def test_a_link_is_no_private_directory(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to("real")
    with pytest.raises(UnusableShellFolder, match="link: not a folder of this user"):
        find_shell_paths({"HOLDFAST_SH_HOME": str(tmp_path / "link")})
    with pytest.raises(UnusableShellFolder, match="must be a full path"):
        find_shell_paths({"HOLDFAST_SH_HOME": "relative"})


@pytest.mark.requirement("security.shell.private")
def test_a_home_that_cannot_be_used_is_told_with_the_variable_for_another(tmp_path: Path) -> None:
    (tmp_path / "home").touch()
    with pytest.raises(UnusableShellFolder, match="name another directory in HOLDFAST_SH_HOME"):
        find_shell_paths({"HOME": str(tmp_path / "home")})


@pytest.mark.parametrize("machine", sorted(MACHINES))
def test_a_launcher_is_small_and_made_for_each_processor(machine: str) -> None:
    image = make_launcher(machine, socket_path="/run/x.sock", starter=["/usr/bin/python3", "-c"])
    assert image[:4] == b"\x7fELF"
    assert len(image) < 8192
    assert b"/run/x.sock\0" in image


def test_an_address_that_is_too_long_is_named() -> None:
    with pytest.raises(ValueError, match="too long for the address of a socket"):
        make_launcher(platform.machine(), socket_path="/" + "x" * 107, starter=["/bin/true"])


@pytest.mark.requirement("security.shell.confines")
def test_without_a_file_commands_may_write_to_their_folder_only(tmp_path: Path) -> None:
    settings = read_settings({"HOLDFAST_HOME": str(tmp_path)})
    assert settings == ShellSettings()
    assert (settings.sandbox, settings.policy) == ("workspace-write", None)


def test_variables_win_over_the_file(tmp_path: Path) -> None:
    (tmp_path / "sh.toml").write_text(
        'sandbox = "none"\nshell = "/bin/zsh"\nrules = ["/a"]\n[limits]\nwall_time = 5\n'
    )
    environ = {
        "HOLDFAST_HOME": str(tmp_path),
        "HOLDFAST_SH_SANDBOX": "read-only",
        "HOLDFAST_SH_RULES": "/b:/c",
        "HOLDFAST_SH_LIMIT_CPU_TIME": "7",
    }
    settings = read_settings(environ)
    assert (settings.sandbox, settings.shell) == ("read-only", "/bin/zsh")
    assert settings.rules == ("/b", "/c")
    assert (settings.limits.wall_time, settings.limits.cpu_time) == (5, 7)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("sandbx = 1", "unknown setting `sandbx`"),
        ("sandbox = 1", "`sandbox` is a text, not 1"),
        ("limits = 1", "`limits` is a table"),
        ("[limits]\ntime = 1", "unknown setting `limits.time`"),
        ("[limits]\nwall_time = -1", "limit wall_time must be more than 0"),
        ("[limits]\nwall_time = 'x'", "limit wall_time: expected seconds"),
        ('rules = "x"', "`rules` is a list of paths"),
        ("[", "not a TOML file"),
        ("x" * (1 << 20) + "x", "larger than"),
    ],
)
def test_a_file_that_makes_no_sense_is_named(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "sh.toml"
    path.write_text(content)
    with pytest.raises(InvalidSettings) as raised:
        read_settings({"HOLDFAST_SH_CONFIG": str(path)})
    assert said in str(raised.value)
    assert str(path) in str(raised.value)
