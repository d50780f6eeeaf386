"""The options of the command line."""

import argparse
import subprocess
import sys

import pytest

from holdfast.base.version import __version__
from holdfast.front.cli.__main__ import main
from holdfast.front.cli.parser import make_parser


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[argparse.Namespace]:
    """The options that `holdfast run` was called with."""
    calls: list[argparse.Namespace] = []

    def run(options: argparse.Namespace) -> int:
        calls.append(options)
        return 42

    monkeypatch.setattr("holdfast.front.cli.guarded.run", run)
    return calls


def _run(*arguments: str) -> int:
    options = make_parser().parse_args(["run", *arguments])
    status: int = options.run(options)
    return status


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        (["echo", "hi"], ["echo", "hi"]),
        (["--", "echo", "hi"], ["echo", "hi"]),
        (["--tty", "echo", "--tty", "-e"], ["echo", "--tty", "-e"]),
        (["--tty", "--", "-x", "--url"], ["-x", "--url"]),
        (["echo", "--", "-x"], ["echo", "--", "-x"]),
        (["--", "sh", "-c", "x", "--"], ["sh", "-c", "x", "--"]),
    ],
)
def test_the_command_is_what_follows_the_options(
    ran: list[argparse.Namespace], arguments: list[str], command: list[str]
) -> None:
    assert _run(*arguments) == 42
    assert ran[0].argv == command


def test_the_options_of_run(ran: list[argparse.Namespace]) -> None:
    _run("--url", "ws://h:1", "-t", "--cwd", "/x", "-e", "A=1", "--env", "B=", "-e", "C=d=e", "cmd")
    (options,) = ran
    assert options.url == "ws://h:1"
    assert options.cmd is None
    assert options.tty
    assert options.cwd == "/x"
    assert options.env == [("A", "1"), ("B", ""), ("C", "d=e")]
    assert options.token_file is None


@pytest.mark.parametrize("flags", [["-it"], ["-ti"], ["-i", "-t"], ["--interactive", "--tty"]])
def test_the_flags_of_docker_run_give_a_terminal(
    ran: list[argparse.Namespace], flags: list[str]
) -> None:
    _run(*flags, "cmd")
    assert ran[0].tty
    assert ran[0].argv == ["cmd"]


def test_a_timeout_is_a_limit_of_time(ran: list[argparse.Namespace]) -> None:
    _run("--timeout", "2m", "cmd")
    assert ran[0].limit_time == 120


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["help"], "usage: holdfast [-h]"),
        (["help", "run"], "usage: holdfast run "),
        (["help", "fs", "ls"], "usage: holdfast fs ls "),
        (["version"], f"holdfast {__version__}"),
        (["-V"], f"holdfast {__version__}"),
    ],
)
def test_help_and_version_are_also_commands(
    capsys: pytest.CaptureFixture[str], arguments: list[str], shown: str
) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    assert exit_.value.code == 0
    assert capsys.readouterr().out.startswith(shown)


def test_variables_are_not_kept_for_the_next_run(ran: list[argparse.Namespace]) -> None:
    parser = make_parser()
    parser.parse_args(["run", "-e", "A=1", "cmd"])
    assert parser.parse_args(["run", "cmd"]).env == []


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "the command to run is missing"),
        (["--"], "the command to run is missing"),
        (["--tty"], "the command to run is missing"),
        (["--url", "ws://h:1", "--cmd", "c", "x"], "not allowed with argument"),
        (["-e", "A", "x"], "expected NAME=VALUE, not 'A'"),
        (["-e", "=1", "x"], "expected NAME=VALUE, not '=1'"),
        (["--ur", "ws://h:1", "x"], "unknown option --ur (did you mean `--url`?)"),
        (["-x"], "unknown option -x"),
    ],
)
def test_mistakes_are_told(
    capsys: pytest.CaptureFixture[str], arguments: list[str], text: str
) -> None:
    with pytest.raises(SystemExit) as exit_:
        _run(*arguments)
    assert exit_.value.code == 2
    assert text in capsys.readouterr().err


@pytest.mark.parametrize("command", [[], ["serve"], ["exec-server"], ["run"], ["completion"]])
def test_every_command_explains_itself(
    capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        make_parser().parse_args([*command, "--help"])
    assert exit_.value.code == 0
    assert "usage: holdfast" in capsys.readouterr().out


def _commands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    (found,) = (action for action in parser._actions if isinstance(action.choices, dict))
    assert isinstance(found.choices, dict)
    return found.choices


@pytest.mark.parametrize("name", sorted(_commands(make_parser())))
def test_a_command_that_is_known_is_the_only_one_that_is_made(name: str) -> None:
    alone, among_all = _commands(make_parser(name)), _commands(make_parser())
    assert set(alone) == {name}
    assert alone[name].format_help() == among_all[name].format_help()


@pytest.mark.parametrize("first", ["rnu", "--version", "--help"])
def test_all_commands_are_made_for_anything_else(first: str) -> None:
    assert set(_commands(make_parser(first))) == set(_commands(make_parser()))


def test_the_parser_imports_no_more_than_it_needs() -> None:
    program = (
        "import sys; from holdfast.front.cli.parser import make_parser; make_parser();"
        " heavy = {'asyncio', 'msgspec', 'shtab', 'holdfast.engine.process'};"
        " heavy.add('holdfast.base.errors');"
        " print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=5, check=True
    )
    assert done.stdout == "[]\n"


@pytest.mark.requirement("sandbox.write-option")
def test_every_command_with_a_sandbox_lets_more_be_written() -> None:
    parsers = [make_parser()]
    with_sandbox = set()
    while parsers:
        parser = parsers.pop()
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                parsers += action.choices.values()
        options = parser._option_string_actions
        if "--sandbox" in options or parser.prog == "holdfast sandbox explain":
            assert "--sandbox-write" in options, parser.prog
            with_sandbox.add(parser.prog.removeprefix("holdfast "))
    assert with_sandbox >= {"run", "shell", "mcp", "app-server", "policy explain"}
