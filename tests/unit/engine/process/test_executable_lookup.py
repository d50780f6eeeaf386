"""Lookup of the file to execute; the texts were seen on the real server."""

import errno
import os
import pwd
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from holdfast.base.errors import SpawnFailed
from holdfast.engine.process.executable_lookup import Launch, pipe_launch, terminal_launch

BIN = {"PATH": "/usr/bin:/bin"}
NOT_FOUND = "No such file or directory (os error 2)"
DENIED = "Permission denied (os error 13)"


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """A folder with a program, a plain file and a folder."""
    (tmp_path / "tool").write_text("#!/bin/sh\n")
    (tmp_path / "tool").chmod(0o755)
    (tmp_path / "plain").write_text("")
    (tmp_path / "plain").chmod(0o644)
    (tmp_path / "sub").mkdir()
    return str(tmp_path)


def on_pipes(
    *argv: str, cwd: str = "/", env: Mapping[str, str] = BIN, arg0: str | None = None
) -> Launch:
    return pipe_launch(argv, arg0, cwd, env)


def on_terminal(
    *argv: str, cwd: str = "/", env: Mapping[str, str] = BIN, arg0: str | None = None
) -> Launch:
    return terminal_launch(argv, arg0, cwd, env)


def refused_on_pipes(program: str, cwd: str = "/", env: Mapping[str, str] = BIN) -> str:
    with pytest.raises(SpawnFailed) as caught:
        on_pipes(program, cwd=cwd, env=env)
    return str(caught.value)


def refused_on_terminal(
    program: str, cwd: str = "/", env: Mapping[str, str] = BIN, arg0: str | None = None
) -> str:
    with pytest.raises(SpawnFailed) as caught:
        on_terminal(program, cwd=cwd, env=env, arg0=arg0)
    return str(caught.value)


@pytest.mark.parametrize("find", [on_pipes, on_terminal])
@pytest.mark.parametrize(
    ("program", "number"),
    [("tool", None), ("missing", errno.ENOENT), ("plain", errno.EACCES), ("sub", errno.EACCES)],
)
def test_a_refusal_names_the_program_and_the_number(
    folder: str, find: Callable[..., Launch], program: str, number: int | None
) -> None:
    env = {"PATH": f"/nowhere:{folder}"}
    if number is None:
        find(program, env=env)
        return
    with pytest.raises(SpawnFailed) as caught:
        find(program, env=env)
    assert (caught.value.errno, caught.value.program, caught.value.path) == (number, program, None)


def test_a_missing_folder_is_named(folder: str) -> None:
    for cwd, number in ((f"{folder}/none", errno.ENOENT), (f"{folder}/plain", errno.ENOTDIR)):
        with pytest.raises(SpawnFailed) as caught:
            on_pipes("nothing", cwd=cwd)
        assert (caught.value.errno, caught.value.program) == (number, "nothing")
        assert caught.value.path == cwd


def test_a_path_that_is_not_set_leads_to_no_program() -> None:
    with pytest.raises(SpawnFailed) as caught:
        on_terminal("tool", env={})
    assert (caught.value.errno, caught.value.program) == (errno.ENOENT, "tool")


# On pipes.


@pytest.mark.requirement("start.program.path")
def test_a_bare_name_is_found_in_the_path_of_the_child(folder: str) -> None:
    launch = on_pipes("tool", "x", env={"PATH": f"/nowhere:{folder}:/bin"})
    assert launch == Launch(f"{folder}/tool", ["tool", "x"], "/")


@pytest.mark.requirement("start.program.path")
@pytest.mark.parametrize(
    ("path", "program"), [(".", "./tool"), ("", "tool"), ("sub/..", "sub/../tool")]
)
def test_relative_entries_of_the_path_count_from_the_childs_folder(
    folder: str, path: str, program: str
) -> None:
    assert on_pipes("tool", cwd=folder, env={"PATH": path}).program == program


@pytest.mark.requirement("start.program.no-path-on-pipes")
def test_without_a_path_the_system_has_a_default() -> None:
    launch = on_pipes("sh", env={})
    assert launch.program in ("/bin/sh", "/usr/bin/sh")


