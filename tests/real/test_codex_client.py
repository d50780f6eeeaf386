"""The real Codex as a client of ours: a scripted model makes it use the tools, on our server."""

import asyncio
import base64
import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

import holdfast
from holdfast.agent.unified_exec import ImageResult, Options, UnifiedExec
from tests.e2e.cutting import cutting
from tests.e2e.wire import HOLDFAST, LIMIT, Fifo, ServerProcess, gone, readable, serving
from tests.real import mcp
from tests.real.codex import codex, codex_env
from tests.real.model import Item, Model, Turn, patch, playing, run, type_in, use

pytestmark = [
    pytest.mark.real,
    pytest.mark.slow,
    pytest.mark.timeout(90),
    pytest.mark.in_turn("where", "websocket", "stdio"),
]

CONFIG = """\
model = "gpt-5.5"
model_provider = "scripted"
approval_policy = "never"
sandbox_mode = "{sandbox}"
check_for_update_on_startup = false
[analytics]
enabled = false
[model_providers.scripted]
name = "scripted"
base_url = "{url}"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 0
"""


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with serving() as server:
        yield server
        assert server.errors == ""


def environment(**keys: object) -> str:
    """An `environments.toml` with one environment."""
    return f'default = "ours"\ninclude_local = false\n[[environments]]\nid = "ours"\n{table(keys)}'


def table(keys: dict[str, object]) -> str:
    return "".join(f"{key} = {json.dumps(value)}\n" for key, value in keys.items())


CERTIFICATES = Path(__file__).parents[1] / "unit" / "engine" / "http"

STDIO = environment(program=HOLDFAST[0], args=[*HOLDFAST[1:], "serve", "--listen", "stdio"])


