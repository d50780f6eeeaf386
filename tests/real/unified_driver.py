"""
The library behind plain JSON lines, for a program that compares it with recorded behaviour.

    > {"call": 1, "tool": "exec_command", "arguments": "{\\"cmd\\":\\"ls\\"}"}
    < {"question": 7, "call": 1, "kind": "command", "command": "...", "cwd": "...", ...}
    > {"question": 7, "decision": "accept"}
    < {"call": 1, "text": "Chunk ID: ..."}
    > {"cancel": 1}

Rules and retries mean what they mean in Codex. What is stricter here stays so.
"""

import argparse
import asyncio
import json
import sys
from itertools import count

from holdfast.agent.approvals import Approvals, Decision, Question, load_rules
from holdfast.agent.unified_exec import Options, UnifiedExec
from holdfast.environments.local_environment import LocalEnvironment

SANDBOXES = {"danger-full-access": "disabled"}


class Driver:
    """Answers the lines of one program."""

    def __init__(self) -> None:
        self.tools: UnifiedExec | None = None
        self._calls: dict[int, asyncio.Task[None]] = {}
        self._numbers = count(1)
        self._questions: dict[int, asyncio.Future[Decision]] = {}

    def take(self, line: bytes) -> None:
        message = json.loads(line)
        if "question" in message:
            answer = self._questions.get(message["question"])
            if answer is not None and not answer.done():
                answer.set_result(Decision.parse(message["decision"]))
        elif "cancel" in message:
            self._calls[message["cancel"]].cancel()
        elif "call" in message:
            number = message["call"]
            work = self._answer(number, message["tool"], message["arguments"])
            self._calls[number] = asyncio.get_running_loop().create_task(work)

    async def _answer(self, number: int, tool: str, arguments: str) -> None:
        try:
            assert self.tools is not None
            text = (await self.tools.call(tool, arguments, call_id=str(number))).text()
        except asyncio.CancelledError:
            text = "aborted by user"
        self._tell({"call": number, "text": text})

    async def ask(self, question: Question) -> Decision:
        number = next(self._numbers)
        answer: asyncio.Future[Decision] = asyncio.get_running_loop().create_future()
        self._questions[number] = answer
        told = {**question.to_json(), "question": number, "call": int(question.call_id)}
        self._tell(told)
        return await answer

    def _tell(self, message: dict[str, object]) -> None:
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sandbox", default="danger-full-access")
    parser.add_argument("--ask-for-approval", default="never")
    parser.add_argument("--cwd")
    parser.add_argument("--rules")
    given = parser.parse_args()
    reader = asyncio.StreamReader(limit=1 << 26)
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    sandbox = SANDBOXES.get(given.sandbox, given.sandbox)
    driver = Driver()
    approvals = Approvals.like_codex(
        policy=given.ask_for_approval,
        rules=load_rules(explicit=[given.rules] if given.rules else []),
        approver=driver,
    )
    options = Options(sandbox=sandbox, approvals=approvals)
    async with LocalEnvironment() as environment:
        environment.cwd = given.cwd
        async with UnifiedExec(environment, options=options) as tools:
            driver.tools = tools
            while line := await reader.readline():
                driver.take(line)


def run() -> None:
    """Serve until the end of stdin."""
    asyncio.run(main())


if __name__ == "__main__":
    run()
