"""`holdfast token` edits the file of a server, and the server follows at SIGHUP."""

import json
import os
import signal
import stat
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from holdfast.base.token_file import BadTokenFile, read_tokens
from holdfast.client import ExecServerClient
from tests.e2e.wire import HOLDFAST, UPGRADE, ServerProcess, http, serving
from tests.warm import COLD


def token(*arguments: str | Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*HOLDFAST, "token", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "tokens"


def test_a_token_is_added_listed_and_removed(file: Path) -> None:
    added = [token("add", name, "--token-file", file) for name in ("ci", "ci", "laptop")]
    tokens = [one.stdout.strip() for one in added]
    assert [(one.name, one.token) for one in read_tokens(str(file))] == [
        ("ci", tokens[0]),
        ("ci", tokens[1]),
        ("laptop", tokens[2]),
    ]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    listed = json.loads(token("list", "--json", "--token-file", file).stdout)
    assert [one["name"] for one in listed] == ["ci", "ci", "laptop"]
    shown = token("list", "--token-file", file).stdout
    assert not any(one in shown for one in tokens)
    one = listed[0]["fingerprint"]
    assert token("remove", "ci", "--fingerprint", one, "--token-file", file).returncode == 0
    assert [one.token for one in read_tokens(str(file))] == tokens[1:]
    assert token("remove", "ci", "--token-file", file).returncode == 0
    assert [one.token for one in read_tokens(str(file))] == tokens[2:]


def test_comments_and_the_owner_of_a_file_stay(file: Path) -> None:
    file.write_text("# of the team\n\nci 0123456789abcdef\n")
    file.chmod(0o600)
    if os.geteuid() == 0:
        os.chown(file, 0, 65534)
    assert token("add", "laptop", "--token-file", file).returncode == 0
    assert file.read_text().startswith("# of the team\n\nci 0123456789abcdef\nlaptop ")
    if os.geteuid() == 0:
        assert file.stat().st_gid == 65534


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["add", "two words"], "the name 'two words' is not one of at most 64 letters"),
        (["add", "local"], "the name 'local' is one of local, anonymous, which need no token"),
        (["remove", "laptop"], "no token of `laptop` in "),
        (["remove", "ci", "--fingerprint", "00"], "no token of `ci` with the fingerprint"),
    ],
)
def test_what_cannot_be_done_leaves_the_file_as_it_was(
    file: Path, arguments: list[str], text: str
) -> None:
    file.write_text("ci 0123456789abcdef\n")
    file.chmod(0o600)
    done = token(*arguments, "--token-file", file)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("holdfast: ")
    assert text in done.stderr
    assert file.read_text() == "ci 0123456789abcdef\n"
    assert list(file.parent.iterdir()) == [file]


def test_a_removed_token_leaves_a_comment_of_its_length(file: Path) -> None:
    file.write_text("ci 0123456789abcdef\nx\nlaptop 0123456789abcdef")
    file.chmod(0o600)
    for name in ("ci", "default"):
        assert token("remove", name, "--token-file", file).returncode == 0
    assert file.read_text() == "# removed          \n#\nlaptop 0123456789abcdef"
    assert token("add", "ci", "--token-file", file).returncode == 0
    assert [one.name for one in read_tokens(str(file))] == ["laptop", "ci"]


def test_the_last_token_can_be_removed(file: Path) -> None:
    file.write_text("ci 0123456789abcdef\n")
    file.chmod(0o600)
    done = token("remove", "ci", "--token-file", file)
    assert (done.returncode, done.stdout) == (0, "")
    assert "the file has no more tokens: all clients will be refused" in done.stderr
    assert json.loads(token("list", "--json", "--token-file", file).stdout) == []
    again = token("remove", "ci", "--token-file", file)
    assert (again.returncode, "no token of `ci`" in again.stderr) == (1, True)
    assert token("add", "ci", "--token-file", file).returncode == 0
    assert [one.name for one in read_tokens(str(file))] == ["ci"]


def test_a_file_does_not_grow_beyond_what_can_be_read(file: Path) -> None:
    text = f"ci 0123456789abcdef\n#{'x' * (65_536 - 25)}\n"
    file.write_text(text)
    file.chmod(0o600)
    done = token("add", "laptop", "--token-file", file)
    assert (done.returncode, done.stdout) == (1, "")
    assert "it has more than 65,536 bytes" in done.stderr
    assert file.read_text() == text


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may edit the files of others")
def test_root_edits_the_file_of_a_server_that_runs_as_another_user(file: Path) -> None:
    file.write_text("ci 0123456789abcdef\n")
    file.chmod(0o600)
    os.chown(file, 65_534, 65_534)
    assert token("add", "laptop", "--token-file", file).returncode == 0
    assert token("remove", "ci", "--token-file", file).returncode == 0
    listed = json.loads(token("list", "--json", "--token-file", file).stdout)
    assert [one["name"] for one in listed] == ["laptop"]
    about = file.stat()
    assert (about.st_uid, about.st_gid, stat.S_IMODE(about.st_mode)) == (65_534, 65_534, 0o600)
    # A server of root would let that user in.
    with pytest.raises(BadTokenFile, match="it belongs to another user"):
        read_tokens(str(file))


