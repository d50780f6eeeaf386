"""`holdfast mcp` as a process of its own: its options, its ends, and what it says to nonsense."""

import json
import os
import re
import select
import signal
import subprocess
import threading
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client

from holdfast.base.local_servers import find_token
from tests.depth import times
from tests.e2e.wire import HOLDFAST, LIMIT, children, gone, is_alive

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

ROOT = Path(__file__).parents[2]

FULL = ("--sandbox", "danger-full-access", "--ask-for-approval", "never")


class Peer:
    """The streams of a server, one message in each line."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self.process = process
        self._number = 0

    def send(self, line: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + b"\n")
        self.process.stdin.flush()

    def receive(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def request(self, method: str, **params: object) -> Any:
        """Send a request and return the whole answer."""
        self._number += 1
        message = {"jsonrpc": "2.0", "id": self._number, "method": method, "params": params}
        self.send(json.dumps(message).encode())
        return self.receive()

    def hello(self) -> Any:
        return self.request(
            "initialize",
            protocolVersion="2025-06-18",
            capabilities={},
            clientInfo={"name": "test", "version": "1"},
        )

    def run(self, cmd: str, **arguments: object) -> Any:
        given = {"cmd": cmd, "login": False, **arguments}
        answer = self.request("tools/call", name="exec_command", arguments=given)
        return answer["result"]["structuredContent"]


@contextmanager
def started(folder: Path, *flags: str, env: dict[str, str] | None = None) -> Iterator[Peer]:
    with subprocess.Popen(
        [*HOLDFAST, "mcp", *flags],
        cwd=folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, **(env or {})},
    ) as process:
        try:
            yield Peer(process)
        finally:
            if process.poll() is None:
                process.terminate()


def ended(folder: Path) -> bool:
    """Return True if the process is gone whose pid a command wrote down."""
    return not Path("/proc", (folder / "pid").read_text().strip()).exists()


def test_the_end_of_its_input_ends_all_commands(tmp_path: Path) -> None:
    with started(tmp_path, *FULL) as peer:
        assert peer.hello()["result"]["serverInfo"]["name"] == "holdfast"
        began = peer.run(
            "echo $$ > pid; setsid sleep 100 & echo $! > other; sleep 100", yield_time_ms=500
        )
        assert "session_id" in began
        pids = [int((tmp_path / name).read_text()) for name in ("pid", "other")]
        assert peer.process.stdin is not None
        peer.process.stdin.close()
        assert peer.process.wait(4 * LIMIT) == 0
        assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def test_a_killed_guardian_ends_all_commands(tmp_path: Path) -> None:
    with started(tmp_path, *FULL) as peer:
        peer.hello()
        peer.run("echo $$ > pid; sleep 100", yield_time_ms=500)
        (worker,) = children(peer.process.pid)
        exit_of_worker = os.pidfd_open(worker)
        peer.process.send_signal(signal.SIGKILL)
        assert select.select([exit_of_worker], [], [], 4 * LIMIT)[0], "it goes on"
        os.close(exit_of_worker)
        assert ended(tmp_path)


@pytest.mark.requirement("auth.revoked")
async def test_a_token_that_is_gone_at_a_reload_is_revoked(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.touch(0o600)
    tokens = {name: f"the-long-token-of-{name}" for name in ("ci", "alice")}
    file.write_text("".join(f"{name} {token}\n" for name, token in tokens.items()))
    flags = (*FULL, "--listen", "http://127.0.0.1:0", "--token-file", str(file))
    with started(tmp_path, *flags) as peer:
        assert peer.process.stdout is not None
        url = peer.process.stdout.readline().decode().strip()
        async with AsyncExitStack() as stack:
            clients = {}
            for name, token in tokens.items():
                headers = {"Authorization": f"Bearer {token}"}
                http = await stack.enter_async_context(create_mcp_http_client(headers=headers))
                over = streamable_http_client(url, http_client=http)
                clients[name] = await stack.enter_async_context(Client(over, mode="2026-07-28"))
            arguments = {"cmd": "echo $$; exec sleep 1000", "login": False, "yield_time_ms": 250}
            pids = {}
            for name, client in clients.items():
                result = await client.call_tool("exec_command", arguments)
                pids[name] = int(result.structured_content["output"])
            file.write_text(f"alice {tokens['alice']}\n")
            peer.process.send_signal(signal.SIGHUP)
            await gone(pids["ci"])
            assert is_alive(pids["alice"])
            listed = await clients["alice"].call_tool("list_sessions", {})
            assert len(listed.structured_content["sessions"]) == 1
            with pytest.raises(Exception, match=r".+"):
                await clients["ci"].call_tool("list_sessions", {})


@pytest.mark.requirement("security.token.made")
async def test_a_server_over_http_ends_with_all_commands(tmp_path: Path) -> None:
    os.chmod(tmp_path, 0o700)
    env = {"XDG_RUNTIME_DIR": str(tmp_path)}
    with started(tmp_path, *FULL, "--listen", "http://127.0.0.1:0", env=env) as peer:
        assert peer.process.stdout is not None
        url = peer.process.stdout.readline().decode().strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/mcp", url)
        # Told nothing, it asks for a token that only its user finds.
        token = find_token(url, env)
        async with create_mcp_http_client() as anybody:
            assert (await anybody.post(url, json={})).status_code == 401
        async with (
            create_mcp_http_client(headers={"Authorization": f"Bearer {token}"}) as http,
            Client(streamable_http_client(url, http_client=http)) as client,
        ):
            arguments = {"cmd": "echo $$ > pid; sleep 100", "login": False, "yield_time_ms": 500}
            assert not (await client.call_tool("exec_command", arguments)).is_error
        peer.process.terminate()
        assert peer.process.wait(4 * LIMIT) == 0
        assert ended(tmp_path)


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b"{nonsense", -32700),
        (b'"text"', -32600),
        (b"[]", -32600),
        (b'[{"jsonrpc": "2.0", "id": 1, "method": "ping"}]', -32600),
        (b'{"id": 7, "method": "ping"}', -32600),
        (b'{"jsonrpc": "2.0", "id": 7, "method": 5}', -32600),
        (b"[" * 100_000, -32700),
        (b"\xff\xfe", -32700),
        (b'{"jsonrpc": "2.0", "id": 7, "method": "caf\xe9"}', -32700),
        (b'{"jsonrpc": "2.0", "id": 7, "method": "\xed\xa0\x80"}', -32700),
        ('{"jsonrpc": "2.0", "id": 7, "method": "ping"}'.encode("utf-16-le"), -32700),
        (b'{"jsonrpc": "2.0", "id": 7, "method": "no/such/method"}', -32601),
        (b'{"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {}}', -32602),
        (
            b'{"jsonrpc": "2.0", "id": 7, "method": "tools/call",'
            b' "params": {"name": "exec_command", "arguments": []}}',
            -32602,
        ),
    ],
)
def test_nonsense_is_answered_and_the_server_goes_on(
    nonsensical: Peer, line: bytes, code: int
) -> None:
    nonsensical.send(line)
    assert nonsensical.receive()["error"]["code"] == code
    assert "result" in nonsensical.request("ping")


@pytest.fixture(scope="module")
def nonsensical(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    with started(tmp_path_factory.mktemp("work"), *FULL) as peer:
        peer.hello()
        yield peer


def test_a_file_has_settings_that_options_overrule(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "mcp.toml").write_text(
        'cwd = "work"\nsandbox = "locked.toml"\nask-for-approval = "never"\n'
    )
    (tmp_path / "locked.toml").write_text(
        '[file_system]\nentries = [{ path = ":root", access = "read" }]\n'
    )
    home = {"HOLDFAST_HOME": str(tmp_path)}
    with started(tmp_path, "--sandbox", "danger-full-access", env=home) as peer:
        peer.hello()
        assert peer.run("pwd; touch made")["output"] == f"{tmp_path / 'work'}\n"
        assert (tmp_path / "work" / "made").exists()
    # Paths in it are relative to it, that of a profile too.
    (tmp_path / "other").mkdir()
    with started(tmp_path / "other", env=home) as peer:
        peer.hello()
        assert peer.run("touch more")["exit_code"] == 1


@pytest.mark.parametrize(
    ("flags", "config", "complaint"),
    [
        (["--cwd", "absent"], "", "--cwd: absent is not a directory"),
        (["--rules", "absent"], "", "--rules: absent is not a file"),
        (["--sandbox", "none"], "", "--sandbox: unknown profile `none`"),
        (["--config", "absent"], "", "absent does not exist"),
        (["--sandbox-write", "../x"], "", "`../x` leads out of the directory"),
        (FULL[:2], "sandbox-write = ['.git']", "--sandbox-write needs a sandbox"),
        ([], "sandbox-write = '.git'", "Expected `array`, got `str` - at `$.sandbox-write`"),
        ([], "sandbox = 3", "Expected `str`, got `int` - at `$.sandbox`"),
        ([], "max-wait = 0", "Expected `float` > 0.0 - at `$.max-wait`"),
        ([], "max-wait = 1e9", "Expected `float` <= 10000000.0 - at `$.max-wait`"),
        ([], "colour = 'red'", "Object contains unknown field `colour`"),
        ([], "= nonsense", "Invalid statement (at line 1, column 1)"),
        (["--listen", "http://0.0.0.0:0"], "", "add `--token-file FILE`"),
        (["--listen", "http://127.0.0.1:0", "--token-file", "absent/file"], "", "No such file"),
        (
            ["--listen", "http://127.0.0.1:0", "--token-file", "/dev/null"],
            "",
            "it is not a regular file",
        ),
        (["--listen", "ws://127.0.0.1:0"], "", "expected `http://IP:PORT` or `stdio`"),
        (["--listen", "unix:///tmp/x"], "", "--listen must be stdio or http://IP:PORT"),
        (["--listen", "http://127.0.0.1:0", "--no-auth"], "token-file = 'x'", "mutually exclusive"),
        (["--listen", "http://127.0.0.1:0"], "token-file = 'mcp.toml'", "others can read it"),
    ],
)
def test_what_it_cannot_do_is_told_at_once(
    tmp_path: Path, flags: Sequence[str], config: str, complaint: str
) -> None:
    (tmp_path / "mcp.toml").write_text(config)
    done = subprocess.run(
        [*HOLDFAST, "mcp", *flags],
        cwd=tmp_path,
        env={**os.environ, "HOLDFAST_HOME": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=12 * LIMIT,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("Error: ")
    assert complaint in done.stderr


@pytest.mark.requirement("mcp.wide-workspace")
@pytest.mark.parametrize(
    ("where", "flags", "config", "said"),
    [
        ("/", [], "", "the whole file system"),
        ("home", [], "", "a home directory"),
        ("home", ["--listen", "http://127.0.0.1:0"], "", "a home directory"),
        (".", ["--sandbox", "all.toml"], "", "a directory above the home"),
        ("home", ["--cwd", "."], "", None),
        ("home", [], "cwd = 'home'", None),
    ],
)
def test_a_home_is_a_workspace_only_if_it_is_named(
    tmp_path: Path, where: str, flags: Sequence[str], config: str, said: str | None
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (tmp_path / "mcp.toml").write_text(config)
    (tmp_path / "all.toml").write_text(
        '[file_system]\nentries = [{ path = ":project_roots", access = "write" }]\n'
    )
    done = subprocess.run(
        [*HOLDFAST, "mcp", *flags],
        cwd=tmp_path / where,
        env={**os.environ, "HOLDFAST_HOME": str(tmp_path), "HOME": str(home)},
        input=b"",
        capture_output=True,
        timeout=12 * LIMIT,
        check=False,
    )
    told = done.stderr.decode()
    if said is None:
        assert done.returncode == 0
        line = f"holdfast mcp: warning: commands may write {home}, a home directory\n"
        assert told == line
    else:
        assert done.returncode == 1
        folder = os.path.realpath(tmp_path / where)
        assert told.startswith(f"Error: the workspace would be {folder}, {said}")
        assert "choose a directory with --cwd DIR" in told


@pytest.mark.requirement("mcp.rules-stay-inside")
@pytest.mark.parametrize("flags", [[], ["--rules-leave-sandbox"]])
def test_rules_that_lift_the_sandbox_are_warned_about(tmp_path: Path, flags: Sequence[str]) -> None:
    done = subprocess.run(
        [*HOLDFAST, "mcp", *flags],
        cwd=tmp_path,
        env={**os.environ, "HOLDFAST_HOME": str(tmp_path)},
        input=b"",
        capture_output=True,
        timeout=12 * LIMIT,
        check=False,
    )
    assert done.returncode == 0
    warned = b"holdfast mcp: warning: commands that rules allow run without a sandbox"
    assert done.stderr.startswith(warned) if flags else not done.stderr


@pytest.mark.requirement("mcp.wide-workspace")
def test_a_home_does_no_harm_where_commands_do_not_write_it(tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path), "HOLDFAST_HOME": str(tmp_path)}
    with started(tmp_path, "--sandbox", "read-only", env=home) as peer:
        assert "result" in peer.hello()
    with started(tmp_path, "--cwd", str(tmp_path), env=home) as peer:
        told = peer.hello()["result"]["instructions"]
        assert f"They may write {tmp_path}, a home directory" in told


@pytest.mark.parametrize("name", ["absent", "file"])
def test_a_directory_that_the_environment_lacks_is_named(tmp_path: Path, name: str) -> None:
    # With such a file the default may be another machine, so it is not checked at once.
    (tmp_path / "environments.toml").write_text("")
    (tmp_path / "file").touch()
    with started(tmp_path, "--cwd", name, env={"HOLDFAST_HOME": str(tmp_path)}) as peer:
        peer.hello()
        answer = peer.request("tools/call", name="exec_command", arguments={"cmd": "pwd"})
        assert answer["result"]["isError"]
        (content,) = answer["result"]["content"]
        assert content["text"] == (
            f"commands cannot be run: --cwd: {name} is not a directory of environment `local`"
        )


def test_rules_that_cannot_be_used_run_nothing(tmp_path: Path) -> None:
    (tmp_path / "broken.rules").write_text("prefix_rule(pattern=[])")
    with started(tmp_path, *FULL, "--rules", "broken.rules") as peer:
        peer.hello()
        answer = peer.request("tools/call", name="exec_command", arguments={"cmd": "touch made"})
        assert answer["result"]["isError"]
        (content,) = answer["result"]["content"]
        assert "commands cannot be run: unusable rules file:" in content["text"]
    assert not (tmp_path / "made").exists()


TOKENS = times(2_000)


def test_thousands_of_progress_tokens_do_no_harm(tmp_path: Path) -> None:
    with started(tmp_path, *FULL) as peer:
        peer.hello()
        calls = b"\n".join(
            json.dumps(
                {
                    "jsonrpc": "2.0",
                    "id": number,
                    "method": "tools/call",
                    "params": {
                        "name": "list_sessions",
                        "arguments": {},
                        "_meta": {"progressToken": f"token {number}"},
                    },
                }
            ).encode()
            for number in range(TOKENS)
        )
        # A client has to read while it writes.
        writer = threading.Thread(target=peer.send, args=(calls,))
        writer.start()
        answered = {peer.receive()["id"] for _ in range(TOKENS)}
        writer.join()
        assert answered == set(range(TOKENS))


_SETTINGS = re.compile(
    r"^<!-- checked: (?P<key>mcpServers|servers|mcp_servers) -->\n"
    r"```(?P<kind>json|toml)\n(?P<text>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)


def documented() -> list[tuple[str, Any]]:
    """The settings for agents in the documentation."""
    found = []
    for document in ("README.md", "docs/mcp.md"):
        for block in _SETTINGS.finditer((ROOT / document).read_text()):
            read = json.loads if block["kind"] == "json" else tomllib.loads
            found.append((document, read(block["text"])[block["key"]]["holdfast"]))
    return found


def test_the_settings_for_agents_start_a_server(tmp_path: Path) -> None:
    settings = documented()
    assert [document for document, _ in settings] == ["README.md"] * 3 + ["docs/mcp.md"] * 4
    paths = ("/home/me/project", "${workspaceFolder}")
    variants = {
        (one["command"], *(str(tmp_path) if word in paths else word for word in one["args"]))
        for _, one in settings
    }
    for command, *arguments in variants:
        assert command == "holdfast"
        assert arguments.pop(0) == "mcp"
        with started(tmp_path, *arguments) as peer:
            peer.hello()
            tools = peer.request("tools/list")["result"]["tools"]
            assert tools[0]["name"] == "exec_command"
