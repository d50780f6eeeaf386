"""A cgroup, as a test sees it."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.e2e.wire import HOLDFAST, LIMIT

_ENTER = 'echo $$ > "$0/cgroup.procs" && exec "$@"'


class Cgroup:
    """One folder of the tree."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def enable(self, *controllers: str) -> None:
        """Let what is below it be limited."""
        words = " ".join([f"+{name}" for name in controllers])
        (self.path / "cgroup.subtree_control").write_text(words)

    def disable_all(self) -> None:
        words = " ".join([f"-{name}" for name in self.enabled()])
        (self.path / "cgroup.subtree_control").write_text(words)

    def enabled(self) -> list[str]:
        """Return the controllers that are enabled below it."""
        return (self.path / "cgroup.subtree_control").read_text().split()

    def processes(self) -> list[int]:
        return [int(word) for word in (self.path / "cgroup.procs").read_text().split()]

    def below(self) -> set[str]:
        """The names of those in it."""
        return {entry.name for entry in self.path.iterdir() if entry.is_dir()}

    @contextmanager
    def divided(self, name: str) -> Iterator["Cgroup"]:
        """A part of it, which at the end has to be as it was."""
        part = Cgroup(self.path / name)
        part.path.mkdir()
        yield part
        assert (part.below(), part.processes(), part.enabled()) == (set(), [], [])
        part.path.rmdir()

    def entering(self, *command: str) -> list[str]:
        """A command that runs in it."""
        return ["/bin/sh", "-c", _ENTER, str(self.path), *command]

    def serve(self) -> list[str]:
        """A server in it."""
        return self.entering(*HOLDFAST, "exec-server")

    async def has_only(self, *names: str) -> None:
        """Wait until nothing else is in it; fails if that does not come."""
        try:
            async with asyncio.timeout(LIMIT):
                while self.below() != set(names):  # noqa: ASYNC110 - somebody else removes them
                    await asyncio.sleep(0)
        except TimeoutError:
            raise AssertionError(f"left: {self.below() - set(names)}") from None
