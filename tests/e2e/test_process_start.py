"""Starts of processes: program, directory, variables, and refusals [start.*]."""

import os
import pwd
import signal
import sys
from collections.abc import AsyncIterator
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


def _program(path: Path, text: str = '#!/bin/sh\necho "$0" "$@"\n') -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def _home_of_user() -> str:
    return os.path.realpath(pwd.getpwuid(os.getuid()).pw_dir)


# -- params


@pytest.mark.requirement("start.reply")
@both
async def test_the_reply_names_the_process_and_its_sandbox(client: Client, tty: bool) -> None:
    reply = await client.start("p", ["true"], tty=tty)
    assert reply == {"processId": "p", "sandboxType": "none"}
    await client.finish("p")


@pytest.mark.requirement("start.params.required")
async def test_five_members_are_required(client: Client) -> None:
    for absent in ("processId", "argv", "cwd", "env", "tty"):
        params = start_params("p", ["true"])
        del params[absent]
        refusal = await client.refusal("process/start", params)
        assert refusal == (-32602, f"missing field `{absent}`")
    for name in ("env", "pipeStdin", "tty", "enforceManagedNetwork"):
        code, text = await _refusal(client, ["true"], **{name: None})
        assert (code, text[:19]) == (-32602, "invalid type: null,")


@pytest.mark.requirement("start.params.required")
async def test_what_is_optional_may_be_null(client: Client) -> None:
    names = ("arg0", "envPolicy", "metadata", "sandbox", "managedNetwork", "networkProxy")
    nothing = dict.fromkeys((*names, "shellSnapshot", "terminalSize"))
    assert await client.run(["true"], **nothing) == Run(0)


@pytest.mark.requirement("start.process-id")
@pytest.mark.parametrize("process_id", ["", "a\0b", "x" * 100_000, 'é\U0001f600\n"\\', "../p"])
async def test_a_process_id_is_any_text(client: Client, process_id: str) -> None:
    reply = await client.start(process_id, ["echo", "hi"])
    assert reply["processId"] == process_id
    assert await client.finish(process_id) == Run(0, stdout=b"hi\n")


@pytest.mark.requirement("start.duplicate")
async def test_an_id_that_is_taken_is_refused(client: Client) -> None:
    taken = (-32600, "process p already exists")
    await client.start("p", ["cat"], pipeStdin=True)
    assert await client.refusal("process/start", start_params("p", ["true"])) == taken
    await client.terminate("p")
    await client.finish("p")
    # For 80 seconds after its end, too.
    assert await client.refusal("process/start", start_params("p", ["true"])) == taken


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


@pytest.mark.requirement("start.check-order")
async def test_the_order_of_the_checks(client: Client) -> None:
    await client.start("p", ["cat"], pipeStdin=True)

    async def code_and_text(**params: object) -> tuple[int, str]:
        return await client.refusal("process/start", {**start_params("p", ["/nope"]), **params})

    # Params, the folder, argv, the id, the program: the first fault in this order is told.
    assert (await code_and_text(cwd="nope", argv=5))[1].startswith("invalid ")
    foreign = await code_and_text(cwd="file://host/x", argv=[])
    assert foreign[1].startswith("cwd URI `file://host/x` is not valid on this exec-server host")
    assert await code_and_text(argv=[]) == (-32602, "argv must not be empty")
    assert await code_and_text() == (-32600, "process p already exists")


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


@pytest.mark.requirement("start.managed-network-alone")
async def test_no_protection_at_all_may_be_asked_for(client: Client) -> None:
    assert await client.run(["true"], enforceManagedNetwork=True) == Run(0)
    disabled = {"permissions": {"type": "disabled"}, "windowsSandboxLevel": "disabled"}
    assert await client.run(["true"], sandbox=disabled) == Run(0)


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


@pytest.mark.requirement("start.cwd.refused")
@pytest.mark.parametrize(
    ("uri", "text"),
    [
        ("/tmp", "invalid URI: relative URL without a base"),
        ("tmp", "invalid URI: relative URL without a base"),
        ("", "invalid URI: relative URL without a base"),
        ("http://x/", "unsupported path URI scheme `http`"),
        ("file:///a?x=1", "query parameters are not allowed in path URIs"),
        ("file:///a#f", "fragments are not allowed in path URIs"),
        ("file:///a%00b", "'file:///a%00b' is invalid on 'linux'"),
    ],
)
async def test_what_is_no_folder_of_a_uri_is_refused(client: Client, uri: str, text: str) -> None:
    assert await _refusal(client, ["true"], cwd=uri) == (-32602, text)


