"""Starts of processes: program, directory, variables, and refusals [start.*]."""

import signal
from pathlib import Path

import pytest

from tests.e2e.wire import (
    HOLDFAST,
    PATH,
    Client,
    Run,
    connect,
    file_uri,
    serving,
    start_params,
)

MISSING = (-32603, "No such file or directory (os error 2)")
DENIED = (-32603, "Permission denied (os error 13)")

both = pytest.mark.parametrize("tty", [False, True], ids=["pipes", "terminal"])


async def _refusal(client: Client, argv: list[str], **params: object) -> tuple[int, str]:
    return await client.refusal("process/start", start_params("refused", argv, **params))


async def _lines(client: Client, argv: list[str], **params: object) -> list[str]:
    """Run a program to its good end and return its output, whatever the stream."""
    run = await client.run(argv, **params)
    assert (run.exit_code, run.stderr) == (0, b"")
    return (run.stdout + run.pty).decode().splitlines()


# -- params


@pytest.mark.requirement("start.reply")
@both
async def test_the_reply_names_the_process_and_its_sandbox(client: Client, tty: bool) -> None:
    reply = await client.start("p", ["true"], tty=tty)
    assert reply == {"processId": "p", "sandboxType": "none"}
    await client.finish("p")


@pytest.mark.requirement("start.process-id")
@pytest.mark.parametrize("process_id", ["", "a\0b", "x" * 100_000, 'é\U0001f600\n"\\', "../p"])
async def test_a_process_id_is_any_text(client: Client, process_id: str) -> None:
    reply = await client.start(process_id, ["echo", "hi"])
    assert reply["processId"] == process_id
    assert await client.finish(process_id) == Run(0, stdout=b"hi\n")


@pytest.mark.requirement("start.duplicate")
async def test_of_two_starts_at_once_one_succeeds(client: Client) -> None:
    ids = [await client.request("process/start", start_params("p", ["true"])) for _ in range(2)]
    replies = [await client.reply(request_id) for request_id in ids]
    assert sorted("error" in reply for reply in replies) == [False, True]


@pytest.mark.requirement("start.failure-leaves-no-trace")
@both
async def test_a_failed_start_leaves_no_trace(client: Client, tty: bool) -> None:
    params = start_params("p", ["/no/such/program"], tty=tty)
    assert await client.refusal("process/start", params) == MISSING
    unknown = (-32600, "unknown process id p")
    assert await client.refusal("process/read", {"processId": "p"}) == unknown
    assert (await client.call("process/list"))["processes"] == []
    await client.shell("p", "echo good", tty=tty)
    assert (await client.finish("p")).exit_code == 0


@pytest.mark.requirement("start.sandbox-refused")
@pytest.mark.parametrize(
    "params",
    [
        {"sandbox": {"permissions": {"type": "readOnly"}}},
        {"sandbox": {"permissions": {"type": "managed"}}},
        {"sandbox": {"permissions": "disabled"}},
        {"sandbox": {"permissions": None}},
        {"sandbox": {}},
        {"networkProxy": {"proxy": {"enabled": True}}},
        {"networkProxy": {}},
        {"managedNetwork": {"loopbackPorts": []}},
    ],
)
async def test_a_protection_that_is_not_there_is_refused(
    client: Client, params: dict[str, object]
) -> None:
    code, text = await _refusal(client, ["true"], **params)
    assert code == -32602
    assert text
    assert (await client.call("process/list"))["processes"] == []


# -- cwd


@pytest.mark.requirement("start.cwd.uri")
@both
async def test_a_folder_has_many_spellings(client: Client, tmp_path: Path, tty: bool) -> None:
    odd = tmp_path / "a b%é#?"
    odd.mkdir()
    for uri, folder in (
        ("file:///", "/"),
        ("file:/", "/"),
        ("FILE:///", "/"),
        ("file://localhost/", "/"),
        ("file:////", "/"),
        ("file:///usr/../bin/..", "/"),
        ("file:///usr/%2e%2e/", "/"),
        (file_uri(tmp_path), tmp_path),
        (f"{file_uri(tmp_path)}/", tmp_path),
        (file_uri(odd), odd),
    ):
        assert await _lines(client, ["/bin/pwd"], cwd=uri, tty=tty) == [str(folder)], uri


# -- the program


@pytest.mark.requirement("start.program.errors")
@both
async def test_what_cannot_be_executed_is_refused(
    client: Client, tmp_path: Path, tty: bool
) -> None:
    plain = tmp_path / "plain"
    plain.write_text("not a program")
    assert await _refusal(client, [str(tmp_path / "missing")], tty=tty) == MISSING
    assert await _refusal(client, [str(plain)], tty=tty) == DENIED
    assert await _refusal(client, [str(tmp_path)], tty=tty) == DENIED
    plain.chmod(0o755)
    no_format = (-32603, "Exec format error (os error 8)")
    assert await _refusal(client, [str(plain)], tty=tty) == no_format


@pytest.mark.requirement("start.program.too-long")
@both
async def test_an_argument_that_is_too_long_is_refused(client: Client, tty: bool) -> None:
    refusal = await _refusal(client, ["/bin/echo", "x" * 200_000], tty=tty)
    assert refusal == (-32603, "Argument list too long (os error 7)")


@both
async def test_many_arguments_are_taken(client: Client, tty: bool) -> None:
    argv = ["/bin/sh", "-c", "echo $#", "sh", *["y"] * 10_000]
    assert await _lines(client, argv, tty=tty) == ["10000"]


