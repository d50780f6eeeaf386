"""An agent loop: a model asks for tools, the loop runs them and hands the texts back."""

import asyncio
import json
import re
import socket
import tempfile
from collections.abc import Generator
from dataclasses import dataclass

import holdfast
from holdfast import UnifiedExec
from holdfast.agent.unified_exec import Options


@dataclass
class ToolCall:
    """The request of a model for a tool, as its API gives it."""

    id: str
    name: str
    arguments: str
    """JSON, as the model wrote it."""


Script = Generator[ToolCall, str, str]
"""Asks for tools, is sent the text of each answer, and returns the last word of the model."""


async def run_agent(tools: UnifiedExec, model: Script) -> str:
    """Run the tools that a model asks for, until it has nothing more to ask."""
    assert tools.schemas("openai")  # what a real model is given with every request
    try:
        call = next(model)
        while True:
            result = await tools.call(call.name, call.arguments, call_id=call.id)
            text = result.text(notes=True)
            print(f"-> {call.name} {call.arguments}\n{text}\n")
            call = model.send(text)
    except StopIteration as end:
        return str(end.value)


def scripted_model(port: int) -> Script:
    """Play a model that knows what it wants. It reads nothing but the texts of the tools."""
    number = 0

    def ask(name: str, **arguments: object) -> ToolCall:
        nonlocal number
        number += 1
        return ToolCall(f"call_{number}", name, json.dumps(arguments))

    # A server in the background: the call ends as soon as somebody listens on the port.
    text = yield ask(
        "exec_command",
        cmd=f"python3 -m http.server {port} --bind 127.0.0.1",
        yield_time_ms=30_000,
        wait_for={"port": port},
    )
    assert f"Wait ended by port ({port})" in text, text
    server = session_in(text)

    fetch = f"import urllib.request as u; print(u.urlopen('http://127.0.0.1:{port}/page').read())"
    text = yield ask("exec_command", cmd=f'python3 -c "{fetch}"', yield_time_ms=30_000)
    assert "Process exited with code 0" in text, text
    assert "b'hello from a file'" in text, text

    # A program that asks: it needs a terminal, and the answer says what it waits for.
    text = yield ask(
        "exec_command",
        cmd="read -p 'user: ' user; read -s -p 'password: ' word; echo; echo welcome, $user",
        tty=True,
        yield_time_ms=30_000,
        wait_for={"input": True},
    )
    assert "The program waits for a line of input." in text, text
    assert text.endswith("user: "), text
    login = session_in(text)

    text = yield ask(
        "write_stdin",
        session_id=login,
        chars="ada\n",
        yield_time_ms=30_000,
        wait_for={"input": True},
    )
    assert "The program waits for a password" in text, text

    text = yield ask("write_stdin", session_id=login, chars="secret\n", yield_time_ms=30_000)
    assert "Process exited with code 0" in text, text
    assert "welcome, ada" in text, text
    assert "secret" not in text, text  # the program does not show it

    # A long output: its ends at first, with the exit code of the command itself.
    text = yield ask("exec_command", cmd="seq 1 50000; exit 3", tail=2, yield_time_ms=30_000)
    assert "Process exited with code 3" in text, text
    assert text.endswith("49999\n50000\n"), text
    assert "of 50,000" in text, text

    # Then a part of the middle. The answer says by which id the rest can be read.
    found = re.search(r'read_output with call_id "(\w+)" shows the rest', text)
    assert found is not None, text
    text = yield ask("read_output", call_id=found[1], lines=[25_000, 25_002])
    assert text.endswith("25000\n25001\n25002\n"), text

    # The end of the server, by Ctrl-C.
    text = yield ask("write_stdin", session_id=server, chars="\x03", yield_time_ms=30_000)
    assert "Process exited with code" in text, text

    text = yield ask("write_stdin", session_id=server)
    assert text == f"write_stdin failed: Unknown process id {server}", text
    return "The page says hello, Ada is welcome, and the server is down."


def session_in(text: str) -> int:
    """Return the number by which a text says that its command runs on."""
    found = re.search(r"^Process running with session ID (\d+)$", text, re.MULTILINE)
    assert found is not None, text
    return int(found[1])


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


async def main() -> None:
    # Extras: `wait_for`, `tail` and `read_output` are more than Codex has.
    options = Options(extras=True, allow_login_shell=False)
    with tempfile.TemporaryDirectory() as folder:
        async with (
            holdfast.connect(cwd=folder) as env,
            UnifiedExec(env, options=options) as tools,
        ):
            await env.files.write("page", "hello from a file")
            print(await run_agent(tools, scripted_model(free_port())))
            assert tools.sessions() == []


asyncio.run(main())
