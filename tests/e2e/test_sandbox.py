"""Processes in a sandbox, over the wire: starts, ends, signals, terminals, denials, limits."""

import asyncio
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.wire import (
    HOLDFAST,
    LIMIT,
    Client,
    children,
    connect,
    file_uri,
    gone,
    is_alive,
    serving,
    start_params,
)

PROTECTED = [".agents", ".aws", ".codex", ".git"]
TRAP = "trap 'echo caught; exit 3' INT; echo up; while :; do sleep 0.01; done"

both = pytest.mark.parametrize("tty", [False, True], ids=["pipes", "terminal"])


def special(kind: str, access: str, **value: str) -> dict[str, Any]:
    return {"path": {"type": "special", "value": {"kind": kind, **value}}, "access": access}


def entry(path: Path, access: str) -> dict[str, Any]:
    return {"path": {"type": "path", "path": file_uri(path)}, "access": access}


def context(ws: Path, *entries: dict[str, Any], network: str = "restricted") -> dict[str, Any]:
    files = {"type": "restricted", "entries": entries}
    return {
        "permissions": {"type": "managed", "file_system": files, "network": network},
        "cwd": file_uri(ws),
        "workspaceRoots": [file_uri(ws)],
        "windowsSandboxLevel": "disabled",
    }


@pytest.fixture
def ws(tmp_path: Path) -> Path:
    folder = tmp_path.resolve() / "ws"
    folder.mkdir()
    return folder


@pytest.fixture
def read_only(ws: Path) -> dict[str, Any]:
    return context(ws, special("root", "read"))


@pytest.fixture
def workspace(ws: Path) -> dict[str, Any]:
    return context(ws, special("root", "read"), special("project_roots", "write"))


def exit_of(client: Client, process_id: str) -> dict[str, Any]:
    """Return the exit code and the denial flag of the reported exit."""
    (event,) = (event for event in client.seen(process_id) if event.kind == "exited")
    return {name: event.params[name] for name in ("exitCode", "sandboxDenied")}


# -- starts


@pytest.mark.requirement("start.sandbox", "sandbox.type")
@both
async def test_a_start_says_what_encloses_it(
    client: Client, read_only: dict[str, Any], tty: bool
) -> None:
    reply = await client.start("p", ["/bin/true"], sandbox=read_only, tty=tty)

    enforcement = reply.pop("enforcement")
    assert reply == {"processId": "p", "sandboxType": "linuxSeccomp"}
    assert enforcement["isolation"] == "full"
    assert all(isinstance(gap, str) for gap in enforcement["gaps"])  # as few as apply
    assert (await client.finish("p")).exit_code == 0


@pytest.mark.requirement("start.sandbox")
async def test_only_what_the_profile_allows_is_written(
    client: Client, ws: Path, workspace: dict[str, Any]
) -> None:
    script = "echo in > inside; echo out > ../outside"

    run = await client.run_shell(script, cwd=file_uri(ws), sandbox=workspace)

    assert run.exit_code != 0
    assert b"Read-only file system" in run.stderr
    assert (ws / "inside").read_text() == "in\n"
    assert not (ws.parent / "outside").exists()


@pytest.mark.requirement("security.sandbox.workspace-path")
async def test_a_workspace_is_what_its_path_leads_to_at_each_start(
    client: Client, ws: Path, workspace: dict[str, Any]
) -> None:
    """A decision: an owner makes a workspace anew, and a link may lead to the current release."""
    inner, outside = ws / "inner", ws.parent / "outside"
    os.mkdir(inner)
    os.mkdir(outside)
    below = context(inner, special("root", "read"), special("project_roots", "write"))

    async def write(text: str) -> int:
        script = f"echo {text} > file"
        return (await client.run_shell(script, cwd=file_uri(inner), sandbox=below)).exit_code

    script = "read go; echo one > file; echo written"
    await client.start(
        "p", ["/bin/sh", "-c", script], cwd=file_uri(inner), sandbox=below, pipeStdin=True
    )
    swap = f"mv inner old && ln -s {outside} inner"
    await client.run_shell(swap, cwd=file_uri(ws), sandbox=workspace)
    assert await write("two") == 0
    await client.write("p", b"go\n")
    await client.output("p", b"written\n")

    assert (ws / "old/file").read_text() == "one\n"
    assert (outside / "file").read_text() == "two\n"
    os.unlink(inner)
    os.mkdir(inner)
    assert await write("three") == 0
    assert (inner / "file").read_text() == "three\n"


