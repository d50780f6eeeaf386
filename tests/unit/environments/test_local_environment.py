"""This machine as a environment: always ready, and made of what is in this process."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.base.errors import EnvironmentClosed, SpawnFailed
from holdfast.engine.files.local_files import LocalFileSystem
from holdfast.engine.http.local_http import LocalHttpClient
from holdfast.engine.process.registry import LocalBackend
from holdfast.engine.process.variable_marks import MARK_VARIABLE
from holdfast.environments.environment import Status
from holdfast.environments.local_environment import LocalEnvironment
from holdfast.events import Reason
from holdfast.wire.protocol.fs import GetMetadataParams
from holdfast.wire.protocol.paths import PathUri
from holdfast.wire.protocol.process import OutputChunk, StartParams


def test_nothing_is_made_before_it_is_used() -> None:
    environment = LocalEnvironment()  # there is not even an event loop
    assert (environment.id, environment.is_remote) == ("local", False)
    assert not {"backend", "filesystem", "http"} & vars(environment).keys()


def test_a_second_event_loop_is_refused() -> None:
    """A command that is started there would never be reported as ended."""
    environment = LocalEnvironment()
    assert asyncio.run(environment.run("true")).ok
    with pytest.raises(RuntimeError, match=r"environment `local` was used in another event loop"):
        asyncio.run(environment.run("true"))


async def test_slips_in_opening_it_are_answered_with_the_right_way() -> None:
    environment = LocalEnvironment()
    with pytest.raises(TypeError, match=r"use `async with holdfast\.connect"):
        await environment  # type: ignore[misc]
    sync = pytest.raises(TypeError, match=r"use `async with`, or `with holdfast\.sync\.connect")
    with sync, environment:  # type: ignore[attr-defined]
        pass
    with pytest.raises(TypeError, match=r"a sandbox must be a profile, its name, .*, not bool"):
        await environment.run("true", sandbox=True)  # type: ignore[arg-type]


async def test_each_seam_is_made_once() -> None:
    async with LocalEnvironment() as environment:
        assert isinstance(environment.backend, LocalBackend)
        assert isinstance(environment.filesystem, LocalFileSystem)
        assert isinstance(environment.http, LocalHttpClient)
        assert environment.backend is environment.backend
        assert environment.fail_fast_filesystem is environment.filesystem


@pytest.mark.parametrize("guarded", [False, True])
async def test_a_launched_process_is_followed_by_its_events(guarded: bool) -> None:
    """It has a mark, by which its daemons are found, unless a guardian finds them."""
    show = f'echo "$WHO, ${{{MARK_VARIABLE}:+marked}}"; cat; exit 3'
    async with LocalEnvironment(guarded=guarded) as environment:
        process = await environment.launch(show, env={"WHO": "me", MARK_VARIABLE: ""})
        await process.write(b"in")
        await process.close_stdin()
        output = [event.chunk async for event in process.events() if type(event) is OutputChunk]
        assert b"".join(output) == (b"me, \nin" if guarded else b"me, marked\nin")
        assert (await process.wait()).exit_code == 3
        with pytest.raises(SpawnFailed, match=r"^cannot run `.*true` in `/no`: there is no such"):
            await environment.launch(["true"], cwd="/no")
        with pytest.raises(TypeError, match="limits must be a `Limits`, not int"):
            await environment.launch("true", limits=3)  # type: ignore[arg-type]
    with pytest.raises(EnvironmentClosed):
        await environment.launch("true")


def test_a_process_of_this_machine_needs_little_of_the_package() -> None:
    """`holdfast run` pays for each module with every command."""
    program = """if True:
        import asyncio, sys
        from holdfast.environments.local_environment import LocalEnvironment

        async def main():
            async with LocalEnvironment(guarded=True) as here:
                await (await here.launch(["true"])).wait()

        asyncio.run(main())
        print(*sys.modules)
    """
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    loaded = set(done.stdout.split())
    heavy = {"tempfile", "shutil", "hashlib", "json", "tomllib", "uvloop", "picows", "difflib"}
    assert not loaded & heavy
    assert not {name for name in loaded if name.startswith(("holdfast.client", "holdfast.server"))}


@pytest.mark.requirement("environments.status")
async def test_it_is_always_ready() -> None:
    environment = LocalEnvironment()
    environment.start_connecting()
    assert await environment.status() == Status("ready")
    await environment.wait_ready()
    assert not {"backend", "filesystem", "http"} & vars(environment).keys()
    await environment.aclose()


async def test_it_tells_what_a_server_here_would_tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with LocalEnvironment() as environment:
        monkeypatch.chdir(tmp_path)
        info = await environment.info()
    assert info.cwd == f"file://{tmp_path}"
    assert info.platform_os == "linux"
    assert os.access(info.shell.path, os.X_OK)
    assert info.capabilities.process_resize


async def test_closing_it_kills_what_was_started() -> None:
    async with LocalEnvironment() as environment:
        process = await environment.backend.start(
            StartParams(
                process_id="p",
                argv=["/bin/sleep", "1000"],
                cwd=PathUri.parse("file:///"),
                env={},
                tty=False,
            )
        )
        await environment.filesystem.get_metadata(GetMetadataParams(PathUri.parse("file:///")))
    assert (await process.wait()).reason is Reason.SERVER_STOPPING


async def test_nothing_can_be_done_after_the_close() -> None:
    environment = LocalEnvironment("here")
    await environment.aclose()
    await environment.aclose()
    for use in (
        lambda: environment.backend,
        lambda: environment.filesystem,
        lambda: environment.http,
    ):
        with pytest.raises(EnvironmentClosed, match="environment `here` is closed"):
            use()
    with pytest.raises(EnvironmentClosed):
        await environment.wait_ready()
    with pytest.raises(EnvironmentClosed):
        await environment.info()
    status = await environment.status()
    assert (status.state, status.error) == ("disconnected", str(EnvironmentClosed("here")))