@pytest.mark.requirement("start.program.not-found")
def test_a_name_that_is_nowhere_is_not_found() -> None:
    assert refused_on_pipes("no-such-program") == NOT_FOUND


@pytest.mark.requirement("start.program.errors")
@pytest.mark.parametrize("name", ["plain", "sub"])
def test_a_name_that_cannot_be_executed_is_denied_if_there_is_no_other(
    folder: str, name: str
) -> None:
    assert refused_on_pipes(name, env={"PATH": f"{folder}:/bin"}) == DENIED
    other = Path(folder) / "sub" / name
    other.write_text("#!/bin/sh\n")
    other.chmod(0o755)
    launch = on_pipes(name, env={"PATH": f"{folder}:{folder}/sub"})
    assert launch.program == str(other)


@pytest.mark.requirement("start.cwd.missing-folder-on-pipes", "start.cwd.file-on-pipes")
def test_a_folder_that_is_missing_is_named_before_a_program_that_is(folder: str) -> None:
    assert refused_on_pipes("nope", cwd=f"{folder}/gone") == NOT_FOUND
    assert refused_on_pipes("nope", cwd=f"{folder}/plain") == "Not a directory (os error 20)"


@pytest.mark.requirement("start.program.dot-slash", "start.program.relative-on-terminal")
@pytest.mark.parametrize("program", ["./tool", "sub/tool", "/bin/sh", "../x"])
def test_a_path_is_left_to_the_kernel(program: str) -> None:
    assert on_pipes(program, "x", cwd="/tmp") == Launch(program, [program, "x"], "/tmp")


@pytest.mark.requirement("start.program.empty")
def test_a_program_has_a_name() -> None:
    assert refused_on_pipes("") == "missing program for pipe spawn"
    assert refused_on_terminal("") == "missing program for PTY spawn"


@pytest.mark.requirement("start.arg0.pipes")
@pytest.mark.parametrize("arg0", ["other", ""])
def test_on_pipes_a_program_may_see_another_name(arg0: str) -> None:
    assert on_pipes("/bin/sh", "-c", arg0=arg0) == Launch("/bin/sh", [arg0, "-c"], "/")


def test_a_name_with_a_nul_is_left_to_the_start_to_refuse() -> None:
    assert on_pipes("x\0").program == "x\0"


# On a terminal.


@pytest.mark.requirement("start.program.path")
def test_on_a_terminal_a_bare_name_is_found_in_the_path_too(folder: str) -> None:
    launch = on_terminal("tool", "x", cwd=folder, env={"PATH": "/nowhere:."})
    assert launch == Launch(f"{folder}/./tool", ["tool", "x"], folder)


@pytest.mark.requirement("start.program.no-path-on-terminal")
def test_on_a_terminal_there_is_no_default_path() -> None:
    assert refused_on_terminal("sh", env={}) == (
        "Unable to spawn sh because:\nUnable to resolve the PATH"
    )


@pytest.mark.requirement("start.program.not-found")
def test_on_a_terminal_the_path_is_told() -> None:
    assert refused_on_terminal("nope", env={"PATH": "/a:/b"}) == (
        'Unable to spawn nope because:\nNo viable candidates found in PATH "/a:/b"'
    )


@pytest.mark.requirement("start.program.not-found")
def test_on_a_terminal_candidates_that_were_no_good_are_told(folder: str) -> None:
    assert refused_on_terminal("sub", env={"PATH": folder}) == (
        f"Unable to spawn sub because:\n{folder}/sub exists but is a directory.\n"
        f'No viable candidates found in PATH "{folder}"'
    )
    assert refused_on_terminal("plain", env={"PATH": folder}) == (
        f"Unable to spawn plain because:\n{folder}/plain exists but is not executable.\n"
        f'No viable candidates found in PATH "{folder}"'
    )


