"""`holdfast fs` as a person or a script calls it: here, and on a server."""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.wire import HOLDFAST, LIMIT, ServerProcess
from tests.warm import COLD

pytestmark = pytest.mark.in_turn("fs", "url", "cmd")

Run = Callable[..., "subprocess.CompletedProcess[bytes]"]

BIG = 5 * (1 << 20) + 11


@pytest.fixture(params=["here", "url", "cmd"])
def fs(request: pytest.FixtureRequest, server: ServerProcess, tmp_path: Path) -> Run:
    """Runs an operation in a folder of its own."""
    serve = " ".join([*HOLDFAST, "serve", "--listen", "stdio"])
    target = {"here": [], "url": ["--url", server.url], "cmd": ["--cmd", serve]}[request.param]

    def run(operation: str, *options: str, **more: object) -> "subprocess.CompletedProcess[bytes]":
        return subprocess.run(  # type: ignore[call-overload, no-any-return]
            [*HOLDFAST, "fs", operation, *target, *options],
            cwd=tmp_path,
            capture_output=True,
            timeout=4 * LIMIT,
            check=False,
            **more,
        )

    return run


def done(result: "subprocess.CompletedProcess[bytes]") -> str:
    assert (result.returncode, result.stderr) == (0, b"")
    return result.stdout.decode()