async def play(
    folder: Path,
    turns: Sequence[Turn],
    *,
    url: str = "",
    toml: str = "",
    sandbox: str = "danger-full-access",
    config: str = "",
) -> Model:
    """Let Codex follow a script to its end, on the server of a URL or of an `environments.toml`."""
    home, workspace = folder / "home", folder / "workspace"
    workspace.mkdir(exist_ok=True)
    env = codex_env(home)
    if toml:
        (home / "environments.toml").write_text(toml)
    else:
        env["CODEX_EXEC_SERVER_URL"] = url
    async with playing(turns) as model:
        (home / "config.toml").write_text(CONFIG.format(url=model.url, sandbox=sandbox) + config)
        argv = ["exec", "--json", "--skip-git-repo-check", "-C", str(workspace), "go"]
        process = await asyncio.create_subprocess_exec(
            codex(),
            *argv,
            env=env,
            cwd=workspace,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(12 * LIMIT):
                _, errors = await process.communicate()
        finally:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    assert process.returncode == 0, errors.decode(errors="replace")[-500:]
    assert model.finished, "it gave up before the end of the script"
    return model


@pytest.fixture(params=["websocket", "stdio"])
def where(request: pytest.FixtureRequest, server: ServerProcess) -> dict[str, str]:
    """Both ways in which Codex reaches a server."""
    return {"url": server.url} if request.param == "websocket" else {"toml": STDIO}


async def test_a_command_runs_and_its_exit_code_comes_back(
    where: dict[str, str], tmp_path: Path
) -> None:
    model = await play(tmp_path, [[run("c", "echo hello; pwd; echo oops >&2; exit 3")]], **where)
    assert model.exit_code("c") == 3
    assert sorted(model.body("c").split()) == sorted(["hello", str(tmp_path / "workspace"), "oops"])


async def test_much_output_arrives_whole(where: dict[str, str], tmp_path: Path) -> None:
    script = "seq -f 'line %06g' 1 200000; echo the end"
    model = await play(tmp_path, [[run("c", script, yield_time_ms=20000)]], **where)
    assert model.exit_code("c") == 0
    body = model.body("c")  # Codex shortens it: the head and the tail are what it heard
    assert "line 000001\n" in body
    assert body.endswith("line 200000\nthe end\n")


async def test_a_terminal_session_is_typed_into(where: dict[str, str], tmp_path: Path) -> None:
    script = 'test -t 0 && echo ready; while read -r x; do echo "=$x="; done; exit 7'
    turns: list[Turn] = [
        [run("c1", script, tty=True, yield_time_ms=500)],
        lambda model: [type_in("c2", model.session("c1"), "first\n", yield_time_ms=500)],
        lambda model: [type_in("c3", model.session("c1"), "\u0004", yield_time_ms=5000)],
    ]
    model = await play(tmp_path, turns, **where)
    assert "ready" in model.body("c1")
    assert "=first=" in model.body("c2")
    assert model.exit_code("c3") == 7


async def test_control_c_interrupts(where: dict[str, str], tmp_path: Path) -> None:
    script = "trap 'echo caught; exit 42' INT; echo ready; while :; do sleep 0.05; done"
    turns: list[Turn] = [
        [
            run("tty", script, tty=True, yield_time_ms=500),
            run("pipe", script, yield_time_ms=500),
        ],
        lambda model: [
            type_in("tty2", model.session("tty"), "\u0003", yield_time_ms=5000),
            type_in("pipe2", model.session("pipe"), "\u0003", yield_time_ms=5000),
        ],
    ]
    model = await play(tmp_path, turns, **where)
    for call in ("tty2", "pipe2"):
        assert "caught" in model.body(call)
        assert model.exit_code(call) == 42


async def test_calls_of_one_answer_run_side_by_side(where: dict[str, str], tmp_path: Path) -> None:
    calls = [run(f"c{number}", f"echo call {number}; exit {number}") for number in range(12)]
    model = await play(tmp_path, [calls], **where)
    for number in range(12):
        assert model.exit_code(f"c{number}") == number
        assert model.body(f"c{number}") == f"call {number}\n"


async def test_what_is_left_running_is_terminated(where: dict[str, str], tmp_path: Path) -> None:
    script = "echo pid $$; exec sleep 300"
    model = await play(tmp_path, [[run("c", script, yield_time_ms=500)]], **where)
    found = re.search(r"pid (\d+)", model.body("c"))
    assert found is not None
    await gone(int(found[1]))


async def test_a_command_that_cannot_start_is_refused(
    server: ServerProcess, tmp_path: Path
) -> None:
    turns = [[run("c1", "pwd", workdir="/no/such/folder")], [run("c2", "echo still here")]]
    model = await play(tmp_path, turns, url=server.url)
    assert (
        "exec-server rejected request (-32603): No such file or directory (os error 2)"
        in (model.outputs["c1"])
    )
    assert model.body("c2") == "still here\n"


@pytest.mark.requirement("security.token.codex")
async def test_a_token_that_the_server_made_opens_the_door(tmp_path: Path) -> None:
    file = tmp_path / "token"
    with serving("--token-file", str(file), command=(*HOLDFAST, "serve")) as server:
        toml = environment(url=server.url, auth_bearer_token=file.read_text().strip())
        model = await play(tmp_path, [[run("c", "echo inside")]], toml=toml)
    assert model.body("c") == "inside\n"


async def test_codex_comes_by_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, pem = tmp_path / "token", tmp_path / "pem"
    pem.touch(0o600)
    pem.write_text((CERTIFICATES / "localhost.pem").read_text())
    monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATES / "authority.pem"))
    options = ("--token-file", str(file), "--tls-cert", str(pem), "--tls-key", str(pem))
    with serving(*options, command=(*HOLDFAST, "serve")) as server:
        url = server.url.replace("127.0.0.1", "localhost")
        assert url.startswith("wss://")
        toml = environment(url=url, auth_bearer_token=file.read_text().strip())
        model = await play(tmp_path, [[run("c", "echo inside")]], toml=toml)
    assert model.body("c") == "inside\n"


