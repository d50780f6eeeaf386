"""
The MCP server: the SDK's protocol on Holdfast's transports, with the tools.

The tools are imported and opened in the background, as soon as the first request is answered.
"""

import asyncio
import importlib
import logging
import os
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

import anyio
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    CallToolRequestParams,
    CallToolResult,
    EmptyResult,
    InputRequiredResult,
    ListResourcesResult,
    ListResourceTemplatesResult,
    ListToolsResult,
    PaginatedRequestParams,
    ReadResourceRequestParams,
    ReadResourceResult,
    SubscribeRequestParams,
    SubscriptionsListenRequestParams,
    SubscriptionsListenResult,
    TextContent,
    UnsubscribeRequestParams,
)

from holdfast.base.errors import HoldfastError, InvalidParams
from holdfast.base.late_import import late_module
from holdfast.base.local_servers import Reachable, hide
from holdfast.base.tasks import OwnedTasks
from holdfast.base.version import __version__
from holdfast.environments.config.home import is_configured
from holdfast.environments.config.snapshot import LOCAL
from holdfast.environments.sandbox import (
    ProfileContext,
    SandboxProfile,
    as_profile,
    home_here,
)
from holdfast.front.mcp.mcp_options import HTTP_IMAGE, ServerOptions
from holdfast.front.mcp.running_requests import Attendance
from holdfast.front.mcp.stream_pair import StreamPair
from holdfast.server.listen import ListenUrl
from holdfast.server.operate.auth import Check
from holdfast.wire.protocol.paths import InvalidPathUri, PathUri
from holdfast.wire.protocol.sandbox import (
    EntryPath,
    ManagedProfile,
    PermissionProfile,
    PlainPath,
    RestrictedFiles,
    SpecialPath,
)
from holdfast.wire.transports.transport import Credential, Receiver, Transport

# Imported after the first response, since the tools take long to import.
if TYPE_CHECKING:
    from holdfast.front.mcp import streamable_http as http
    from holdfast.front.mcp.streamable_http import HttpAccess
    from holdfast.front.mcp.tool_handlers import Handlers
    from holdfast.wire.transports.tls import ServerTls
else:
    # Imports a web server, which is not needed on standard streams.
    http = late_module("holdfast.front.mcp.streamable_http")

__all__ = ["McpServer", "instructions"]

logger = logging.getLogger(__name__)

_Context = ServerRequestContext[Any, Any]

# Seconds for the first response to be sent before anything else is imported.
_AFTER_ANSWER = 0.02

# Key of the client on standard streams.
_STDIO = "stdio"


