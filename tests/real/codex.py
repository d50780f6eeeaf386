"""The real Codex: where it is, what it may see, and its exec-server."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.e2e.wire import LIMIT, first_line
from tests.real.versions import codex

__all__ = ["codex", "codex_env", "codex_serving", "temporary"]


def codex_env(home: Path) -> dict[str, str]:
    """An environment in which it knows of nothing but a home of its own."""
    home.mkdir(parents=True, exist_ok=True)
    env = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("CODEX_", "OPENAI_"))
    }
    own = {"CODEX_HOME": str(home), "TMPDIR": temporary(home)}
    return {**env, **own, "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}


def temporary(home: Path) -> str:
    """A temporary directory that its home is not in: there it would start no sandbox."""
    (home / "tmp").mkdir(parents=True, exist_ok=True)
    return str(home / "tmp")


@contextmanager
def codex_serving(
    home: Path, url: str = "ws://127.0.0.1:0", *, version: str | None = None
) -> Iterator[str]:
    """Its exec-server, on a free port unless told which; yields the URL."""
    process = subprocess.Popen(
        [codex(version), "exec-server", "--listen", url],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=codex_env(home),
    )
    try:
        yield first_line(process)
    finally:
        process.terminate()
        process.wait(2 * LIMIT)
        assert process.stdout is not None
        process.stdout.close()
