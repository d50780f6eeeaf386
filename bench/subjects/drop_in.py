"""
Starts `bash -c true` and `holdfast-sh -c true` in turn, and prints the time that each takes.

One round trip to the warm server is measured next to them: a connection, and its answer.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from holdfast.front.drop_in.entry import write_launcher
from holdfast.front.drop_in.shell_paths import find_shell_paths

_WARM_UP = 3


def _measure(count: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o700)
        paths = find_shell_paths({"HOLDFAST_SH_HOME": folder})
        write_launcher(paths)
        env = dict(os.environ, HOLDFAST_HOME=folder)
        plain = env | {"HOLDFAST_SH_SANDBOX": "none"}
        confined = env | {"HOLDFAST_SH_SANDBOX": "workspace-write"}
        work = Path(folder, "work")
        work.mkdir()
        os.chdir(work)
        shell = str(paths.launcher)
        ways: dict[str, Callable[[], None]] = {
            "bash": lambda: _run("/bin/bash", env),
            "round_trip": lambda: _ask(str(paths.socket)),
            "shell": lambda: _run(shell, plain),
            "sandboxed": lambda: _run(shell, confined),
        }
        _run(shell, plain)  # starts the server
        try:
            for _ in range(_WARM_UP):
                for way in ways.values():
                    way()
            times: dict[str, list[float]] = {name: [] for name in ways}
            # The kernel keeps cleaning up after a sandbox, so those come last.
            for names in (("bash", "round_trip", "shell"), ("sandboxed",)):
                for _ in range(count):
                    for name in names:
                        begun = time.perf_counter()
                        ways[name]()
                        times[name].append(time.perf_counter() - begun)
        finally:
            os.chdir("/")
            _end_server(str(paths.socket))
    # The fastest tenth: each takes a few milliseconds, and a busy machine adds as many.
    found = {name: sorted(values)[len(values) // 10] * 1e3 for name, values in times.items()}
    return {
        "sh_bash": found["bash"],
        "sh_round_trip": found["round_trip"],
        "sh_start": found["shell"],
        "sh_ratio": (found["shell"] - found["round_trip"]) / found["bash"],
        "sh_sandboxed": found["sandboxed"],
    }


def _run(program: str, env: dict[str, str]) -> None:
    pid = os.posix_spawn(program, [program, "-c", "true"], env)
    _, status = os.waitpid(pid, 0)
    if status:
        raise RuntimeError(f"{program} ended with {status}")


def _ask(path: str) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asker:
        asker.connect(path)
        _, fds, _, _ = socket.recv_fds(asker, 64, 8)
    for fd in fds:
        os.close(fd)


def _end_server(path: str) -> None:
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                words = Path("/proc", name, "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if b"serve" in words and os.fsencode(path) in words:
                os.kill(int(name), signal.SIGTERM)


def main() -> None:
    """Measure as the arguments say, and print the values by the key of their figure as JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("count", type=int, help="starts of each kind")
    if os.environ.get("HOLDFAST_SH_SANDBOX") != "none":
        # The answer to the round trip depends on the variables that this process was started with.
        env = os.environ | {"HOLDFAST_SH_SANDBOX": "none"}
        os.execve(sys.executable, [sys.executable, "-m", __spec__.name, *sys.argv[1:]], env)
    values = _measure(parser.parse_args().count)
    sys.stdout.write("\n" + json.dumps(values) + "\n")


if __name__ == "__main__":
    main()
