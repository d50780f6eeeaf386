"""The default environment, honoured by every way to run something, and two listeners at once."""

import os
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast.front.cli.__main__ import main
from tests.e2e.wire import HOLDFAST, LIMIT, ServerProcess, serving


@pytest.fixture(scope="module")
def far(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServerProcess, Path]]:
    """A server with a folder of its own, which listens on a port and on a socket file."""
    folder = tmp_path_factory.mktemp("far")
    listen = ["--listen", f"unix://{folder}/socket", "--listen", "ws://127.0.0.1:0"]
    with serving(*listen, cwd=folder) as server:
        assert server.process.stdout is not None
        assert server.url == f"unix://{folder}/socket"
        server.url = server.process.stdout.readline().decode().strip()
        yield server, folder


def call(home: Path, *words: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    kept = {n: v for n, v in os.environ.items() if "EXEC_SERVER_URL" not in n}
    return subprocess.run(
        [*HOLDFAST, *words],
        env={**kept, "HOLDFAST_HOME": str(home), **variables},
        cwd=home,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=4 * LIMIT,
        check=False,
    )


def test_the_default_of_the_file_is_where_things_run(
    far: tuple[ServerProcess, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    _, folder = far
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path))
    assert main(["env", "add", "build", "--url", f"unix://{folder}/socket", "--default"]) == 0
    capsys.readouterr()
    ran = call(tmp_path, "run", "-v", "--", "pwd")
    assert (ran.returncode, ran.stdout) == (0, f"{folder}\n")
    assert ran.stderr == f"holdfast: running on `build`, unix://{folder}/socket, in {folder}\n"
    assert main(["fs", "ls", "-v"]) == 0
    listed = capsys.readouterr()
    assert listed.out == "socket\n"
    assert listed.err == f"holdfast: files of `build`, unix://{folder}/socket\n"
    here = call(tmp_path, "run", "-v", "--on", "local", "--", "pwd")
    assert here.stdout == f"{tmp_path}\n"
    assert here.stderr == f"holdfast: running on this machine, in {tmp_path}\n"
    assert main(["env", "check", "build"]) == 0
    checked = capsys.readouterr().out.split("\n")
    assert checked[0].split()[2:4] == ["SERVER", "PROTOCOL"]
    assert f"holdfast {holdfast.__version__}  0.169.0" in checked[1]
    assert main(["connect", "build"]) == 0
    told = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert (told["server"], told["speaks"]) == (
        f"holdfast {holdfast.__version__}",
        "exec-server 0.169.0",
    )


async def test_the_server_of_the_variable_is_where_things_run(
    far: tuple[ServerProcess, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, folder = far
    ran = call(tmp_path, "run", "--", "pwd", HOLDFAST_EXEC_SERVER_URL=server.url)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, f"{folder}\n", "")
    monkeypatch.setenv("HOLDFAST_EXEC_SERVER_URL", server.url)
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path))
    async with holdfast.connect() as env:
        assert (await env.run("pwd")).stdout == f"{folder}\n"
        assert repr(env) == f"<RemoteEnvironment 'remote' at {server.url}, connected>"


def test_a_variable_that_the_file_overrides_is_named(tmp_path: Path) -> None:
    file = tmp_path / "environments.toml"
    file.write_text('[[environments]]\nid = "build"\nurl = "ws://127.0.0.1:1"\n')
    url = {"HOLDFAST_EXEC_SERVER_URL": "ws://127.0.0.1:2"}
    ignored = f"holdfast: HOLDFAST_EXEC_SERVER_URL is ignored: {file} sets the default\n"
    ran = call(tmp_path, "run", "-v", "--", "pwd", **url)
    assert ran.stderr == f"holdfast: running on this machine, in {tmp_path}\n{ignored}"
    listed = call(tmp_path, "fs", "ls", "-v", **url)
    assert listed.stderr == f"holdfast: files of this machine\n{ignored}"
    assert call(tmp_path, "env", "list", **url).stderr == ignored
    # Who names a place is told nothing, and neither is who does not ask.
    for words in (("run", "-v", "--on", "local"), ("run",)):
        assert "ignored" not in call(tmp_path, *words, "--", "true", **url).stderr
    assert call(tmp_path, "env", "list", "--names", **url).stderr == ""


def test_files_keep_their_modes_and_can_be_moved(
    far: tuple[ServerProcess, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    server, folder = far
    script, secret = tmp_path / "script", tmp_path / "secret"
    for path, mode in ((script, 0o755), (secret, 0o600)):
        path.write_text("x")
        path.chmod(mode)

    def fs(*words: str) -> int:
        return main(["fs", words[0], "--url", server.url, *words[1:]])

    assert fs("mkdir", "new/deep", "other") == 0
    assert fs("put", "script", "secret", "new/deep") == 0
    assert stat.S_IMODE((folder / "new/deep/script").stat().st_mode) == 0o755
    assert stat.S_IMODE((folder / "new/deep/secret").stat().st_mode) == 0o600
    assert fs("mv", "new/deep/script", "new/deep/secret", "other") == 0
    assert sorted(path.name for path in (folder / "other").iterdir()) == ["script", "secret"]
    assert fs("mv", "other", "renamed") == 0
    (tmp_path / "back").mkdir()
    assert fs("get", "renamed/script", "renamed/secret", "back") == 0
    assert stat.S_IMODE((tmp_path / "back/script").stat().st_mode) == 0o755
    assert stat.S_IMODE((tmp_path / "back/secret").stat().st_mode) == 0o600
    assert fs("cp", "renamed/script", "renamed/secret", "nowhere") == 1
    error = f"{folder}/nowhere is not a directory, which several sources need"
    assert error in capsys.readouterr().err


async def test_a_file_error_names_what_was_done_to_which_path(
    far: tuple[ServerProcess, Path], tmp_path: Path
) -> None:
    server, folder = far
    (folder / "file").write_text("x")
    for where, cwd in (("local", folder), (server.url, folder)):
        async with holdfast.connect(where, cwd=cwd) as env:
            with pytest.raises(FileNotFoundError) as missing:
                await env.files.read_text("none")
            assert str(missing.value) == "cannot read none: No such file or directory"
            assert missing.value.filename == f"{folder}/none"
            with pytest.raises(NotADirectoryError, match="cannot write file/x: Not a directory"):
                await env.files.write("file/x", "y")
            with pytest.raises(FileNotFoundError) as source:
                await env.files.copy("none", "there")
            assert str(source.value) == (
                f"cannot copy none to there: {folder}/none: No such file or directory"
            )
            with pytest.raises(FileNotFoundError) as target:
                await env.files.copy("file", "no/such")
            assert f"file to no/such: {folder}/no/such: No such" in str(target.value)
            with pytest.raises(FileNotFoundError, match=r"cannot move none to x: .*/none: No such"):
                await env.files.move("none", "x")
            with pytest.raises(FileNotFoundError, match="cannot run `no-such-program`"):
                await env.run(["no-such-program"])
