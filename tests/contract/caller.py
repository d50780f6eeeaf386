"""Calls of the tools as a model makes them, and what they must come to."""

from dataclasses import dataclass, field

from holdfast.agent.unified_exec import ExecResult, ToolError, UnifiedExec
from holdfast.environments.environment import Environment

LONG = 30_000
"""Milliseconds that a call may wait at most; what it waits for ends it."""


@dataclass
class Ended:
    """A command that was followed to its end."""

    exit_code: int
    output: str
    last: ExecResult = field(repr=False)


class Caller:
    """One model with its tools, whose calls succeed unless it is asked for their refusal."""

    def __init__(self, tools: UnifiedExec, environment: Environment, *, codex: bool) -> None:
        self.tools = tools
        self.environment = environment
        self.codex = codex
        """True on a Codex server, which has none of our extensions."""
        self.remote = environment.is_remote

    async def call(self, name: str, **arguments: object) -> ExecResult:
        """Return the result of a call, which must not fail."""
        result = await self.tools.call(name, arguments)
        assert isinstance(result, ExecResult), result.text()
        return result

    async def refused(self, name: str, arguments: object) -> str:
        """Return the text of a call that must fail."""
        result = await self.tools.call(name, arguments)  # type: ignore[arg-type]
        assert isinstance(result, ToolError), result.text()
        return result.text()

    async def run(self, cmd: str, **arguments: object) -> ExecResult:
        """Run a command that ends by itself."""
        given = {"login": False, "yield_time_ms": LONG, **arguments}
        result = await self.call("exec_command", cmd=cmd, **given)
        assert result.session_id is None
        return result

    async def begin(self, cmd: str, *, until: str, **arguments: object) -> tuple[int, str]:
        """Start a command that goes on; return its session and what it wrote up to a pattern."""
        given = {"login": False, "yield_time_ms": LONG, **arguments}
        result = await self.call("exec_command", cmd=cmd, wait_for={"pattern": until}, **given)
        assert result.session_id is not None, result.text()
        return result.session_id, result.output

    async def write(self, session_id: int, chars: str, *, until: str | None = None) -> ExecResult:
        """Send input and wait for a pattern in the output, or for the end."""
        extra: dict[str, object] = {} if until is None else {"wait_for": {"pattern": until}}
        return await self.call(
            "write_stdin", session_id=session_id, chars=chars, yield_time_ms=LONG, **extra
        )

    async def end(self, session_id: int) -> Ended:
        """Poll a command that ends by itself to its end."""
        output = ""
        while True:
            result = await self.call("write_stdin", session_id=session_id, yield_time_ms=LONG)
            output += result.output
            if result.exit_code is not None:
                return Ended(result.exit_code, output, result)

    def nothing_is_open(self) -> bool:
        """Return True if no session, and no number of one, is left."""
        return not self.tools.sessions() and not self.tools._owner.store.reserved