class McpServer:
    """A server on any number of transports. An async context manager."""

    def __init__(self, options: ServerOptions, access: "HttpAccess | None" = None) -> None:
        """
        Args:
            options: Options of the server.
            access: Allowed hosts and origins over HTTP; None for a server that does not listen.
        """
        self._access = access
        if access is not None:
            smaller = min(options.largest_image, HTTP_IMAGE)
            options = replace(options, largest_image=smaller)
        self._options = options
        # On stdio, sessions end with the client.
        self._keep = None if access is None else options.keep
        self._attendance = Attendance()
        self._stack = AsyncExitStack()
        self._tasks = OwnedTasks()
        self._revocations: list[
            Callable[[Callable[[Credential], bool]], Coroutine[object, object, None]]
        ] = []
        self._opening: asyncio.Task[Handlers] | None = None
        self._server: Server[Any] = Server(
            "holdfast",
            version=__version__,
            title="Holdfast",
            instructions=instructions(options),
            # No argument is mirrored in a header, so no schema is needed.
            get_tool_input_schema=lambda name: None,
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
            on_list_resources=self._list_resources,
            on_list_resource_templates=self._list_templates,
            on_read_resource=self._read_resource,
            on_subscribe_resource=self._subscribe,
            on_unsubscribe_resource=self._unsubscribe,
            on_subscriptions_listen=self._listen,
        )
        self._server.middleware.append(self._open_after_first)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.aclose()
        await self._tasks.aclose()
        if self._opening is not None:
            await asyncio.wait([self._opening])
            if not self._opening.cancelled() and self._opening.exception() is None:
                await self._opening.result().aclose()

    # -- the `Service` protocol of `run_server`

    def accept(self, transport: Transport) -> Receiver:
        """Serve a client."""
        wire = StreamPair(transport)
        self._tasks.start(self._serve(wire))
        return wire

    async def _serve(self, wire: StreamPair) -> None:
        options = self._server.create_initialization_options()
        try:
            await self._server.run(wire.incoming, wire.outgoing, options)
        except* (anyio.BrokenResourceError, anyio.ClosedResourceError):
            # The client left before the SDK had read all of its messages.
            logger.info("a client left before all of its messages were read")

    async def listen(
        self, where: ListenUrl, check: Check | None, *, tls: "ServerTls | None" = None
    ) -> str:
        """Accept connections until the server ends, and return the URL."""
        # `holdfast mcp` has no option for TLS.
        assert tls is None
        # Always given for a server that listens.
        assert self._access is not None
        serving = await self._stack.enter_async_context(
            http.serving(
                self._server,
                where,
                self._access,
                check,
                keep=self._options.keep,
                attendance=self._attendance,
            )
        )
        self._revocations.append(serving.revoke)
        if check is None:
            self._stack.enter_context(hide(Reachable(open_urls=(serving.url,))))
        return serving.url

    def revoke(self, admits: Callable[[Credential], bool]) -> None:
        """
        End the requests, commands and MCP sessions of clients that are no longer admitted.

        Args:
            admits: Returns False for a credential that is no longer valid.
        """
        for revoke in self._revocations:
            self._tasks.start(revoke(admits))

    @property
    def is_idle(self) -> bool:
        """Never true: a client may return without notice."""
        return False

    async def drain(self, limit: float) -> None:
        """Do nothing: the exit of the context manager kills all commands."""

    # -- requests

    async def _open_after_first(self, ctx: _Context, call_next: CallNext) -> HandlerResult:
        """Open the tools once the first request is answered."""
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
        module = await asyncio.to_thread(
            importlib.import_module, "holdfast.front.mcp.tool_handlers"
        )
        handlers: Handlers = module.Handlers(self._options, self._attendance, keep=self._keep)
        try:
            await handlers.open()
        except HoldfastError as error:
            logger.error("commands cannot be run: %s", error)
            raise
        return handlers

    async def _handlers(self) -> "Handlers":
        """
        Return the tools once they are open.

        Raises:
            MCPError: They cannot be opened.
        """
        try:
            # Shielded: cancelling one request must not affect others.
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
        return await handlers.call_tool(ctx, _key(ctx), params)

    async def _list_resources(
        self, ctx: _Context, params: PaginatedRequestParams | None
    ) -> ListResourcesResult:
        return (await self._handlers()).list_resources(_key(ctx))

    async def _list_templates(
        self, ctx: _Context, params: PaginatedRequestParams | None
    ) -> ListResourceTemplatesResult:
        return (await self._handlers()).list_templates()

    async def _read_resource(
        self, ctx: _Context, params: ReadResourceRequestParams
    ) -> ReadResourceResult:
        return await (await self._handlers()).read_resource(ctx, _key(ctx), params.uri)

    async def _subscribe(self, ctx: _Context, params: SubscribeRequestParams) -> EmptyResult:
        (await self._handlers()).subscribe(ctx, _key(ctx), params.uri, wanted=True)
        return EmptyResult()

    async def _unsubscribe(self, ctx: _Context, params: UnsubscribeRequestParams) -> EmptyResult:
        (await self._handlers()).subscribe(ctx, _key(ctx), params.uri, wanted=False)
        return EmptyResult()

    async def _listen(
        self, ctx: _Context, params: SubscriptionsListenRequestParams
    ) -> SubscriptionsListenResult:
        return await (await self._handlers()).listen(ctx, _key(ctx), params)


