"""
Sessions as resources: `holdfast://sessions/ID`, with updates for subscribers.

A handshake client subscribes to single resources; one of 2026-07-28 listens to a stream. An update
only says that a resource has changed, so many changes are merged into one.
"""

import asyncio
import json
import re
from collections import OrderedDict
from contextlib import suppress
from typing import Any, Final

from mcp.server.session import ServerSession
from mcp.server.subscriptions import (
    InMemorySubscriptionBus,
    ListenHandler,
    ResourcesListChanged,
    ResourceUpdated,
)
from mcp_types import (
    ListResourcesResult,
    ListResourceTemplatesResult,
    ReadResourceResult,
    Resource,
    ResourceTemplate,
    TextResourceContents,
)

from holdfast.agent.approvals.shown_text import shortened
from holdfast.agent.unified_exec.sessions.session_events import (
    CommandBegan,
    CommandEnded,
    OutputDelta,
)
from holdfast.agent.unified_exec.tool_errors import UnifiedExecError
from holdfast.agent.unified_exec.tools import UnifiedExec
from holdfast.base.errors import HoldfastError
from holdfast.base.tasks import OwnedTasks

__all__ = ["NoSuchResource", "SessionUpdates", "listed", "read", "templates"]

_PREFIX: Final = "holdfast://sessions/"
_URI: Final = re.compile(re.escape(_PREFIX) + r"([0-9]{1,10})")
_MIME: Final = "application/json"

# Minimum seconds between updates on the same session.
_INTERVAL: Final = 0.25

# Seconds for a subscriber to accept an update before it is unsubscribed.
_PATIENCE: Final = 5.0

# Maximum characters of an unknown name in an error.
_SHOWN: Final = 200

# Maximum subscriptions of a principal; the oldest are dropped.
_SUBSCRIPTIONS: Final = 1_024


class NoSuchResource(HoldfastError):
    """The resource does not exist, or not for this client."""


def uri_of(session_id: int) -> str:
    """Return the URI of a session."""
    return f"{_PREFIX}{session_id}"


def listed(tools: UnifiedExec) -> ListResourcesResult:
    """Return the running sessions, for `resources/list`."""
    return ListResourcesResult(
        resources=[
            Resource(
                uri=uri_of(info.session_id),
                name=f"session {info.session_id}",
                description=info.script,
                mime_type=_MIME,
            )
            for info in tools.sessions()
        ]
    )


def templates() -> ListResourceTemplatesResult:
    """Return the template for the URIs of sessions."""
    template = ResourceTemplate(
        uri_template=_PREFIX + "{session_id}",
        name="session",
        title="A command",
        description="The state of a command and the end of its output.",
        mime_type=_MIME,
    )
    return ListResourceTemplatesResult(resource_templates=[template])


async def read(tools: UnifiedExec, uri: str) -> ReadResourceResult:
    """
    Return the state of a session and the end of its output, even for a while after its end.

    Raises:
        NoSuchResource: There is no such session.
    """
    session_id = _session_id(uri)
    try:
        page = await tools.read_output(session_id, lines=(-1_000, None))
    except HoldfastError as error:
        raise NoSuchResource(f"there is no session {session_id}") from error
    found: dict[str, Any] = {"session_id": session_id, "running": False}
    with suppress(UnifiedExecError):
        session = tools.session(session_id)
        found |= {
            "running": session.running,
            "command": session.script,
            "cwd": session.cwd,
            "tty": session.tty,
        }
        if session.exit_code is not None:
            found["exit_code"] = session.exit_code
    found |= {"total_bytes": page.total_bytes, "output": page.text}
    text = json.dumps(found, ensure_ascii=False)
    return ReadResourceResult(contents=[TextResourceContents(uri=uri, mime_type=_MIME, text=text)])


def _session_id(uri: str) -> int:
    found = _URI.fullmatch(uri)
    if found is None:
        raise NoSuchResource(f"unknown resource {shortened(uri, _SHOWN)}: expected {_PREFIX}ID")
    return int(found[1])


class SessionUpdates:
    """
    Notifies subscribers of changes to the sessions of a principal.

    Only follows commands once there is a subscriber.
    """

    def __init__(self, tools: UnifiedExec, tasks: OwnedTasks) -> None:
        """
        Args:
            tools: Tools of the principal.
            tasks: Owns the background tasks.
        """
        self._tools = tools
        self._tasks = tasks
        self._bus = InMemorySubscriptionBus()
        self.listen = ListenHandler(self._bus, max_subscriptions=64)
        """Serves `subscriptions/listen`."""
        # By URI and connection, oldest first.
        self._subscribed: OrderedDict[tuple[str, str], ServerSession] = OrderedDict()
        self._following = False
        # URIs of changed sessions, and an empty one if the list has changed.
        self._news: dict[str, None] = {}
        self._flushing = False

    def follow(self) -> None:
        """Begin to follow the commands; idempotent."""
        if not self._following:
            self._following = True
            self._tasks.start(self._follow())

    def subscribe(self, uri: str, connection: str, session: ServerSession) -> None:
        """
        Notify a handshake client of changes to a session from now on.

        Args:
            uri: The session, which need not exist yet.
            connection: Distinguishes the client's connections.
            session: Sends the notifications.

        Raises:
            NoSuchResource: It cannot be the URI of a session.
        """
        _session_id(uri)
        self._subscribed[uri, connection] = session
        while len(self._subscribed) > _SUBSCRIPTIONS:
            self._subscribed.popitem(last=False)
        self.follow()

    def unsubscribe(self, uri: str, connection: str) -> None:
        """Stop notifying a client, if it subscribed."""
        self._subscribed.pop((uri, connection), None)

    def close(self) -> None:
        """End the streams of all listeners."""
        self.listen.close()

    async def _follow(self) -> None:
        # Live output has the call that started its command, not the session.
        started = {info.call_id: info.session_id for info in self._tools.sessions()}
        async with self._tools.listen() as events:
            async for event in events:
                if isinstance(event, CommandBegan) and event.session_id is not None:
                    started[event.call_id] = event.session_id
                    self._note("")
                elif isinstance(event, CommandEnded):
                    number = started.pop(event.call_id, None)
                    self._note("")
                    if number is not None:
                        self._note(uri_of(number))
                elif isinstance(event, OutputDelta) and event.call_id in started:
                    self._note(uri_of(started[event.call_id]))

    def _note(self, uri: str) -> None:
        self._news[uri] = None
        if not self._flushing:
            self._flushing = True
            self._tasks.start(self._flush())

    async def _flush(self) -> None:
        """Send notifications until there are no more changes."""
        try:
            while self._news:
                news, self._news = self._news, {}
                for uri in news:
                    if not uri:
                        await self._bus.publish(ResourcesListChanged())
                        continue
                    await self._bus.publish(ResourceUpdated(uri))
                    await self._notify(uri)
                await asyncio.sleep(_INTERVAL)
        finally:
            self._flushing = False

    async def _notify(self, uri: str) -> None:
        for key, session in list(self._subscribed.items()):
            if key[0] != uri:
                continue
            try:
                async with asyncio.timeout(_PATIENCE):
                    await session.send_resource_updated(uri)
            except TimeoutError:
                # Drop the subscription of a client that does not read, so that it does not delay
                # others.
                self._subscribed.pop(key, None)
