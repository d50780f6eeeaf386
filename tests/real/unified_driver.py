"""
The library behind plain JSON lines, for a program that compares it with recorded behaviour.

    > {"call": 1, "tool": "exec_command", "arguments": "{\\"cmd\\":\\"ls\\"}"}
    < {"call": 1, "text": "Chunk ID: ..."}
    > {"cancel": 1}
"""

import argparse
import asyncio
import json
import sys

from holdfast.environments.local import LocalEnvironment
from holdfast.unified_exec import Options, UnifiedExec

SANDBOXES = {"danger-full-access": "disabled"}


class Driver:
    """Answers the lines of one program."""

    def __init__(self, tools: UnifiedExec) -> None:
        self._tools = tools
        self._calls: dict[int, asyncio.Task[None]] = {}

    def take(self, line: bytes) -> None:
        message = json.loads(line)
        if "cancel" in message:
            self._calls[message["cancel"]].cancel()
        elif "call" in message:
            number = message["call"]
            work = self._answer(number, message["tool"], message["arguments"])
            self._calls[number] = asyncio.get_running_loop().create_task(work)

    async def _answer(self, number: int, tool: str, arguments: str) -> None:
        try:
            text = (await self._tools.call(tool, arguments)).text()
        except asyncio.CancelledError:
            text = "aborted by user"
        sys.stdout.write(json.dumps({"call": number, "text": text}) + "\n")
        sys.stdout.flush()


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sandbox", default="danger-full-access")
    parser.add_argument("--ask-for-approval")
    parser.add_argument("--cwd")
    parser.add_argument("--rules")
    given = parser.parse_args()
    reader = asyncio.StreamReader(limit=1 << 26)
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    sandbox = SANDBOXES.get(given.sandbox, given.sandbox)
    async with LocalEnvironment() as environment:
        environment.cwd = given.cwd
        async with UnifiedExec(environment, options=Options(sandbox=sandbox)) as tools:
            driver = Driver(tools)
            while line := await reader.readline():
                driver.take(line)


if __name__ == "__main__":
    asyncio.run(main())