async def test_the_bit_of_a_group_is_set_where_the_workspace_has_it(
    client: Client, ws: Path, workspace: dict[str, Any]
) -> None:
    script = "mkdir -p new && chmod 2775 new && cp -a new copy && ls -ld copy"
    refused = await client.run_shell(script, cwd=file_uri(ws), sandbox=workspace)
    assert refused.exit_code != 0
    assert b"Operation not permitted" in refused.stderr

    os.chmod(ws, 0o2755)
    run = await client.run_shell(script, cwd=file_uri(ws), sandbox=workspace)
    assert run.stdout.startswith(b"drwxrwsr-x")
    reply = await client.start("p", ["/bin/true"], cwd=file_uri(ws), sandbox=workspace)
    assert f"with the group of {ws} can be made" in str(reply["enforcement"]["gaps"])


async def test_a_command_is_heard_however_much_is_denied(client: Client, ws: Path) -> None:
    """Each denied file is one descriptor more that the launcher gets."""
    secrets = [ws / str(number) for number in range(60)]
    for secret in secrets:
        secret.write_text("secret")
    profile = context(ws, special("root", "read"), *(entry(path, "deny") for path in secrets))

    run = await client.run_shell("echo out; cat 0 59", cwd=file_uri(ws), sandbox=profile)

    assert run.stdout == b"out\n"
    assert run.stderr.count(b"Permission denied") == 2


@pytest.mark.requirement("sandbox.type")
async def test_a_disabled_profile_isolates_nothing(client: Client, ws: Path) -> None:
    disabled = {"permissions": {"type": "disabled"}, "windowsSandboxLevel": "disabled"}
    script = "echo out > ../outside; echo permission denied; exit 1"

    reply = await client.start("p", ["/bin/sh", "-c", script], cwd=file_uri(ws), sandbox=disabled)
    await client.finish("p")

    assert reply["sandboxType"] == "linuxSeccomp"
    assert (ws.parent / "outside").exists()
    # No layer was applied, so none can have denied anything.
    assert exit_of(client, "p") == {"exitCode": 1, "sandboxDenied": False}


@both
async def test_a_missing_program_is_127_and_no_denial(
    client: Client, read_only: dict[str, Any], tty: bool
) -> None:
    await client.start("p", ["/no/such/program"], sandbox=read_only, tty=tty)
    run = await client.finish("p")

    assert exit_of(client, "p") == {"exitCode": 127, "sandboxDenied": False}
    assert b"No such file or directory" in run.stderr + run.pty


@both
async def test_a_program_is_found_in_the_path_inside(
    client: Client, read_only: dict[str, Any], tty: bool
) -> None:
    run = await client.run(["echo", "found"], sandbox=read_only, tty=tty)

    assert (run.stdout + run.pty).split() == [b"found"]


async def test_a_thread_wakes_the_event_loop_of_its_program(
    client: Client, read_only: dict[str, Any]
) -> None:
    # The loop waits for events by the time that the thread is done.
    program = "import asyncio, time; asyncio.run(asyncio.to_thread(time.sleep, 0.3)); print('done')"

    run = await client.run([sys.executable, "-I", "-c", program], sandbox=read_only)

    assert run.stdout == b"done\n"


@both
async def test_a_program_whose_name_looks_like_an_option_is_one_even_so(
    client: Client, read_only: dict[str, Any], tty: bool
) -> None:
    run = await client.run(["-x"], sandbox=read_only, tty=tty, arg0="another" if tty else None)

    assert run.exit_code == 127