# -- the environment of the child


def _policy(**changed: object) -> dict[str, object]:
    plain: dict[str, object] = {
        "inherit": "none",
        "ignoreDefaultExcludes": True,
        "exclude": [],
        "set": {},
        "includeOnly": [],
    }
    return {**plain, **changed}


async def _environment(client: Client, **params: object) -> dict[str, str]:
    run = await client.run(["/usr/bin/env", "-0"], **{"env": {}, **params})
    assert run.exit_code == 0
    pairs = (run.stdout + run.pty).decode().split("\0")[:-1]
    return dict(pair.split("=", 1) for pair in pairs)


@pytest.mark.requirement("env.policy.inherit")
async def test_a_policy_decides_what_is_inherited() -> None:
    own = {"PATH": PATH, "HOME": "/some/home", "FOO": "1", "BAR": "b", "MYSECRET": "s"}
    with serving(env={**own, "NODE_REPL_AUTH_TOKEN": "n"}) as server:
        async with connect(server.url) as client:
            found = await _environment(client, envPolicy=_policy(inherit="all"))
            # Python adds this one to its own environment under some locales.
            found.pop("LC_CTYPE", None)
            assert found == own
            policy = _policy(
                inherit="all",
                ignoreDefaultExcludes=False,
                exclude=["ba?"],
                set={"FOO_S": "1", "U": "2"},
                includeOnly=["*O*"],
            )
            found = await _environment(client, env={"FOO": "mine", "BAR": "b"}, envPolicy=policy)
            assert found == {"FOO": "mine", "BAR": "b", "HOME": "/some/home", "FOO_S": "1"}


@pytest.mark.requirement("env.reserved")
async def test_secrets_of_the_server_are_dropped(client: Client) -> None:
    dropped = (
        "CODEX_EXEC_SERVER_NOISE_AUTH_TOKEN",
        "NODE_REPL_AUTH_TOKEN",
        "node_repl_auth_token",
        "OPENAI_FEDERATION_RULE_ID",
        "OpenAI_Identity_Token_File",
        "OPENAI_WORKLOAD_IDENTITY_CONTEXT",
        "CODEX_GUARDIAN_DECISIONS_API_KEY",
        "CODEX_EXEC_SERVER_EXIT_ON_STDIN_CLOSE",
        "CODEX_TOOL_CALL_ID",
    )
    kept = ("codex_tool_call_id", "codex_exec_server_exit_on_stdin_close", "OPENAI_API_KEY", "A")
    given = dict.fromkeys((*dropped, *kept), "v")
    assert await _environment(client, env=given) == dict.fromkeys(kept, "v")
    found = await _environment(client, envPolicy=_policy(set=given))
    assert found == dict.fromkeys(kept, "v")


# -- the state of the child


def _mask(line: str) -> int:
    """One of the masks in /proc, with the signals that libc keeps for itself."""
    return int(line.split()[1], 16)


READS_ALL = {
    "permissions": {
        "type": "managed",
        "file_system": {
            "type": "restricted",
            "entries": [{"path": {"type": "special", "value": {"kind": "root"}}, "access": "read"}],
        },
        "network": "restricted",
    },
    "cwd": "file:///",
    "windowsSandboxLevel": "disabled",
}


@pytest.mark.requirement("start.state.signals")
@both
@pytest.mark.parametrize("more", [{"sandbox": READS_ALL}, {"limits": {"openFiles": 99}}])
async def test_so_does_one_in_a_sandbox_or_with_limits(
    client: Client, tty: bool, more: dict[str, object]
) -> None:
    argv = ["grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status"]
    assert [_mask(line) for line in await _lines(client, argv, tty=tty, **more)] == [0, 0]


@pytest.mark.requirement("start.state.signals-stay-ignored", "start.state.signals")
async def test_on_pipes_a_hang_up_that_the_server_ignores_stays_ignored() -> None:
    command = ("/bin/sh", "-c", "trap '' HUP QUIT; exec \"$@\"", "sh")
    argv = ["grep", "^SigIgn", "/proc/self/status"]
    with serving(command=(*command, *HOLDFAST, "exec-server")) as server:
        async with connect(server.url) as client:
            (line,) = await _lines(client, argv)
            assert _mask(line) == 1 << (signal.SIGHUP - 1) | 1 << (signal.SIGQUIT - 1)
            (line,) = await _lines(client, argv, tty=True)
            assert _mask(line) == 0


@pytest.mark.requirement("security.process.descriptors")
async def test_a_child_has_the_limits_the_server_was_started_with() -> None:
    command = ("/bin/sh", "-c", 'ulimit -Sn 512; exec "$@"', "sh")
    with serving(command=(*command, *HOLDFAST, "exec-server")) as limited:
        async with connect(limited.url) as client:
            for tty in (False, True):
                assert await _lines(client, ["/bin/sh", "-c", "ulimit -Sn"], tty=tty) == ["512"]


@pytest.mark.requirement("limits.processes")
async def test_many_starts_at_once_all_succeed(client: Client) -> None:
    for number in range(150):
        await client.request("process/start", start_params(f"p{number}", ["echo", str(number)]))
    for number in range(150):
        assert await client.finish(f"p{number}") == Run(0, stdout=b"%d\n" % number)


@pytest.mark.requirement("sandbox.core")
@both
async def test_nothing_that_is_started_leaves_a_core(client: Client, tty: bool) -> None:
    assert await _lines(client, ["/bin/sh", "-c", "ulimit -Hc"], tty=tty) == ["0"]
