"""Shell snapshots, with real shells and profiles."""

import os
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.base.errors import InvalidParams
from holdfast.engine.process.snapshots.script import (
    CAPTURE_LIMIT,
    Snapshot,
    SnapshotCache,
    SnapshotKey,
    applies,
    capture_command,
    check_scope,
    parse_capture,
    snapshot_key,
    wrap,
)
from holdfast.wire.protocol.paths import PathUri
from holdfast.wire.protocol.process import (
    EnvPolicy,
    ShellSnapshotParams,
    ShellSnapshotShell,
    StartParams,
)
from tests.depth import times

PROFILES = {"bash": ".bash_profile", "zsh": ".zprofile", "sh": ".profile"}
RC_FILES = {"bash": ".bashrc", "zsh": ".zshrc"}
INSTALLED = [name for name in PROFILES if shutil.which(name)]


@dataclass
class Shell:
    """A shell with a home of its own."""

    name: str
    home: Path
    env: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        found = shutil.which(self.name)
        assert found is not None
        self.path = found
        self.env = {"HOME": str(self.home), "PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"}

    def profile(self, text: str) -> None:
        (self.home / PROFILES[self.name]).write_text(text)

    def command(self, script: str, *arguments: str) -> list[str]:
        return [self.path, "-lc", script, *arguments]

    def capture(self) -> Snapshot | None:
        return parse_capture(self.capture_output(), self.env)

    def capture_output(self) -> bytes:
        shell = ShellSnapshotShell(name=self.name, path=self.path)
        return subprocess.run(
            capture_command(shell),
            env=self.env,
            cwd=self.home,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=5,
            check=False,
        ).stdout

    def run(
        self,
        script: str,
        *arguments: str,
        snapshot: Snapshot | None = None,
        stdin: str = "",
        env: dict[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a script from a snapshot, a fresh one unless given."""
        snapshot = snapshot or self.capture()
        assert snapshot is not None
        total = {**self.env, **(env or {})}
        argv, variables = wrap(
            self.command(script, *arguments), snapshot, env=total, given=env or ()
        )
        return subprocess.run(
            argv,
            env=variables,
            cwd=self.home,
            input=stdin,
            capture_output=True,
            encoding="utf-8",
            errors="surrogateescape",
            timeout=5,
            check=False,
        )


@pytest.fixture(params=INSTALLED)
def shell(request: pytest.FixtureRequest, tmp_path: Path) -> Shell:
    name: str = request.param
    return Shell(name, tmp_path)


@pytest.fixture
def bash(tmp_path: Path) -> Shell:
    return Shell("bash", tmp_path)


@pytest.fixture
def zsh(tmp_path: Path) -> Shell:
    if "zsh" not in INSTALLED:
        pytest.skip("no zsh here")
    return Shell("zsh", tmp_path)


def request_for(
    name: str = "bash", path: str = "/bin/bash", scope: str = "s"
) -> ShellSnapshotParams:
    return ShellSnapshotParams(scope_id=scope, shell=ShellSnapshotShell(name=name, path=path))


# When a snapshot applies.


def test_a_snapshot_applies_to_a_login_command_of_that_very_shell() -> None:
    request = request_for()
    assert applies(["/bin/bash", "-lc", "true"], request)
    assert applies(["/bin/bash", "-lc", "true", "name", "argument"], request)
    for argv in (
        [],
        ["/bin/bash", "-lc"],
        ["/bin/bash", "-c", "true"],
        ["/bin/bash", "-cl", "true"],
        ["/bin/bash", "-l", "-c", "true"],
        ["bash", "-lc", "true"],
        ["/usr/bin/bash", "-lc", "true"],
    ):
        assert not applies(argv, request)


def test_a_shell_that_cannot_be_asked_is_refused_only_where_it_matters() -> None:
    request = request_for("fish")
    assert not applies(["/bin/bash", "-c", "true"], request)
    with pytest.raises(InvalidParams) as refusal:
        applies(["/bin/bash", "-lc", "true"], request)
    assert str(refusal.value) == "shell snapshots are unsupported for shell `fish`"


def test_a_scope_has_1_to_256_bytes() -> None:
    for scope in ("x", "x" * 256, "é" * 128, "a\0b", "\ud800"):
        check_scope(request_for(scope=scope))
    for scope in ("", "x" * 257, "é" * 129):
        with pytest.raises(InvalidParams) as refusal:
            check_scope(request_for(scope=scope))
        assert str(refusal.value) == (
            "shell snapshot scope must be non-empty and at most 256 bytes"
        )


# What comes back.


def test_functions_exports_and_the_profile_run_once(shell: Shell) -> None:
    shell.profile(
        'echo run >> $HOME/runs\nhello() { echo "hello $1"; }\nexport A=\'1 "2" $3\'\nplain=1\n'
    )
    snapshot = shell.capture()
    for _ in range(2):
        result = shell.run('echo "$A [$plain]"', snapshot=snapshot)
        assert (result.stdout, result.stderr, result.returncode) == ('1 "2" $3 []\n', "", 0)
    assert (shell.home / "runs").read_text() == "run\n"


@pytest.mark.parametrize("name", [name for name in INSTALLED if name != "sh"])
def test_functions_are_restored_as_they_are(name: str, tmp_path: Path) -> None:
    shell = Shell(name, tmp_path)
    shell.profile('f() {\n  cat <<END\nit\'s $1 \\$x\nEND\n}\ng() { f "$@"; }\n')
    assert shell.run("g 'a  b'").stdout == "it's a  b $x\n"


def test_what_a_profile_prints_is_lost(shell: Shell) -> None:
    shell.profile("echo out; echo err >&2; printf '\\0junk\\0holdfast-snapshot\\0junk'\n")
    result = shell.run("echo in")
    assert (result.stdout, result.stderr) == ("in\n", "")


def test_name_and_arguments_are_those_of_the_command(shell: Shell) -> None:
    shell.profile("set -- other\n")
    result = shell.run('echo "$0 $# $1 $2"', "the name", "it's", "$b")
    assert result.stdout == "the name 2 it's $b\n"
    assert (
        shell.run('echo "$0"').stdout
        == subprocess.run(
            [shell.path, "-c", 'echo "$0"'], capture_output=True, text=True, check=True
        ).stdout
    )


def test_exit_codes_and_stdin_are_those_of_the_command(shell: Shell) -> None:
    shell.profile("false\n")
    assert shell.run("exit 7").returncode == 7
    assert shell.run("false").returncode == 1
    assert shell.run("no-such-command").returncode == 127
    assert shell.run("kill -9 $$").returncode == -9
    assert shell.run("echo $?").stdout == "0\n"
    assert shell.run("read line; echo got $line", stdin="a line\n").stdout == "got a line\n"


def test_the_text_of_a_command_is_not_touched(shell: Shell) -> None:
    script = "# it's a comment\ncat <<'END'\n\"$HOME\" `x` \\n '\nEND\necho \"é\" '\\'\n"
    assert shell.run(script).stdout == '"$HOME" `x` \\n \'\né \\\n'
    assert shell.run("").returncode == 0


def test_the_folder_and_its_variables_are_those_of_the_command(shell: Shell) -> None:
    shell.profile("cd /; export OLDPWD=/somewhere SHLVL=7\n")
    result = shell.run('pwd; echo "$PWD ${OLDPWD-unset}"')
    assert result.stdout.startswith(f"{shell.home}\n{shell.home} ")
    snapshot = shell.capture()
    assert snapshot is not None
    assert not snapshot.exports.keys() & {"PWD", "OLDPWD", "SHLVL", "_"}


def test_variables_of_a_start_win_over_captured_ones_and_inherited_ones_do_not(
    shell: Shell,
) -> None:
    shell.profile("export GIVEN=profile OLD=profile:$OLD NEW=profile\nunset GONE\n")
    shell.env |= {"OLD": "inherited", "GONE": "inherited"}
    result = shell.run('echo "$GIVEN $OLD $NEW $GONE"', env={"GIVEN": "start"})
    assert result.stdout == "start profile:inherited profile inherited\n"


def test_variables_of_the_first_command_do_not_reach_the_next(shell: Shell) -> None:
    shell.profile("export NEW=1\n")
    shell.env["FIRST"] = "1"
    snapshot = shell.capture()
    assert snapshot is not None
    assert snapshot.exports.keys() >= {"NEW"}
    assert not snapshot.exports.keys() & {"FIRST", "HOME", "LC_ALL"}


def test_our_own_variables_are_gone_when_the_command_runs(shell: Shell) -> None:
    assert "HOLDFAST" not in shell.run("env").stdout
    assert "\n__HOLDFAST" not in shell.run("set").stdout


def test_values_may_hold_any_byte(shell: Shell) -> None:
    shell.profile("export A=\"$(printf 'a\\nb\\377\\303\\251')\"\n")
    assert shell.run('printf %s "$A"').stdout == "a\nb\udcffé"


def test_options_are_restored_but_those_that_end_a_shell(shell: Shell) -> None:
    shell.profile("set -e; set -u; set -C\n")
    result = shell.run("false; echo x > $HOME/file; echo y > $HOME/file; echo end; echo $nope")
    assert result.stdout == "end\n"
    assert (shell.home / "file").read_text() == "x\n"
    assert result.returncode != 0
    assert "nope" in result.stderr


def test_a_trace_begins_with_the_command(bash: Shell) -> None:
    bash.profile("set -x\n")
    assert bash.run("echo in").stderr == "+ echo in\n"


def test_the_file_of_an_interactive_shell_is_read_too(shell: Shell) -> None:
    name = RC_FILES.get(shell.name, "rc file")
    (shell.home / name).write_text("export RC=1\n")
    for variable in (f"{shell.home}/rc file", "$HOME/rc file", "~/rc file"):
        shell.env["ENV"] = variable
        assert shell.run('echo "$RC"').stdout == "1\n"
    shell.env["ENV"] = "relative"
    assert shell.run("echo in").stdout == "in\n"


@pytest.mark.parametrize("name", [name for name in INSTALLED if name != "bash"])
def test_aliases_work_where_they_work_without_a_snapshot(name: str, tmp_path: Path) -> None:
    shell = Shell(name, tmp_path)
    shell.profile("alias hi='echo \"it'\\''s'\\ me'\"'\nalias two='echo 1\necho 2'\n")
    assert shell.run("hi").stdout == "it's me\n"
    assert shell.run("two").stdout == "1\n2\n"


def test_aliases_of_bash_are_known_and_work_when_asked_for(bash: Shell) -> None:
    bash.profile("alias hi='echo hi'\n")
    assert bash.run("alias").stdout == "alias hi='echo hi'\n"
    bash.profile("alias hi='echo hi'; shopt -s expand_aliases\n")
    assert bash.run("hi\nhi").stdout == "hi\nhi\n"


def test_extended_patterns_of_bash_can_be_used_at_once(bash: Shell) -> None:
    bash.profile("shopt -s extglob nullglob\nnot_a() { case $1 in !(a)) echo yes;; esac; }\n")
    assert (
        bash.run("not_a b; case b in !(a)) echo too;; esac; echo no*such").stdout == "yes\ntoo\n\n"
    )


def test_exported_functions_of_bash_stay_exported(bash: Shell) -> None:
    bash.profile('f() { echo "f $1"; }; export -f f; a.b() { echo dotted; }\n')
    assert bash.run("f 1; bash -c 'f 2'; a.b; bash -c a.b 2>/dev/null").stdout == (
        "f 1\nf 2\ndotted\n"
    )


def test_bash_env_is_read_once_and_passed_on(bash: Shell) -> None:
    file = bash.home / "it's"
    file.write_text("echo run >> $HOME/runs\nexport FROM_FILE=1\n")
    (bash.home / ".bashrc").write_text("export RC=1\n")
    bash.env["BASH_ENV"] = str(file)
    snapshot = bash.capture()
    result = bash.run('echo "$FROM_FILE [$RC] $BASH_ENV"', snapshot=snapshot)
    assert result.stdout == f"1 [] {file}\n"
    assert (bash.home / "runs").read_text() == "run\n"


def test_messages_are_off_by_one_line(bash: Shell) -> None:
    assert ": line 3: nope:" in bash.run(":\nnope").stderr


def test_global_and_suffix_aliases_and_options_of_zsh_come_back(zsh: Shell) -> None:
    zsh.profile(
        "alias -g GG='| tr a b'; alias -s txt=echo; unalias run-help\n"
        "setopt extendedglob rcquotes\nalias qq='echo ''q'''\n"
    )
    result = zsh.run("echo aaa GG; x.txt; qq; alias run-help; [[ -o rcs ]] && setopt")
    assert result.stdout.startswith("bbb\nx.txt\nq\n")
    assert {"extendedglob", "rcquotes"} < set(result.stdout.split())
    assert "run-help" not in result.stdout


def test_functions_that_zsh_itself_cannot_spell_make_no_snapshot(zsh: Shell) -> None:
    zsh.profile("setopt rcquotes\nq() { echo 'it''s'; }\n")
    snapshot = zsh.capture()
    assert snapshot is None or zsh.run("q", snapshot=snapshot).stdout == "it's\n"


def test_zsh_skips_its_own_files_the_second_time(zsh: Shell) -> None:
    (zsh.home / ".zshenv").write_text("echo run >> $HOME/runs\nexport Z=1\n")
    snapshot = zsh.capture()
    assert zsh.run("echo $Z", snapshot=snapshot).stdout == "1\n"
    assert (zsh.home / "runs").read_text() == "run\n"


def test_a_bash_that_is_called_sh_is_known_by_its_answer(tmp_path: Path) -> None:
    bash = Shell("bash", tmp_path)
    bash.name = "sh"
    bash.profile("f() { echo f; }; alias x=y\n")
    (tmp_path / ".bash_profile").write_text((tmp_path / ".profile").read_text())
    snapshot = bash.capture()
    assert snapshot is not None
    assert snapshot.kind == "bash"
    assert bash.run("f; alias", snapshot=snapshot).stdout == "f\nalias x='y'\n"


def test_large_snapshots_fit(bash: Shell) -> None:
    body = "y" * 1000
    bash.profile("".join(f"f{n}() {{ echo 'é{body}'; }}\n" for n in range(400)))
    output = bash.capture_output()
    assert 400_000 < len(output) < CAPTURE_LIMIT
    assert bash.run("f399; declare -F | wc -l").stdout == f"é{body}\n400\n"


# Captures that fail.


@pytest.mark.parametrize(
    "profile", ["exit 0", "exec true", "exec >/dev/null", "kill -9 $$", "set -n"]
)
def test_a_profile_that_gets_in_the_way_makes_no_snapshot(shell: Shell, profile: str) -> None:
    shell.profile(f"{profile}\n")
    assert shell.capture() is None


def test_traps_do_not_get_between_the_parts(bash: Shell) -> None:
    bash.profile("trap 'echo debug' DEBUG; trap 'echo exit' EXIT; trap 'echo err' ERR\nset -T\n")
    assert bash.run("echo in").stdout == "in\n"


def test_redefined_commands_do_not_get_in_the_way(shell: Shell) -> None:
    shell.profile(
        "printf() { echo mine; }; alias builtin=false command=false set=false printf=false\n"
        "export A=1\nPATH=/nonexistent\n"
    )
    snapshot = shell.capture()
    assert snapshot is not None
    assert snapshot.exports["A"] == "1"
    assert snapshot.exports["PATH"] == "/nonexistent"


@pytest.mark.parametrize(("name", "path"), [("zsh", "bash"), ("bash", "sh")])
def test_another_shell_than_named_makes_no_snapshot(name: str, path: str, tmp_path: Path) -> None:
    if os.path.realpath(str(shutil.which(path))) == os.path.realpath(str(shutil.which(name))):
        pytest.skip("they are the same here")
    shell = Shell(path, tmp_path)
    shell.name = name
    assert shell.capture() is None


def test_an_answer_cut_short_is_no_snapshot(bash: Shell) -> None:
    bash.profile("export A=1; f() { :; }\n")
    output = bash.capture_output()
    assert parse_capture(output, {}) is not None
    for length in range(len(output)):
        assert parse_capture(output[:length], {}) is None
    assert parse_capture(b"", {}) is None


@pytest.mark.parametrize(
    "body",
    [
        b"fish\0\0\0\0\0A=1\0",
        b"bash\0\0\0\0",
        b"bash\0set -o vi\noops\0\0\0\0A=1\0",
        b"bash\0\0shopt -s a; rm x\0\0\0A=1\0",
        b"zsh\0vi\nset x\0\0\0\0A=1\0",
        b"sh\0\0\0\0x='y\0A=1\0",
        b"sh\0\0\0\0x=y; rm x\n\0A=1\0",
        b"sh\0\0\0\0-x=y\n\0A=1\0",
    ],
)
def test_an_answer_with_foreign_text_in_it_is_no_snapshot(body: bytes) -> None:
    output = b"\0holdfast-snapshot\0" + body + b"\0holdfast-snapshot-end\0"
    assert parse_capture(output, {}) is None


def test_a_snapshot_is_what_stands_between_the_marks() -> None:
    body = b"sh\0set -o nounset\nset -o errexit\n\0\0\0a='b\nc'\nd=e\n\0A=1\0B=2\0no equals\0"
    output = b"noise\0holdfast-snapshot\0" + body + b"\0holdfast-snapshot-end\0trailer"
    assert parse_capture(output, {"B": "2"}) == Snapshot(
        kind="sh",
        script="\nalias a='b\nc'\nalias d=e\n\nset -o nounset\n",
        exports={"A": "1"},
    )


# Round trips.


@settings(
    max_examples=times(5),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(value=st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=20))
def test_any_text_survives_as_a_variable_and_as_an_argument(shell: Shell, value: str) -> None:
    snapshot = Snapshot(kind=shell.name, script="", exports={"A": value})
    result = shell.run('printf "%s\\0%s" "$A" "$1"', "name", value, snapshot=snapshot)
    # Text mode turns "\r" into "\n".
    expected = f"{value}\0{value}".replace("\r\n", "\n").replace("\r", "\n")
    assert result.stdout == expected


# The cache.


def key(scope: str) -> SnapshotKey:
    return SnapshotKey(scope, "bash", "/bin/bash", "file:///", b"null", b"null")


def test_the_cache_drops_what_was_not_used_for_longest() -> None:
    cache: SnapshotCache[int] = SnapshotCache()
    for number in range(16):
        cache.put(key(str(number)), number)
    assert cache.get(key("0")) == 0
    cache.put(key("16"), 16)
    assert len(cache) == 16
    assert cache.get(key("0")) == 0
    assert cache.get(key("1")) is None
    cache.put(key("2"), 22)
    assert cache.get(key("2")) == 22
    assert len(cache) == 16


def start(**changes: object) -> StartParams:
    fields: dict[str, object] = {
        "process_id": "p",
        "argv": ["/bin/bash", "-lc", "true"],
        "cwd": PathUri.parse("file:///tmp"),
        "env": {},
        "tty": False,
        "shell_snapshot": request_for(),
    }
    return StartParams(**{**fields, **changes})  # type: ignore[arg-type]


def test_commands_share_a_snapshot_by_request_folder_policy_and_sandbox() -> None:
    policy = EnvPolicy(
        inherit="all", ignore_default_excludes=True, exclude=[], set={}, include_only=[]
    )
    first = snapshot_key(start())
    assert snapshot_key(start(process_id="q", env={"A": "1"}, tty=True)) == first
    others = [
        start(cwd=PathUri.parse("file:///usr")),
        start(env_policy=policy),
        start(sandbox={"permissions": {"type": "disabled"}}),
        start(shell_snapshot=request_for(scope="t")),
        start(shell_snapshot=request_for(name="sh")),
    ]
    assert len({first, *map(snapshot_key, others)}) == 6
