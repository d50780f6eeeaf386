"""
A program that compares file operations with commands, under the same profile.

`file_rights.py FOLDER [UID]` makes two equal grounds with files of several users. A command tries
each of a list of things on one of them, a file operation on the other. It prints, for each
profile, what succeeded: by a command, and by a file operation. With a UID, it becomes that user.
"""

import asyncio
import atexit
import itertools
import json
import os
import struct
import sys
from collections.abc import Mapping
from pathlib import Path

import holdfast
from holdfast.engine.sandbox.bubblewrap import bubblewrap_enforcer as enforcer
from holdfast.engine.sandbox.factory import shared_sandboxes
from holdfast.environments.environment import Environment
from holdfast.wire.protocol.fs import OpenParams
from holdfast.wire.protocol.sandbox import ManagedProfile, SandboxContext, UnrestrictedFiles
from tests.breakout.ground import PYTHON

OTHER, GROUP = 4321, 4322

PROFILES: Mapping[str, str | SandboxContext] = {
    "read-only": "read-only",
    "workspace-write": "workspace-write",
    "no network": SandboxContext(
        permissions=ManagedProfile(file_system=UnrestrictedFiles(), network="restricted"),
        windows_sandbox_level="disabled",
    ),
    "disabled": "disabled",
}

FILES = [*itertools.product(("mine", "other"), (0o600, 0o666)), ("mine", 0o000), ("other", 0o644)]
FOLDERS = [
    *itertools.product(("mine", "other"), (0o755, 0o1777)),
    ("other", 0o700),
    ("other", 0o711),
]


def make_ground(folder: Path, mine: int) -> None:
    """Make files of this user and of another one, in directories of both."""
    owners = {"mine": mine, "other": OTHER}
    folder.mkdir()
    for owner, mode in FOLDERS:
        inner = folder / f"{owner}-{mode:o}"
        inner.mkdir()
        for whose, bits in FILES:
            made = inner / f"{whose}-{bits:o}"
            made.write_text("content")
            made.chmod(bits)
            os.chown(made, owners[whose], GROUP)
        (inner / "empty").mkdir()
        os.chown(inner / "empty", owners[owner], GROUP)
        allowed = inner / "other-by-acl"
        allowed.write_text("content")
        os.chown(allowed, OTHER, GROUP)
        set_acl(allowed, mine)
        # Systems with `fs.protected_symlinks` do not follow it in a directory like `/tmp`.
        link = inner / "link-of-other"
        link.symlink_to("../mine-755/mine-666")
        os.chown(link, OTHER, GROUP, follow_symlinks=False)
        inner.chmod(mode)
        os.chown(inner, owners[owner], GROUP)
    folder.chmod(0o755)
    os.chown(folder, mine, mine)


def set_acl(path: Path, user: int) -> None:
    """Let one user read a file that is another's."""
    unset = 0xFFFFFFFF
    # Owner, that user, group, mask, others: each with its permission bits.
    rules = ((1, 6, unset), (2, 4, user), (4, 0, unset), (16, 4, unset), (32, 0, unset))
    acl = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *rule) for rule in rules)
    try:
        os.setxattr(path, "system.posix_acl_access", acl)
    except OSError:
        path.chmod(0o600)  # a file system without


DO = {
    "list": "os.listdir(at)",
    "stat": "os.stat(at)",
    "read": "open(at).read()",
    "open": "open(at)",
    "copy": "open(to, 'w').write(open(at).read())",
    "make": "open(at, 'x')",
    "mkdir": "os.mkdir(at)",
    # Not `open(at, "w")`: with `fs.protected_regular` the kernel refuses O_CREAT for the file of
    # another user in a directory such as /tmp, though the file may be written.
    "write": "os.write(os.open(at, os.O_WRONLY | os.O_TRUNC), b'changed')",
    "remove": "(os.rmdir if at.endswith('empty') else os.unlink)(at)",
}
"""What a command does; `operate` does the same. Those that change something come last."""

