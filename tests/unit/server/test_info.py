"""Description of this machine for clients."""

import os
import pwd
import re
from pathlib import Path

import pytest

from holdfast.server.info import CAPABILITIES, environment_info, login_shell
from holdfast.wire.protocol.handshake import Capabilities


@pytest.mark.requirement("environment.info")
def test_a_machine_is_described(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    info = environment_info({"HOME": "/home/me you"})
    assert info.cwd == tmp_path.as_uri()
    assert info.user_home_dir == "file:///home/me%20you"
    assert info.executor_version == "0.169.0"
    assert info.platform_os == "linux"
    assert info.shell.name in ("bash", "zsh", "sh")
    assert os.access(info.shell.path, os.X_OK)


@pytest.mark.requirement("environment.provider")
def test_the_provider_is_the_same_wherever_a_server_is_started(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    here = environment_info({"HOME": "/a"}).provider_id
    monkeypatch.chdir(tmp_path)
    assert environment_info({"HOME": "/b", "CODEX_HOME": "/c"}).provider_id == here
    assert here is not None
    assert re.fullmatch(r"sha256:[0-9a-f]{64}", here)


@pytest.mark.requirement("environment.temporary")
def test_temporary_folders_come_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)

    def found(**environ: str) -> tuple[list[str], str | None]:
        info = environment_info(environ)
        return list(info.temporary_directories), info.temp_dir

    assert found() == ([], "file:///tmp")
    assert found(TMPDIR="") == ([], "file:///tmp")
    assert found(TMPDIR="/var/tmp") == (["file:///var/tmp"], "file:///var/tmp")
    relative = f"{tmp_path.as_uri()}/sub"
    assert found(TMPDIR="sub") == ([relative], relative)


def test_a_working_folder_that_was_removed_is_not_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    info = environment_info({"HOME": "/home/me", "TMPDIR": "sub"})
    assert info.cwd is None
    assert (list(info.temporary_directories), info.temp_dir) == ([], "file:///tmp")


def test_a_home_that_is_no_path_is_not_told() -> None:
    assert environment_info({"HOME": "relative"}).user_home_dir is None


@pytest.mark.requirement("environment.capabilities")
def test_only_what_is_really_there_is_claimed() -> None:
    claimed = {name for name in Capabilities.__struct_fields__ if getattr(CAPABILITIES, name)}
    assert claimed == {
        "capability_discovery_sandbox",
        "capability_discovery_v2",
        "environment_config_read",
        "file_write_streaming",
        "fs_watch_missing",
        "http_header_env_vars",
        "sandboxed_file_streaming",
        "shell_snapshot_v2",
        "process_hold",
        "process_ack",
        "process_terminate_left",
        "process_unset",
        "process_waiting_for",
        "process_end_marked",
        "file_permissions",
        "file_rename",
        "file_read_limit",
        "process_resize",
        "process_close_stdin",
        "process_list",
        "process_signal_names",
        "process_limits",
    }


def entry(shell: str) -> pwd.struct_passwd:
    return pwd.struct_passwd(("me", "x", 1, 1, "", "/home/me", shell))


@pytest.mark.parametrize(
    ("shell", "expected"),
    [("/bin/sh", "/bin/sh"), ("", "/bin/sh"), ("/usr/bin/fish", "/usr/bin/fish")],
)
def test_the_login_shell_is_that_of_the_user_database(
    monkeypatch: pytest.MonkeyPatch, shell: str, expected: str
) -> None:
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: entry(shell))
    assert login_shell() == expected


def test_a_user_without_an_entry_has_the_systems_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(uid: int) -> pwd.struct_passwd:
        raise KeyError(uid)

    monkeypatch.setattr(pwd, "getpwuid", nobody)
    assert login_shell() == "/bin/sh"


@pytest.mark.parametrize("shell", ["/usr/bin/fish", "/no/such/bash", "/usr/sbin/nologin"])
def test_a_shell_no_client_knows_is_replaced(monkeypatch: pytest.MonkeyPatch, shell: str) -> None:
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: entry(shell))
    info = environment_info({"HOME": "/"})
    assert (info.shell.name, info.shell.path) in (("bash", "/bin/bash"), ("sh", "/bin/sh"))


def test_a_machine_without_an_id_is_known_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_file(*args: object) -> object:
        raise FileNotFoundError

    monkeypatch.setattr("builtins.open", no_file)
    provider = environment_info({"HOME": "/"}).provider_id
    monkeypatch.undo()
    assert provider is not None
    assert provider.startswith("sha256:")
