"""The examples of CONTRIBUTING.md: what they add works."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

OVER_THE_LIMIT = """
import asyncio
import holdfast

async def main():
    async with holdfast.connect("local") as env:
        done = await env.run(
            "exec head -c 20000 /dev/zero > large", limits=holdfast.Limits(file_size="10K")
        )
    print(done.verdict.limit, done.verdict.detail)

asyncio.run(main())
"""

MODIFIED_MEANWHILE = """
import asyncio
import sys
import holdfast

async def main():
    serve = [sys.executable, "-m", "holdfast", "serve", "--listen", "stdio"]
    for where, sandbox in (("local", None), ("local", "workspace-write"), (serve, None)):
        async with holdfast.connect(where, cwd=".", sandbox=sandbox) as env:
            await env.files.write("file", "content")
            written = (await env.files.stat("file")).modified_at_ms / 1000
            try:
                await env.files.remove("file", unmodified_since=written - 1)
            except holdfast.InvalidRequest as error:
                print(error)
            await env.files.remove("file", unmodified_since=written)
            assert not await env.files.exists("file")

asyncio.run(main())
"""


MORE_HANDLES = """
import asyncio
import os
import sys
import holdfast
from holdfast.wire.protocol.fs import OpenParams
from holdfast.wire.protocol.paths import PathUri

async def main():
    serve = [sys.executable, "-m", "holdfast", "serve", "--listen", "stdio"]
    async with holdfast.connect(serve, cwd=".") as env:
        await env.files.write("file", "")
        there = OpenParams(path=PathUri.from_path(os.path.abspath("file")), handle_id="")
        opened = 0
        try:
            while opened < 200:
                await env.filesystem.open(there)
                opened += 1
        except holdfast.InvalidRequest as error:
            print(opened, error)

asyncio.run(main())
"""

PAGE = """
import asyncio
from urllib.request import Request, urlopen
import holdfast
from holdfast.server.operate.auth import Unauthorized
from holdfast.wire.transports.transport import Credential

def check(header):
    if header != "Bearer t":
        raise Unauthorized("wrong")
    return Credential("p")

def get(url, token):
    try:
        with urlopen(Request(url, headers={"Authorization": f"Bearer {token}"})) as answer:
            return answer.read()
    except OSError as error:
        return error.code

async def main():
    async with holdfast.Server(pages=True) as server:
        url = await server.listen("ws://127.0.0.1:0", check)
        page = url.replace("ws", "http", 1) + "/sessions"
        async with holdfast.connect(url, bearer_token="t") as env:
            await env.run("true")
            for token in "tx":
                print(await asyncio.to_thread(get, page, token))

asyncio.run(main())
"""

TOOL = """
import json
import subprocess
import sys

def message(method, number=None, **params):
    made = {"jsonrpc": "2.0", "method": method, "params": params}
    return json.dumps(made if number is None else made | {"id": number}) + "\\n"

command = [sys.executable, "-m", "holdfast", "mcp", "--cwd", ".", "--sandbox", "danger-full-access"]
client = {"name": "c", "version": "1"}
with subprocess.Popen(command, stdin=-1, stdout=-1, stderr=-3, text=True) as server:
    server.stdin.write(
        message(
            "initialize", 0, protocolVersion="2025-06-18", capabilities={}, clientInfo=client
        )
    )
    server.stdin.flush()
    server.stdout.readline()
    server.stdin.write(message("notifications/initialized"))
    server.stdin.write(message("tools/list", 1))
    server.stdin.flush()
    tools = json.loads(server.stdout.readline())["result"]["tools"]
    (tool,) = [tool for tool in tools if tool["name"] == "count_sessions"]
    print(tool["title"], tool["annotations"]["readOnlyHint"])
    server.stdin.write(message("tools/call", 2, name="count_sessions", arguments={}))
    server.stdin.flush()
    print(json.loads(server.stdout.readline())["result"]["structuredContent"])
    server.stdin.close()
"""

SUBCOMMAND = """
import subprocess
import sys

for words in (["uptime"], ["help", "uptime"], ["uptim"]):
    command = [sys.executable, "-m", "holdfast", *words]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    print(done.returncode, done.stdout.splitlines()[-1])
"""


def output_with(example: str, program: str, folder: Path) -> tuple[str, list[str]]:
    """Apply the diff of a section; return what a program writes then, and the changed files."""
    section = (ROOT / "CONTRIBUTING.md").read_text().split(f"## {example}\n")[1]
    diff = section.split("```diff\n")[1].split("```\n")[0]
    # With its compiled files, so that only changed modules have to be compiled again.
    shutil.copytree(ROOT / "src", folder / "src")
    subprocess.run(["git", "apply", "-p0"], input=diff, text=True, cwd=folder, check=True)
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(folder / "src"), "HOME": str(folder)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    changed = [line.split()[1] for line in diff.splitlines() if line.startswith("+++ ")]
    return done.stdout, changed


def test_the_example_of_a_new_limit_is_enforced(tmp_path: Path) -> None:
    written, _ = output_with("Adding a limit of a command", OVER_THE_LIMIT, tmp_path)
    assert written == "fileSize wrote a file of more than 10240 bytes\n"


def test_the_example_of_a_parameter_works_on_each_kind_of_files(tmp_path: Path) -> None:
    example = "Adding a parameter of a file operation"
    written, changed = output_with(example, MODIFIED_MEANWHILE, tmp_path)
    assert written == "cannot remove file: it was modified meanwhile\n" * 3
    assert len(changed) == 3


def test_the_example_of_a_new_version_changes_a_limit_and_its_text(tmp_path: Path) -> None:
    written, changed = output_with("Following a new Codex version", MORE_HANDLES, tmp_path)
    assert written == "160 at most 160 file handles may be open per connection\n"
    assert changed == ["src/holdfast/codex/limits.py"]


def test_the_example_of_a_page_is_served_to_clients_with_a_token(tmp_path: Path) -> None:
    written, changed = output_with("Adding an HTTP page", PAGE, tmp_path)
    assert written == "b'1\\n'\n401\n"
    assert len(changed) == 1


def test_the_example_of_a_tool_is_listed_and_can_be_called(tmp_path: Path) -> None:
    written, changed = output_with("Adding a tool of the MCP server", TOOL, tmp_path)
    assert written == "Count running commands True\n{'running': 0}\n"
    assert len(changed) == 2


def test_the_example_of_a_subcommand_is_run_explained_and_suggested(tmp_path: Path) -> None:
    written, changed = output_with("Adding a subcommand", SUBCOMMAND, tmp_path)
    shown, explained, wrong = written.splitlines()
    assert re.fullmatch(r"0 \d+ seconds", shown)
    assert explained.startswith("0 ")
    assert wrong.startswith("2 ")
    assert "did you mean `uptime`?" in wrong
    assert len(changed) == 2
