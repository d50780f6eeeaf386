"""`holdfast-sh` beside bash: the same arguments, the same answers, with and without a sandbox."""

import asyncio
import fcntl
import os
import re
import resource
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from holdfast.engine.linux.proc import stat_fields
from holdfast.engine.sandbox.bubblewrap.delegated_start import DelegatedStart
from holdfast.front.drop_in import service
from holdfast.front.drop_in.caller import Caller, namespaces, read_caller
from tests.e2e.shells import Shell
from tests.e2e.terminals import CTRL_C, CTRL_Z, Terminal, terminal
from tests.e2e.test_run import assert_gone, until
from tests.e2e.wire import HOLDFAST, LIMIT, children, serving

SANDBOXES = ["none", "workspace-write"]


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """A launcher whose server is started by the first call."""
    shell = Shell(tmp_path_factory.mktemp("bash"))
    yield shell
    shell.close()


@pytest.fixture(params=SANDBOXES)
def sandbox(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


CALLS: dict[str, tuple[tuple[str | bytes, ...], bytes]] = {
    "a line": (("-c", "echo out; echo err >&2; exit 7"), b""),
    "a login line": (("-lc", "shopt login_shell; echo $-"), b""),
    "flags apart": (("-c", "-l", "shopt login_shell; echo $0"), b""),
    "flags together": (("-euc", "echo $-; echo ${nothing}; echo not here"), b""),
    "a name and arguments": (("-c", 'printf "<%s>" "$0" "$@"', "name", "a b", "", "c"), b""),
    "options by name": (("-o", "pipefail", "-c", "false | true"), b""),
    "standard input": ((), b"echo from input; read line; echo got $line\nthe line\n"),
    "input with arguments": (("-s", "one", "two"), b"echo $# $2"),
    "a file": (("script", "x", "y z"), b""),
    "a missing file": (("no-such-file",), b""),
    "an unknown option": (("--no-such-option",), b""),
    "bytes that are no text": (("-c", b"printf '%s' \"$1\" | od -An -tx1", b"n", b"\xff\xfe"), b""),
    "input that is read": (("-c", "wc -c"), bytes(200_000)),
    "much output": (("-c", "head -c 3000000 /dev/zero | tr '\\0' x"), b""),
    "an exported function": (("-c", "greet you"), b""),
    "a variable": (("-c", "echo $GIVEN ${HOLDFAST_SH_IDLE-unset}"), b""),
    "the umask": (("-c", "umask; touch made; stat -c %a made"), b""),
    "the limits": (("-c", "ulimit -Sn; ulimit -c"), b""),
    "an error of syntax": (("-c", "if"), b""),
    "a missing command": (("-c", "no-such-command"), b""),
    "the folder": (("-c", "pwd -P"), b""),
    "a signal inside": (("-c", "bash -c 'kill -TERM $$'; echo $?"), b""),
    "a pipe that breaks": (("-c", "yes | head -1; echo ${PIPESTATUS[0]}"), b""),
    "version": (("--version",), b""),
}


@pytest.mark.in_turn("sandbox", *SANDBOXES)
@pytest.mark.parametrize("call", CALLS)
def test_it_answers_as_bash_does(shell: Shell, sandbox: str, call: str, tmp_path: Path) -> None:
    args, stdin = CALLS[call]
    (tmp_path / "script").write_text('echo "$0" "$#" "$2"; exit 5\n')
    env = shell.env | {
        "HOLDFAST_SH_SANDBOX": sandbox,
        "BASH_FUNC_greet%%": "() { echo hello $1; }",
        "GIVEN": "of the caller",
    }

    def run(program: str) -> tuple[int, bytes, bytes]:
        def prepare() -> None:
            os.umask(0o027)
            resource.setrlimit(resource.RLIMIT_NOFILE, (123, 456))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

        done = subprocess.run(
            ["called", *args],
            executable=program,
            cwd=tmp_path,
            input=stdin,
            capture_output=True,
            timeout=30,
            check=False,
            env=env,
            preexec_fn=prepare,
        )
        return done.returncode, done.stdout, done.stderr

    expected = run("/bin/bash")
    (tmp_path / "made").unlink(missing_ok=True)

    assert run(shell.path) == expected


@pytest.mark.parametrize(
    ("line", "expected"), [("kill -9 $$", 128 + 9), ("kill -TERM $$", 128 + 15), ("exit 255", 255)]
)
def test_a_shell_that_is_killed_inside_ends_with_the_number_of_the_signal(
    shell: Shell, line: str, expected: int, tmp_path: Path
) -> None:
    assert shell.run("-c", line, cwd=tmp_path).returncode == expected


# -- the way agents call their shells; docs/shells.md has where that is from

CLAUDE_SNAPSHOT = (
    "SNAPSHOT_FILE=snapshot.sh; echo 'shopt -s expand_aliases' >| \"$SNAPSHOT_FILE\";"
    ' declare -f >> "$SNAPSHOT_FILE"; echo "export PATH=\'$PATH\'" >> "$SNAPSHOT_FILE"'
)
CLAUDE_LINE = (
    "source snapshot.sh 2>/dev/null || true && shopt -u extglob 2>/dev/null || true && "
    "eval 'cd sub && echo said; cat' < /dev/null && pwd -P >| cwd-file"
)
GEMINI_LINE = "{ echo said; sleep 0.01 & }; __code=$?; pgrep -g 0 >pids 2>&1; exit $__code;"


def test_claude_code(shell: Shell, sandbox: str, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    assert shell.run("-c", "env", cwd=tmp_path, sandbox=sandbox).returncode == 0
    made = shell.run("-c", "-l", CLAUDE_SNAPSHOT, cwd=tmp_path, sandbox=sandbox)
    assert (made.returncode, made.stderr) == (0, b"")

    for flags in (["-c"], ["-c", "-l"]):
        # Output goes to a file there, both streams to one.
        with open(tmp_path / "output", "wb") as output:
            done = subprocess.run(
                [shell.path, *flags, CLAUDE_LINE],
                cwd=tmp_path,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                timeout=30,
                check=False,
                start_new_session=True,
                env=shell.env | {"HOLDFAST_SH_SANDBOX": sandbox},
            )
        assert done.returncode == 0
        assert (tmp_path / "output").read_bytes() == b"said\n"
        # `cd` was inside of `eval`, in the shell itself: the file is relative to it.
        assert (tmp_path / "sub" / "cwd-file").read_text() == f"{tmp_path / 'sub'}\n"


def test_codex(shell: Shell, sandbox: str, tmp_path: Path) -> None:
    done = shell.run("-lc", "echo said; false", cwd=tmp_path, sandbox=sandbox)
    assert (done.returncode, done.stdout) == (1, b"said\n")


def test_gemini_cli(shell: Shell, sandbox: str, tmp_path: Path) -> None:
    done = shell.run("-c", GEMINI_LINE, cwd=tmp_path, sandbox=sandbox)
    assert (done.returncode, done.stdout) == (0, b"said\n")
    assert all(line.isdigit() for line in (tmp_path / "pids").read_text().split())


def test_opencode(shell: Shell, sandbox: str, tmp_path: Path) -> None:
    # Node gives the streams of a child as sockets, and opencode makes it a group leader.
    import socket

    ours, theirs = socket.socketpair()
    with ours, theirs:
        process = subprocess.Popen(
            [shell.path, "-c", "echo said; echo error >&2; sleep 60"],
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            stdout=theirs.fileno(),
            stderr=theirs.fileno(),
            start_new_session=True,
            env=shell.env | {"HOLDFAST_SH_SANDBOX": sandbox},
        )
        theirs.close()
        said = b""
        ours.settimeout(LIMIT * 4)
        while b"error" not in said:
            said += ours.recv(100)
        # Its way to end one: the group is asked, then killed.
        os.killpg(process.pid, signal.SIGTERM)
        assert process.wait(LIMIT * 4) in (-signal.SIGTERM, 128 + signal.SIGTERM)
        assert said == b"said\nerror\n"


def test_goose(shell: Shell, sandbox: str, tmp_path: Path) -> None:
    path = shell.run("-l", "-i", "-c", "echo $PATH", cwd=tmp_path, sandbox=sandbox)
    assert path.stdout.strip()
    done = shell.run("-c", "echo said 2>&1 | tee file", cwd=tmp_path, sandbox=sandbox)
    assert (done.returncode, done.stdout) == (0, b"said\n")
    assert (tmp_path / "file").read_bytes() == b"said\n"


# -- signals, and what is left


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1])
def test_a_signal_reaches_the_shell_once(
    shell: Shell, sandbox: str, number: signal.Signals, tmp_path: Path
) -> None:
    name = number.name.removeprefix("SIG")
    line = f"trap 'echo got; count=$((count+1))' {name}; echo ready; while read x; do :; done;"
    process = shell.start("-c", line + " echo $count; exit 9", cwd=tmp_path, sandbox=sandbox)
    assert process.stdout is not None
    assert process.stdin is not None
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(number)
    assert process.stdout.readline() == b"got\n"
    out, _ = process.communicate(timeout=LIMIT * 4)
    assert (out, process.returncode) == (b"1\n", 9)


