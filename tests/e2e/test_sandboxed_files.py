"""`fs/*` with a `sandbox` over the wire: codes, words, and what is left on the disk."""

import asyncio
import ctypes
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.depth import times
from tests.e2e.wire import Client, ServerProcess, connect, file_uri, from_base64, serving, to_base64
from tests.real.stranger import stranger

ENOENT = (-32004, "No such file or directory (os error 2)")
EACCES = (-32600, "Permission denied (os error 13)")
EROFS = (-32603, "Read-only file system (os error 30)")
EBUSY = (-32603, "Resource busy (os error 16)")

PYTHON = {name: value for name, value in os.environ.items() if name.startswith("PYTHON")}
"""Variables by which a server finds itself, wherever it is tested."""


def special(kind: str, access: str, **value: str) -> dict[str, Any]:
    return {"path": {"type": "special", "value": {"kind": kind, **value}}, "access": access}


def entry(path: Path | str, access: str) -> dict[str, Any]:
    return {"path": {"type": "path", "path": f"file://{path}"}, "access": access}


def pattern(text: str) -> dict[str, Any]:
    return {"path": {"type": "glob_pattern", "pattern": text}, "access": "deny"}


def sandbox(*entries: dict[str, Any], **context: Any) -> dict[str, Any]:
    files = {"type": "restricted", "entries": entries}
    profile = {"type": "managed", "file_system": files, "network": "restricted"}
    return {"permissions": profile, "windowsSandboxLevel": "disabled", **context}


@pytest.fixture
def ws(tmp_path: Path) -> Path:
    """A workspace with a repository and a secret, and something beside it."""
    here = tmp_path.resolve()
    for folder in ("ws/.git", "ws/secret", "out"):
        (here / folder).mkdir(parents=True)
    for file in ("ws/a", "ws/.git/config", "ws/secret/key", "ws/x.env", "out/o"):
        (here / file).write_text(file)
    (here / "ws/link").symlink_to(here / "out/o")
    return here / "ws"


def workspace_write(ws: Path, *more: dict[str, Any]) -> dict[str, Any]:
    """Return the sandbox that a client sends for that mode."""
    names = [
        {**special("project_roots", "read", subpath=name), "missing_path_behavior": "skip"}
        for name in (".git", ".agents", ".codex")
    ]
    root = special("root", "read")
    project = special("project_roots", "write")
    folder = file_uri(ws)
    return sandbox(root, project, *names, *more, cwd=folder, workspaceRoots=[folder])


async def read(client: Client, path: Path | str, within: dict[str, Any]) -> bytes:
    answer = await client.call("fs/readFile", {"path": f"file://{path}", "sandbox": within})
    return from_base64(answer["dataBase64"])


async def refused(
    client: Client, method: str, path: Path, within: dict[str, Any], **params: Any
) -> tuple[int, str]:
    return await client.refusal(method, {"path": file_uri(path), "sandbox": within, **params})


@pytest.mark.requirement("fs.sandbox.restricted", "fs.sandbox.read-only", "fs.sandbox.protected")
async def test_a_workspace_is_written_and_the_rest_is_read(client: Client, ws: Path) -> None:
    within = workspace_write(ws)
    data = {"dataBase64": to_base64(b"new")}
    assert await read(client, ws / "link", within) == b"out/o"
    written = {"path": file_uri(ws / "a"), "sandbox": within, **data}
    assert await client.call("fs/writeFile", written) == {}
    assert (ws / "a").read_text() == "new"
    for path in ("link", ".git/config", ".codex"):
        assert await refused(client, "fs/writeFile", ws / path, within, **data) == EROFS
    assert await refused(client, "fs/createDirectory", ws / ".aws", within) == EROFS
    assert await refused(client, "fs/remove", ws / ".git", within, recursive=False) == EBUSY
    assert await refused(client, "fs/remove", ws, within) == EROFS
    assert sorted(os.listdir(ws)) == [".git", "a", "link", "secret", "x.env"]
    assert (ws.parent / "out/o").read_text() == "out/o"