async def test_a_cut_connection_is_not_noticed(server: ServerProcess, tmp_path: Path) -> None:
    with Fifo(tmp_path / "go") as go:
        async with cutting(server.url) as proxy:

            def cut_and_ask(model: Model) -> list[Item]:
                assert proxy.cut()
                go.write()
                return [type_in("c2", model.session("c1"), "", yield_time_ms=20000)]

            script = f"echo before; read x < {go.path}; echo after; exit 5"
            turns: list[Turn] = [[run("c1", script, yield_time_ms=500)], cut_and_ask]
            model = await play(tmp_path, turns, url=proxy.url)
            assert proxy.accepted >= 2
    assert model.body("c1") + model.body("c2") == "before\nafter\n"
    assert model.exit_code("c2") == 5


async def test_a_lost_session_costs_its_process_and_no_more(
    server: ServerProcess, tmp_path: Path
) -> None:
    with serving() as other, Fifo(tmp_path / "go") as go:
        async with cutting(server.url) as proxy:

            def cut_and_ask(model: Model) -> list[Item]:
                proxy.upstream = other.url  # it knows nothing of the session
                assert proxy.cut()
                return [type_in("c2", model.session("c1"), "", yield_time_ms=20000)]

            turns: list[Turn] = [
                [run("c1", f"echo before; read x < {go.path}", yield_time_ms=500)],
                cut_and_ask,
                [run("c3", "echo anew")],
            ]
            model = await play(tmp_path, turns, url=proxy.url)
        go.write()  # nobody hears the end of it
    assert "unknown session id" in model.outputs["c2"]
    assert model.body("c3") == "anew\n"


# -- sandboxes

NOWHERE_ELSE = """\
[sandbox_workspace_write]
exclude_slash_tmp = true
exclude_tmpdir_env_var = true
"""
"""The workspace of a test is in the temporary directory, and so is all that is beside it."""

CONNECT = f"{sys.executable} -c 'import socket; socket.create_connection((\"127.0.0.1\", %d))'"


async def test_a_sandboxed_command_writes_to_the_workspace_and_nowhere_else(
    where: dict[str, str], tmp_path: Path
) -> None:
    turns = [
        [run("in", "echo mine > mine; cat mine")],
        [run("out", "echo theirs > ../theirs")],
        [run("git", "mkdir .git/hooks")],
    ]
    model = await play(tmp_path, turns, **where, sandbox="workspace-write", config=NOWHERE_ELSE)
    # A shell that cannot ask about its input reads the user's profile, which may say something.
    assert model.body("in").endswith("mine\n")
    assert model.exit_code("in") == 0
    assert "Read-only file system" in model.body("out")
    assert "Read-only file system" in model.body("git")
    assert model.exit_code("out") != 0
    assert model.exit_code("git") != 0
    assert contents(tmp_path / "workspace") == {"mine": "mine\n"}
    assert not (tmp_path / "theirs").exists()
    # What was only there to be mounted on is gone.
    assert [path.name for path in (tmp_path / "workspace").iterdir()] == ["mine"]


async def test_a_read_only_command_writes_nothing(where: dict[str, str], tmp_path: Path) -> None:
    turns = [[run("c1", "echo x > x"), run("c2", "cat /etc/passwd; exit 4")]]
    model = await play(tmp_path, turns, **where, sandbox="read-only")
    assert "Read-only file system" in model.body("c1")
    assert "root:" in model.body("c2")
    assert model.exit_code("c2") == 4
    assert contents(tmp_path / "workspace") == {}


@pytest.mark.parametrize("access", [False, True], ids=["without", "with"])
async def test_a_sandboxed_command_has_a_network_if_it_may(
    server: ServerProcess, tmp_path: Path, *, access: bool
) -> None:
    connected = asyncio.Event()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connected.set()
        writer.close()

    listening = await asyncio.start_server(accept, "127.0.0.1", 0)
    async with listening:
        port = listening.sockets[0].getsockname()[1]
        config = NOWHERE_ELSE + table({"network_access": access})
        turns = [[run("c", CONNECT % port)]]
        model = await play(
            tmp_path, turns, url=server.url, sandbox="workspace-write", config=config
        )
    assert connected.is_set() == access
    assert model.exit_code("c") == (0 if access else 1)
    assert ("Operation not permitted" in model.body("c")) is not access


