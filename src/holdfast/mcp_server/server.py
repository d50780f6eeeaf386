"""
The server: the SDK's protocol on Holdfast's transports, and the tools behind it.

What runs commands is loaded and opened in the background, as soon as the first request is
answered.
"""

import asyncio
import importlib
import logging
from typing import TYPE_CHECKING, Any, Self

from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INTERNAL_ERROR,
    CallToolRequestParams,
    CallToolResult,
    InputRequiredResult,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
)

from holdfast._version import __version__
from holdfast.errors import HoldfastError
from holdfast.mcp_server.options import ServerOptions
from holdfast.mcp_server.wire import Wire
from holdfast.server.auth import Check
from holdfast.server.listen import ListenUrl
from holdfast.tasks import OwnedTasks
from holdfast.transports.base import Receiver, Transport

if TYPE_CHECKING:  # loaded after the first answer
    from holdfast.mcp_server.handlers import Handlers

__all__ = ["McpServer"]

logger = logging.getLogger(__name__)

_Context = ServerRequestContext[Any, Any]

_AFTER_ANSWER = 0.02
"""Seconds for the first answer to be on its way before anything else is loaded."""

INSTRUCTIONS = """\
Runs commands and works on files. `exec_command` waits for a command as long as `yield_time_ms`\
 says; one that goes on has a session ID, by which `write_stdin` polls it and sends input. Give\
 `tty: true` to a program that asks for input. `read_output` shows what was cut.\
"""

_STDIO = "stdio"
"""The key of the one client on standard streams."""


class McpServer:
    """A server for any number of transports. An async context manager."""

    def __init__(self, options: ServerOptions, *, keep: float | None = None) -> None:
        """
        Args:
            options: Choices of whoever started it.
            keep: As for `Handlers`.
        """
        self._options = options
        self._keep = keep
        self._tasks = OwnedTasks()
        self._opening: asyncio.Task[Handlers] | None = None
        self._server: Server[Any] = Server(
            "holdfast",
            version=__version__,
            title="Holdfast",
            instructions=INSTRUCTIONS,
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
        )
        self._server.middleware.append(self._open_after_first)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._tasks.aclose()
        if self._opening is not None:
            await asyncio.wait([self._opening])
            if not self._opening.cancelled() and self._opening.exception() is None:
                await self._opening.result().aclose()

    # -- a service of `server.life`

    def accept(self, transport: Transport) -> Receiver:
        """Serve one client."""
        wire = Wire(transport)
        self._tasks.start(self._serve(wire))
        return wire

    async def _serve(self, wire: Wire) -> None:
        options = self._server.create_initialization_options()
        await self._server.run(wire.incoming, wire.outgoing, options)

    async def listen(self, where: ListenUrl, check: Check | None) -> str:
        """Accept connections until the end, and return the URL."""
        raise NotImplementedError

    @property
    def is_idle(self) -> bool:
        """Never true: a client comes back without notice."""
        return False

    async def ask_to_end(self, grace: float) -> None:
        """Do nothing: the end of the context kills what runs."""

    # -- requests

    async def _open_after_first(self, ctx: _Context, call_next: CallNext) -> HandlerResult:
        """Open the tools once a first request is answered."""
        try:
            return await call_next(ctx)
        finally:
            if self._opening is None:
                asyncio.get_running_loop().call_later(_AFTER_ANSWER, self._open)

    def _open(self) -> "asyncio.Task[Handlers]":
        if self._opening is None:
            self._opening = asyncio.get_running_loop().create_task(self._opened())
        return self._opening

    async def _opened(self) -> "Handlers":
        # In a thread, so that requests are answered meanwhile.
        module = await asyncio.to_thread(importlib.import_module, "holdfast.mcp_server.handlers")
        handlers: Handlers = module.Handlers(self._options, keep=self._keep)
        try:
            await handlers.open()
        except HoldfastError as error:
            logger.error("commands cannot be run: %s", error)
            raise
        return handlers

    async def _handlers(self) -> "Handlers":
        """
        Return the tools, once they are open.

        Raises:
            MCPError: They cannot be opened.
        """
        try:
            # Shielded: a client that cancels its request must not cancel it for all others.
            return await asyncio.shield(self._open())
        except HoldfastError as error:
            raise MCPError(INTERNAL_ERROR, f"commands cannot be run: {error}") from error

    async def _list_tools(
        self, ctx: _Context, params: PaginatedRequestParams | None
    ) -> ListToolsResult:
        return (await self._handlers()).list_tools(_key(ctx))

    async def _call_tool(
        self, ctx: _Context, params: CallToolRequestParams
    ) -> CallToolResult | InputRequiredResult:
        try:
            handlers = await self._handlers()
        except MCPError as error:
            return CallToolResult(content=[TextContent(text=error.message)], is_error=True)
        with handlers.principals.in_use(_key(ctx)):
            return await handlers.call_tool(ctx, _key(ctx), params)


def _key(ctx: _Context) -> str:
    """Return the key of the principal whose request this is."""
    return _STDIO
