"""
A program for a mount namespace that stands for a machine (see `test_host_mounts`).

`attack FOLDER` has a server start commands in several ways. While each runs, a file system is
mounted outside of its workspace. It prints what each command sees of it.

`gaps [UID]` prints the gaps that sandboxes have here, for this user or another one.
"""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import holdfast
from holdfast.engine.sandbox.bubblewrap.support import probe_support
from tests.e2e.shells import Shell

SERVER = [sys.executable, "-m", "holdfast.front.cli", "serve", "--listen", "stdio"]

LOOK = """
echo ready; read -r target
grep -q " $target " /proc/self/mountinfo && echo mounted
mkdir "$target/made" 2>/dev/null && echo made
echo done
"""
"""The target comes on standard input, after the mount."""


@contextmanager
def mounted(target: Path) -> Iterator[None]:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=777", "late", str(target)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", str(target)], check=True)


async def attack(folder: Path) -> Mapping[str, list[str]]:
    """Return what commands see of a mount that is made while they run."""
    # No profile lets a command write to the target, unlike a temporary folder.
    workspace, target = folder / "workspace", Path("/mnt")
    workspace.mkdir()
    ways: dict[str, dict[str, Any]] = {
        "pipes": {"cwd": str(workspace), "stdin": True, "sandbox": "workspace-write"},
        "a terminal": {"cwd": str(workspace), "tty": True, "sandbox": "workspace-write"},
        # Where the devices of a root server cannot replace those of the machine.
        "a folder of /dev": {"cwd": "/dev", "stdin": True, "sandbox": "read-only"},
        "no sandbox": {"cwd": str(workspace), "stdin": True},
    }
    seen: dict[str, list[str]] = {}
    async with holdfast.connect(SERVER) as env:
        for name, options in ways.items():
            async with env.start(["/bin/sh", "-c", LOOK], **options) as running:
                await running.expect("ready")
                with mounted(target):
                    await running.write(f"{target}\n")
                    said = (await running.expect("done")).before
                # The terminal echoes the target.
                seen[name] = [word for word in said.split() if word != str(target)]
    seen["holdfast-sh"] = attack_shell(folder / "home", workspace, target)
    return seen


def attack_shell(home: Path, workspace: Path, target: Path) -> list[str]:
    shell = Shell(home)
    try:
        with shell.start("-c", LOOK, cwd=workspace) as running:
            assert running.stdin is not None
            assert running.stdout is not None
            assert running.stdout.readline() == b"ready\n"
            with mounted(target):
                said, _ = running.communicate(os.fsencode(target) + b"\n")
    finally:
        shell.close()
    *words, done = said.decode().split()
    assert done == "done"
    return words


def main() -> None:
    match sys.argv[1:]:
        case ["attack", folder]:
            sys.stdout.write(json.dumps(asyncio.run(attack(Path(folder)))))
        case ["gaps", *user]:
            for uid in map(int, user):
                os.setgroups([])
                os.setresgid(uid, uid, uid)
                os.setresuid(uid, uid, uid)
            sys.stdout.write(json.dumps(probe_support().gaps))


if __name__ == "__main__":
    main()
