"""A server in a process of its own, and a client that uses it over a WebSocket with a token."""

import asyncio
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast import ConnectFailed, ExecServerClient, OutputChunk, PathUri, StartParams


@contextmanager
def serving(token_file: Path) -> Iterator[str]:
    """`holdfast serve` for as long as the context lasts; its URL is the line it prints."""
    command = [sys.executable, "-m", "holdfast.front.cli", "serve"]
    auth = ["--token-file", str(token_file)]
    with subprocess.Popen([*command, *auth], stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            yield server.stdout.readline().strip()
        finally:
            server.terminate()


async def use(url: str, token: str) -> None:
    async with await ExecServerClient.connect(url, bearer_token=token) as client:
        assert client.environment is not None
        print(f"the server's shell is {client.environment.shell.path}")
        request = StartParams(
            process_id="both",
            argv=["/bin/sh", "-c", "echo to stdout; echo to stderr >&2; exit 3"],
            cwd=PathUri.from_path("/"),
            env={},
            tty=False,
        )
        process = await client.start(request)
        seen = {"stdout": b"", "stderr": b""}
        async for event in process.events():
            if isinstance(event, OutputChunk):
                seen[event.stream] += event.chunk
        assert seen == {"stdout": b"to stdout\n", "stderr": b"to stderr\n"}
        verdict = await process.wait()
        print(f"the process {verdict}")
        assert verdict.exit_code == 3


async def be_refused(url: str) -> None:
    try:
        await ExecServerClient.connect(url, bearer_token="a guess")
    except ConnectFailed as error:
        print(f"as expected: {error}")
    else:
        raise AssertionError("a wrong token was taken")


def main() -> None:
    token = secrets.token_urlsafe(32)
    with tempfile.TemporaryDirectory() as folder:
        token_file = Path(folder, "token")
        token_file.touch(mode=0o600)
        token_file.write_text(token)
        with serving(token_file) as url:
            asyncio.run(use(url, token))
            asyncio.run(be_refused(url))


main()