def _key(ctx: _Context) -> str:
    """
    Return the key of the request's principal.

    Raises:
        MCPError: It has none.
    """
    if ctx.request is None:
        return _STDIO
    key: str | None = ctx.request.scope["holdfast.principal"]
    # Only `initialize` is sent without an MCP session.
    if key is None:
        raise MCPError(INVALID_REQUEST, "there is no MCP session")
    return key


_TOOLS = """\
Runs commands and works on files. `exec_command` waits for a command as long as `yield_time_ms`\
 says; one that goes on has a session ID, by which `write_stdin` polls it and sends input. Give\
 `tty: true` to a program that asks for input. `read_output` shows what was cut, `view_image` an\
 image.\
"""


def instructions(options: ServerOptions) -> str:
    """Return the text for the model: tools, workspace, sandbox and network."""
    return f"{_TOOLS} {_workplace(options)}"


def _workplace(options: ServerOptions) -> str:
    workspace = _workspace(options)
    where = "" if workspace is None else f" in `{workspace}`"
    profile = _profile(options, workspace)
    if profile is None:
        # An invalid file; the first command reports the error.
        return f"Commands run{where} in the sandbox `{options.sandbox}`.{_escape(options)}"
    if not isinstance(profile, ManagedProfile):
        return f"Commands run{where} without a sandbox and may use the network."
    network = "no network" if profile.network == "restricted" else "the network"
    wide = ""
    if options.wide_workspace is not None:
        wide = f" They may write {options.wide_workspace}: change nothing there unasked."
    return (
        f"Commands run{where} in the sandbox `{options.sandbox}`: they may write"
        f" {_writable(profile, workspace)}, and have {network}.{wide}{_escape(options)}"
    )


def _escape(options: ServerOptions) -> str:
    if options.asks_nobody:
        return " What it denies is refused."
    return " What it denies can be asked for with `sandbox_permissions: require_escalated`."


def _workspace(options: ServerOptions) -> str | None:
    """Return the directory of the commands; None if only the environment knows it."""
    here = options.environment == LOCAL or not (options.environment or is_configured(os.environ))
    if not here:
        return options.cwd
    try:
        return os.path.abspath(options.cwd or ".")
    except FileNotFoundError:
        # The directory of the server was removed; the first command reports it.
        return options.cwd


def _profile(options: ServerOptions, workspace: str | None) -> PermissionProfile | None:
    # Only for relative paths and `~`; the workspace itself has a name in profiles.
    folder = workspace if workspace is not None and os.path.isabs(workspace) else "/"
    context = ProfileContext(folder=PathUri.from_path(folder), home=home_here())
    try:
        profile = as_profile(options.profile)
        return profile.permissions(context) if isinstance(profile, SandboxProfile) else None
    except (InvalidParams, InvalidPathUri):
        return None


def _writable(profile: ManagedProfile, workspace: str | None) -> str:
    files = profile.file_system
    if not isinstance(files, RestrictedFiles):
        return "everywhere"
    entries = (entry for entry in files.entries if entry.access == "write")
    # A dictionary removes duplicates: the temporary directory may be `/tmp`.
    paths = {path: None for entry in entries for path in _paths(entry.path, workspace)}
    whole = _shown(workspace)
    if whole in paths and _shown(workspace, "/.git") not in paths:
        paths = {
            f"{path} (but not `.git` in it)" if path == whole else path: None for path in paths
        }
    return ", ".join(paths) or "nothing"


def _paths(path: EntryPath, workspace: str | None) -> Iterator[str]:
    """Yield the path of an entry for display; nothing for a pattern."""
    if isinstance(path, PlainPath):
        yield f"`{path.path.shown}`"
    elif isinstance(path, SpecialPath):
        below = "" if path.value.subpath is None else f"/{path.value.subpath}"
        match path.value.kind:
            case "project_roots":
                yield _shown(workspace, below)
            case "slash_tmp":
                yield "`/tmp`"
            case "tmpdir":
                yield "the temporary directory"
            case kind:
                yield f"`:{kind}{below}`"


def _shown(workspace: str | None, below: str = "") -> str:
    """Return a path in the workspace for display."""
    if workspace is None:
        return f"`{below[1:]}` in the workspace" if below else "the workspace"
    return f"`{workspace}{below}`"
