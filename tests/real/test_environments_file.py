"""Codex and Holdfast read the same `environments.toml`, and say the same about a wrong one."""

import asyncio
import json
import os
import subprocess
import threading
from pathlib import Path

import pytest

from holdfast.base.errors import InvalidConfig
from holdfast.environments.config import config_file as config
from holdfast.environments.config import edit
from holdfast.environments.config.home import NOISE_VARIABLES
from holdfast.environments.config.providers import provider_from_env
from holdfast.environments.config.snapshot import Entry, ServerUrl, ServingProgram
from tests.e2e.wire import LIMIT
from tests.real.codex import codex, codex_env
from tests.unit.environments.cases import EVERYTHING, NO_IDS, NO_SENSE, UNFIT, URL, A

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.timeout(60)]

HELLO = {
    "id": 1,
    "method": "initialize",
    "params": {"clientInfo": {"name": "test", "version": "0"}},
}


async def codex_says(home: Path, **variables: str) -> str | None:
    """Return the error of Codex when it starts in this home; `None` if there is none."""
    return await asyncio.to_thread(_codex_says, home, variables)


def _codex_says(home: Path, variables: dict[str, str]) -> str | None:
    # Said beforehand: it may be gone before anything could be written to it.
    reading, writing = os.pipe()
    os.write(writing, json.dumps(HELLO).encode() + b"\n")
    try:
        with subprocess.Popen(
            [codex(), "app-server"],
            env={**codex_env(home), "RUST_BACKTRACE": "0", **variables},
            stdin=reading,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            limit = threading.Timer(4 * LIMIT, process.kill)
            limit.start()
            try:
                if process.stdout.readline():
                    return None
                errors = process.stderr.read().decode()
            finally:
                limit.cancel()
                limit.join()
                process.kill()
    finally:
        os.close(reading)
        os.close(writing)
    text = errors.partition("Error: ")[2].partition("\n\nStack backtrace")[0]
    return text.strip().replace("\nin `", " in `")


def we_say(path: Path) -> str | None:
    try:
        config.load(path)
    except InvalidConfig as error:
        return str(error)
    return None


RIGHT = [
    "",
    EVERYTHING,
    URL,
    "\ufeff" + URL,
    'default = " NoNe "\ninclude_local = false\n',
    A + 'url = "ws://h:99999"\n',
    A + 'url = "ws://[::1]:80"\nauth_bearer_token = ""\n',
    A + 'url = "ws://LOCALHOST"\nauth_bearer_token = "ä"\n',
    A + 'program = "x"\ncwd = ""\nargs = []\nenv = {}\n',
    '[[environments]]\nid = "Local"\nurl = "ws://x"\n',
]
WRONG = [
    *(f'[[environments]]\nid = "{name}"\nurl = "ws://x"' for name, _ in NO_IDS),
    *(written for written, _ in NO_SENSE),
    # A type of its own words a table for Codex, and its reader has no limit of depth to tell of.
    *(
        written
        for written, detail in UNFIT
        if "expected a table" not in detail and "too deeply" not in detail
    ),
    *(f'{A}url = "ws://{rest}"' for rest in ("a b", "ä", "x/`", "/p", "[::1", "u@")),
    A + 'url = "ws://a.localhost"\nauth_bearer_token = "t"\n',
    A + 'url = "wss://x"\nauth_bearer_token = "\\u007f"\n',
]


@pytest.mark.requirement(
    "environments.file.keys",
    "environments.file.ids",
    "environments.file.texts",
    "environments.file.parse",
    "environments.file.default",
)
async def test_both_say_the_same_about_a_file(tmp_path: Path) -> None:
    at_once = asyncio.Semaphore(4)

    async def compare(number: int, text: str) -> tuple[str, str | None, str | None]:
        home = tmp_path / str(number)
        home.mkdir()
        path = home / config.FILE_NAME
        path.write_text(text)
        async with at_once:
            return text, await codex_says(home), we_say(path)

    async with asyncio.TaskGroup() as tasks:
        compared = [
            tasks.create_task(compare(number, text)) for number, text in enumerate(RIGHT + WRONG)
        ]
    # Codex calls a mistake in a file a protocol error; for us it is none.
    differing = [
        (text, codex, ours)
        for text, codex, ours in map(asyncio.Task.result, compared)
        if (codex and codex.removeprefix("exec-server protocol error: ")) != ours
    ]
    assert differing == []
    content = [found for found in map(asyncio.Task.result, compared) if found[1] is None]
    assert len(content) == len(RIGHT)


async def test_codex_reads_what_we_wrote(tmp_path: Path) -> None:
    path = tmp_path / config.FILE_NAME
    path.write_text(EVERYTHING)
    token, odd = 'a "quoted" \\ token', "a 'b' \"c\"\n\t"
    url = ServerUrl(url="wss://far/x?y", bearer_token=token, connect_timeout=2.5)
    edit.add(path, Entry(id="url", transport=url, initialize_timeout=0.0))
    program = ServingProgram(program="x y", args=(odd, ""), env={"with space": odd}, cwd="/srv")
    edit.add(path, Entry(id="program", transport=program))
    edit.remove(path, "ssh-dev")
    assert await codex_says(tmp_path) is None


@pytest.mark.requirement("environments.noise-partial")
async def test_both_say_the_same_about_a_part_of_the_noise_variables(tmp_path: Path) -> None:
    variables = dict.fromkeys(NOISE_VARIABLES[1:], "x")
    with pytest.raises(InvalidConfig) as caught:
        provider_from_env(variables, tmp_path)
    assert await codex_says(tmp_path, **variables) == str(caught.value)
