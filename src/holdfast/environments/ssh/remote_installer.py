"""
The installer that runs on a host without Holdfast, in that host's Python.

It uses only the standard library of Python 3.11. The client sends this source, then a line of JSON
that describes the data, then the data: the files of the client's installation, or a wheel for the
host's pip. The installation is built and tried in a temporary directory and made final by one
rename, so that it exists as a whole or not at all.
"""

import hashlib
import io
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import BinaryIO

__all__ = ["Failed", "install"]

# Seconds after which a temporary directory must be left over from a dead installer.
_STALE = 3600.0

# Seconds for the new program to start and exit.
_TRIAL_LIMIT = 60.0

_PIP_LIMIT = 600.0

_RUN = """\
import os, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
from holdfast.front.cli.__main__ import main
sys.exit(main())
"""


class Failed(Exception):
    """Nothing was installed; has the reason for the user."""


def install(stream: BinaryIO, base: Path) -> Path:
    """
    Install the package that arrives on the stream.

    Args:
        stream: The line of JSON, and the data.
        base: Directory of all versions; created if missing.

    Returns:
        The program.

    Raises:
        Failed: Nothing was changed.
    """
    about = json.loads(stream.readline() or b"null")
    if about is None:
        raise Failed("the connection broke off before any data arrived")
    data = stream.read(about["size"])
    if len(data) < about["size"]:
        raise Failed(f"the connection broke off after {len(data)} of {about['size']} bytes")
    # The startup files of a shell may have written into the stream.
    if hashlib.sha256(data).hexdigest() != about["sha256"]:
        raise Failed("the data was changed on the way")
    base.mkdir(mode=0o700, parents=True, exist_ok=True)
    _sweep(base)
    final = base / str(about["version"])
    staging = Path(tempfile.mkdtemp(prefix=".new-", dir=base))
    try:
        if about["how"] == "files":
            _unpack(data, staging / "lib")
        else:
            _pip_install(data, about["name"], staging)
        _add_programs(staging, final)
        _try_out(staging, about["version"])
        try:
            staging.rename(final)
        except OSError as error:
            # Another client may have installed the same files first.
            if not (final / "bin" / "holdfast").exists():
                raise Failed(f"cannot create the directory {final}: {error}") from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return final / "bin" / "holdfast"


def _sweep(base: Path) -> None:
    """Remove the leftovers of killed installers."""
    for left in base.glob(".new-*"):
        if time.time() - left.stat().st_mtime > _STALE:
            shutil.rmtree(left, ignore_errors=True)


def _unpack(data: bytes, lib: Path) -> None:
    lib.mkdir()
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        if hasattr(tarfile, "data_filter"):
            archive.extractall(lib, filter="data")
        else:
            # Python before 3.11.4 has no extraction filters.
            archive.extractall(lib)  # noqa: S202 - it came from our own client, unchanged
    _run([sys.executable, "-I", "-m", "compileall", "-q", str(lib)], _TRIAL_LIMIT, lib)


def _pip_install(data: bytes, name: str, staging: Path) -> None:
    wheel = staging / name
    wheel.write_bytes(data)
    options = ["--disable-pip-version-check", "--no-input", "--quiet"]
    target = ["--target", str(staging / "lib")]
    status, said = _run(
        [sys.executable, "-m", "pip", "install", *options, *target, str(wheel)],
        _PIP_LIMIT,
        staging,
    )
    wheel.unlink()
    if status:
        raise Failed(f"the pip of {sys.executable} could not install it: {said}")


def _add_programs(staging: Path, final: Path) -> None:
    (staging / "run.py").write_text(_RUN)
    (staging / "bin").mkdir()
    program = staging / "bin" / "holdfast"
    command = shlex.join([sys.executable, "-I", str(final / "run.py")])
    # The final path, since the directory is renamed after the trial.
    program.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
    program.chmod(0o700)


def _try_out(staging: Path, version: str) -> None:
    """Run the server with an empty stdin, before clients can find it."""
    run = [sys.executable, "-I", str(staging / "run.py")]
    status, said = _run([*run, "--version"], _TRIAL_LIMIT, staging)
    if status == 0 and said != f"holdfast {version}":
        raise Failed(f"this is `{said}`, not `holdfast {version}`")
    if status == 0:
        status, said = _run([*run, "serve", "--listen", "stdio"], _TRIAL_LIMIT, staging)
    if status:
        raise Failed(f"it does not run with {sys.executable}: {said}")


def _run(command: list[str], limit: float, cwd: Path) -> tuple[int, str]:
    """Return the exit status of a command and the last line of its output."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=limit,
            cwd=cwd,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return 1, f"it took more than {limit:g} seconds"
    lines = done.stdout.decode("utf-8", "replace").strip().splitlines()
    return done.returncode, lines[-1] if lines else ""


def _main(folder: str, mark: str) -> None:
    """Install below the user's home, and report the result."""
    # Other users must not be able to read the installation.
    os.umask(0o077)
    # `SystemExit` runs the cleanup of `install`.
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, frame: sys.exit(128 + number))
    try:
        program = install(sys.stdin.buffer, Path.home() / folder)
    except (Failed, OSError, tarfile.TarError, ValueError, KeyError) as error:
        print(f"\n{mark}failed\t{' '.join(str(error).split())}", flush=True)  # noqa: T201
        sys.exit(1)
    print(f"\n{mark}installed\t{program}", flush=True)  # noqa: T201
