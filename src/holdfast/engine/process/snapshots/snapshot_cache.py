"""Captures shell profiles for `shell_snapshot`, each once, and caches the results."""

import asyncio
from collections.abc import Mapping

from holdfast.base.errors import SpawnFailed
from holdfast.engine.process.child import Child
from holdfast.engine.process.executable_lookup import Launch
from holdfast.engine.process.io.log import OutputLog, Retention
from holdfast.engine.process.io.output_reader import OutputReader
from holdfast.engine.process.sandbox_source import CommandSandbox
from holdfast.engine.process.snapshots.script import (
    CAPTURE_LIMIT,
    CAPTURE_TIMEOUT,
    Snapshot,
    SnapshotCache,
    capture_command,
    parse_capture,
    snapshot_key,
)
from holdfast.wire.protocol.process import ShellSnapshotParams, StartParams

__all__ = ["Snapshots"]


class Snapshots:
    """Cache of one session's snapshots. Starts that need the same one wait for one capture."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._cache: SnapshotCache[asyncio.Future[Snapshot | None]] = SnapshotCache()

    async def get(
        self,
        params: StartParams,
        request: ShellSnapshotParams,
        env: Mapping[str, str],
        sandbox: CommandSandbox | None = None,
    ) -> Snapshot | None:
        """
        Return the snapshot for a start; None if its capture failed, now or earlier.

        A profile is code too, so it runs in the sandbox of the start, if there is one.
        """
        key = snapshot_key(params)
        while (known := self._cache.get(key)) is not None and not known.cancelled():
            # `wait` instead of `await known`: the cancellation of one waiting start must not
            # cancel the capture. If the capturing start is cancelled, the next one captures.
            await asyncio.wait([known])
            if not known.cancelled():
                return known.result()
        captured: asyncio.Future[Snapshot | None] = self._loop.create_future()
        self._cache.put(key, captured)
        try:
            output = await self._capture(
                Launch(request.shell.path, capture_command(request.shell), params.cwd.native),
                env,
                sandbox,
            )
        except BaseException:
            # Wakes the starts that wait: the next of them captures.
            captured.cancel()
            raise
        captured.set_result(None if output is None else parse_capture(output, env))
        return captured.result()

    async def _capture(
        self, launch: Launch, env: Mapping[str, str], sandbox: CommandSandbox | None
    ) -> bytes | None:
        """Run a capture and return its stdout; None if it cannot be started or takes too long."""
        try:
            if sandbox is None:
                child = Child.on_pipes(launch, env, pipe_stderr=False)
            else:
                child = await sandbox.start(launch, env, pipe_stderr=False)
        except (SpawnFailed, OSError):
            return None
        exited: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_reader(child.pidfd, _done, exited)
        # A larger output loses its beginning, and with it the first marker: no snapshot then.
        log = OutputLog(Retention(max_bytes=CAPTURE_LIMIT))
        reader = OutputReader(self._loop, child.outputs[0][1], "stdout", log, lambda: None)
        try:
            # Until the exit, not the end of output: a daemon of the profile may keep it open.
            async with asyncio.timeout(CAPTURE_TIMEOUT):
                await exited
            reader.drain()
        except TimeoutError:
            return None
        finally:
            self._loop.remove_reader(child.pidfd)
            # The profile may have left jobs in its group, even after its exit.
            child.kill_group()
            child.reap()
            reader.close()
            await child.wait_reaped()
        return b"".join([chunk.chunk for chunk in log.read().chunks])


def _done(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