@pytest.mark.requirement("fs.sandbox.denied")
@pytest.mark.parametrize("globs", [["**/*.env"], ["{ws}/**/*.env"]], ids=["relative", "absolute"])
async def test_what_is_denied_stays_secret(client: Client, ws: Path, globs: list[str]) -> None:
    denied = [entry(ws / "secret", "deny"), *(pattern(glob.format(ws=ws)) for glob in globs)]
    within = workspace_write(ws, *denied)
    for path in ("secret/key", "secret/none", "x.env"):
        assert await refused(client, "fs/readFile", ws / path, within) == EACCES
        handle = {"handleId": "h"}
        assert await refused(client, "fs/open", ws / path, within, **handle) == EACCES
    (ws / "later.env").write_text("secret")
    assert await refused(client, "fs/readFile", ws / "later.env", within) == EACCES
    copied = {"sourcePath": file_uri(ws / "x.env"), "destinationPath": file_uri(ws / "y")}
    params = {**copied, "recursive": False, "sandbox": within}
    assert await client.refusal("fs/copy", params) == EACCES
    assert await read(client, ws / "a", within) == b"ws/a"


async def check_denied_link(client: Client, ws: Path) -> None:
    """What a matching link leads to is denied under both names, and commands start."""
    target = ws.parent / "out/o"
    within = workspace_write(ws, pattern("**/*.env"))
    for denied in (ws / "linked.env", target):
        assert await refused(client, "fs/readFile", denied, within) == EACCES
    assert await read(client, ws / "a", within) == b"ws/a"
    command = ["/bin/sh", "-c", 'cat a; cat linked.env; cat "$1"; echo new > a', "-", str(target)]
    started = await client.start("p", command, cwd=file_uri(ws), sandbox=within)
    run = await client.finish("p")
    assert started["sandboxType"] == "linuxSeccomp"
    assert run.stdout == b"ws/a"
    assert run.stderr.count(b"Permission denied") == 2
    assert await read(client, ws / "a", within) == b"new\n"


@pytest.mark.requirement("sandbox.globs.link-target")
async def test_what_a_denied_link_leads_to_stays_secret(client: Client, ws: Path) -> None:
    (ws / "linked.env").symlink_to(ws.parent / "out/o")
    await check_denied_link(client, ws)


@pytest.mark.slow
@pytest.mark.requirement("sandbox.globs.link-target")
@pytest.mark.skipif(os.geteuid() != 0, reason="the one before is played by an ordinary user here")
async def test_what_a_denied_link_leads_to_stays_secret_from_an_ordinary_user() -> None:
    make = "mkdir ws out; printf ws/a > ws/a; echo secret > out/o; ln -s ../out/o ws/linked.env"
    with stranger() as user, tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        os.chmod(folder, 0o777)  # for the other user
        serve = [user.python, "-m", "holdfast.front.cli", "exec-server"]
        with serving(command=serve, **user.popen) as server:
            async with connect(server.url) as client:
                assert (await client.run_shell(make, cwd=file_uri(Path(folder)))).exit_code == 0
                await check_denied_link(client, Path(folder, "ws"))


@pytest.mark.requirement("fs.sandbox.hidden", "fs.sandbox.not-widened", "fs.sandbox.lost-writes")
async def test_a_narrow_profile_has_nothing_else(client: Client, ws: Path) -> None:
    within = sandbox(entry(ws, "write"))
    assert await read(client, ws / "a", within) == b"ws/a"
    for path in (ws.parent / "out/o", ws / "link", Path("/etc/passwd"), Path("/proc/self/environ")):
        assert await refused(client, "fs/readFile", path, within) == ENOENT
    data = {"dataBase64": to_base64(b"new")}
    assert await refused(client, "fs/writeFile", ws.parent / "new", within, **data) == EROFS
    assert await refused(client, "fs/createDirectory", ws.parent / "new/er", within) == EROFS
    assert sorted(os.listdir(ws.parent)) == ["out", "ws"]


