"""
Makes many attempts in one sandbox, each in a process of its own.

A sandbox and an interpreter for each attempt cost twenty times what the attempt does. What a
shared run says counts only if it is what was expected: otherwise the attempt is made again by
itself, and that decides. `--attempts-alone` makes all of them by themselves.
"""

from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path

from holdfast.backends import ExecBackend
from tests.breakout.ground import PROFILES, PYTHON, Prepared, prepare
from tests.breakout.harness import LIMIT, THROUGH, Outsider, params, printed, settled, verdict
from tests.breakout.table import ALL, INSIDE, Attempt

__all__ = ["SharedRuns"]

_PROGRAM = f"""{INSIDE}

def make_all(attempts):
    for number, name, source in attempts:
        os.write(1, b"\\n@%d\\n" % number)
        pid = os.fork()
        if pid == 0:
            try:
                space = dict(globals())
                exec(source, space)
                main(space[name])
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
"""

_MARK = "@"
"""Begins the line that tells whose output follows."""


class SharedRuns:
    """One run without a sandbox and one for each profile, made when they are first asked for."""

    def __init__(self, backend: ExecBackend, outsider: Outsider, folder: Path) -> None:
        self._backend = backend
        self._outsider = outsider
        self._folder = folder
        self._numbers = count()
        self._free: Mapping[Attempt, str] | None = None
        self._stopped: dict[str, Mapping[Attempt, str]] = {}

    async def is_through(self, attempt: Attempt) -> bool:
        """Return True for an attempt that got through without a sandbox, after all before it."""
        if self._free is None:
            able = [attempt for attempt in ALL if _can_be_shared(attempt)]
            self._free = await self._make(able, None)
        return self._free.get(attempt) == THROUGH

    async def is_stopped(self, attempt: Attempt, profile: str) -> bool:
        """
        Return True for an attempt that was stopped in a sandbox by what is meant to stop it.

        False where it was not made, too: then the others could be what it was stopped by, or
        the run did harm, and nobody knows which attempt it was.
        """
        if profile not in self._stopped:
            # What one attempt changes must not be what stops the next. So only those take part
            # that come through after all others where nothing stops them.
            able = [
                attempt
                for attempt in ALL
                if profile in attempt.profiles
                and not attempt.gap
                and await self.is_through(attempt)
            ]
            self._stopped[profile] = await self._make(able, profile)
        return self._stopped[profile].get(attempt) in attempt.blocked_by

    async def _make(self, attempts: Sequence[Attempt], profile: str | None) -> dict[Attempt, str]:
        ground = prepare(self._folder / str(next(self._numbers)), self._outsider.about)
        program = ground.path("work") / "attempts"
        numbered = [(n, one.name, one.source) for n, one in enumerate(attempts)]
        program.write_text(f"{_PROGRAM}\nmake_all({numbered!r})\n")
        before, heard = ground.state(), self._outsider.state()
        output = await self._run(ground, program, profile, len(attempts))
        if profile is not None:
            try:
                await settled(ground, before)
            except AssertionError:
                return {}
            if self._outsider.state() != heard:
                return {}
        outputs = dict(part.split("\n", 1) for part in f"\n{output}".split(f"\n{_MARK}")[1:])
        return {one: verdict(outputs.get(str(n), "")) for n, one in enumerate(attempts)}

    async def _run(
        self, ground: Prepared, program: Path, profile: str | None, attempts: int
    ) -> str:
        argv = (PYTHON, "-I", "-S", str(program), repr(dict(ground.paths)))
        sandbox = None if profile is None else PROFILES[profile](ground)
        start = params(ground, *argv, sandbox=sandbox)
        return await printed(self._backend, start, limit=LIMIT + attempts * 0.1)


def _can_be_shared(attempt: Attempt) -> bool:
    """Return False for an attempt whose environment, terminal or parent matters."""
    return not attempt.env and not attempt.tty and "getppid" not in attempt.source
