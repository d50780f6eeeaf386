"""The line that goes to a host first, and the one that comes back."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.environments.ssh.bootstrap import (
    MARK,
    Gone,
    Missing,
    Once,
    ProgramReady,
    Report,
    ServerKept,
    launch_line,
    read_report,
    removal_line,
)


@pytest.mark.parametrize(
    "line",
    [launch_line("1.0", ["serve"]), launch_line("1.0", ["serve"], keep=True), removal_line()],
)
def test_every_shell_reads_the_line_the_same_way(line: str) -> None:
    script = shlex.split(line)[2]
    assert not set(script) & set("'!\n")


@pytest.mark.parametrize(
    ("line", "report"),
    [
        (f"{MARK}ready\t/usr/bin/holdfast", ProgramReady("/usr/bin/holdfast")),
        (f"{MARK}missing\tLinux x\t/root\t\t", Missing("Linux x", "/root", None, "")),
        (
            f"{MARK}missing\tLinux x\t/root\t/usr/bin/python3\t3.11.2\tcpython-311",
            Missing("Linux x", "/root", "/usr/bin/python3", "3.11.2", "cpython-311"),
        ),
        (
            f"{MARK}kept\t/run/user/1/holdfast-1-a\tc0ffee",
            ServerKept("/run/user/1/holdfast-1-a", "c0ffee"),
        ),
        (f"{MARK}kept\t/run/$(reboot)\tc0ffee", None),
        (f"{MARK}kept\t/run/x\t; reboot", None),
        (f"{MARK}kept\t/run/x", None),
        (f"{MARK}once", Once()),
        (f"{MARK}gone\tit has ended", Gone("it has ended")),
        (f"{MARK}something else", None),
        (f"{MARK}", None),
    ],
)
def test_a_report_is_read(line: str, report: Report | None) -> None:
    assert read_report(line) == report


def run(line: str, home: Path, path: str = "/usr/bin:/bin") -> str:
    env = {"HOME": str(home), "PATH": path}
    return subprocess.run(
        ["/bin/sh", "-c", line], env=env, capture_output=True, text=True, timeout=5
    ).stdout


def program(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def test_the_private_one_comes_first_and_gets_the_arguments(tmp_path: Path) -> None:
    private = program(
        tmp_path / "home folder/.local/share/holdfast/deployed/1.0/bin/holdfast", 'echo "$@"'
    )
    program(tmp_path / "bin/holdfast", "echo holdfast 1.0")
    out = run(
        launch_line("1.0", ["serve", "a b"]), tmp_path / "home folder", f"{tmp_path}/bin:/bin"
    )
    assert out == f"\n{MARK}ready\t{private}\nserve a b\n"


def test_one_on_the_path_has_to_be_of_the_same_version(tmp_path: Path) -> None:
    found = program(tmp_path / "bin/holdfast", "echo holdfast 1.0")
    path = f"{tmp_path}/bin:{os.path.dirname(sys.executable)}:/usr/bin:/bin"
    assert run(launch_line("1.0", []), tmp_path, path).startswith(f"\n{MARK}ready\t{found}\n")
    report = read_report(run(launch_line("1.1", []), tmp_path, path).strip())
    assert isinstance(report, Missing)
    assert report.home == str(tmp_path)
    assert report.python is not None


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ('echo "$@"', "serve a b --keep\n"),
        ('[ "$3" ] && exit 1; echo "$@"', ""),
        ('[ "$3" ] && exit 2; echo "$@"', f"\n{MARK}once\nserve a b\n"),
    ],
)
def test_one_that_does_not_know_the_option_serves_without(
    tmp_path: Path, script: str, said: str
) -> None:
    private = program(tmp_path / ".local/share/holdfast/deployed/1.0/bin/holdfast", script)
    out = run(launch_line("1.0", ["serve", "a b"], keep=True), tmp_path)
    assert out == f"\n{MARK}ready\t{private}\n{said}"


def test_only_our_own_folder_is_removed(tmp_path: Path) -> None:
    private = tmp_path / ".local/share/holdfast/deployed/1.0/bin/holdfast"
    program(private, "")
    (tmp_path / ".local/share/holdfast/mine").write_text("")
    assert run(removal_line(), tmp_path).startswith(f"\n{MARK}removed\t")
    assert os.listdir(tmp_path / ".local/share/holdfast") == ["mine"]
    assert run(removal_line(), tmp_path).startswith(f"\n{MARK}nothing\t")