COMMAND = f"""
import json, os, sys
done = []
for verb, at, to in json.loads(sys.argv[1]):
    try:
        exec({DO}[verb])
        done.append(True)
    except OSError:
        done.append(False)
print(json.dumps(done))
"""


async def operate(env: Environment, verb: str, at: str, to: str) -> None:
    files = env.files
    match verb:
        case "list":
            await files.list(at)
        case "stat":
            await files.stat(at)
        case "read":
            await files.read_bytes(at)
        case "open":
            sandbox = await files._sandbox()
            handle = await env.filesystem.open(
                OpenParams(handle_id="", path=await env.uri(at), sandbox=sandbox)
            )
            await handle.read_block(0, 10)
            await handle.aclose()
        case "copy":
            await files.copy(at, to)
        case "make" | "write":
            await files.write(at, "changed")
        case "mkdir":
            await files.mkdir(at)
        case "remove":
            await files.remove(at)


def attempts() -> list[tuple[str, str, str]]:
    """Return what is tried: what to do, where, and where to copy it to."""
    folders = [f"{owner}-{mode:o}" for owner, mode in FOLDERS]
    names = [*(f"{owner}-{mode:o}" for owner, mode in FILES), "other-by-acl"]
    made = [("list", folder, "") for folder in folders]
    for verb in ("stat", "read", "open", "copy"):
        for folder, name in itertools.product(folders, names):
            made.append((verb, f"{folder}/{name}", f"mine-755/copy-{folder}-{name}"))
    made += [
        (verb, f"{folder}/link-of-other", "")
        for verb, folder in itertools.product(("stat", "read", "open", "write"), folders)
    ]
    made += [("make", f"{folder}/new", "") for folder in folders]
    made += [("mkdir", f"{folder}/made", "") for folder in folders]
    for verb in ("write", "remove"):
        for folder, name in itertools.product(folders, names):
            made.append((verb, f"{folder}/{name}", ""))
    return made + [("remove", f"{folder}/empty", "") for folder in folders]


async def compare(folder: Path, profile: str | SandboxContext) -> dict[str, tuple[bool, bool]]:
    """Return what succeeds under a profile: by a command, and by a file operation."""
    tried = attempts()
    async with holdfast.connect(cwd=folder / "command", sandbox=profile) as env:
        done = await env.run([PYTHON, "-I", "-S", "-c", COMMAND, json.dumps(tried)])
        by_command: list[bool] = json.loads(done.stdout)
    found: dict[str, tuple[bool, bool]] = {}
    async with holdfast.connect(cwd=folder / "operation", sandbox=profile) as env:
        for attempt, succeeded in zip(tried, by_command, strict=True):
            operated = True
            try:
                await operate(env, *attempt)
            except holdfast.HoldfastError:
                operated = False
            found[f"{attempt[0]} {attempt[1]}"] = (succeeded, operated)
    return found


def become(user: int) -> None:
    """Become another user, who could read no module that is not loaded yet."""
    # Removes what root made for its sandboxes.
    atexit._run_exitfuncs()
    shared_sandboxes.cache_clear()
    enforcer._own_devices.cache_clear()
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)


def main() -> None:
    folder = Path(sys.argv[1])
    places = {name: folder / name.replace(" ", "-") for name in PROFILES}
    user = os.geteuid() if len(sys.argv) == 2 else int(sys.argv[2])
    for place in places.values():
        make_place(place, user)
    if user != os.geteuid():
        make_place(folder / "before", os.geteuid())
        asyncio.run(compare(folder / "before", "workspace-write"))
        become(user)
    found = {name: asyncio.run(compare(places[name], it)) for name, it in PROFILES.items()}
    sys.stdout.write(json.dumps(found))


def make_place(place: Path, user: int) -> None:
    place.mkdir()
    for ground in ("command", "operation"):
        make_ground(place / ground, user)


if __name__ == "__main__":
    main()