@pytest.mark.requirement("start.program.relative-on-terminal")
def test_on_a_terminal_a_relative_path_is_only_searched_for(folder: str) -> None:
    assert "No viable candidates" in refused_on_terminal("sub/tool", cwd=folder)
    (Path(folder) / "tool").rename(Path(folder) / "sub" / "tool")
    launch = on_terminal("sub/tool", env={"PATH": folder})
    assert launch.program == f"{folder}/sub/tool"


@pytest.mark.requirement("start.program.dot-slash", "start.program.dot-slash-argv0")
@pytest.mark.parametrize("program", ["./tool", "../tool"])
def test_on_a_terminal_a_path_with_a_dot_counts_from_the_folder(folder: str, program: str) -> None:
    cwd = folder if program == "./tool" else f"{folder}/sub"
    assert on_terminal(program, cwd=cwd) == Launch(f"{cwd}/{program}", [program], cwd)


@pytest.mark.requirement("start.program.errors-on-terminal")
@pytest.mark.parametrize(
    ("program", "why"),
    [
        ("./nope", "it does not exist"),
        ("./plain", "it is not executable"),
        ("./sub", "it is a directory"),
        (".", "it is a directory"),
        ("..", "it is a directory"),
    ],
)
def test_on_a_terminal_what_is_wrong_with_a_relative_path_is_told(
    folder: str, program: str, why: str
) -> None:
    expected = f"Unable to spawn {folder}/{program} because {why}"
    assert refused_on_terminal(program, cwd=folder) == expected


@pytest.mark.requirement("start.arg0.terminal")
def test_on_a_terminal_another_name_is_another_program() -> None:
    assert on_terminal("/bin/cat", "x", arg0="/bin/echo") == Launch(
        "/bin/echo", ["/bin/echo", "x"], "/"
    )
    assert on_terminal("/bin/cat", arg0="sh").argv == ["sh"]


@pytest.mark.requirement("start.arg0.terminal", "start.program.errors-on-terminal")
@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("nope", "it doesn't exist on the filesystem (ENOENT: No such file or directory)"),
        ("plain", "it is not executable (EACCES: Permission denied)"),
        ("sub", "it is a directory"),
    ],
)
def test_on_a_terminal_what_is_wrong_with_another_program_is_told(
    folder: str, name: str, why: str
) -> None:
    program = f"{folder}/{name}"
    expected = f"Unable to spawn {program} because {why}"
    assert refused_on_terminal("/bin/sh", arg0=program) == expected


def test_on_a_terminal_an_absolute_path_is_left_to_the_kernel() -> None:
    assert on_terminal("/no/such/file").program == "/no/such/file"


def test_on_a_terminal_a_name_with_a_nul_is_just_not_found() -> None:
    assert "No viable candidates" in refused_on_terminal("x\0")


@pytest.mark.requirement("start.cwd.fallback-on-terminal")
@pytest.mark.parametrize("where", ["gone", "plain"])
def test_on_a_terminal_a_folder_that_is_none_is_replaced_by_home(folder: str, where: str) -> None:
    cwd = f"{folder}/{where}"
    assert on_terminal("/bin/sh", cwd=cwd, env={"HOME": "/usr"}).cwd == "/usr"
    assert on_terminal("/bin/sh", cwd=cwd, env={}).cwd == pwd.getpwuid(os.getuid()).pw_dir
    # What is no folder either is found out by the start.
    assert on_terminal("/bin/sh", cwd=cwd, env={"HOME": ""}).cwd == ""
    assert on_terminal("/bin/sh", cwd=cwd, env={"HOME": "/nope"}).cwd == "/nope"


@pytest.mark.requirement("start.cwd.fallback-on-terminal")
def test_a_user_without_an_entry_is_at_home_at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(uid: int) -> pwd.struct_passwd:
        raise KeyError(uid)

    monkeypatch.setattr(pwd, "getpwuid", nobody)
    assert on_terminal("/bin/sh", cwd="/no/such/folder", env={}).cwd == "/"


def test_a_refusal_carries_the_number_of_the_error() -> None:
    with pytest.raises(SpawnFailed) as caught:
        on_pipes("no-such-program")
    assert caught.value.errno == errno.ENOENT