@pytest.mark.requirement("start.cwd.foreign")
@pytest.mark.parametrize("uri", ["file://host/tmp", "file:///C:/x"])
async def test_a_folder_of_another_machine_is_refused(client: Client, uri: str) -> None:
    text = f"cwd URI `{uri}` is not valid on this exec-server host: '{uri}' is invalid on 'linux'"
    assert await _refusal(client, ["true"], cwd=uri) == (-32602, text)


@pytest.mark.requirement("start.cwd.missing-folder-on-pipes", "start.cwd.file-on-pipes")
async def test_on_pipes_the_folder_has_to_be_one(client: Client, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    for argv in (["/bin/true"], ["true"]):
        assert await _refusal(client, argv, cwd=file_uri(tmp_path / "missing")) == MISSING
        not_a_folder = (-32603, "Not a directory (os error 20)")
        assert await _refusal(client, argv, cwd=file_uri(file)) == not_a_folder


@pytest.mark.requirement("start.cwd.fallback-on-terminal")
async def test_on_a_terminal_a_missing_folder_is_replaced_by_the_home(
    client: Client, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.touch()
    home = {"PATH": PATH, "HOME": str(tmp_path)}
    for path in (tmp_path / "missing", file):
        uri = file_uri(path)
        assert await _lines(client, ["/bin/pwd"], cwd=uri, tty=True, env=home) == [str(tmp_path)]
        of_user = await _lines(client, ["/bin/pwd"], cwd=uri, tty=True, env={"PATH": PATH})
        assert of_user == [_home_of_user()]
        nowhere = {"PATH": PATH, "HOME": str(tmp_path / "nowhere")}
        assert await _refusal(client, ["/bin/pwd"], cwd=uri, tty=True, env=nowhere) == MISSING


# -- the program


@pytest.mark.requirement("start.program.path")
@both
async def test_a_bare_name_is_found_in_the_path_of_the_child(
    client: Client, tmp_path: Path, tty: bool
) -> None:
    first = _program(tmp_path / "one" / "tool")
    second = _program(tmp_path / "two" / "tool")
    cwd = file_uri(tmp_path)
    for path, found in (
        (f"{tmp_path}/none:{second.parent}:{first.parent}", second),
        ("one:two", first),
        (f":{second.parent}", second),
    ):
        lines = await _lines(client, ["tool", "x"], cwd=cwd, env={"PATH": path}, tty=tty)
        assert [str(tmp_path / line) for line in lines] == [f"{found} x"]


@pytest.mark.requirement("start.program.no-path-on-pipes", "start.program.no-path-on-terminal")
async def test_without_a_path_pipes_use_the_default_and_terminals_refuse(client: Client) -> None:
    assert await _lines(client, ["echo", "hi"], env={}) == ["hi"]
    assert await _refusal(client, ["echo"], env={}, tty=True) == (
        -32603,
        "Unable to spawn echo because:\nUnable to resolve the PATH",
    )


@pytest.mark.requirement("start.program.not-found")
async def test_a_name_that_is_not_found_is_refused(client: Client) -> None:
    env = {"PATH": "/usr/bin:/bin"}
    assert await _refusal(client, ["no-such-tool"], env=env) == MISSING
    assert await _refusal(client, ["no-such-tool"], env=env, tty=True) == (
        -32603,
        'Unable to spawn no-such-tool because:\nNo viable candidates found in PATH "/usr/bin:/bin"',
    )


@pytest.mark.requirement("start.program.dot-slash", "start.program.dot-slash-argv0")
@pytest.mark.requirement("start.program.relative-on-terminal")
async def test_a_path_is_relative_to_the_folder(client: Client, tmp_path: Path) -> None:
    _program(tmp_path / "tool")
    _program(tmp_path / "below" / "tool")
    where = {"cwd": file_uri(tmp_path), "env": {"PATH": "/usr/bin"}}
    assert await _lines(client, ["./tool"], **where) == ["./tool"]
    assert await _lines(client, ["below/tool"], **where) == ["below/tool"]
    (seen,) = await _lines(client, ["./tool"], tty=True, **where)
    assert Path(seen) == tmp_path / "tool"
    assert await _refusal(client, ["below/tool"], tty=True, **where) == (
        -32603,
        'Unable to spawn below/tool because:\nNo viable candidates found in PATH "/usr/bin"',
    )


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


@pytest.mark.requirement("start.program.empty")
async def test_an_empty_program_is_refused(client: Client) -> None:
    assert await _refusal(client, []) == (-32602, "argv must not be empty")
    assert await _refusal(client, [], tty=True) == (-32602, "argv must not be empty")
    assert await _refusal(client, [""]) == (-32603, "missing program for pipe spawn")
    assert await _refusal(client, ["", "x"], tty=True) == (-32603, "missing program for PTY spawn")


@pytest.mark.requirement("start.program.nul")
@both
async def test_a_nul_byte_is_refused(client: Client, tty: bool) -> None:
    argument = (-32603, "nul byte found in provided data")
    variable = (-32603, "data provided contains a nul byte")
    assert await _refusal(client, ["/bin/echo", "a\0b"], tty=tty) == argument
    assert await _refusal(client, ["/bin/echo"], env={"A": "x\0y"}, tty=tty) == variable
    assert await _refusal(client, ["/bin/echo"], env={"A\0": "x"}, tty=tty) == variable


@pytest.mark.requirement("start.arg0.pipes")
async def test_on_pipes_arg0_is_what_the_program_sees(client: Client) -> None:
    argv = ["/bin/cat", "/proc/self/cmdline"]
    assert (await client.run(argv, arg0="other")).stdout.startswith(b"other\0")
    assert (await client.run(argv, arg0="")).stdout.startswith(b"\0")
    assert (await client.run(argv, arg0=None)).stdout.startswith(b"/bin/cat\0")


@pytest.mark.requirement("start.arg0.terminal")
async def test_on_a_terminal_arg0_is_the_program(client: Client) -> None:
    assert await _lines(client, ["/bin/cat", "hello"], arg0="/bin/echo", tty=True) == ["hello"]
    code, text = await _refusal(client, ["/bin/echo"], arg0="no-such-tool", tty=True)
    assert (code, text[:32]) == (-32603, "Unable to spawn no-such-tool bec")


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


@pytest.mark.requirement("env.exact")
async def test_without_a_policy_the_environment_is_exact(client: Client) -> None:
    assert await _environment(client) == {}
    env = {"A": "1", "B": "", "é": "ü", "LONG": "x" * 100_000}
    assert await _environment(client, env=env) == env


@pytest.mark.requirement("env.odd-names")
async def test_odd_names_are_passed_through(client: Client) -> None:
    run = await client.run(["/usr/bin/env", "-0"], env={"A=B": "1", "with blank": "2", "": "3"})
    assert sorted(run.stdout.split(b"\0")) == [b"", b"=3", b"A=B=1", b"with blank=2"]


@pytest.fixture(scope="module")
def own_variables() -> dict[str, str]:
    return {
        "PATH": PATH,
        "HOME": "/some/home",
        "LANG": "C.UTF-8",
        "tmp": "lower",
        "FOO": "1",
        "FOO_KEY": "k",
        "MYSECRET": "s",
        "a_token": "t",
        "Monkey": "m",
        "BAR": "b",
        "NODE_REPL_AUTH_TOKEN": "n",
        "CODEX_THREAD_ID": "thread",
    }


@pytest.fixture
async def inheriting(own_variables: dict[str, str]) -> AsyncIterator[Client]:
    """A client of a server with known variables."""
    with serving(env=own_variables) as server:
        async with connect(server.url) as client:
            yield client


@pytest.mark.requirement("env.policy.inherit", "env.policy.default-excludes", "env.policy.exclude")
@pytest.mark.requirement("env.policy.include-only", "env.policy.env-wins", "env.policy.patterns")
async def test_a_policy_decides_what_is_inherited(
    inheriting: Client, own_variables: dict[str, str]
) -> None:
    async def names(env: dict[str, str] | None = None, **policy: object) -> set[str]:
        found = await _environment(inheriting, env=env or {}, envPolicy=_policy(**policy))
        # Python adds this one to its own environment under some locales.
        return set(found) - {"LC_CTYPE"}

    everything = set(own_variables) - {"NODE_REPL_AUTH_TOKEN"}
    assert await names(inherit="all") == everything
    assert await names(inherit="none") == set()
    assert await names(inherit="core") == {"PATH", "HOME", "LANG", "tmp"}
    no_secrets = everything - {"FOO_KEY", "MYSECRET", "a_token", "Monkey"}
    assert await names(inherit="all", ignoreDefaultExcludes=False) == no_secrets
    assert await names(inherit="all", exclude=["foo*", "BA?", "", "[A-Z]*"]) == (
        everything - {"FOO", "FOO_KEY", "BAR"}
    )
    kept = await names(inherit="all", includeOnly=["FOO*", "S"], set={"S": "1", "U": "2"})
    assert kept == {"FOO", "FOO_KEY", "S"}
    assert await names(exclude=["*"], ignoreDefaultExcludes=False, set={"A_KEY": "1"}) == {"A_KEY"}
    assert await names({"MY_TOKEN": "1", "BAR": "2"}, exclude=["*"], includeOnly=["NONE"]) == {
        "MY_TOKEN",
        "BAR",
    }


@pytest.mark.requirement("env.policy.env-wins")
async def test_the_variables_of_the_start_win(inheriting: Client) -> None:
    found = await _environment(
        inheriting, env={"FOO": "mine"}, envPolicy=_policy(inherit="all", set={"FOO": "set"})
    )
    assert found["FOO"] == "mine"


@pytest.mark.requirement("env.policy.required")
async def test_all_members_of_a_policy_are_required(client: Client) -> None:
    for absent in _policy():
        policy = {name: value for name, value in _policy().items() if name != absent}
        refusal = await _refusal(client, ["true"], envPolicy=policy)
        assert refusal == (-32602, f"missing field `{absent}`")


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


@pytest.mark.requirement("env.tool-call-id", "env.thread-id")
async def test_metadata_becomes_two_variables(client: Client) -> None:
    thread = {"CODEX_THREAD_ID": "mine"}
    assert await _environment(client, env=thread) == thread
    assert await _environment(client, env=thread, metadata={}) == {}
    assert await _environment(client, metadata={"toolCallId": ""}) == {"CODEX_TOOL_CALL_ID": ""}
    metadata = {"threadId": "0123456789ABCDEF0123456789ABCDEF", "toolCallId": "call"}
    assert await _environment(client, env=thread, metadata=metadata) == {
        "CODEX_THREAD_ID": "01234567-89ab-cdef-0123-456789abcdef",
        "CODEX_TOOL_CALL_ID": "call",
    }
    code, _ = await _refusal(client, ["true"], metadata={"threadId": "nonsense"})
    assert code == -32602


@pytest.mark.requirement("env.shell-on-terminal")
async def test_on_a_terminal_the_shell_is_added(client: Client) -> None:
    found = await _environment(client, tty=True)
    assert set(found) == {"SHELL"}
    assert os.path.isabs(found["SHELL"])
    assert await _environment(client, tty=True, env={"SHELL": "x"}) == {"SHELL": "x"}


# -- the state of the child


@pytest.mark.requirement("start.state.session")
@both
async def test_a_child_leads_a_session_and_a_group(client: Client, tty: bool) -> None:
    code = "import os; print(os.getpid() == os.getpgid(0) == os.getsid(0))"
    assert await _lines(client, [sys.executable, "-I", "-c", code], tty=tty) == ["True"]


@pytest.mark.requirement("start.state.descriptors")
@both
async def test_a_child_has_three_descriptors(client: Client, tty: bool) -> None:
    # The fourth is the folder that is listed.
    code = "import os; print(*sorted(os.listdir('/proc/self/fd'), key=int))"
    await client.start("other", ["cat"], pipeStdin=True)
    assert await _lines(client, [sys.executable, "-I", "-c", code], tty=tty) == ["0 1 2 3"]


@pytest.mark.requirement("start.state.stdin")
async def test_without_pipe_stdin_the_input_is_empty(client: Client) -> None:
    assert await client.run_shell("readlink /proc/$$/fd/0; cat; echo end") == Run(
        0, stdout=b"/dev/null\nend\n"
    )


@pytest.mark.requirement("start.state.stdin")
async def test_with_pipe_stdin_the_input_stays_open(client: Client) -> None:
    await client.shell("p", "read x; echo got $x; read y; echo never", pipeStdin=True)
    await client.write("p", b"one\n")
    await client.output("p", b"got one\n")
    await client.terminate("p")
    assert await client.finish("p") == Run(137, stdout=b"got one\n")


def _mask(line: str) -> int:
    """One of the masks in /proc, with the signals that libc keeps for itself."""
    return int(line.split()[1], 16)


@pytest.mark.requirement("start.state.signals")
@both
async def test_a_child_begins_with_signals_as_they_should_be(client: Client, tty: bool) -> None:
    argv = ["grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status"]
    assert [_mask(line) for line in await _lines(client, argv, tty=tty)] == [0, 0]


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
