"""Tests of the recorder, and of a recording that is played again."""

import asyncio

import pytest

from holdfast.backends import ExecBackend
from holdfast.base.errors import ConnectionLost, InvalidParams, SpawnFailed
from holdfast.engine.process.registry import LocalBackend
from holdfast.environments.local_environment import LocalEnvironment
from holdfast.events import Closed, Exited, Reason
from holdfast.testing import (
    CODEX,
    HOLDFAST,
    Asked,
    FakeBackend,
    LostProcess,
    RecordedEnvironment,
    Recorder,
    Recording,
    replay,
)
from holdfast.wire.protocol.paths import PathUri
from holdfast.wire.protocol.process import OutputChunk, StartParams


def request(process_id: str, *argv: str) -> StartParams:
    return StartParams(
        process_id=process_id,
        argv=list(argv),
        cwd=PathUri.from_path("/"),
        env={"PATH": "/usr/bin:/bin"},
        tty=False,
        pipe_stdin=True,
    )


async def ask_cat(backend: ExecBackend) -> bytes:
    """Let `cat` repeat two words, one after the other."""
    process = await backend.start(request("c", "cat"))
    heard = b""
    events = process.events()
    for word in (b"one ", b"two "):
        await process.write(word)
        while not heard.endswith(word):
            event = await anext(events)
            assert isinstance(event, OutputChunk)
            heard += event.chunk
    await process.close_stdin()
    await process.wait()
    return heard


async def test_a_recording_has_everything_in_order() -> None:
    async with LocalBackend() as backend, Recorder(backend) as recorder:
        assert await ask_cat(recorder) == b"one two "
        recording = recorder.recording
        await recording.until(lambda: isinstance(recording.entries[-1].what, Closed))
    assert [type(entry.what) for entry in recording if entry.process_id == "c"][:5] == [
        StartParams,
        Asked,
        OutputChunk,
        Asked,
        OutputChunk,
    ]
    assert recording.input("c") == recording.output("c", "stdout") == b"one two "
    assert [call.call for call in recording.calls("c")] == ["write", "write", "close_stdin"]
    verdict = recording.verdict("c")
    assert verdict is not None
    assert verdict.ok
    assert (recording.starts[0].argv, recording.failures, recording.truncated) == (
        ["cat"],
        [],
        False,
    )


async def test_a_recording_is_played_again() -> None:
    recording = Recording()
    async with LocalBackend() as backend, Recorder(backend, recording) as recorder:
        with pytest.raises(SpawnFailed):
            await recorder.start(request("n", "no-such-program"))
        heard = await ask_cat(recorder)
        sleeper = await recorder.start(request("s", "sleep", "600"))
        await sleeper.terminate()
        await sleeper.wait()
        await recording.until(lambda: sum(isinstance(it.what, Closed) for it in recording) == 2)
    async with replay(recording) as again:
        with pytest.raises(SpawnFailed):
            await again.start(request("n", "no-such-program"))
        assert await ask_cat(again) == heard
        second = await again.start(request("s", "sleep", "600"))
        assert second.verdict is None  # it waits to be killed, as it did
        await second.terminate()
        assert (await second.wait()).reason is Reason.TERMINATED
        # A command that was not recorded is the test's.
        await again.start(request("x", "cat"))
        again.processes[-1].end()


@pytest.mark.parametrize("output", [b"", b"half"])
async def test_a_loss_is_recorded_and_played_again(output: bytes) -> None:
    async with FakeBackend(remote=True) as backend, Recorder(backend) as recorder:
        await recorder.start(request("p", "make"))
        if output:
            backend.processes[0].output(output)
        backend.lose_for_good(ConnectionLost("gone"))
        recording = recorder.recording
        await recording.until(lambda: isinstance(recording.entries[-1].what, LostProcess))
    # The start itself has not failed.
    assert recording.failures == []
    async with replay(recording) as again:
        process = await again.start(request("p", "make"))
        async with asyncio.timeout(5):
            with pytest.raises(ConnectionLost, match="gone"):
                await process.wait()
        with pytest.raises(ConnectionLost, match="gone"):
            await process.write(b"more")
        with pytest.raises(ConnectionLost, match="gone"):
            await process.read()
        # Another command is not lost with it: the recorded client may have connected again.
        await again.start(request("x", "cat"))
        again.processes[-1].end()


async def test_an_environment_is_recorded_with_all_its_commands() -> None:
    async with RecordedEnvironment(LocalEnvironment()) as env:
        done = await env.run("echo hello; exit 3", timeout=20)
        assert (done.stdout, done.exit_code) == ("hello\n", 3)
        assert (await env.files.exists("/etc/passwd"), env.where) == (True, "this machine")
        recording = env.recording
        (start,) = recording.starts
        await recording.until(lambda: recording.verdict(start.process_id) is not None)
    assert recording.output(start.process_id) == b"hello\n"


async def test_a_recording_is_bounded_and_a_failed_call_is_in_it() -> None:
    recording = Recording(max_bytes=10)
    async with FakeBackend() as backend, Recorder(backend, recording) as recorder:
        process = await recorder.start(request("p", "fake"))
        (fake,) = backend.processes
        fake.output(b"12345678")
        fake.output(b"more than is left")
        fake.output(b"9")
        fake.refuse("signal", InvalidParams("no"))
        with pytest.raises(InvalidParams):
            await process.signal("SIGHUP")
        fake.end(1)
        await recording.until(lambda: recording.verdict("p") is not None)
        await asyncio.sleep(0)
    assert (recording.output("p"), recording.truncated) == (b"123456789", True)
    assert Asked("signal", ("SIGHUP",)) in recording.calls("p")
    assert sum(isinstance(entry.what, Exited) for entry in recording) == 1


def test_a_recorder_offers_what_its_backend_does() -> None:
    class Plain:
        start = FakeBackend().start

    assert Recorder(FakeBackend.codex()).capabilities == CODEX
    # A server takes a backend that does not tell for one that can do everything.
    assert Recorder(Plain()).capabilities == HOLDFAST
