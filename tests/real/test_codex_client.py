"""The real Codex as a client of ours: a scripted model makes it run commands on our server."""

import asyncio
import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from tests.e2e.cutting import cutting
from tests.e2e.wire import HOLDFAST, LIMIT, Fifo, ServerProcess, gone, serving
from tests.real.codex import codex, codex_env
from tests.real.model import Item, Model, Turn, playing, run, type_in

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.timeout(90)]

CONFIG = """\
model = "gpt-5.5"
model_provider = "scripted"
approval_policy = "never"
sandbox_mode = "danger-full-access"
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
    lines = "".join(f"{key} = {json.dumps(value)}\n" for key, value in keys.items())
    return f'default = "ours"\ninclude_local = false\n[[environments]]\nid = "ours"\n{lines}'


STDIO = environment(program=HOLDFAST[0], args=[*HOLDFAST[1:], "serve", "--listen", "stdio"])


async def play(folder: Path, turns: Sequence[Turn], *, url: str = "", toml: str = "") -> Model:
    """Let Codex follow a script to its end, on the server of a URL or of an `environments.toml`."""
    home, workspace = folder / "home", folder / "workspace"
    workspace.mkdir()
    env = codex_env(home)
    if toml:
        (home / "environments.toml").write_text(toml)
    else:
        env["CODEX_EXEC_SERVER_URL"] = url
    async with playing(turns) as model:
        (home / "config.toml").write_text(CONFIG.format(url=model.url))
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


async def test_a_bearer_token_opens_the_door(tmp_path: Path) -> None:
    digest = hashlib.sha256(b"sesame").hexdigest()
    with serving("--ws-auth", "capability-token", "--ws-token-sha256", digest) as server:
        toml = environment(url=server.url, auth_bearer_token="sesame")
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
