"""
Handlers of tool requests, for the sessions of the calling principal.

This module imports everything needed to run commands. It is imported during the handshake, after
the first response.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final, TypeVar

from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp.shared.message import ServerMessageMetadata
from mcp_types import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    ElicitResult,
    InputRequiredResult,
    ListResourcesResult,
    ListResourceTemplatesResult,
    ListToolsResult,
    ReadResourceResult,
    SubscriptionsListenRequestParams,
    SubscriptionsListenResult,
    Tool,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from holdfast.agent.approvals.question import Decision, DecisionKind, Question
from holdfast.agent.approvals.shown_text import visible
from holdfast.agent.unified_exec.output.kept_output import KeptOutput
from holdfast.agent.unified_exec.reporter import file_note
from holdfast.agent.unified_exec.sessions.command_session import CommandSession
from holdfast.agent.unified_exec.tool_errors import UnknownProcessId
from holdfast.base.errors import HoldfastError
from holdfast.front.mcp import resources
from holdfast.front.mcp.mcp_options import ServerOptions
from holdfast.front.mcp.mcp_principals import McpPrincipals, Principal, Workplace
from holdfast.front.mcp.mcp_tool import ToolFailed, ToolRequest, failure
from holdfast.front.mcp.questions import decision_of, elicitation, why_not_answered, why_not_asked
from holdfast.front.mcp.rounds import ANSWER_LIMIT, BadState, Rounds, answer_of
from holdfast.front.mcp.running_requests import Attendance
from holdfast.front.mcp.tool_calls import ToolCall, Work
from holdfast.front.mcp.tools import call_tool, described_tools

__all__ = ["Context", "Handlers"]

# Minimum seconds between notifications.
INTERVAL: Final = 0.25

# Intervals after which the seconds are reported even without output.
_HEARTBEAT: Final = 4

# Bytes of the output in which the last line is searched.
_TAIL: Final = 512

# Maximum characters shown of the last line, from its end.
_LINE: Final = 200

# Sends the seconds and a text to the client.
Send = Callable[[float, str], Awaitable[None]]


def _last_line(output: KeptOutput) -> str:
    lines = output.end(_TAIL).decode(errors="replace").split("\n")
    # After a final newline, the last line is empty: skip it.
    line = next((each.strip() for each in reversed(lines) if each.strip()), "")
    return visible(line[-_LINE:], prose=True)


async def _report_progress(find: Callable[[], CommandSession | None], send: Send) -> None:
    """
    Send progress notifications for a command, at most four per second, until cancelled.

    Args:
        find: Returns the session once it exists.
        send: Sends a notification; may wait while the client does not read.
    """
    loop = asyncio.get_running_loop()
    began = loop.time()
    session: CommandSession | None = None
    reported = -1
    quiet = 0
    while True:
        await asyncio.sleep(INTERVAL)
        quiet += 1
        session = session or find()
        if session is None:
            continue
        written = session.output.total_bytes
        if written == reported and quiet < _HEARTBEAT:
            continue
        reported, quiet = written, 0
        seconds = loop.time() - began
        line = _last_line(session.output)
        await send(seconds, f"{seconds:.1f} s, {written} bytes" + (f": {line}" if line else ""))


logger = logging.getLogger(__name__)

Context = ServerRequestContext[Any, Any]

# "Resource not found" for clients of the handshake protocol.
_NOT_FOUND = -32002

_Wanted = TypeVar("_Wanted")

_CLOSED = (
    "the answer was not used: the question is no longer open; it was already answered, or the"
    " answer is too late; nothing was run"
)


class Handlers:
    """The tools of a server, for all its principals."""

    def __init__(
        self, options: ServerOptions, attendance: Attendance, *, keep: float | None
    ) -> None:
        """
        Args:
            options: Options of the server.
            attendance: The running requests.
            keep: Seconds that sessions outlive the last request of their principal; None for as
                long as the server.
        """
        self._options = options
        self._attendance = attendance
        self._keep = keep
        self._rounds = Rounds()
        self._stack = AsyncExitStack()
        self._described: list[Tool] | None = None
        self._ruled = True
        self.principals: McpPrincipals
        """Set by `open`."""

    async def open(self) -> None:
        """
        Open the environment and load the rules.

        Raises:
            HoldfastError: It cannot be used; the message says why.
        """
        workplace = await self._stack.enter_async_context(Workplace.open(self._options))
        rules = workplace.rules
        self._ruled = rules.leave_sandbox or (
            self._options.rules_leave_sandbox and bool(rules.prefix_rules)
        )
        self.principals = McpPrincipals(workplace, self._attendance, keep=self._keep)
        self._stack.push_async_callback(self.principals.aclose)
        # In the background, so that the first response does not wait for a sandbox.
        preparing = asyncio.get_running_loop().create_task(workplace.prepare())
        self._stack.push_async_callback(_cancelled, preparing)

    async def aclose(self) -> None:
        """Kill all commands, and close the environment."""
        await self._stack.aclose()

    def _principal(self, key: str) -> Principal:
        """
        Return a principal by its key.

        Raises:
            MCPError: There are too many.
        """
        try:
            return self.principals.of(key)
        except HoldfastError as error:
            raise MCPError(INTERNAL_ERROR, str(error)) from error

    # -- tools/list

    def list_tools(self, key: str) -> ListToolsResult:
        """Return the tools, which are the same for all principals."""
        # Created once: the schemas do not depend on the principal.
        if self._described is None:
            self._described = described_tools(
                self._options, self._principal(key).tools, ruled=self._ruled
            )
        return ListToolsResult(tools=self._described)

    # -- resources

    def list_resources(self, key: str) -> ListResourcesResult:
        """Return the sessions of a principal."""
        return resources.listed(self._principal(key).tools)

    def list_templates(self) -> ListResourceTemplatesResult:
        """Return the template for the URIs of sessions."""
        return resources.templates()

    async def read_resource(self, ctx: Context, key: str, uri: str) -> ReadResourceResult:
        """
        Return the state of a session.

        Raises:
            MCPError: The principal has no such session.
        """
        try:
            return await resources.read(self._principal(key).tools, uri)
        except resources.NoSuchResource as error:
            modern = ctx.protocol_version in MODERN_PROTOCOL_VERSIONS
            # The versions of the protocol have different codes for it.
            code = INVALID_PARAMS if modern else _NOT_FOUND
            raise MCPError(code, str(error), {"uri": uri}) from error

    def subscribe(self, ctx: Context, key: str, uri: str, *, wanted: bool) -> None:
        """
        Subscribe a handshake client to changes of a session, or unsubscribe it.

        Raises:
            MCPError: It cannot be the URI of a session.
        """
        updates = self._principal(key).updates
        # A principal may have several connections over HTTP, one per MCP session.
        connection = "" if ctx.request is None else ctx.request.headers.get("mcp-session-id", "")
        if not wanted:
            updates.unsubscribe(uri, connection)
            return
        try:
            updates.subscribe(uri, connection, ctx.session)
        except resources.NoSuchResource as error:
            raise MCPError(INVALID_PARAMS, str(error), {"uri": uri}) from error

    async def listen(
        self, ctx: Context, key: str, params: SubscriptionsListenRequestParams
    ) -> SubscriptionsListenResult:
        """Serve a stream of changes until its client ends it."""
        updates = self._principal(key).updates
        updates.follow()
        return await updates.listen(ctx, params)

    # -- tools/call

    async def call_tool(
        self, ctx: Context, key: str, params: CallToolRequestParams
    ) -> CallToolResult | InputRequiredResult:
        """Begin a call, or continue one with an answer; return its result or question."""
        try:
            principal = self.principals.of(key)
            async with principal.call_slots:
                return await self._served(ctx, principal, params)
        except HoldfastError as error:
            return failure(str(error))
        except Exception:
            logger.exception("a call of %s failed", params.name)
            return failure(f"{params.name} failed: an internal error, see the log of the server")

    async def _served(
        self, ctx: Context, principal: Principal, params: CallToolRequestParams
    ) -> CallToolResult | InputRequiredResult:
        """
        Serve one request for a call.

        Raises:
            BadState: It is a second round with an invalid answer.
        """
        call = self._resumed(ctx, principal, params)
        if call is None:
            call = principal.begin(params.name, self._work(principal, params))
        try:
            return await self._outcome(ctx, principal, params, call)
        except BaseException:
            # Usually a cancellation: the command must not be left without an owner.
            principal.abandon(call)
            raise

    def _resumed(
        self, ctx: Context, principal: Principal, params: CallToolRequestParams
    ) -> ToolCall | None:
        """
        Return the call of a second round, after passing it the answer.

        Returns:
            None for a first round, and if the arguments differ from those in the question: the
            call then begins and asks anew.

        Raises:
            BadState: The answer is invalid.
        """
        found = self._rounds.open(principal.key, params)
        if found is None:
            return None
        call = principal.resume(found.call_id)
        # The user was not asked about the changed call.
        if not found.same_arguments:
            if call is not None:
                principal.abandon(call)
            return None
        question = None if call is None else call.question
        if call is None or question is None or question.id != found.question_id:
            raise BadState(_CLOSED)
        # Each id belongs to one question.
        assert question.digest == found.digest
        answer = answer_of(params)
        # The answer may be from another client of the same principal.
        refusal = why_not_answered(ctx.session.client_capabilities, question)
        if answer is not None:
            decision = decision_of(question, answer) if refusal is None else _declined(refusal)
            call.answer(decision)
        return call

    async def _outcome(
        self, ctx: Context, principal: Principal, params: CallToolRequestParams, call: ToolCall
    ) -> CallToolResult | InputRequiredResult:
        """Wait for a call; ask its questions in the way of the client's protocol version."""
        modern = ctx.protocol_version in MODERN_PROTOCOL_VERSIONS
        async with self._progress(ctx, principal, params, call):
            while True:
                try:
                    question = await call.next_question()
                except TimeoutError:
                    return _too_late(principal, call)
                if question is None:
                    principal.end(call)
                    return await call.result()
                # Decline for a client that cannot ask.
                refusal = why_not_asked(ctx.session.client_capabilities, question)
                if refusal is not None:
                    call.answer(_declined(refusal))
                elif not modern:
                    call.answer(await _elicited(ctx, question))
                else:
                    principal.park(call)
                    # The newer protocol ends the request here; the client repeats it with the
                    # answer.
                    return self._rounds.required(principal.key, params, call, question)

    @asynccontextmanager
    async def _progress(
        self, ctx: Context, principal: Principal, params: CallToolRequestParams, call: ToolCall
    ) -> AsyncIterator[None]:
        """Send progress notifications during the block, if the client requested them."""
        wanted = ctx.meta is not None and "progress_token" in ctx.meta
        if not wanted or params.name not in ("exec_command", "write_stdin"):
            yield
            return

        def find() -> CommandSession | None:
            if call.name == "exec_command":
                return principal.tools.find_session(call.id)
            named = (params.arguments or {}).get("session_id")
            with contextlib.suppress(UnknownProcessId):
                return principal.tools.session(named) if isinstance(named, int) else None
            return None

        async def send(seconds: float, message: str) -> None:
            await ctx.session.report_progress(seconds, None, message)

        reporter = asyncio.get_running_loop().create_task(_report_progress(find, send))
        try:
            yield
        finally:
            await _cancelled(reporter)

    # -- running the tools

    def _work(self, principal: Principal, params: CallToolRequestParams) -> Work:
        """Return the work of a call."""
        name, arguments = params.name, params.arguments or {}

        async def work(call: ToolCall) -> CallToolResult:
            try:
                return await call_tool(ToolRequest(principal, name, arguments, call.id))
            except ToolFailed as error:
                return failure(await self._file_failure(principal, name, arguments, error))

        return work

    async def _file_failure(
        self, principal: Principal, name: str, arguments: Mapping[str, Any], error: ToolFailed
    ) -> str:
        """Return the text for a failed file tool, with a note if its sandbox denied it."""
        cause = error.__cause__
        if not self._options.notes or not isinstance(cause, HoldfastError):
            return str(error)
        path = str(arguments.get("path", ""))
        options, writing = principal.tools.options, name == "write_file"
        note = await file_note(cause, principal.environment, path, options, writing=writing)
        return str(error) if note is None else f"{error}\n{note}"


def _too_late(principal: Principal, call: ToolCall) -> CallToolResult:
    """Stop a call that has taken too long; its command, if any, continues."""
    session = principal.tools.find_session(call.id)
    # In the background: the response must not wait for the end of the call.
    principal.tasks.start(call.stop())
    principal.end(call)
    goes_on = "" if session is None else f"; it runs on with session ID {session.session_id}"
    return failure(call.too_late() + goes_on)


# -- questions


async def _elicited(ctx: Context, question: Question) -> Decision:
    """Ask the client of a handshake connection a question, during its call."""
    try:
        answer = await ctx.session.send_request(
            elicitation(question),
            ElicitResult,
            request_read_timeout_seconds=ANSWER_LIMIT,
            metadata=ServerMessageMetadata(related_request_id=ctx.request_id),
        )
    except MCPError as error:
        return _declined(f"the client could not ask: {error.message}")
    except ValidationError:
        return _declined("the client sent an invalid answer")
    return decision_of(question, answer)


def _declined(reason: str) -> Decision:
    return Decision(DecisionKind.DECLINE, rejection=reason)


async def _cancelled(task: "asyncio.Task[None]") -> None:
    """Cancel a task and wait for it to end."""
    task.cancel()
    await asyncio.wait([task])
