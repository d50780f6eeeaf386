"""Files that a server reads again at SIGHUP."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from time import monotonic

import pytest

from holdfast.base.token_file import NamedToken
from holdfast.server.operate import reloading as module
from holdfast.server.operate.auth import Access, check_tokens
from holdfast.server.operate.listener_auth import ListenerAuth, Part
from holdfast.server.operate.reloading import LiveSettings, Reload, Reloading
from holdfast.wire.transports.transport import Credential


class Files(ListenerAuth):
    """The files of a server, of which the certificate may be on a dead mount."""

    def __init__(self) -> None:
        self.tokens = [NamedToken("ci", "first")]
        super().__init__(Access(lambda: check_tokens(self.tokens)))
        self.revoke = self._revoke
        self.revoked: list[str] = []
        self.reading, self.free = threading.Event(), threading.Event()

    def parts(self) -> Iterator[Part]:
        yield from super().parts()
        yield "the certificate", self._read_certificate

    def _read_certificate(self) -> Callable[[], None]:
        self.reading.set()
        self.free.wait(20)
        return lambda: None

    def _revoke(self, admits: Callable[[Credential], bool]) -> None:
        old = check_tokens([NamedToken("ci", "first")])("Bearer first")
        self.revoked += [] if admits(old) else [old.principal]


def reloading(files: Files) -> tuple[Reloading, asyncio.Queue[Reload]]:
    """Return a handler of SIGHUP, and the results of its reloads."""
    results: asyncio.Queue[Reload] = asyncio.Queue()
    handler = Reloading(files, lambda: None, settings=LiveSettings())
    handler.follow = results.put_nowait
    return handler, results


def test_files_that_hang_at_a_reload_do_not_hold_up_the_end() -> None:
    files = Files()

    async def serve() -> None:
        handler, _ = reloading(files)
        handler.hang_up()
        assert await asyncio.to_thread(files.reading.wait, 20)
        handler.hang_up()  # reads them again after that

    began = monotonic()
    asyncio.run(serve())
    assert monotonic() - began < 10
    files.free.set()


@pytest.mark.both_loops
@pytest.mark.requirement("auth.revoked")
async def test_a_token_is_revoked_while_another_file_hangs() -> None:
    files = Files()
    handler, _ = reloading(files)
    files.tokens = [NamedToken("ci", "second")]
    handler.hang_up()
    async with asyncio.timeout(20):
        while not files.revoked:  # noqa: ASYNC110 - nobody tells of it
            await asyncio.sleep(0.001)
    files.free.set()


@pytest.mark.both_loops
@pytest.mark.requirement("auth.revoked")
async def test_the_next_signal_reads_files_again_that_hung(monkeypatch: pytest.MonkeyPatch) -> None:
    files = Files()
    handler, results = reloading(files)
    async with asyncio.timeout(20):
        monkeypatch.setattr(module, "_SLOW", 0.1)
        for _ in range(module._MOST_STUCK):
            handler.hang_up()
            (problem,) = (await results.get()).problems
            assert problem == "the certificate could not be read within 0.1 s"
        monkeypatch.setattr(module, "_SLOW", 20.0)
        # A thread is left for each, so there is a limit. The other files are read as before.
        files.tokens = [NamedToken("ci", "second")]
        handler.hang_up()
        (problem,) = (await results.get()).problems
        assert (
            problem
            == f"{module._MOST_STUCK} earlier attempts to read the certificate are still blocked"
        )
        assert files.revoked == ["ci"]
        files.free.set()
        while handler._threads["the certificate"].is_full:  # noqa: ASYNC110 - threads tell of no end
            await asyncio.sleep(0.001)
        handler.hang_up()
        assert (await results.get()).problems == []
    # What the old attempts have read since is out of date.
    await asyncio.sleep(0)
    assert results.empty()


@pytest.mark.both_loops
async def test_a_reload_without_a_free_thread_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    handler, results = reloading(Files())
    with monkeypatch.context() as context:
        context.setattr(threading.Thread, "start", refuse)
        handler.hang_up()
    assert results.get_nowait().problems == [
        "the tokens cannot be read: can't start new thread",
        "the certificate cannot be read: can't start new thread",
    ]
