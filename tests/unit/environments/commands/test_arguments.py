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
    ({"input": ["a"]}, TypeError, "input is text or bytes, not list"),
    ({"input": 0}, TypeError, "input is text or bytes, not int"),
    ({"timeout": "5"}, TypeError, "timeout is a number of seconds, not str"),
    ({"timeout": True}, TypeError, "timeout is a number of seconds, not bool"),
    ({"timeout": math.nan}, InvalidParams, "timeout must be a number of seconds, not nan"),
    ({"timeout": math.inf}, InvalidParams, "None has no limit"),
    ({"timeout": -1}, InvalidParams, "timeout must not be negative, but is -1"),
    ({"drain": -0.5}, InvalidParams, "drain must not be negative"),
    ({"drain": "1"}, TypeError, "drain is a number of seconds, not str"),
    ({"drain": math.nan}, InvalidParams, "drain must be a number of seconds"),
    ({"cap": 1.5}, TypeError, "cap is a number of bytes, not float"),
    ({"cap": -1}, InvalidParams, "cap must not be negative"),
    ({"env": ["A=B"]}, TypeError, "env is a mapping of names to values, not list"),
    ({"env": {"A": 1}}, TypeError, "env has text only, not 'A': 1"),
    ({"env": {"A=B": "1"}}, InvalidParams, "env has 'A=B', which is no name"),
    ({"env": {"": "1"}}, InvalidParams, "env has '', which is no name"),
    ({"limits": {"output": 5}}, TypeError, "limits is a `Limits`, not dict"),
    ({"unset": "PATH"}, TypeError, "unset is a list of names, not str"),
    ({"unset": 5}, TypeError, "unset is a list of names, not int"),
    ({"unset": [5]}, TypeError, "unset has names of variables only, not 5"),
    ({"unset": ["A=B"]}, InvalidParams, "unset has 'A=B', which is no name"),
    ({"on_output": "print"}, TypeError, "on_output is a function, not str"),
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
    with pytest.raises(TypeError, match=f"a command is a text or a list of texts, not {name}"):
        await env.run(command)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="an argument is text"):
        await env.run(["echo", command])  # type: ignore[list-item]


START: list[tuple[Mapping[str, object], type[Exception], str]] = [
    ({"size": (24,), "tty": True}, TypeError, r"size is a pair of rows and columns, not \(24,\)"),
    ({"size": "24x80", "tty": True}, TypeError, "size is a pair"),
    ({"size": (0, 80), "tty": True}, InvalidParams, "terminal size must be between"),
    ({"detach": 5}, TypeError, "the name to detach a process by is text, not int"),
    ({"env": {1: "A"}}, TypeError, "env has text only"),
    ({"unset": b"PATH"}, TypeError, "unset is a list of names, not bytes"),
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
        with pytest.raises(TypeError, match="data is text or bytes, not list"):
            await process.write(["a"])  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="data is text or bytes, not int"):
            await env.files.write("x", 5)  # type: ignore[arg-type]
        with pytest.raises(InvalidParams, match="drain"):
            process.output(drain=math.inf)
        with pytest.raises(TypeError, match="timeout"):
            await process.expect("x", timeout="1")  # type: ignore[arg-type]