def test_a_shell_that_has_stopped_itself_goes_on(
    shell: Shell, sandbox: str, tmp_path: Path
) -> None:
    line = "echo $$; kill -STOP $$; echo went on; exit 9"
    process = shell.start("-c", line, cwd=tmp_path, sandbox=sandbox)
    assert process.stdout is not None
    process.stdout.readline()
    while process.poll() is None:  # it may not have stopped yet
        process.send_signal(signal.SIGCONT)
        time.sleep(0.05)
    assert (process.communicate()[0], process.returncode) == (b"went on\n", 9)


def test_a_launcher_that_is_killed_leaves_nothing(shell: Shell, tmp_path: Path) -> None:
    sleep = f"sleep {5_000_000 + os.getpid()}"
    process = shell.start("-c", f"setsid {sleep} & {sleep} & echo ready; wait", cwd=tmp_path)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"

    def pids() -> list[int]:
        found = subprocess.run(["pgrep", "-fx", sleep], capture_output=True, check=False)
        return list(map(int, found.stdout.split()))

    until(lambda: len(pids()) == 2)
    running = pids()
    process.kill()
    process.wait(LIMIT)
    for pid in running:
        assert_gone(pid)
    process.communicate()


@pytest.mark.slow
def test_many_at_once(shell: Shell, tmp_path: Path) -> None:
    async def one(number: int) -> tuple[int | None, bytes]:
        process = await asyncio.create_subprocess_exec(
            shell.path,
            "-c",
            f"echo {number}; exit {number}",
            cwd=tmp_path,
            env=shell.env,
            stdout=asyncio.subprocess.PIPE,
        )
        out, _ = await process.communicate()
        return process.returncode, out

    async def every() -> list[tuple[int | None, bytes]]:
        return await asyncio.gather(*map(one, range(61)))

    assert asyncio.run(every()) == [(number, b"%d\n" % number) for number in range(61)]


def test_descriptors_of_the_caller_do_not_get_into_a_sandbox(shell: Shell, tmp_path: Path) -> None:
    secret = os.open("/", os.O_RDONLY | os.O_DIRECTORY)
    fcntl.fcntl(secret, fcntl.F_SETFD, 0)
    try:
        done = subprocess.run(
            [shell.path, "-c", "ls /proc/self/fd"],
            cwd=tmp_path,
            env=shell.env,
            capture_output=True,
            pass_fds=[secret],
            timeout=30,
            check=True,
        )
    finally:
        os.close(secret)
    assert done.stdout.split() == [b"0", b"1", b"2", b"3"]  # the last is of `ls`


@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (0, 1, 2)])
def test_a_closed_stream_is_empty_inside(
    shell: Shell, closed: tuple[int, ...], tmp_path: Path
) -> None:
    def close() -> None:
        for fd in closed:
            os.close(fd)

    script = "readlink /proc/self/fd/0 /proc/self/fd/1 /proc/self/fd/2 > links"
    subprocess.run(
        [shell.path, "-c", script],
        cwd=tmp_path,
        env=shell.env,
        preexec_fn=close,
        stdin=subprocess.DEVNULL,
        timeout=30,
        check=False,
    )
    links = (tmp_path / "links").read_text().splitlines()
    assert len(links) == 3
    # The second is the file. Nothing of bubblewrap is among the others.
    for fd in (0, 2):
        assert fd not in closed or links[fd] == "/dev/null"