@pytest.mark.requirement("sandbox.arg0")
@both
async def test_a_program_gets_the_name_it_is_to_have(
    client: Client, read_only: dict[str, Any], tty: bool
) -> None:
    argv = ["/bin/sh", "-c", "tr '\\0' ' ' </proc/$$/cmdline"]

    run = await client.run(argv, sandbox=read_only, tty=tty, arg0="another")

    assert (run.stdout + run.pty).startswith(b"another -c ")


@pytest.mark.parametrize("stated", ["ws", "link", None])
async def test_a_folder_behind_a_link_is_the_one_that_it_leads_to(
    client: Client, ws: Path, stated: str | None
) -> None:
    """Whatever is said of it: in a narrow profile the link is not there."""
    link = ws.parent / "link"
    link.symlink_to(ws)
    narrow = context(ws, special("minimal", "read"), entry(ws, "write"))
    env = {"PATH": "/usr/bin:/bin"} | ({} if stated is None else {"PWD": str(ws.parent / stated)})

    run = await client.run_shell(
        "echo $PWD; echo x > file", cwd=file_uri(link), sandbox=narrow, env=env
    )

    assert run.stdout.decode() == f"{ws}\n"
    assert (ws / "file").exists()


@pytest.mark.requirement("sandbox.cwd-missing")
async def test_a_missing_folder_is_an_error_of_the_start(
    client: Client, read_only: dict[str, Any]
) -> None:
    params = start_params("p", ["/bin/true"], cwd="file:///no/such/folder", sandbox=read_only)

    assert await client.refusal("process/start", params) == (
        -32603,
        "No such file or directory (os error 2)",
    )
    # Nothing is left of it: the id is free.
    await client.start("p", ["/bin/true"], sandbox=read_only)


async def test_a_launcher_that_fails_is_an_error_of_the_start_and_leaves_nothing(
    client: Client, ws: Path
) -> None:
    # A path that is just too long where the launcher sees it, below one that it manages.
    deep = ws
    while (room := 4085 - len(str(deep))) > 1:
        deep /= "d" * min(200, room - 1)
    deep.mkdir(parents=True)
    profile = context(
        ws, special("root", "read"), special("project_roots", "write"), entry(deep, "write")
    )
    params = start_params("p", ["/bin/true"], cwd=file_uri(ws), sandbox=profile)

    code, text = await client.refusal("process/start", params)

    assert code == -32603
    assert text.startswith("bwrap: Can't mkdir")
    assert os.listdir(ws) == ["d" * 200]


@pytest.mark.requirement("security.sandbox.whole", "security.sandbox.probed")
async def test_where_nothing_can_be_enforced_a_profile_is_refused_with_what_to_do(
    read_only: dict[str, Any],
) -> None:
    # A server inside of a namespace in which no other can be made.
    command = ["bwrap", "--dev-bind", "/", "/", "--unshare-user", "--disable-userns"]
    command += ["--die-with-parent", "--"]
    log = {**os.environ, "HOLDFAST_LOG": "warning"}
    with serving(command=[*command, *HOLDFAST, "exec-server"], env=log) as server:
        async with asyncio.timeout(LIMIT):
            # Logged at the start, before a profile comes.
            while "no sandbox can be enforced here: " not in server.errors:  # noqa: ASYNC110
                await asyncio.sleep(0.002)
        async with connect(server.url) as client:
            params = start_params("p", ["/bin/true"], sandbox=read_only)
            code, text = await client.refusal("process/start", params)
            plain = await client.run(["/bin/true"])

    assert code == -32602
    assert text.startswith("this host cannot enforce a sandbox: ")
    # To anybody but root, root's files are those of nobody in particular in there.
    assert "user.max_user_namespaces" in text or "belongs to another user" in text
    assert plain.exit_code == 0


