"""`holdfast-sh` for tests: a home of its own, its launcher, and its server."""

import os
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from holdfast.front.drop_in.entry import write_launcher
from holdfast.front.drop_in.shell_paths import ShellPaths, find_shell_paths
from tests.e2e.wire import LIMIT

__all__ = ["Shell"]

PLAIN = {
    "PATH": os.environ["PATH"],
    "HOME": "/nonexistent",
    "LANG": "C.UTF-8",
}


class Shell:
    """A launcher, and how to call it."""

    def __init__(self, home: Path) -> None:
        home.mkdir(mode=0o700, exist_ok=True)
        self.paths: ShellPaths = find_shell_paths({"HOLDFAST_SH_HOME": str(home)})
        write_launcher(self.paths)
        self.path = str(self.paths.launcher)
        self.env = PLAIN | {"HOLDFAST_HOME": str(home), "SHELL": self.path}

    def run(
        self,
        *args: str | bytes,
        cwd: Path | str,
        stdin: bytes = b"",
        sandbox: str = "workspace-write",
        name: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[bytes]:
        """Call it to its end."""
        return subprocess.run(
            [self.path if name is None else name, *args],
            executable=self.path,
            cwd=cwd,
            input=stdin,
            capture_output=True,
            timeout=LIMIT * 4,
            check=False,
            env={**self.env, "HOLDFAST_SH_SANDBOX": sandbox, **(env or {})},
        )

    def start(
        self, *args: str, cwd: Path, sandbox: str = "workspace-write"
    ) -> "subprocess.Popen[bytes]":
        """Call it, with pipes for its streams."""
        return subprocess.Popen(
            [self.path, *args],
            cwd=cwd,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**self.env, "HOLDFAST_SH_SANDBOX": sandbox},
        )

    def server_pids(self) -> list[int]:
        """The servers that belong to this home."""
        found = []
        wanted = os.fsencode(self.paths.socket)
        for name in os.listdir("/proc"):
            if name.isdigit():
                with suppress(OSError):
                    words = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")
                    if b"serve" in words and wanted in words:
                        found.append(int(name))
        return found

    def close(self) -> None:
        """End its server."""
        for pid in self.server_pids():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
