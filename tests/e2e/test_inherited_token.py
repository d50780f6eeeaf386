"""No command inherits `HOLDFAST_TOKEN`: it would reach servers that its sandbox hides from it."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from tests.e2e.app_wire import app_connect, app_serving, sh
from tests.e2e.shells import Shell
from tests.e2e.test_mcp_process import FULL, started
from tests.e2e.wire import HOLDFAST, LIMIT, connect, serving

pytestmark = [pytest.mark.slow, pytest.mark.requirement("env.token")]

LOOK = 'echo "[$HOLDFAST_TOKEN]"'
TOKEN = {"HOLDFAST_TOKEN": "of-another-server"}


@pytest.fixture(autouse=True)
def token(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in TOKEN.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    shell = Shell(tmp_path_factory.mktemp("home"))
    yield shell
    shell.close()


@pytest.mark.parametrize("options", [(), ("--tty",), ("--sandbox", "read-only")])
def test_holdfast_run_passes_it_to_no_command(options: tuple[str, ...]) -> None:
    command = [*HOLDFAST, "run", *options, "--", *sh(LOOK)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT * 4, check=True)
    assert done.stdout.strip() == "[]"


def test_holdfast_run_passes_on_what_it_is_told_to() -> None:
    command = [*HOLDFAST, "run", "--env", "HOLDFAST_TOKEN=given", "--", *sh(LOOK)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT * 4, check=True)
    assert done.stdout == "[given]\n"


async def test_a_local_environment_passes_it_to_no_command() -> None:
    async with holdfast.connect() as here:
        for sandbox in (None, "read-only"):
            assert (await here.run(LOOK, sandbox=sandbox)).stdout == "[]\n"


async def test_a_server_passes_it_to_no_command() -> None:
    policy = {"inherit": "all", "ignoreDefaultExcludes": True, "exclude": [], "set": {}}
    with serving(command=(*HOLDFAST, "exec-server")) as server:
        async with connect(server.url) as client:
            run = await client.run(sh(LOOK), envPolicy={**policy, "includeOnly": []}, env={})
            assert run.stdout == b"[]\n"


async def test_a_server_on_its_streams_gets_none(tmp_path: Path) -> None:
    note = tmp_path / "note"
    serve = " ".join([*HOLDFAST, "serve", "--listen", "stdio"])
    async with holdfast.connect(["/bin/sh", "-c", f"{LOOK} > {note}; exec {serve}"]) as there:
        assert (await there.run(LOOK)).stdout == "[]\n"
    assert note.read_text() == "[]\n"


def test_holdfast_mcp_passes_it_to_no_command(tmp_path: Path) -> None:
    # A login shell runs the start files of a home. Those of the user may wait for a lock.
    with started(tmp_path, *FULL, env={"HOME": str(tmp_path)}) as peer:
        peer.hello()
        for login in (False, True):
            assert peer.run(LOOK, login=login)["output"].strip() == "[]"


async def test_an_app_server_passes_it_to_no_command() -> None:
    with app_serving() as server:
        async with app_connect(server.url) as client:
            assert (await client.run(*sh(LOOK)))["stdout"] == "[]\n"


@pytest.mark.parametrize("sandbox", ["none", "workspace-write"])
def test_holdfast_sh_passes_it_to_no_command(shell: Shell, sandbox: str, tmp_path: Path) -> None:
    env = {**TOKEN, "OTHER": "kept", "EMPTY": "", "LINES": "a\nb=c"}
    line = f'{LOOK}; echo "$0" "$1" "$OTHER" "${{EMPTY-unset}}" "$LINES"'
    done = shell.run("-c", line, "name", "x", cwd=tmp_path, sandbox=sandbox, env=env)
    assert done.stdout == b"[]\nname x kept  a\nb=c\n", done.stderr