@pytest.mark.requirement("sandbox.unenforceable")
@both
async def test_a_rule_that_cannot_be_kept_fails_the_command(
    client: Client, ws: Path, tty: bool
) -> None:
    (ws / "real").mkdir()
    (ws / "link").symlink_to("real")
    profile = context(
        ws,
        special("root", "read"),
        special("project_roots", "write"),
        entry(ws / "link" / "key", "deny"),
    )

    await client.start("p", ["/bin/echo", "ran"], cwd=file_uri(ws), sandbox=profile, tty=tty)
    run = await client.finish("p")

    assert b"crosses writable symlink" in run.stderr + run.pty
    assert b"ran" not in run.stdout + run.pty
    assert exit_of(client, "p") == {"exitCode": 1, "sandboxDenied": False}


@pytest.mark.requirement("sandbox.tmpdir")
async def test_the_temporary_directory_of_a_request_is_granted_where_it_is_one(
    client: Client, ws: Path
) -> None:
    own = ws.parent / "own"
    own.mkdir()
    profile = context(ws, special("root", "read"), special("tmpdir", "write"))
    start = ["/bin/sh", "-c", 'echo x > "$TMPDIR/file"']

    await client.start("p", start, sandbox=profile, env={"TMPDIR": str(own)})
    run = await client.finish("p")
    params = start_params("q", start, sandbox=profile, env={"TMPDIR": "/usr"})
    code, text = await client.refusal("process/start", params)

    assert run.exit_code == 0
    assert (own / "file").read_text() == "x\n"
    assert code == -32602
    assert text.startswith("sandbox entry `tmpdir` cannot make `/usr` writable: TMPDIR has to be")


async def test_a_workspace_that_cannot_be_written_to_is_no_reason_to_fail(
    client: Client, ws: Path
) -> None:
    """Its owner may have closed it, and the server cannot make what it covers names with."""
    os.chmod(ws, 0o555)
    profile = context(ws, special("root", "read"), special("project_roots", "write"))
    try:
        start = ["/bin/sh", "-c", "chmod 755 . && mkdir .git"]
        await client.start("p", start, cwd=file_uri(ws), sandbox=profile)
        run = await client.finish("p")

        assert run.exit_code == 1
        assert b"File exists" in run.stderr
        assert os.listdir(ws) == []
    finally:
        os.chmod(ws, 0o755)


@pytest.mark.parametrize("kind", ["disabled", "managed"])
async def test_a_context_that_is_not_of_this_system_is_refused(
    client: Client, read_only: dict[str, Any], kind: str
) -> None:
    """Whether its profile asks for anything or not."""
    given = read_only if kind == "managed" else read_only | {"permissions": {"type": kind}}
    for more, text in (
        ({"windowsSandboxLevel": "mxc"}, "native MXC is unavailable on this executor"),
        (
            {"workspaceRoots": ["file:///C:/x"]},
            "sandbox workspace root URI `file:///C:/x` is not valid on this exec-server host: "
            "'file:///C:/x' is invalid on 'linux'",
        ),
        (
            {"policyContext": {"workspaceRoots": None}},
            "invalid type: null, expected a sequence",
        ),
    ):
        params = start_params("p", ["/bin/true"], sandbox=given | more)
        assert await client.refusal("process/start", params) == (-32602, text)


async def test_managed_networking_fails_closed(client: Client, read_only: dict[str, Any]) -> None:
    argv = ["/bin/echo", "ran"]
    without = await client.run(argv, sandbox=read_only, enforceManagedNetwork=True)
    proxy = {"HTTP_PROXY": "http://127.0.0.1:1"}
    params = start_params("p", argv, env=proxy, sandbox=read_only, enforceManagedNetwork=True)

    assert (without.exit_code, without.stdout) == (101, b"")
    assert b"managed proxy mode requires proxy environment variables" in without.stderr
    assert (await client.refusal("process/start", params))[0] == -32602


async def test_an_id_is_taken_while_its_sandbox_is_built(
    client: Client, read_only: dict[str, Any]
) -> None:
    params = start_params("p", ["/bin/true"], sandbox=read_only)
    first = await client.request("process/start", params)
    second = await client.request("process/start", params)

    assert "result" in await client.reply(first)
    assert (await client.reply(second))["error"]["message"] == "process p already exists"


