"""
Conversations as text: what is said to a server, and every byte it answers.

A line that begins with `> ` is said, one with `< ` is heard, and all else is a
comment. Run as a program, the module has the real server (`$CODEX_BIN`) answer what
is said in each file beside it, and writes down what was heard.
"""

import asyncio
import os
import re
import subprocess
from pathlib import Path

import websockets

__all__ = ["FILES", "Conversation", "converse"]

FILES = sorted((Path(__file__).parent / "conversations").glob("*.txt"))

Conversation = list[tuple[str, list[str]]]
"""Messages to send, each with those that are received before the next one."""

_QUIET = 0.5
"""Seconds without an answer after which the recorder takes it that no more comes."""

_PEER = re.compile(r"exec-server websocket [0-9.]+:[0-9]+")


def read(file: Path) -> Conversation:
    """The conversation in a file."""
    turns: Conversation = []
    for line in file.read_text().splitlines():
        if line.startswith("> "):
            turns.append((line[2:], []))
        elif line.startswith("< "):
            turns[-1][1].append(line[2:])
    return turns


async def converse(url: str, turns: Conversation, *, recording: bool = False) -> Conversation:
    """Say the same on a new connection: as much is heard, or when recording all there is."""
    heard: Conversation = []
    async with (
        asyncio.timeout(20),
        websockets.connect(url, proxy=None, compression=None) as connection,
    ):
        await connection.send('{"id":0,"method":"initialize","params":{"clientName":"wire"}}')
        await connection.recv()
        await connection.send('{"method":"initialized","params":{}}')
        for said, expected in turns:
            await connection.send(said)
            answers: list[str] = []
            while recording or len(answers) < len(expected):
                try:
                    async with asyncio.timeout(_QUIET if recording else None):
                        answer = await connection.recv()
                except TimeoutError:
                    break
                assert isinstance(answer, str)
                answers.append(_PEER.sub("exec-server websocket PEER", answer))
            heard.append((said, answers))
    return heard


def record() -> None:
    """Write down what the real server answers."""
    command = [os.environ["CODEX_BIN"], "exec-server", "--listen", "ws://127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        url = server.stdout.readline().strip()
        for file in FILES:
            heard = asyncio.run(converse(url, read(file), recording=True))
            title = file.read_text().splitlines()[0]
            lines = [title]
            for said, answers in heard:
                lines += [f"> {said}", *(f"< {answer}" for answer in answers)]
            file.write_text("\n".join(lines) + "\n")
        server.terminate()


if __name__ == "__main__":
    record()