async def test_a_sandboxed_terminal_is_typed_into_and_interrupted(
    where: dict[str, str], tmp_path: Path
) -> None:
    script = (
        "trap 'echo caught; exit 42' INT; read -r x; echo \"=$x=\"; while :; do sleep 0.05; done"
    )
    turns: list[Turn] = [
        [run("c1", script, tty=True, yield_time_ms=500)],
        lambda model: [type_in("c2", model.session("c1"), "first\n", yield_time_ms=500)],
        lambda model: [type_in("c3", model.session("c1"), "\u0003", yield_time_ms=5000)],
    ]
    model = await play(tmp_path, turns, **where, sandbox="workspace-write", config=NOWHERE_ELSE)
    assert "=first=" in model.body("c2")
    assert "caught" in model.body("c3")
    assert model.exit_code("c3") == 42


async def test_sandboxed_calls_of_one_answer_run_side_by_side(
    server: ServerProcess, tmp_path: Path
) -> None:
    calls = [run(f"c{number}", f"echo {number} > f{number}; exit {number}") for number in range(12)]
    model = await play(
        tmp_path, [calls], url=server.url, sandbox="workspace-write", config=NOWHERE_ELSE
    )
    assert [model.exit_code(f"c{number}") for number in range(12)] == list(range(12))
    wanted = {f"f{number}": f"{number}\n" for number in range(12)}
    assert contents(tmp_path / "workspace") == wanted


async def test_a_sandboxed_command_that_is_left_running_ends_with_all_it_started(
    server: ServerProcess, tmp_path: Path
) -> None:
    (tmp_path / "workspace").mkdir()
    up = tmp_path / "workspace" / "up"
    os.mkfifo(up)
    reading = os.open(up, os.O_RDONLY | os.O_NONBLOCK)
    script = "setsid sh -c 'echo up; exec sleep 300' > up & exec sleep 300"
    try:
        model = await play(
            tmp_path,
            [[run("c", script, yield_time_ms=500)]],
            url=server.url,
            sandbox="workspace-write",
            config=NOWHERE_ELSE,
        )
        assert model.session("c")
        async with asyncio.timeout(LIMIT):
            await readable(reading)
            assert os.read(reading, 100) == b"up\n"
            await readable(reading)
            assert os.read(reading, 1) == b""  # nobody has it open any more
    finally:
        os.close(reading)


async def test_a_sandboxed_patch_changes_the_workspace_and_nothing_else(
    where: dict[str, str], workspace: Path
) -> None:
    turns = [
        [patch("in", "*** Add File: new/file.txt\n+first", "*** Delete File: gone.txt")],
        [patch("out", "*** Add File: ../outside.txt\n+x")],
        [patch("git", "*** Add File: .git/hooks/pre-commit\n+x")],
    ]
    options = {**where, "sandbox": "workspace-write", "config": NOWHERE_ELSE}
    model = await play(workspace.parent, turns, **options)
    assert "Success." in model.outputs["in"]
    assert "Success." not in model.outputs["out"]
    assert "Success." not in model.outputs["git"]
    assert contents(workspace) == {
        "old.txt": "alpha\nbeta\ngamma\n",
        "here.txt": "one\ntwo\n",
        "new/file.txt": "first\n",
    }
    assert not (workspace.parent / "outside.txt").exists()
    assert not (workspace / ".git").exists()


async def test_a_managed_network_is_refused_and_nothing_runs_without(
    server: ServerProcess, tmp_path: Path
) -> None:
    config = NOWHERE_ELSE + "network_access = true\n[features]\nnetwork_proxy = true\n"
    model = await play(
        tmp_path,
        [[run("c", "echo ran > ran")]],
        url=server.url,
        sandbox="workspace-write",
        config=config,
    )
    assert "does not support executor-local network proxy launches" in model.outputs["c"]
    assert contents(tmp_path / "workspace") == {}


