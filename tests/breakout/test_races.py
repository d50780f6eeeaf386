"""
Breaking out by being quick: one command changes the disk while another one is being enclosed.

Each has a command run beside many starts, and does with all its might what would make one of
them look at one thing and mount another.
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from holdfast.engine.process.registry import LocalBackend
from holdfast.wire.protocol.process import OutputChunk
from tests.breakout.ground import PROFILES, PYTHON, Prepared
from tests.breakout.harness import LIMIT, THROUGH, outcome, params, settled

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.slow]

STARTS = 20
"""Of the first race, every other start got through when nothing was done against it."""

UNTIL_STOPPED = """
import ctypes, os, random, sys, time
from contextlib import suppress
libc = ctypes.CDLL(None)
rename = 316 if os.uname().machine == "x86_64" else 276
print("ready", flush=True)
while not os.path.exists("stop"):
    for _ in range(50):
        {}
"""

EXCHANGE = UNTIL_STOPPED.format(
    """
        libc.syscall(rename, -100, os.fsencode(sys.argv[1]), -100, os.fsencode(sys.argv[2]), 2)
        time.sleep(random.random() * 0.006)
"""
)
"""Swaps two names, over and over, with pauses about as long as a start takes."""

MAKE = UNTIL_STOPPED.format(
    """
        with suppress(OSError):
            os.mkdir("mine")
        with suppress(OSError):
            os.rename("mine", sys.argv[1])
        with suppress(OSError):
            os.symlink("mine", sys.argv[1])
        with suppress(OSError):
            os.mkdir(sys.argv[1])
            print("THROUGH", flush=True)
"""
)
"""Makes a name by every means, over and over."""

APPEND = """
import errno, sys
try:
    with open(sys.argv[1], "r+") as file:
        file.write("x")
    print("THROUGH")
except OSError as error:
    print("BLOCKED", errno.errorcode[error.errno])
"""


@asynccontextmanager
async def running(
    backend: LocalBackend,
    ground: Prepared,
    program: str,
    *words: str,
    limit: float | None = 2 * LIMIT,
) -> AsyncIterator[list[bytes]]:
    """Have a command run in the workspace; what it printed is complete at the end."""
    start = params(
        ground, PYTHON, "-I", "-S", "-c", program, *words, sandbox=PROFILES["workspace"](ground)
    )
    said: list[bytes] = []
    async with asyncio.timeout(limit):
        process = await backend.start(start)
        events = process.events()
        async for event in events:
            assert isinstance(event, OutputChunk)
            assert event.chunk.startswith(b"ready")
            break
        try:
            yield said
        finally:
            (ground.path("work") / "stop").touch()
            said += [event.chunk async for event in events if isinstance(event, OutputChunk)]


async def all_outcomes(
    backend: LocalBackend,
    ground: Prepared,
    program: str,
    path: Path,
    *,
    profile: str | None,
    starts: int = STARTS,
) -> set[str]:
    """Outcomes of many starts; those that were not built are no way out."""
    seen = set()
    for _ in range(1 if profile is None else starts):
        sandbox = None if profile is None else PROFILES[profile](ground)
        start = params(ground, PYTHON, "-I", "-S", "-c", program, str(path), sandbox=sandbox)
        seen.add(await outcome(backend, start))
    return seen


@pytest.mark.requirement("sandbox.verified")
@pytest.mark.parametrize("profile", [None, "guarded", "nested"], ids=str)
async def test_a_directory_is_not_mounted_in_place_of_another(
    backend: LocalBackend, ground: Prepared, profile: str | None
) -> None:
    """
    Some are mounted writable inside of others, to keep them where they are.

    That is so on the way to a denied file, and for a workspace inside of another.
    """
    work = ground.path("work")
    (work / "swap").symlink_to("../outside")
    before = ground.path("file").read_text()
    names = sorted(ground.path("outside").iterdir())
    async with running(backend, ground, EXCHANGE, str(work / "sub"), str(work / "swap")):
        seen = await all_outcomes(backend, ground, APPEND, ground.path("file"), profile=profile)
    assert (THROUGH in seen) is (profile is None), seen
    assert (ground.path("file").read_text() == before) is (profile is not None)
    # Nor is anything made there to be mounted on.
    assert sorted(ground.path("outside").iterdir()) == names


async def test_a_protected_name_is_not_made_while_others_start_and_end(
    backend: LocalBackend, ground: Prepared
) -> None:
    """What keeps it from being made is removed after the last command, and no sooner."""
    before = ground.state()
    async with running(backend, ground, MAKE, ".codex") as said:
        for _ in range(STARTS):
            start = params(ground, "true", sandbox=PROFILES["workspace"](ground))
            assert (await (await backend.start(start)).wait()).ok
    assert b"THROUGH" not in b"".join(said)
    await settled(ground, before)


async def test_a_protected_name_is_not_made_while_another_server_works_there(
    backend: LocalBackend, ground: Prepared
) -> None:
    before = ground.state()
    async with running(backend, ground, MAKE, ".codex") as said:
        other = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.breakout.other_server"),
            *(str(ground.path("base")), str(STARTS)),
            cwd=Path(__file__).parents[2],
        )
        assert await asyncio.wait_for(other.wait(), LIMIT) == 0
    assert b"THROUGH" not in b"".join(said)
    await settled(ground, before)