def test_a_folder_that_was_removed_is_named(shell: Shell, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    process = subprocess.Popen(
        ["/bin/sh", "-c", f'cd {gone} && rmdir {gone} && exec {shell.path} -c "echo ran"'],
        env=shell.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    out, error = process.communicate(timeout=30)
    assert (process.returncode, out) == (126, b"")
    assert error.startswith(b"holdfast-sh: the working directory is gone: ")
    assert error.count(b"\n") == 1


# -- what is denied


def test_a_denial_of_the_network_is_one_line(shell: Shell, tmp_path: Path) -> None:
    line = "exec 3<>/dev/tcp/127.0.0.1/9"
    done = shell.run("-c", line, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        b"holdfast-sh: denied by the sandbox: the network (bash asked for an IPv4 stream socket)"
    )


@pytest.mark.requirement("security.shell.confines")
def test_files_outside_of_the_folder_cannot_be_written(shell: Shell, tmp_path: Path) -> None:
    outside = Path.home() / f".holdfast-test-{os.getpid()}"
    done = shell.run("-c", f"echo no > {outside}", cwd=tmp_path)
    assert done.returncode == 1
    assert not outside.exists()
    assert b"Read-only file system" in done.stderr


def test_a_denial_is_told_behind_a_stderr_that_is_a_file(shell: Shell, tmp_path: Path) -> None:
    with open(tmp_path / "errors", "wb") as errors:
        line = [shell.path, "-c", "touch /etc/holdfast-test"]
        done = subprocess.run(line, cwd=tmp_path, stderr=errors, env=shell.env, check=False)
    assert done.returncode == 1
    assert (tmp_path / "errors").read_text().splitlines()[1:] == [
        "holdfast-sh: denied by the sandbox: /etc/holdfast-test"
    ]


def test_denied_files_are_hidden(shell: Shell, tmp_path: Path) -> None:
    # Each is masked by an empty file, whose descriptor the caller of bubblewrap has to have.
    for name in ("one.key", "two.key", "open"):
        (tmp_path / name).write_text(name)
    profile = tmp_path / "profile.toml"
    profile.write_text(f'''
        [file_system]
        entries = [
            {{ path = "/", access = "read" }},
            {{ path = ":project_roots", access = "write" }},
            {{ path = "{tmp_path}/*.key", access = "deny" }},
        ]
    ''')
    done = shell.run("-c", "cat one.key two.key open", cwd=tmp_path, sandbox=str(profile))
    assert done.stdout == b"open"
    assert done.stderr.count(b"Permission denied") == 2


def test_a_profile_that_is_unknown_runs_nothing(shell: Shell, tmp_path: Path) -> None:
    done = shell.run("-c", "echo ran", cwd=tmp_path, sandbox="no-such-profile")
    assert (done.returncode, done.stdout) == (126, b"")
    assert done.stderr.startswith(b"holdfast-sh: sandbox: ")
    assert done.stderr.count(b"\n") == 1


@pytest.mark.slow
def test_a_limit_of_time_ends_everything(shell: Shell, tmp_path: Path) -> None:
    env = {"HOLDFAST_SH_LIMIT_WALL_TIME": "0.3"}
    done = shell.run("-c", "sleep 60 & sleep 60", cwd=tmp_path, env=env)
    assert done.returncode == 137
    assert done.stderr == b"holdfast-sh: ended by a limit: it ran for more than 0.3 seconds\n"


def test_a_limit_of_open_files_is_kept(shell: Shell, sandbox: str, tmp_path: Path) -> None:
    env = {"HOLDFAST_SH_LIMIT_OPEN_FILES": "77"}
    done = shell.run("-c", "ulimit -n", cwd=tmp_path, sandbox=sandbox, env=env)
    assert done.stdout == b"77\n"


@pytest.mark.requirement("security.shell.inside")
def test_a_shell_inside_of_a_shell_has_another(shell: Shell, tmp_path: Path) -> None:
    done = shell.run("-c", '$SHELL -c "echo inner"; echo $SHELL', cwd=tmp_path)
    assert done.stdout == b"inner\n/bin/bash\n"


@pytest.mark.requirement("security.shell.inside")
@pytest.mark.parametrize("profile", ["workspace-write", "read-only"])
def test_the_launcher_is_bash_inside(shell: Shell, tmp_path: Path, profile: str) -> None:
    # As for an agent that finds its shell in PATH.
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/bash").symlink_to(shell.path)
    env = {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
    line = f"bash -c 'echo by path'; {shell.path} -c 'echo by name; exit 3'"
    done = shell.run("-c", line, cwd=tmp_path, env=env, sandbox=profile)
    assert (done.returncode, done.stdout, done.stderr) == (3, b"by path\nby name\n", b"")


def allow_network(shell: Shell, folder: Path) -> Path:
    """Put a launcher with another name in a directory, and a profile in which it may call."""
    shutil.copy(shell.path, folder / "other")
    profile = folder / "open.toml"
    profile.write_text(
        'network = "enabled"\nfile_system = { entries = [{ path = ":root", access = "read" },'
        ' { path = ":project_roots", access = "write" }] }\n'
    )
    return profile


@pytest.mark.requirement("security.shell.inside")
async def test_a_caller_is_in_a_sandbox_that_its_server_does_not_know_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command may run before its server has read the message that the sandbox is built."""
    shell = Shell(tmp_path / "home")
    profile = allow_network(shell, tmp_path)
    loop = asyncio.get_running_loop()
    asked = asyncio.Event()
    built = DelegatedStart.built

    async def built_late(handed: DelegatedStart) -> bool:
        known = await built(handed)
        await asked.wait()
        return known

    def read(pid: int) -> Caller:
        caller = read_caller(pid)
        if caller.namespaces != namespaces("self"):
            # After the first look at this caller.
            loop.call_soon(asked.set)
        return caller

    monkeypatch.setattr(DelegatedStart, "built", built_late)
    monkeypatch.setattr(service, "read_caller", read)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK) as listener:
        listener.bind(os.fspath(shell.paths.socket))
        listener.listen()
        async with asyncio.timeout(2 * LIMIT), asyncio.TaskGroup() as tasks:
            serving = tasks.create_task(service.serve(shell.paths, listener))
            called = await asyncio.create_subprocess_exec(
                *(shell.path, "-c", "./other -c 'echo $0' bash; echo $?"),
                cwd=tmp_path,
                env={**shell.env, "HOLDFAST_SH_SANDBOX": str(profile)},
                stdout=asyncio.subprocess.PIPE,
            )
            output, _ = await called.communicate()
            serving.cancel()
    assert output == b"bash\n0\n"
    assert asked.is_set()


@pytest.mark.requirement("security.shell.inside")
def test_a_caller_in_a_sandbox_becomes_bash_there(shell: Shell, tmp_path: Path) -> None:
    """A launcher by another name asks the server, where the network lets it."""
    profile = allow_network(shell, tmp_path)
    line = f"./other -c 'echo $0; echo x > {tmp_path.parent}/escaped' bash; echo $?"
    done = shell.run("-c", line, cwd=tmp_path, sandbox=str(profile))
    assert done.stdout == b"bash\n1\n"
    assert b"Read-only file system" in done.stderr
    done = shell.run("-c", line, cwd=tmp_path)
    assert done.stdout == b"126\n"
    assert b"cannot be reached" in done.stderr
    assert not (tmp_path.parent / "escaped").exists()


@pytest.mark.requirement("security.shell.answers")
def test_a_command_is_no_child_of_the_server(shell: Shell, tmp_path: Path) -> None:
    with shell.start("-c", "echo started; read line", cwd=tmp_path) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"started\n"
        pids = shell.server_pids()
        assert pids
        assert [child for pid in pids for child in children(pid) if child not in pids] == []
        process.communicate(b"\n", timeout=LIMIT)


# -- policies


@pytest.fixture
def rules(tmp_path: Path) -> str:
    pytest.importorskip("starlark")
    file = tmp_path / "my.rules"
    file.write_text(
        'prefix_rule(pattern=["dd"], decision="forbidden")\n'
        'prefix_rule(pattern=["touch"], decision="prompt")\n'
    )
    return str(file)


def test_a_forbidden_command_is_told_in_one_line(shell: Shell, rules: str, tmp_path: Path) -> None:
    env = {"HOLDFAST_SH_POLICY": "on-request", "HOLDFAST_SH_RULES": rules}
    done = shell.run("-c", "-l", "echo ran; if true; then dd --help; fi", cwd=tmp_path, env=env)
    assert (done.returncode, done.stdout) == (126, b"")
    assert done.stderr.startswith(b"holdfast-sh: denied by the policy: ")
    assert done.stderr.count(b"\n") == 1
    assert shell.run("-c", "echo ran", cwd=tmp_path, env=env).stdout == b"ran\n"


@pytest.mark.requirement("approvals.split.arguments")
@pytest.mark.parametrize(
    "options", [("-login",), ("-norc", "-noprofile"), ("-rcfile", "f"), ("-init-file", "f")]
)
def test_a_line_behind_long_options_with_one_dash_is_looked_at(
    shell: Shell, rules: str, tmp_path: Path, options: tuple[str, ...]
) -> None:
    env = {"HOLDFAST_SH_POLICY": "on-request", "HOLDFAST_SH_RULES": rules}
    done = shell.run(*options, "-c", "echo ran; dd --help", cwd=tmp_path, env=env)
    assert (done.returncode, done.stdout) == (126, b"")
    assert done.stderr.startswith(b"holdfast-sh: denied by the policy: ")
    assert shell.run(*options, "-c", "echo ran", cwd=tmp_path, env=env).stdout == b"ran\n"


@pytest.mark.requirement("approvals.decide.syntax")
def test_a_line_that_cannot_be_parsed_is_refused_with_its_error(
    shell: Shell, rules: str, tmp_path: Path
) -> None:
    env = {"HOLDFAST_SH_POLICY": "on-request", "HOLDFAST_SH_RULES": rules}
    done = shell.run("-c", "echo ran; echo )", cwd=tmp_path, env=env)
    assert (done.returncode, done.stdout) == (126, b"")
    assert b"cannot be parsed: line 1, column 16: `)` closes nothing" in done.stderr
    # Without a policy the shell itself finds out.
    assert b"syntax error" in shell.run("-c", "echo ran; echo )", cwd=tmp_path).stderr


@pytest.mark.requirement("approvals.split.arguments")
def test_what_a_line_may_run_is_looked_at(shell: Shell, rules: str, tmp_path: Path) -> None:
    env = {"HOLDFAST_SH_POLICY": "on-request", "HOLDFAST_SH_RULES": rules}
    done = shell.run("-c", '"$@"', "name", "dd", "--help", cwd=tmp_path, env=env)
    assert (done.returncode, done.stdout) == (126, b"")
    assert done.stderr.startswith(b"holdfast-sh: denied by the policy: ")
    done = shell.run("-c", '"$@"', "name", "echo", "ran", cwd=tmp_path, env=env)
    assert done.stdout == b"ran\n"


def test_a_script_from_a_pipe_is_refused_on_a_terminal_too(
    shell: Shell, rules: str, tmp_path: Path
) -> None:
    env = shell.env | {"HOLDFAST_SH_POLICY": "on-request", "HOLDFAST_SH_RULES": rules}
    line = f"cd {tmp_path} && echo touch made | {shell.path}"
    with terminal("/bin/sh", "-c", line, env=env) as screen:
        screen.expect("a script on standard input cannot be looked at", limit=LIMIT * 4)
        assert screen.wait() == 126
    assert not (tmp_path / "made").exists()


def test_without_a_terminal_nobody_is_asked(shell: Shell, rules: str, tmp_path: Path) -> None:
    env = {"HOLDFAST_SH_POLICY": "on-request", "HOLDFAST_SH_RULES": rules}
    done = shell.run("-c", "touch made", cwd=tmp_path, env=env)
    assert done.returncode == 126
    assert b"no terminal to ask on; HOLDFAST_SH_POLICY=off" in done.stderr
    assert not (tmp_path / "made").exists()
    script = shell.run(cwd=tmp_path, stdin=b"touch made", env=env)
    assert script.returncode == 126
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("answer", ["y", "n"])
def test_a_terminal_is_asked(shell: Shell, rules: str, tmp_path: Path, answer: str) -> None:
    env = shell.env | {"HOLDFAST_SH_POLICY": "on-request", "HOLDFAST_SH_RULES": rules}
    line = f"cd {tmp_path} && exec {shell.path} -c 'touch made'"
    with terminal("/bin/sh", "-c", line, env=env) as screen:
        screen.expect("[y]es", limit=LIMIT * 4)
        screen.expect("[n]o")
        screen.type(f"{answer}\n")
        assert screen.wait() == (0 if answer == "y" else 126)
    assert (tmp_path / "made").exists() == (answer == "y")


def test_one_question_at_a_time_is_open_on_a_terminal(
    shell: Shell, rules: str, tmp_path: Path
) -> None:
    env = shell.env | {"HOLDFAST_SH_POLICY": "on-request", "HOLDFAST_SH_RULES": rules}
    numbers = range(6)
    calls = " ".join(f"{shell.path} -c 'touch made{number}' &" for number in numbers)
    with terminal("/bin/sh", "-c", f"cd {tmp_path} && {{ {calls} wait; }}", env=env) as screen:
        for _ in numbers:
            # The answer is for the question above it, whichever of them is asked next.
            question = screen.expect("[c]ancel the call: ", limit=LIMIT * 4)
            assert question.count("Run this command") == 1
            (asked,) = set(re.findall(r"made(\d)", question))
            screen.type("y\n" if int(asked) % 2 else "n\n")
        assert screen.wait() == 0
    assert sorted(tmp_path.glob("made*")) == [tmp_path / f"made{number}" for number in (1, 3, 5)]


def test_a_job_in_the_background_is_not_asked_about(
    shell: Shell, rules: str, tmp_path: Path
) -> None:
    """What is typed for the program in front must not count as an answer."""
    env = shell.env | {"HOLDFAST_SH_POLICY": "on-request", "HOLDFAST_SH_RULES": rules}
    env |= {"PS1": "$ ", "TERM": "dumb"}
    with terminal("/bin/bash", "--norc", "--noprofile", "-i", env=env) as screen:
        screen.expect("$ ")
        screen.type(f"cd {tmp_path}; {shell.path} -c 'touch made' & wait\n")
        screen.expect("it is in the background of its terminal", limit=LIMIT * 4)
        screen.type("exit\n")
    assert not (tmp_path / "made").exists()


def test_what_is_typed_while_a_job_is_stopped_is_no_answer(
    shell: Shell, rules: str, tmp_path: Path
) -> None:
    env = shell.env | {"HOLDFAST_SH_POLICY": "on-request", "HOLDFAST_SH_RULES": rules}
    env |= {"PS1": "$ ", "TERM": "dumb"}
    with terminal("/bin/bash", "--norc", "--noprofile", "-i", env=env) as screen:
        screen.expect("$ ")
        screen.type(f"cd {tmp_path}; {shell.path} -c 'touch made'\n")
        screen.expect("[c]ancel the call: ", limit=LIMIT * 4)
        screen.type(CTRL_Z)
        screen.expect("Stopped")
        for _ in range(5):
            screen.type("y\n")
            screen.expect("y: command not found")
        # The question has ended, unless the shell always read before the server could look. Then
        # the last line is its answer; otherwise it is another one for the shell.
        screen.type("fg\nn\n")
        screen.expect("rejected by user")
        screen.type("exit\n")
    assert not (tmp_path / "made").exists()


def test_ctrl_c_at_a_question_leaves_the_terminal_alone(
    shell: Shell, rules: str, tmp_path: Path
) -> None:
    env = shell.env | {"HOLDFAST_SH_POLICY": "on-request", "HOLDFAST_SH_RULES": rules}
    env |= {"PS1": "$ ", "TERM": "dumb"}
    with terminal("/bin/bash", "--norc", "--noprofile", "-i", env=env) as screen:
        screen.expect("$ ")
        screen.type(f"cd {tmp_path}; {shell.path} -c 'touch made'\n")
        screen.expect("[n]o", limit=LIMIT * 4)
        screen.type(CTRL_C)
        screen.expect("$ ")
        # The server must not read what is typed now.
        for number in range(3):
            screen.type(f"echo $((7 * {number})) line\n")
            screen.expect(f"{7 * number} line\r\n")
    assert not (tmp_path / "made").exists()


PAINTER = """
trap '' TTOU
setsid sh -c "trap '' TTOU; while :; do printf P; sleep 0.01; done" &
(trap '' TTOU; while :; do printf Q; sleep 0.01; done) &
while :; do printf R; sleep 0.01; done
"""
"""Writes to its terminal from three processes, none of which the kernel would stop."""


def in_sandbox(mark: str) -> list[int]:
    """Return the processes in a sandbox that have an assignment in their environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            (*_, inside) = re.findall(rb"^NSpid:.*", (folder / "status").read_bytes(), re.MULTILINE)
            numbers = inside.split()[1:]
            variables = (folder / "environ").read_bytes().split(b"\0")
            # PID 1 of the sandbox is Holdfast's own.
            if len(numbers) > 1 and numbers[-1] != b"1" and mark.encode() in variables:
                found.append(int(folder.name))
    return found


def cmdline(pid: int) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def is_stopped(pid: int) -> bool:
    with suppress(OSError):
        return stat_fields(f"/proc/{pid}")[0] == b"T"
    return False


def can_write(pid: int) -> bool:
    """Return False for a stopped process, and for one whose stopped child is not executed yet."""
    with suppress(OSError):
        return stat_fields(f"/proc/{pid}")[0] not in (b"T", b"D", b"Z")
    return False


def guard_of(shell: Shell) -> int:
    (server,) = shell.server_pids()
    (guard,) = [pid for pid in children(server) if b"terminal_guard.py\0hold" in cmdline(pid)]
    return guard


@contextmanager
def painted(
    shell: Shell, rules: str, tmp_path: Path, *, modes: str = "-tostop"
) -> Iterator[tuple[Terminal, list[int]]]:
    """Yield a terminal with a question on it, and the sandboxed processes that write to it."""
    env = shell.env | {"HOLDFAST_SH_RULES": rules, "HOLDFAST_SH_POLICY": "on-request"}
    env |= {"PAINTER": str(tmp_path), "HOLDFAST_SH_SANDBOX": "workspace-write"}
    (tmp_path / "painter").write_text(PAINTER)
    paint = f"HOLDFAST_SH_POLICY=off {shell.path} painter"
    line = f"stty {modes}; cd {tmp_path}; {paint} & read go; {shell.path} -c 'touch made'; read end"
    with terminal("/bin/sh", "-c", line, env=env) as screen:
        for sign in "PQR":
            screen.expect(sign, limit=LIMIT * 4)
        screen.type("go\n")
        screen.expect("[c]ancel the call: ", limit=LIMIT * 4)
        yield screen, in_sandbox(f"PAINTER={tmp_path}")


@pytest.mark.requirement("shell.quiet-terminal")
def test_commands_in_sandboxes_cannot_write_over_a_question(
    shell: Shell, rules: str, tmp_path: Path
) -> None:
    with painted(shell, rules, tmp_path) as (screen, pids):
        assert len(pids) >= 3
        assert not any(map(can_write, pids))
        assert screen.shown == ""
        assert screen.stops_writers()
        screen.type("n\n")
        # It answers the question, not one that was painted; and then all of them go on.
        screen.expect("rejected by user")
        until(lambda: not any(map(is_stopped, pids)))
        assert not screen.stops_writers()
        for sign in "PQR":
            screen.expect(sign)


@pytest.mark.requirement("shell.quiet-terminal")
def test_commands_go_on_if_the_server_is_killed_at_a_question(
    shell: Shell, rules: str, tmp_path: Path
) -> None:
    with painted(shell, rules, tmp_path) as (screen, pids):
        guard = guard_of(shell)
        handle = os.pidfd_open(guard)
        shell.close()
        assert select.select([handle], [], [], LIMIT)[0]
        os.close(handle)
        assert not screen.stops_writers()
        # The sandbox of a server that was killed goes on without it, or ends with it.
        until(lambda: not any(map(is_stopped, pids)))


@pytest.mark.requirement("shell.quiet-terminal")
def test_commands_go_on_if_the_guard_of_a_question_is_killed(
    shell: Shell, rules: str, tmp_path: Path
) -> None:
    with painted(shell, rules, tmp_path) as (screen, pids):
        guard = guard_of(shell)
        os.kill(guard, signal.SIGKILL)
        assert not any(map(can_write, pids))
        screen.type("n\n")
        until(lambda: not any(map(is_stopped, pids)))
        until(lambda: not screen.stops_writers())


@pytest.mark.requirement("shell.quiet-terminal")
def test_the_modes_of_a_person_outlast_the_guard_of_a_question(
    shell: Shell, rules: str, tmp_path: Path
) -> None:
    with painted(shell, rules, tmp_path, modes="tostop") as (screen, _):
        os.kill(guard_of(shell), signal.SIGKILL)
        screen.type("n\n")
        screen.expect("rejected by user")
        assert screen.stops_writers()


@pytest.mark.requirement("shell.quiet-terminal")
def test_a_question_that_is_interrupted_lets_commands_go_on(
    shell: Shell, rules: str, tmp_path: Path
) -> None:
    with painted(shell, rules, tmp_path) as (screen, pids):
        (asking,) = [pid for pid in children(screen.process.pid) if b"touch made" in cmdline(pid)]
        os.kill(asking, signal.SIGKILL)
        until(lambda: not any(map(is_stopped, pids)))
        assert not screen.stops_writers()


@pytest.mark.requirement("shell.quiet-terminal")
@pytest.mark.parametrize("name", ["xterm-256color", "dumb"])
def test_what_was_written_before_cannot_hide_a_question(
    shell: Shell, rules: str, tmp_path: Path, name: str
) -> None:
    env = shell.env | {"HOLDFAST_SH_RULES": rules, "TERM": name}
    hides = f"HOLDFAST_SH_POLICY=off {shell.path} -c 'printf \"painted\\033[8m\\033]0;\"'"
    asks = f"HOLDFAST_SH_POLICY=on-request {shell.path} -c 'touch made'"
    with terminal("/bin/sh", "-c", f"cd {tmp_path}; {hides}; {asks}", env=env) as screen:
        screen.expect("painted", limit=LIMIT * 4)
        before = screen.expect("Run this command", limit=LIMIT * 4)
        ended = before.removeprefix("\x1b[8m\x1b]0;")
        # CAN ends every sequence; then come colours, margins, and the rest of the screen.
        assert ended.startswith("\x18\x1b\\\x1b[0m") == (name != "dumb")
        assert ended.endswith("\x1b[r\x1b8\x1b[J") == (name != "dumb")
        screen.expect("[c]ancel the call: ")
        screen.type("n\n")
        assert screen.wait() == 126


@pytest.mark.requirement("shell.quiet-terminal")
def test_no_command_in_a_sandbox_starts_at_a_question(
    shell: Shell, rules: str, tmp_path: Path
) -> None:
    env = shell.env | {"HOLDFAST_SH_RULES": rules, "HOLDFAST_SH_POLICY": "on-request"}
    later = f"HOLDFAST_SH_POLICY=off {shell.path} -c 'touch later; echo painted'"
    os.mkfifo(tmp_path / "go")
    line = f"cd {tmp_path}; {shell.path} -c 'touch made' & {{ read x < go; {later}; }} & wait"
    with terminal("/bin/sh", "-c", line, env=env) as screen:
        screen.expect("[c]ancel the call: ", limit=LIMIT * 4)
        (tmp_path / "go").write_text("go\n")
        # Elsewhere commands start: the server has had its time.
        for _ in range(3):
            assert shell.run("-c", "true", cwd=tmp_path).returncode == 0
        assert not (tmp_path / "later").exists()
        screen.type("n\n")
        screen.expect("rejected by user")
        assert screen.wait() == 0
    assert (tmp_path / "later").exists()


@pytest.mark.requirement("mcp.wide-workspace")
def test_a_home_is_a_workspace_only_if_it_is_named(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    home = {"HOME": str(tmp_path)}
    refused = shell.run("-c", "touch made", cwd=tmp_path, env=home)
    assert refused.returncode == 126
    assert f"would be {tmp_path}, a home directory".encode() in refused.stderr
    assert b"the whole file system" in shell.run("-c", "true", cwd="/", env=home).stderr
    assert shell.run("-c", "true", cwd=tmp_path, env=home, sandbox="read-only").returncode == 0
    assert not (tmp_path / "made").exists()
    # A named workspace stays the same wherever the agent goes.
    project = home | {"HOLDFAST_SH_WORKSPACE": str(tmp_path / "project"), "TMPDIR": ""}
    assert shell.run("-c", "true", cwd=tmp_path, env=project).returncode == 0
    named = home | {"HOLDFAST_SH_WORKSPACE": str(tmp_path)}
    assert shell.run("-c", "touch made", cwd=tmp_path, env=named).returncode == 0
    assert (tmp_path / "made").exists()
    relative = shell.run("-c", "true", cwd=tmp_path, env={"HOLDFAST_SH_WORKSPACE": "project"})
    assert b"workspace: `project` must be the full path of a directory" in relative.stderr


@pytest.mark.requirement("rules.real-program")
def test_a_rule_lets_only_a_real_program_out(shell: Shell, tmp_path: Path) -> None:
    pytest.importorskip("starlark")
    workspace, outside = tmp_path / "ws", tmp_path / "outside"
    for folder in (workspace / "bin", outside):
        folder.mkdir(parents=True)
    rules, profile = tmp_path / "my.rules", tmp_path / "profile.toml"
    rules.write_text('prefix_rule(pattern=["touch"], sandbox="none")\n')
    profile.write_text(
        '[file_system]\nentries = [{ path = ":root", access = "read" },'
        ' { path = ":project_roots", access = "write" }]\n'
    )
    env = {"HOLDFAST_SH_POLICY": "never", "HOLDFAST_SH_RULES": str(rules), "TMPDIR": ""}
    env["PATH"] = f"{workspace}/bin:/usr/bin:/bin"

    def run(*words: str) -> bytes:
        return shell.run(*words, cwd=workspace, env=env, sandbox=str(profile)).stderr

    made = outside / "made"
    assert run("-c", f"touch {made}") == b""
    made.unlink()
    # Neither a start file of the shell nor a program of the same name gets out.
    (workspace / "rc").write_text(f"touch {made}\n")
    inside = run("--rcfile", f"{workspace}/rc", "-ic", f"touch {outside}/other")
    assert inside.count(b"Read-only file system") == 2
    assert os.listdir(outside) == []
    (workspace / "bin/touch").write_text(f"#!/bin/sh\nexec /usr/bin/touch {made}\n")
    (workspace / "bin/touch").chmod(0o755)
    assert b"Read-only file system" in run("-c", "touch x")
    assert not made.exists()


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("HOLDFAST_SH_LIMIT_WALL_TIME", "soon", b"HOLDFAST_SH_LIMIT_WALL_TIME is 'soon'"),
        ("HOLDFAST_SH_LIMIT_WALL_TIME", "nan", b"HOLDFAST_SH_LIMIT_\xe2\x80\xa6: limit wall_time"),
        ("HOLDFAST_SH_LIMIT_OUTPUT", "10", b"the limit `output` cannot be kept"),
        ("HOLDFAST_SH_SHELL", "bash", b"shell: `bash` must be a full path"),
        ("HOLDFAST_SH_SHELL", "LINK", b"/bash` is holdfast-sh itself"),
        ("HOLDFAST_SH_SHELL", "/no/such", b"/no/such: No such file or directory"),
        ("HOLDFAST_SH_SANDBOX", "./mine.toml", b"sandbox: `./mine.toml` must be a full path"),
        ("HOLDFAST_SH_CONFIG", "sh.toml", b"HOLDFAST_SH_CONFIG: `sh.toml` must be a full path"),
        ("HOLDFAST_SH_CONFIG", "/no/such.toml", b"/no/such.toml: there is no such file"),
        ("HOLDFAST_SH_CONFIG", "/etc/passwd", b"/etc/passwd: not a TOML file"),
        ("HOLDFAST_SH_CONFIG", "FIFO", b"/fifo: not a file"),
        ("HOLDFAST_SH_SANDBOX", "FIFO", b"/fifo` is no file"),
        ("HOLDFAST_SH_POLICY", "perhaps", b"policy: "),
        ("HOLDFAST_SH_RULES", "relative.rules", b"must be a full path"),
    ],
)
def test_a_setting_that_makes_no_sense_runs_nothing(
    shell: Shell, tmp_path: Path, name: str, value: str, said: bytes
) -> None:
    if value == "FIFO":  # whose writer the server must not wait for
        value = str(tmp_path / "fifo")
        os.mkfifo(value)
    if value == "LINK":  # in `PATH`, as some agents need it
        value = str(tmp_path / "bash")
        os.symlink(shell.path, value)
    done = shell.run("-c", "echo ran", cwd=tmp_path, env={name: value})
    assert done.returncode in (126, 127)
    assert done.stdout == b""
    assert said in done.stderr
    assert done.stderr.count(b"\n") == 1


def test_settings_of_a_file_hold_unless_a_variable_says_otherwise(
    shell: Shell, tmp_path: Path
) -> None:
    config = tmp_path / "sh.toml"
    config.write_text('sandbox = "read-only"\n[limits]\nopen_files = 66\n')
    env = shell.env | {"HOLDFAST_SH_CONFIG": str(config)}
    line = [shell.path, "-c", "ulimit -n; touch made 2>/dev/null || echo no"]
    done = subprocess.run(line, cwd=tmp_path, env=env, capture_output=True, timeout=30, check=True)
    assert done.stdout == b"66\nno\n"
    env["HOLDFAST_SH_SANDBOX"] = "workspace-write"
    done = subprocess.run(line, cwd=tmp_path, env=env, capture_output=True, timeout=30, check=True)
    assert done.stdout == b"66\n"


# -- terminals


def on_terminal(shell: Shell, folder: Path, *args: str) -> list[str]:
    return ["/bin/sh", "-c", f'cd {folder} && exec "$0" "$@"', shell.path, *args]


@pytest.mark.requirement("security.shell.terminal")
def test_an_interactive_shell_has_job_control(shell: Shell, sandbox: str, tmp_path: Path) -> None:
    env = shell.env | {"HOLDFAST_SH_SANDBOX": sandbox, "PS1": "$ ", "TERM": "dumb"}
    command = on_terminal(shell, tmp_path, "--norc", "--noprofile", "-i")
    # Other tests on this machine have other numbers.
    first, second = 100_000 + os.getpid(), 900_000 + os.getpid()
    with terminal(*command, env=env) as screen:
        screen.expect("$ ", limit=LIMIT * 4)
        screen.type(f"sleep {first}\n")
        until(lambda: b"sleep\x00%d\x00" % first in _commands())
        screen.type(CTRL_Z)
        screen.expect("Stopped")
        screen.type("jobs; kill %1; wait; echo $((6*7))\n")
        screen.expect("42\r\n")
        screen.type(f"sleep {second}\n")
        until(lambda: b"sleep\x00%d\x00" % second in _commands())
        screen.type(CTRL_C)
        screen.expect("$ ")
        screen.type("exit 4\n")
        assert screen.wait() == 4


def _commands() -> bytes:
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                found.append(Path(f"/proc/{name}/cmdline").read_bytes())
            except OSError:
                continue
    return b"\n".join(found)


def test_ctrl_c_and_ctrl_z_on_a_terminal_are_the_shells(shell: Shell, tmp_path: Path) -> None:
    env = shell.env | {"PS1": "$ ", "TERM": "dumb"}
    outer = ["/bin/bash", "--norc", "--noprofile", "-i"]
    with terminal(*outer, env=env) as screen:
        screen.expect("$ ")
        screen.type(f"cd {tmp_path}\n")
        line = (
            "trap 'n=$((n+1)); echo got $n' INT; trap 'echo ba''ck' CONT; echo re''ady;"
            " while :; do sleep 0.05; done"
        )
        screen.type(f'{shell.path} -c "{line}"\n'.replace("$", "\\$"))
        screen.expect("ready\r\n", limit=LIMIT * 4)
        screen.type(CTRL_C)
        screen.expect("got 1\r\n")
        screen.type(CTRL_Z)
        screen.expect("Stopped")
        screen.type("fg\n")
        screen.expect("back\r\n")
        screen.type(CTRL_C)
        screen.expect("got 2\r\n")
        screen.type(CTRL_Z)
        screen.expect("Stopped")
        screen.type("kill -9 %1; exit 0\n")


def test_the_end_of_the_terminal_is_the_end_of_the_shell(
    shell: Shell, sandbox: str, tmp_path: Path
) -> None:
    env = shell.env | {"HOLDFAST_SH_SANDBOX": sandbox}
    command = on_terminal(shell, tmp_path, "-c", "echo re''ady; sleep 100; echo on")
    with terminal(*command, env=env) as screen:
        screen.expect("ready", limit=LIMIT * 4)
        screen.hang_up()
        # Of bash itself, as the launcher has become that.
        expected = -signal.SIGHUP if sandbox == "none" else 128 + signal.SIGHUP
        assert screen.process.wait(LIMIT * 2) == expected


@pytest.mark.requirement("security.shell.terminal")
def test_a_command_on_a_terminal_cannot_signal_the_group_outside(
    shell: Shell, tmp_path: Path
) -> None:
    script = f"cd {tmp_path}; {shell.path} -c 'kill -TERM 0; echo tried'; echo alive"
    with terminal("/bin/sh", "-c", script, env=shell.env) as screen:
        screen.expect("tried", limit=LIMIT * 4)
        screen.expect("alive")


def test_the_terminal_goes_back_to_the_group_that_had_it(shell: Shell, tmp_path: Path) -> None:
    # A program that does not take the terminal back itself, unlike a shell.
    program = (
        f"import os, subprocess; os.chdir({str(tmp_path)!r});"
        f" subprocess.run([{shell.path!r}, '--norc', '-i', '-c', 'echo inside']);"
        " print(os.tcgetpgrp(0) == os.getpgrp())"
    )
    with terminal(sys.executable, "-c", program, env=shell.env) as screen:
        screen.expect("inside", limit=LIMIT * 4)
        screen.expect("True")


# -- the server


@pytest.mark.slow
def test_a_server_that_is_killed_is_started_again(tmp_path: Path) -> None:
    shell = Shell(tmp_path / "bash")
    try:
        assert shell.run("-c", "echo one", cwd=tmp_path).stdout == b"one\n"
        (first,) = shell.server_pids()
        process = shell.start("-c", "echo ready; read line; echo $line; exit 6", cwd=tmp_path)
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        os.kill(first, signal.SIGKILL)
        until(lambda: not shell.server_pids())
        assert shell.run("-c", "echo two", cwd=tmp_path).stdout == b"two\n"
        # What the first one had answered goes on without it.
        out, _ = process.communicate(b"on\n", timeout=LIMIT * 4)
        assert (out, process.returncode) == (b"on\n", 6)
    finally:
        shell.close()


@pytest.mark.slow
def test_many_first_calls_start_one_server_which_ends_without_callers(tmp_path: Path) -> None:
    shell = Shell(tmp_path / "bash")
    env = shell.env | {"HOLDFAST_SH_SANDBOX": "none", "HOLDFAST_SH_IDLE": "2"}
    try:
        started = [
            subprocess.Popen([shell.path, "-c", "exit 3"], cwd=tmp_path, env=env) for _ in range(4)
        ]
        assert [process.wait(60) for process in started] == [3] * 4
        assert len(shell.server_pids()) <= 1
        until(lambda: not shell.server_pids())
        assert not shell.paths.socket.exists()
    finally:
        shell.close()


@pytest.mark.requirement("security.shell.closed")
def test_a_server_that_cannot_start_runs_nothing(tmp_path: Path) -> None:
    shell = Shell(tmp_path / "bash")
    shell.paths.lock.mkdir()
    done = shell.run("-c", "echo ran", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (126, b"")
    assert done.stderr.splitlines()[-1] == (
        b"holdfast-sh: its server cannot be reached, so nothing was run"
    )


@pytest.mark.requirement("security.shell.private")
def test_a_folder_that_others_may_enter_is_refused(tmp_path: Path) -> None:
    home = tmp_path / "open"
    home.mkdir(mode=0o755)
    program = [sys.executable, "-c", "from holdfast.front.drop_in.entry import main; exit(main())"]
    env = {**os.environ, "HOLDFAST_SH_HOME": str(home)}
    done = subprocess.run(program, env=env, capture_output=True, timeout=30, check=False)
    assert done.returncode == 126
    assert done.stderr.endswith(b"others may enter it; chmod it to 0700\n")


@pytest.mark.slow
def test_a_line_runs_in_a_named_environment(shell: Shell, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    words = [*HOLDFAST, "serve", "--listen", "stdio"]
    (home / "environments.toml").write_text(
        f'[[environments]]\nid = "there"\nprogram = {words[0]!r}\nargs = {words[1:]!r}\n'.replace(
            "'", '"'
        )
    )
    env = {"HOLDFAST_HOME": str(home), "HOLDFAST_SH_ENVIRONMENT": "there", "HOME": str(tmp_path)}
    done = shell.run(
        "-c", 'echo "$1"; cat; exit 3', "n", "x", cwd=tmp_path, sandbox="none", stdin=b"in", env=env
    )
    assert (done.returncode, done.stdout) == (3, b"x\nin"), done.stderr


@pytest.mark.requirement("security.own.settings")
def test_what_decides_about_the_next_shell_cannot_be_written(tmp_path: Path) -> None:
    # The workspace is the home of the user, in which everything is.
    home = tmp_path / "home"
    home.mkdir()
    shell = Shell(home / "bash")
    shell.env["HOLDFAST_HOME"] = str(home / "config" / "holdfast")
    try:
        for target in (shell.path, shell.paths.socket, home / "config/holdfast/sh.toml"):
            done = shell.run("-c", f"rm -f {target}; echo x > {target}", cwd=home)
            assert done.returncode == 1, target
        done = shell.run("-c", "mv bash other || mv config other || echo x > fine", cwd=home)
        assert done.returncode == 0
        assert (home / "fine").exists()
        assert shell.run("-c", "echo still", cwd=home).stdout == b"still\n"
    finally:
        shell.close()


@pytest.mark.requirement("security.own.settings")
def test_files_that_variables_name_cannot_be_written(shell: Shell, tmp_path: Path) -> None:
    pytest.importorskip("starlark")
    names = {"SANDBOX": "box.toml", "RULES": "my.rules", "CONFIG": "sh.toml"}
    for name in names.values():
        (tmp_path / name).touch()
    (tmp_path / "box.toml").write_text(
        'file_system = { entries = [{ path = ":root", access = "read" },'
        ' { path = ":project_roots", access = "write" }] }\n'
    )
    env = {f"HOLDFAST_SH_{name}": str(tmp_path / file) for name, file in names.items()}
    line = "for it in *; do echo x >> $it; unlink $it; mv $it other; done; echo > mine; ls"
    done = shell.run("-c", line, cwd=tmp_path, env=env | {"HOLDFAST_SH_POLICY": "never"})
    assert done.stdout.split() == [b"box.toml", b"mine", b"my.rules", b"sh.toml"], done.stderr
    assert (tmp_path / "my.rules").read_text() == ""


@pytest.mark.requirement("security.servers.every")
def test_tokens_of_the_callers_servers_are_hidden(shell: Shell, tmp_path: Path) -> None:
    """The server of `holdfast-sh` has neither its caller's runtime directory nor its home."""
    runtime = tmp_path / "runtime"
    runtime.mkdir(0o700)
    project = tmp_path / "project"
    project.mkdir()
    env = {"XDG_RUNTIME_DIR": str(runtime), "HOME": str(tmp_path)}
    line = f"cat {runtime}/holdfast/*; ls {runtime}/holdfast"
    with serving("--listen", "ws://127.0.0.1:0", command=(*HOLDFAST, "serve"), env=shell.env | env):
        freely = shell.run("-c", line, cwd=project, env=env, sandbox="none")
        inside = [shell.run("-c", line, cwd=project, env=given) for given in (env, {})]
    assert b'"token"' in freely.stdout
    assert [(done.stdout, done.returncode) for done in inside] == [(b"", 2)] * 2


@pytest.mark.requirement("security.shell.users")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_another_user_gets_no_answer() -> None:
    script = (
        "import socket, sys\n"
        "line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n"
        "try:\n"
        "    line.connect(sys.argv[1])\n"
        "    print(line.recv(100))\n"
        "except PermissionError:\n"
        "    print('no way')\n"
    )
    # Not below the directory of pytest, which only its user can enter.
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o711)
    shell = Shell(folder / "sh")
    path = shell.paths.socket
    line = ["/usr/bin/python3", "-I", "-c", script, str(path)]
    try:
        assert shell.run("-c", "true", cwd=folder).returncode == 0  # the server is there
        assert path.stat().st_mode & 0o777 == 0o600
        for said in (b"no way\n", b"b''\n"):
            done = subprocess.run(
                line,
                capture_output=True,
                timeout=LIMIT,
                check=False,
                user=65534,
                group=65534,
                extra_groups=[],
            )
            assert (done.stdout, done.stderr) == (said, b"")
            # Even if the modes let it pass.
            path.parent.chmod(0o711)
            path.chmod(0o666)
    finally:
        shell.close()
        shutil.rmtree(folder)


@pytest.mark.requirement("security.shell.answers")
def test_the_content_of_a_file_is_in_no_message(shell: Shell, tmp_path: Path) -> None:
    secret = tmp_path / "secret.toml"
    secret.write_text("password of the database\n")
    rules = tmp_path / "secret.rules"
    rules.write_text("password of the database\n")
    for env in (
        {"HOLDFAST_SH_SANDBOX": str(secret)},
        {"HOLDFAST_SH_RULES": str(rules), "HOLDFAST_SH_POLICY": "never"},
        {"HOLDFAST_SH_CONFIG": str(secret)},
    ):
        done = shell.run("-c", "echo ran", cwd="/", env=env)
        assert done.returncode == 126
        assert b"secret." in done.stderr  # the name of the file
        assert b"password" not in done.stderr


def test_children_that_the_caller_ignores_do_not_matter(shell: Shell, tmp_path: Path) -> None:
    done = subprocess.run(
        [shell.path, "-c", "(exit 3); echo $?; exit 4"],
        cwd=tmp_path,
        env=shell.env,
        capture_output=True,
        check=False,
        preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN),
    )
    assert (done.returncode, done.stdout) == (4, b"3\n")


@pytest.mark.parametrize("level", ["", "0", "-1", "7"])
def test_the_files_of_interactive_shells_are_not_read(
    shell: Shell, sandbox: str, level: str, tmp_path: Path
) -> None:
    (tmp_path / ".bashrc").write_text("echo bashrc")
    (tmp_path / "project").mkdir()
    env = {"HOME": str(tmp_path), "SHLVL": level}
    done = shell.run("-c", "echo line", cwd=tmp_path / "project", sandbox=sandbox, env=env)
    assert done.stdout == b"line\n"


@pytest.mark.parametrize("name", ["new\nline", "blank and ü", "\udcff"])
def test_a_folder_may_have_any_name(shell: Shell, tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    folder.mkdir()
    done = shell.run("-c", "touch made; pwd", cwd=folder)
    assert done.stdout == os.fsencode(f"{folder}\n"), done.stderr
    assert (folder / "made").exists()


@pytest.mark.requirement("security.shell.containers")
def test_a_caller_in_another_container_is_refused(shell: Shell, tmp_path: Path) -> None:
    shell.run("-c", "true", cwd=tmp_path)  # the server is here
    line = ["unshare", "-rm", shell.path, "-c", "echo ran"]
    done = subprocess.run(line, cwd=tmp_path, env=shell.env, capture_output=True, check=False)
    if b"unshare" in done.stderr:
        pytest.skip("no namespaces can be made here")
    assert (done.returncode, done.stdout) == (126, b"")
    assert b"called from another container" in done.stderr or b"cannot be reached" in done.stderr


def test_arguments_and_variables_may_be_as_large_as_the_system_takes(
    shell: Shell, sandbox: str, tmp_path: Path
) -> None:
    large = "x" * 130_000
    env = {f"LARGE_{number}": large for number in range(6)}
    line = 'echo ${#LARGE_5} ${#1} "$#"'
    done = shell.run("-c", line, "n", *[large] * 5, cwd=tmp_path, sandbox=sandbox, env=env)
    assert done.stdout == b"130000 130000 5\n", done.stderr[-200:]


@pytest.mark.slow
def test_whenever_a_launcher_is_killed_its_streams_come_to_their_end(
    shell: Shell, tmp_path: Path
) -> None:
    for delay in range(16):
        process = shell.start("-c", "sleep 1000 & sleep 1000", cwd=tmp_path)
        select.select([], [], [], delay * 0.002)
        process.kill()
        # Whoever was left would hold them.
        assert process.communicate(timeout=LIMIT * 4) == (b"", b"")