# -- files


def overheard(folder: Path) -> tuple[str, Callable[[], list[str]]]:
    """An environment whose requests are written down; the methods can be asked for."""
    requests = folder / "requests"
    serve = shlex.join([*HOLDFAST, "serve", "--listen", "stdio"])
    script = f"tee {shlex.quote(str(requests))} | {serve}"
    toml = environment(program="/bin/sh", args=["-c", script])
    return toml, lambda: [json.loads(line)["method"] for line in requests.read_text().splitlines()]


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    (workspace / "old.txt").write_text("alpha\nbeta\ngamma\n")
    (workspace / "gone.txt").write_text("no more\n")
    (workspace / "here.txt").write_text("one\ntwo\n")
    return workspace


def contents(folder: Path) -> dict[str, str]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_text() for path in files}


async def test_a_patch_adds_updates_deletes_and_moves(
    where: dict[str, str], workspace: Path
) -> None:
    lines = (
        "*** Add File: new/deep/file.txt\n+first\n+second",
        "*** Update File: old.txt\n@@\n alpha\n-beta\n+BETA\n gamma",
        "*** Delete File: gone.txt",
        "*** Update File: here.txt\n*** Move to: moved/there.txt\n@@\n one\n-two\n+TWO",
    )
    model = await play(workspace.parent, [[patch("c", *lines)]], **where)
    for told in ("Success.", "A new/deep/file.txt", "M old.txt", "D gone.txt"):
        assert told in model.outputs["c"]
    assert contents(workspace) == {
        "new/deep/file.txt": "first\nsecond\n",
        "old.txt": "alpha\nBETA\ngamma\n",
        "moved/there.txt": "one\nTWO\n",
    }


async def test_a_patch_goes_through_the_server_and_starts_no_process(workspace: Path) -> None:
    toml, methods = overheard(workspace.parent)
    lines = ("*** Add File: new/file.txt\n+x", "*** Delete File: gone.txt")
    await play(workspace.parent, [[patch("c", *lines)]], toml=toml)
    assert {"fs/createDirectory", "fs/writeFile", "fs/remove"} <= set(methods())
    assert "process/start" not in methods()


async def test_a_patch_that_does_not_fit_changes_nothing(
    server: ServerProcess, workspace: Path
) -> None:
    before = contents(workspace)
    turns = [
        [patch("context", "*** Update File: old.txt\n@@\n-not there\n+x")],
        [patch("file", "*** Update File: absent.txt\n@@\n-a\n+b")],
    ]
    model = await play(workspace.parent, turns, url=server.url)
    assert "apply_patch verification failed" in model.outputs["context"]
    assert "No such file or directory (os error 2)" in model.outputs["file"]
    assert contents(workspace) == before


DOT = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="
)


async def test_an_image_is_seen(where: dict[str, str], workspace: Path) -> None:
    (workspace / "dot.png").write_bytes(DOT)
    turns = [
        [use("c", "view_image", path=str(workspace / "dot.png"))],
        [use("absent", "view_image", path=str(workspace / "absent.png"))],
    ]
    model = await play(workspace.parent, turns, **where)
    (image,) = model.images["c"]
    assert image.startswith("data:image/png;base64,")
    assert "No such file or directory (os error 2)" in model.outputs["absent"]