async def test_a_shell_profile_is_captured_in_the_sandbox(client: Client, ws: Path) -> None:
    home = ws.parent / "home"
    home.mkdir()
    (home / ".bashrc").write_text(f"echo x > {ws.parent}/escaped\nexport CAPTURED=yes\n")
    (home / ".profile").write_text(f". {home}/.bashrc\n")
    (home / ".bash_profile").write_text(f". {home}/.bashrc\n")
    profile = context(ws, special("root", "read"), special("project_roots", "write"))

    run = await client.run(
        ["/bin/bash", "-lc", "echo $CAPTURED"],
        cwd=file_uri(ws),
        env={"PATH": "/usr/bin:/bin", "HOME": str(home)},
        sandbox=profile,
        shellSnapshot={"scopeId": "s", "shell": {"name": "bash", "path": "/bin/bash"}},
    )

    assert run.stdout == b"yes\n"
    assert not (ws.parent / "escaped").exists()


# -- signals and ends


@both
async def test_an_interrupt_reaches_the_handler_of_the_command(
    client: Client, read_only: dict[str, Any], tty: bool
) -> None:
    await client.shell("p", TRAP, sandbox=read_only, tty=tty)
    await client.output("p", b"up")

    await client.call("process/signal", {"processId": "p", "signal": "interrupt"})
    run = await client.finish("p")

    assert run.exit_code == 3
    assert b"caught" in run.stdout + run.pty


async def test_ctrl_c_reaches_the_handler_of_the_command(
    client: Client, read_only: dict[str, Any]
) -> None:
    await client.shell("p", TRAP, sandbox=read_only, tty=True)
    await client.output("p", b"up")

    await client.write("p", b"\x03")

    assert (await client.finish("p")).exit_code == 3


async def test_a_terminal_has_job_control(client: Client, read_only: dict[str, Any]) -> None:
    argv = ["/bin/bash", "--norc", "--noprofile", "-i"]
    env = {"PATH": "/usr/bin:/bin", "PS1": "ready> ", "HOME": "/"}
    await client.start("p", argv, sandbox=read_only, tty=True, env=env)
    await client.output("p", b"ready> ")

    await client.write("p", b"sh -c 'echo u\"\"p; exec sleep 60'\n")
    await client.output("p", b"\nup\r\n")
    await client.write("p", b"\x1a")
    await client.output("p", b"Stopped")
    await client.write("p", b"kill -9 %1; exec sh -c 'exit 5'\n")

    assert (await client.finish("p")).exit_code == 5


@pytest.mark.requirement("sandbox.end")
@both
async def test_terminate_ends_everything_inside(
    client: Client, server_pid: int, read_only: dict[str, Any], tty: bool
) -> None:
    before = descendants(server_pid)
    script = "setsid sh -c 'trap \"\" TERM HUP INT; echo up; sleep 60' & wait"
    await client.shell("p", script, sandbox=read_only, tty=tty)
    await client.output("p", b"up")
    inside = descendants(server_pid) - before
    assert len(inside) >= 4

    assert await client.terminate("p")
    await client.finish("p")

    assert exit_of(client, "p")["exitCode"] == 137
    for pid in inside:
        await gone(pid)


async def test_a_command_that_is_terminated_does_not_see_the_end_of_its_input_first(
    client: Client, read_only: dict[str, Any]
) -> None:
    script = "echo up; read line; echo on"
    for number in range(5):
        await client.shell(f"p{number}", script, sandbox=read_only, pipeStdin=True)
        await client.output(f"p{number}", b"up")
        await client.call("process/terminate", {"processId": f"p{number}"})
        assert (await client.finish(f"p{number}")).stdout == b"up\n"


@pytest.mark.requirement("sandbox.end")
async def test_what_a_command_leaves_in_the_background_ends_with_it(
    client: Client, server_pid: int, read_only: dict[str, Any]
) -> None:
    before = descendants(server_pid)
    script = "setsid sleep 60 >/dev/null 2>&1 & echo $!; read line"
    await client.shell("p", script, sandbox=read_only, pipeStdin=True)
    await client.output("p", b"\n")
    inside = descendants(server_pid) - before
    await client.write("p", b"\n")

    assert (await client.finish("p")).exit_code == 0
    for pid in inside:
        await gone(pid)


