"""Arguments that make no sense are refused before anything is started."""

import math
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest

from holdfast.base.errors import InvalidParams
from holdfast.environments.environment import Environment
from holdfast.environments.local_environment import LocalEnvironment


@pytest.fixture
async def env(tmp_path: Path) -> AsyncIterator[Environment]:
    async with LocalEnvironment() as environment:
        environment.cwd = tmp_path
        yield environment


RUN: list[tuple[Mapping[str, object], type[Exception], str]] = [
    ({"input": ["a"]}, TypeError, "input must be a string or bytes, not list"),
    ({"input": 0}, TypeError, "input must be a string or bytes, not int"),
    ({"timeout": "5"}, TypeError, "timeout must be a number of seconds, not str"),
    ({"timeout": True}, TypeError, "timeout must be a number of seconds, not bool"),
    ({"timeout": math.nan}, InvalidParams, "timeout must be a number of seconds, not nan"),
    ({"timeout": math.inf}, InvalidParams, "None means no limit"),
    ({"timeout": -1}, InvalidParams, "timeout must not be negative, but is -1"),
    ({"drain": -0.5}, InvalidParams, "drain must not be negative"),
    ({"drain": "1"}, TypeError, "drain must be a number of seconds, not str"),
    ({"drain": math.nan}, InvalidParams, "drain must be a number of seconds"),
    ({"cap": 1.5}, TypeError, "cap must be a number of bytes, not float"),
    ({"cap": -1}, InvalidParams, "cap must not be negative"),
    ({"env": ["A=B"]}, TypeError, "env must map names to values, but is list"),
    ({"env": {"A": 1}}, TypeError, "env must map strings to strings, not 'A': 1"),
    ({"env": {"A=B": "1"}}, InvalidParams, "env has an invalid name 'A=B'"),
    ({"env": {"": "1"}}, InvalidParams, "env has an invalid name ''"),
    ({"limits": {"output": 5}}, TypeError, "limits must be a `Limits`, not dict"),
    ({"unset": "PATH"}, TypeError, "unset must be a list of names, not str"),
    ({"unset": 5}, TypeError, "unset must be a list of names, not int"),
    ({"unset": [5]}, TypeError, "unset must be a list of names, not 5"),
    ({"unset": ["A=B"]}, InvalidParams, "unset has an invalid name 'A=B'"),
    ({"on_output": "print"}, TypeError, "on_output must be a function, not str"),
]


@pytest.mark.parametrize(("arguments", "kind", "text"), RUN)
async def test_a_run_that_makes_no_sense_is_refused(
    env: Environment, tmp_path: Path, arguments: dict[str, object], kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind, match=text):
        await env.run("touch ran", **arguments)  # type: ignore[arg-type]
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("command", [None, 5, b"true"])
async def test_a_command_is_a_text_or_a_list(env: Environment, command: object) -> None:
    name = type(command).__name__
    with pytest.raises(
        TypeError, match=f"a command must be a string or a list of strings, not {name}"
    ):
        await env.run(command)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="an argument must be a string"):
        await env.run(["echo", command])  # type: ignore[list-item]


START: list[tuple[Mapping[str, object], type[Exception], str]] = [
    (
        {"size": (24,), "tty": True},
        TypeError,
        r"size must be a pair of rows and columns, not \(24,\)",
    ),
    ({"size": "24x80", "tty": True}, TypeError, "size must be a pair"),
    ({"size": (0, 80), "tty": True}, InvalidParams, "terminal size must be between"),
    ({"detach": 5}, TypeError, "detach must be a string, not int"),
    ({"env": {1: "A"}}, TypeError, "env must map strings to strings"),
    ({"unset": b"PATH"}, TypeError, "unset must be a list of names, not bytes"),
]


@pytest.mark.parametrize(("arguments", "kind", "text"), START)
async def test_a_start_that_makes_no_sense_is_refused(
    env: Environment, tmp_path: Path, arguments: dict[str, object], kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind, match=text):
        await env.start("touch ran", **arguments)  # type: ignore[arg-type]
    assert not (tmp_path / "ran").exists()


async def test_what_is_written_is_text_or_bytes(env: Environment) -> None:
    async with env.start("cat") as process:
        with pytest.raises(TypeError, match="data must be a string or bytes, not list"):
            await process.write(["a"])  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="data must be a string or bytes, not int"):
            await env.files.write("x", 5)  # type: ignore[arg-type]
        with pytest.raises(InvalidParams, match="drain"):
            process.output(drain=math.inf)
        with pytest.raises(TypeError, match="timeout"):
            await process.expect("x", timeout="1")  # type: ignore[arg-type]