@pytest.mark.requirement("fs.sandbox.restricted")
async def test_a_handle_keeps_what_it_was_opened_with(client: Client, ws: Path) -> None:
    within = workspace_write(ws)
    opened = {"handleId": "h", "path": file_uri(ws / "a"), "sandbox": within, "mode": "replace"}
    assert await client.call("fs/open", opened) == {"handleId": "h"}
    (ws / "a").unlink()
    (ws / "a").symlink_to(ws.parent / "out/o")
    block = {"handleId": "h", "offset": 0, "chunk": to_base64(b"new")}
    assert await client.call("fs/writeBlock", block) == {}
    assert await client.call("fs/close", {"handleId": "h"}) == {}
    # The link was replaced, not followed.
    assert ((ws / "a").read_text(), (ws / "a").is_symlink()) == ("new", False)
    assert (ws.parent / "out/o").read_text() == "out/o"


@pytest.mark.requirement("fs.sandbox.malformed")
@pytest.mark.parametrize(
    ("permissions", "text"),
    [
        ({}, "missing field `type`"),
        (
            {"type": "x"},
            "unknown variant `x`, expected one of `managed`, `disabled`, `external`",
        ),
        ({"type": "external"}, "missing field `network`"),
        ({"type": "managed", "network": "enabled"}, "missing field `file_system`"),
        (
            {"type": "managed", "file_system": {"type": "restricted"}, "network": "enabled"},
            "missing field `entries`",
        ),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
async def test_a_profile_that_does_not_fit_is_refused(
    client: Client, ws: Path, permissions: dict[str, Any], text: str
) -> None:
    profile = {"permissions": permissions, "windowsSandboxLevel": "disabled"}
    assert await refused(client, "fs/readFile", ws / "a", profile) == (-32602, text)


@pytest.mark.slow
async def test_the_temporary_directory_is_the_servers_own(ws: Path) -> None:
    own = ws.parent / "temporary"
    own.mkdir()
    env = {"TMPDIR": str(own), "HOME": str(ws), "PATH": "/usr/bin:/bin", **PYTHON}
    within = sandbox(special("root", "read"), special("tmpdir", "write"))
    data = {"dataBase64": to_base64(b"new")}
    with serving(env=env) as server:
        async with connect(server.url) as client:
            params = {"path": file_uri(own / "f"), "sandbox": within, **data}
            assert await client.call("fs/writeFile", params) == {}
            assert await refused(client, "fs/writeFile", ws / "f", within, **data) == EROFS


@pytest.mark.slow
@pytest.mark.requirement("fs.sandbox.races")
async def test_requests_that_run_side_by_side_meet_no_way_out(
    server: ServerProcess, ws: Path
) -> None:
    (ws / "d").mkdir()
    (ws / "d/o").write_text("inside")
    (ws / "evil").symlink_to(ws.parent / "out")
    exchange = ctypes.CDLL(None).renameat2
    names = os.fsencode(ws / "d"), os.fsencode(ws / "evil")
    narrow = sandbox(entry(ws, "write"))
    wide = workspace_write(ws)
    data = {"dataBase64": to_base64(b"new")}
    ended = asyncio.Event()
    seen: set[str] = set()

    async def swap() -> None:
        while not ended.is_set():
            await asyncio.to_thread(exchange, -100, names[0], -100, names[1], 2)

    async def work(client: Client, number: int) -> None:
        path = file_uri(ws / "d/o")
        new = {"path": file_uri(ws / f"d/new{number}"), "sandbox": wide, **data}
        asked = [
            await client.request(method, params)
            for method, params in (
                ("fs/readFile", {"path": path, "sandbox": narrow}),
                ("fs/writeFile", new),
                ("fs/remove", {"path": path, "sandbox": wide, "recursive": False}),
                ("fs/writeFile", {**new, "path": path, "dataBase64": to_base64(b"inside")}),
            )
        ]
        seen.update([str(await client.reply(request)) for request in asked])

    async with connect(server.url) as client, asyncio.TaskGroup() as tasks:
        tasks.create_task(swap())
        try:
            for number in range(times(60)):
                await work(client, number)
        finally:
            ended.set()
    assert os.listdir(ws.parent / "out") == ["o"]
    assert (ws.parent / "out/o").read_text() == "out/o"
    assert not [answer for answer in seen if to_base64(b"out/o") in answer]
    assert [answer for answer in seen if to_base64(b"inside") in answer]