def test_a_file_that_others_can_read_is_refused(file: Path) -> None:
    file.write_text("ci 0123456789abcdef\n")
    file.chmod(0o644)
    for operation in (["add", "x"], ["list"], ["remove", "ci"]):
        done = token(*operation, "--token-file", file)
        assert done.returncode == 1
        assert "others can read it" in done.stderr
    missing = token("remove", "ci", "--token-file", file.with_name("none"))
    assert missing.returncode == 1
    assert "No such file or directory" in missing.stderr


def test_of_several_at_once_none_is_lost(file: Path) -> None:
    names = [f"client{number}" for number in range(8)]
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda name: token("add", name, "--token-file", file), names))
    assert sorted(one.name for one in read_tokens(str(file))) == names


async def answer(server: ServerProcess, token: str) -> int:
    """Return the status with which a server answers a client."""
    headers = {**UPGRADE, "Authorization": f"Bearer {token}"}
    return (await http(server.url, headers=headers)).status


def reload(server: ServerProcess, text: str = "were reloaded") -> str:
    """Send SIGHUP, and return what the server logs, up to a text."""
    seen = len(server.errors)
    server.process.send_signal(signal.SIGHUP)
    while text not in server.errors[seen:]:
        os.sched_yield()
    return server.errors[seen:]


async def test_a_server_follows_at_sighup(file: Path) -> None:
    first = token("add", "first", "--token-file", file).stdout.strip()
    with serving(
        *("--token-file", str(file), "--log-level", "info"),
        command=(*HOLDFAST, "serve", "--config", "/dev/null"),
    ) as server:
        second = token("add", "second", "--token-file", file).stdout.strip()
        assert token("remove", "first", "--token-file", file).returncode == 0
        reload(server)
        assert [await answer(server, one) for one in (first, second)] == [401, 101]
        assert server.warns_of_root is (os.geteuid() == 0)


@pytest.mark.requirement("auth.revoked.last")
async def test_the_last_token_of_a_file_is_revoked_at_sighup(file: Path) -> None:
    only = token("add", "ci", "--token-file", file).stdout.strip()
    command = (*HOLDFAST, "serve", "--config", "/dev/null", "--log-level", "info")
    with serving("--token-file", str(file), command=command) as server:
        async with await ExecServerClient.connect(server.url, bearer_token=only):
            assert token("remove", "ci", "--token-file", file).returncode == 0
            said = reload(server)
        assert f"cannot use the token file {file}: there is no token in it: all clients" in said
        assert "token revoked principal=ci connections=1 sessions=1" in said
        assert await answer(server, only) == 401
        another = token("add", "ci", "--token-file", file).stdout.strip()
        reload(server)
        assert [await answer(server, one) for one in (only, another)] == [401, 101]
        # A file that is missing is more likely a mistake.
        os.unlink(file)
        assert "the previous values stay in use" in reload(server, "stay in use")
        assert await answer(server, another) == 101


async def test_a_secret_that_is_a_pipe_at_the_start_is_kept_at_sighup(file: Path) -> None:
    reader, writer = os.pipe()
    os.write(writer, b"the secret of a pipe\n")
    os.close(writer)
    # The descriptor of `<(command)`, which a warm process does not get.
    command = (*COLD, "serve", "--config", "/dev/null", "--ws-auth", "capability-token")
    path = f"/dev/fd/{reader}"
    with serving("--ws-token-file", path, command=command, pass_fds=[reader]) as server:
        os.close(reader)
        assert await answer(server, "the secret of a pipe") == 101
        said = reload(server, "stay in use")
        assert f"{path}: it is a pipe, which can be read only once; the previous values" in said
        assert await answer(server, "the secret of a pipe") == 101


def test_no_server_starts_with_a_fifo_as_its_secret(file: Path) -> None:
    os.mkfifo(file, 0o600)
    command = (*HOLDFAST, "serve", "--config", "/dev/null", "--ws-auth", "capability-token")
    done = subprocess.run(
        [*command, "--ws-token-file", str(file)],
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    said = f"failed to read websocket auth secret {file}: it is not a regular file\n"
    assert (done.returncode, done.stderr) == (1, f"Error: {said}")


@pytest.mark.requirement("auth.revoked.last")
def test_no_server_starts_without_a_token_in_its_file(file: Path) -> None:
    file.touch(0o600)
    command = [*HOLDFAST, "serve", "--config", "/dev/null", "--token-file", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    assert (done.returncode, "there is no token in it" in done.stderr) == (1, True)