def test_a_folder_is_listed(fs: Run, tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d/f é").write_bytes(b"12345")
    (tmp_path / "link").symlink_to("d")
    assert done(fs("ls", str(tmp_path))) == "d/\nlink/\n"
    assert done(fs("ls", "-r", str(tmp_path))) == "d/\nd/f é\n"
    long = done(fs("ls", "-la", f"{tmp_path}/d")).split()
    assert (long[0], long[1], long[-2:]) == ("f", "5", ["f", "é"])
    (entry,) = json.loads(done(fs("ls", "--json", f"{tmp_path}/d")))
    assert entry["path"] == f"file://{tmp_path}/d/f%20%C3%A9"
    assert (entry["name"], entry["kind"], entry["size"]) == ("f é", "file", 5)
    assert done(fs("ls", f"file://{tmp_path}/d/f%20%C3%A9")) == f"file://{tmp_path}/d/f%20%C3%A9\n"
    assert done(fs("ls", str(tmp_path), f"{tmp_path}/d")).count(":\n") == 2


def test_what_cannot_be_listed_is_told_and_the_rest_is_listed(fs: Run, tmp_path: Path) -> None:
    (tmp_path / "good").touch()
    os.mkdir(os.fsencode(tmp_path) + b"/bad\xff")  # no name that the protocol can spell
    result = fs("ls", "-r", str(tmp_path))
    assert result.returncode in {1, 4}
    assert result.stdout == b"good\n"
    assert result.stderr.startswith(b"holdfast: ")


def test_files_go_there_and_back(fs: Run, tmp_path: Path) -> None:
    data = os.urandom(BIG)
    (tmp_path / "big").write_bytes(data)
    (tmp_path / "far").mkdir()
    done(fs("put", "big", f"{tmp_path}/far/"))
    assert (tmp_path / "far/big").read_bytes() == data
    done(fs("get", f"{tmp_path}/far/big", "back"))
    assert (tmp_path / "back").read_bytes() == data
    assert fs("cat", f"{tmp_path}/far/big", f"{tmp_path}/far/big").stdout == data * 2
    assert sorted(os.listdir(tmp_path)) == ["back", "big", "far"]


def test_a_dash_is_a_standard_stream(fs: Run, tmp_path: Path) -> None:
    done(fs("put", "-", f"{tmp_path}/f", input=b"piped"))
    assert (tmp_path / "f").read_bytes() == b"piped"
    assert done(fs("get", f"{tmp_path}/f", "-")) == "piped"


def test_folders_go_there_and_back(fs: Run, tmp_path: Path) -> None:
    (tmp_path / "d/e").mkdir(parents=True)
    (tmp_path / "d/empty").mkdir()
    for number in range(9):
        (tmp_path / f"d/e/{number}").write_text(str(number))
    assert fs("put", "d", f"{tmp_path}/far").returncode == 1
    done(fs("put", "-r", "d", f"{tmp_path}/far"))
    assert fs("get", f"{tmp_path}/far").returncode == 1
    done(fs("get", "-r", f"{tmp_path}/far", "back"))
    assert sorted(os.listdir(tmp_path / "back")) == ["e", "empty"]
    assert (tmp_path / "back/e/7").read_text() == "7"


def test_files_are_copied_and_removed(fs: Run, tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "f").write_text("x")
    done(fs("cp", f"{tmp_path}/f", f"{tmp_path}/d"))
    assert (tmp_path / "d/f").read_text() == "x"
    assert fs("cp", f"{tmp_path}/d", f"{tmp_path}/c").returncode == 1
    done(fs("cp", "-r", f"{tmp_path}/d", f"{tmp_path}/c"))
    failed = fs("rm", f"{tmp_path}/d", f"{tmp_path}/f")
    assert failed.returncode == 1
    assert failed.stderr.decode() == (
        f"holdfast: {tmp_path}/d: it is a directory: use -r to include its contents\n"
    )
    assert not (tmp_path / "f").exists()
    done(fs("rm", "-r", f"{tmp_path}/d", f"{tmp_path}/c"))
    done(fs("rm", "-f", f"{tmp_path}/d"))


@pytest.mark.parametrize("operation", ["ls", "cat", "get", "rm", "cp"])
def test_what_is_not_there_has_a_status_of_its_own(fs: Run, tmp_path: Path, operation: str) -> None:
    more = [f"{tmp_path}/x"] if operation == "cp" else []
    missing = fs(operation, f"{tmp_path}/none", *more)
    assert missing.returncode == 4
    assert missing.stderr.decode().endswith(": No such file or directory\n")
    assert missing.stderr.count(b"\n") == 1


def test_a_source_that_is_not_there_is_not_sent(fs: Run, tmp_path: Path) -> None:
    (tmp_path / "old").write_text("old")
    assert fs("put", "none", f"{tmp_path}/old").returncode == 4
    assert (tmp_path / "old").read_text() == "old"


def test_a_download_goes_on_where_it_stopped(fs: Run, tmp_path: Path) -> None:
    original = tmp_path / "original"
    original.write_bytes(b"a" * BIG)
    stat = original.stat()
    stamp = f"{stat.st_size}-{stat.st_mtime_ns // 1_000_000}"
    part = tmp_path / f".copy.{stamp}.part"
    part.write_bytes(b"b" * 1000)
    (tmp_path / ".copy.5-5.part").write_bytes(b"of another original")
    done(fs("get", "--resume", str(original), "copy"))
    assert (tmp_path / "copy").read_bytes() == b"b" * 1000 + b"a" * (BIG - 1000)
    part.write_bytes(b"b" * 1000)
    done(fs("get", str(original), "copy"))
    assert (tmp_path / "copy").read_bytes() == b"a" * BIG
    assert sorted(os.listdir(tmp_path)) == ["copy", "original"]


def test_an_upload_that_is_killed_leaves_the_old_file(
    server: ServerProcess, tmp_path: Path
) -> None:
    (tmp_path / "f").write_text("old")
    before = os.listdir(tmp_path)
    argv = [*COLD, "fs", "put", "--url", server.url, "-", str(tmp_path / "f")]
    with subprocess.Popen(argv, stdin=subprocess.PIPE) as putting:
        assert putting.stdin is not None
        # More than pipes hold: some of it is on its way.
        putting.stdin.write(b"new" * BIG)
        putting.kill()
    done(
        subprocess.run(
            [*HOLDFAST, "fs", "ls", "--url", server.url], capture_output=True, check=False
        )
    )
    assert (tmp_path / "f").read_text() == "old"
    assert os.listdir(tmp_path) == before


def test_without_a_connection_there_is_nothing() -> None:
    for target in (["--url", "ws://127.0.0.1:1"], ["--cmd", "false"], ["--url", "nonsense"]):
        result = subprocess.run(
            [*HOLDFAST, "fs", "ls", *target, "/"], capture_output=True, timeout=LIMIT, check=False
        )
        assert (result.returncode, result.stdout) == (125, b"")
        assert result.stderr.startswith(b"holdfast: ")


def test_a_mistake_in_the_command_line_is_two() -> None:
    for wrong in (["fs"], ["fs", "mv"], ["fs", "cat"], ["fs", "ls", "--url", "a", "--cmd", "b"]):
        result = subprocess.run([*HOLDFAST, *wrong], capture_output=True, check=False)
        assert result.returncode == 2