async def test_a_sandbox_ends_with_its_server(ws: Path, read_only: dict[str, Any]) -> None:
    with serving() as server:
        async with connect(server.url) as client:
            await client.shell("p", "echo up; sleep 60", sandbox=read_only)
            await client.output("p", b"up")
            inside = descendants(server.serving_pid)
            os.kill(server.serving_pid, signal.SIGKILL)
            for pid in inside:
                await gone(pid)


@pytest.fixture
def server_pid(server: Any) -> int:
    return int(server.serving_pid)


def descendants(pid: int) -> set[int]:
    """All processes below one, that run."""
    found: set[int] = set()
    for child in children(pid):
        if is_alive(child):
            found |= {child, *descendants(child)}
    return found


# -- what is left on the disk


@pytest.mark.requirement("security.sandbox.places")
@pytest.mark.parametrize("end", ["exit", "interrupt", "terminate", "disconnect"])
async def test_places_that_were_only_mounted_on_are_gone_at_the_close(
    client: Client, ws: Path, workspace: dict[str, Any], end: str
) -> None:
    await client.shell(
        "p", "echo up; read line; exit 0", sandbox=workspace, cwd=file_uri(ws), pipeStdin=True
    )
    await client.output("p", b"up")
    assert sorted(os.listdir(ws)) == PROTECTED

    if end == "exit":
        await client.write("p", b"\n")
    elif end == "interrupt":
        await client.call("process/signal", {"processId": "p", "signal": "interrupt"})
    elif end == "terminate":
        await client.terminate("p")
    else:
        await client.call("process/signal", {"processId": "p", "signal": "SIGKILL"})
    await client.finish("p")

    assert os.listdir(ws) == []


@pytest.mark.requirement("security.sandbox.places")
async def test_a_place_is_kept_for_a_command_that_still_needs_it(
    client: Client, ws: Path, workspace: dict[str, Any]
) -> None:
    script = "echo up; read line; mkdir .git/x && echo escaped; mkdir .git && echo escaped; exit 0"
    for process_id in ("first", "second"):
        await client.shell(process_id, script, sandbox=workspace, cwd=file_uri(ws), pipeStdin=True)
        await client.output(process_id, b"up")

    await client.write("first", b"\n")
    await client.finish("first")
    assert sorted(os.listdir(ws)) == PROTECTED
    await client.write("second", b"\n")
    second = await client.finish("second")

    assert second.stdout == b"up\n"
    assert os.listdir(ws) == []


async def test_what_was_there_before_is_still_there(
    client: Client, ws: Path, workspace: dict[str, Any]
) -> None:
    (ws / ".git").mkdir()
    (ws / ".codex").mkdir()
    (ws / ".codex" / "config").write_text("kept")

    await client.run_shell("exit 0", sandbox=workspace, cwd=file_uri(ws))

    assert sorted(os.listdir(ws)) == [".codex", ".git"]


async def test_nothing_is_left_when_the_server_stops(ws: Path, workspace: dict[str, Any]) -> None:
    with serving() as server:
        async with connect(server.url) as client:
            await client.shell("p", "echo up; sleep 60", sandbox=workspace, cwd=file_uri(ws))
            await client.output("p", b"up")
            assert server.stop() == 0

    assert os.listdir(ws) == []