@pytest.mark.requirement("tools.images")
async def test_the_library_shows_and_refuses_images_in_the_same_words(
    where: dict[str, str], workspace: Path
) -> None:
    (workspace / "dot.png").write_bytes(DOT)
    (workspace / "text").write_text("hello")
    (workspace / "cut.png").write_bytes(DOT[:-9])
    (workspace / "link").symlink_to("nowhere")
    paths = ("dot.png", "x/../dot.png", "absent", "text", "text/x", "cut.png", "link", "", "a\0b")
    turns = [[use(f"c{n}", "view_image", path=path)] for n, path in enumerate(paths)]
    model = await play(workspace.parent, turns, **where)
    ours: list[object] = []
    async with (
        holdfast.connect("local", cwd=workspace) as environment,
        UnifiedExec(environment, options=Options(view_image=True)) as tools,
    ):
        for path in paths:
            result = await tools.call("view_image", {"path": path})
            if isinstance(result, ImageResult):
                ours.append([result.object()["image_url"]])
            else:
                ours.append(result.text())
    calls = [f"c{n}" for n in range(len(paths))]
    assert ours == [model.images[call] or model.outputs[call] for call in calls]


async def test_the_instructions_of_the_project_are_read(workspace: Path) -> None:
    (workspace / "AGENTS.md").write_text("Mind the tide.\n")
    toml, methods = overheard(workspace.parent)
    model = await play(workspace.parent, [], toml=toml)
    assert "Mind the tide." in model.told
    assert "fs/readFile" in methods()


async def test_files_are_copied_between_environments(
    server: ServerProcess, workspace: Path
) -> None:
    toml, methods = overheard(workspace.parent)
    toml += f'[[environments]]\nid = "other"\n{table({"url": server.url})}'
    # A block has 2 MiB.
    sizes = (0, 1, 2 << 20, (2 << 20) + 1)
    contents = [(b"0123456789abcde\n" * (size // 16 + 1))[:size] for size in sizes]

    def copy(source: str, name: str, target: str, new_name: str) -> Turn:
        ends = {"source_environment_id": source, "source_path": str(workspace / name)}
        ends |= {"target_environment_id": target, "target_path": str(workspace / new_name)}
        return [use(f"to {new_name}", "multi_env_copy_file", **ends)]

    turns: list[Turn] = []
    for n, content in enumerate(contents):
        (workspace / f"a{n}").write_bytes(content)
        turns += [copy("ours", f"a{n}", "other", f"b{n}"), copy("other", f"b{n}", "ours", f"c{n}")]
    config = "[features]\nmulti_env_copy_file = true\n"
    await play(workspace.parent, turns, toml=toml, config=config)
    for n, content in enumerate(contents):
        assert (workspace / f"b{n}").read_bytes() == content
        assert (workspace / f"c{n}").read_bytes() == content
    assert methods().count("fs/open") == methods().count("fs/close") == 2 * len(sizes)


# -- MCP servers that the server reaches

DEPTH: list[Turn] = [[use("c", "depth", server="harbour", place="quay")]]


async def test_an_mcp_server_runs_where_the_server_is(tmp_path: Path) -> None:
    toml, methods = overheard(tmp_path)
    keys = {
        "command": sys.executable,
        "args": [mcp.__file__],
        "cwd": str(tmp_path),
        "environment_id": "ours",
    }
    config = mcp_config(**keys) + '[mcp_servers.harbour.env]\nTIDE = "ebb"\n'
    model = await play(tmp_path, DEPTH, toml=toml, config=config)
    assert "quay: 7 fathoms, ebb" in model.outputs["c"]
    assert {"process/start", "process/write"} <= set(methods())


async def test_an_mcp_server_is_called_from_where_the_server_is(tmp_path: Path) -> None:
    toml, methods = overheard(tmp_path)
    listener = await asyncio.start_server(mcp.over_http, "127.0.0.1", 0)
    async with listener:
        url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/mcp"
        config = mcp_config(url=url, environment_id="ours")
        config += '[mcp_servers.harbour.http_headers]\nx-harbour = "open"\n'
        model = await play(tmp_path, DEPTH, toml=toml, config=config)
    assert "quay: 7 fathoms" in model.outputs["c"]
    assert "http/request" in methods()


def mcp_config(**keys: object) -> str:
    return f"[mcp_servers.harbour]\nrequired = true\n{table(keys)}"