@pytest.mark.slow
async def test_many_starts_at_once_leave_nothing(
    client: Client, server_pid: int, ws: Path, workspace: dict[str, Any]
) -> None:
    async def at_most(count: int) -> None:
        """Wait until it has no more than these: it closes those of a command after its end."""
        async with asyncio.timeout(LIMIT):
            while len(links()) > count:  # noqa: ASYNC110 - no event
                await asyncio.sleep(0.001)

    def links() -> list[str]:
        found: list[str] = []
        for fd in Path(f"/proc/{server_pid}/fd").iterdir():
            with suppress(FileNotFoundError):
                found.append(os.readlink(fd))
        return found

    await client.run_shell("exit 0", sandbox=workspace, cwd=file_uri(ws))
    # Some of the first command may still be open here: one of each of 60 would be far more.
    before = len(links())
    for number in range(60):
        params = start_params(
            f"many-{number}",
            ["/bin/sh", "-c", f"echo {number}"],
            cwd=file_uri(ws),
            sandbox=workspace,
        )
        await client.request("process/start", params)
    for number in range(60):
        run = await client.finish(f"many-{number}")
        assert (run.exit_code, run.stdout) == (0, f"{number}\n".encode())

    assert os.listdir(ws) == []
    await at_most(before)


# -- denials


@pytest.mark.requirement("sandbox.denied")
@both
async def test_a_denial_is_told_with_the_exit_and_by_read(
    client: Client, read_only: dict[str, Any], tty: bool
) -> None:
    await client.shell("p", "touch /etc/x; exit 1", sandbox=read_only, tty=tty)
    await client.finish("p")

    assert exit_of(client, "p") == {"exitCode": 1, "sandboxDenied": True}
    assert (await client.read("p"))["sandboxDenied"] is True


@pytest.mark.requirement("sandbox.denied")
async def test_a_process_killed_for_a_call_was_denied(
    client: Client, read_only: dict[str, Any]
) -> None:
    await client.shell("p", "kill -SYS $$", sandbox=read_only)
    await client.finish("p")

    assert exit_of(client, "p") == {"exitCode": 159, "sandboxDenied": True}


@pytest.mark.requirement("sandbox.denied")
async def test_a_failure_outside_of_any_sandbox_is_no_denial(client: Client) -> None:
    await client.shell("p", "echo permission denied; exit 1")
    await client.finish("p")

    assert exit_of(client, "p") == {"exitCode": 1, "sandboxDenied": False}
    assert (await client.read("p"))["sandboxDenied"] is False


@pytest.mark.requirement("sandbox.exit-code")
@pytest.mark.parametrize(
    ("script", "code"), [("exit 7", 7), ("kill -TERM $$", 143), ("kill -KILL $$", 137)]
)
async def test_exit_codes_pass_through(
    client: Client, read_only: dict[str, Any], script: str, code: int
) -> None:
    run = await client.run_shell(script, sandbox=read_only)

    assert run.exit_code == code


# -- limits


async def test_limits_hold_in_a_sandbox(client: Client, read_only: dict[str, Any]) -> None:
    limits = {"openFiles": 33, "addressSpaceBytes": 1 << 30}

    run = await client.run_shell("ulimit -n; ulimit -v", sandbox=read_only, limits=limits)

    assert run.stdout.split() == [b"33", str(1 << 20).encode()]


@pytest.mark.parametrize("sandboxed", [False, True], ids=["free", "sandboxed"])
async def test_the_list_names_the_limit_that_ended_a_process(
    client: Client, read_only: dict[str, Any], sandboxed: bool
) -> None:
    sandbox = read_only if sandboxed else None
    await client.start("p", ["/usr/bin/yes"], sandbox=sandbox, limits={"outputBytes": 10_000})
    run = await client.finish("p")

    summaries = (await client.call("process/list"))["processes"]
    assert run.exit_code == 137
    assert [s["reason"] for s in summaries if s["processId"] == "p"] == ["limit"]


@pytest.mark.parametrize(
    ("limits", "text"),
    [
        ({"openFiles": 1}, "openFiles must be at least 16"),
        ({"memoryBytes": 1 << 20}, "memoryBytes must be at least 4194304"),
        ({"cpuSeconds": 0}, "cpuSeconds must be between 1 and 9223372036854775807"),
    ],
)
async def test_limits_that_make_no_sense_are_refused(
    client: Client, limits: dict[str, int], text: str
) -> None:
    params = start_params("p", ["/bin/true"], limits=limits)

    assert await client.refusal("process/start", params) == (-32602, text)
