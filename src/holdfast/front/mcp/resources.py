"""
Sessions as resources: `holdfast://sessions/ID`, with updates for those who subscribe.

A handshake client subscribes to single resources; one of 2026-07-28 listens to a stream. An
update says that there is something new, not what, so many changes become one.
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

# Seconds between two updates about the same session, at least.
_INTERVAL: Final = 0.25

# Seconds that a subscriber has to take an update; then it is one no more.
_PATIENCE: Final = 5.0

# Characters of an unknown name that an error repeats.
_SHOWN: Final = 200

# Subscriptions of one principal; of more, the oldest are forgotten.
_SUBSCRIPTIONS: Final = 1_024


class NoSuchResource(HoldfastError):
    """There is no resource of that name, or not for this client."""


def uri_of(session_id: int) -> str:
    """Return the name of a session as a resource."""
    return f"{_PREFIX}{session_id}"


def listed(tools: UnifiedExec) -> ListResourcesResult:
    """Return the sessions that run, for `resources/list`."""
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
    """Return the form that the names of sessions have."""
    template = ResourceTemplate(
        uri_template=_PREFIX + "{session_id}",
        name="session",
        title="A command",
        description="How a command stands, and the end of what it wrote.",
        mime_type=_MIME,
    )
    return ListResourceTemplatesResult(resource_templates=[template])


async def read(tools: UnifiedExec, uri: str) -> ReadResourceResult:
    """
    Return how a session stands and the end of its output, also for a while after its end.

    Raises:
        NoSuchResource: There is none of that name.
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
        raise NoSuchResource(f"{shortened(uri, _SHOWN)} is no resource here: expected {_PREFIX}ID")
    return int(found[1])


class SessionUpdates:
    """
    Tells those who subscribed to sessions of one principal that something is new.

    Follows the commands only once somebody has subscribed.
    """

    def __init__(self, tools: UnifiedExec, tasks: OwnedTasks) -> None:
        """
        Args:
            tools: Those of the principal.
            tasks: Where its work goes on in the background.
        """
        self._tools = tools
        self._tasks = tasks
        self._bus = InMemorySubscriptionBus()
        self.listen = ListenHandler(self._bus, max_subscriptions=64)
        """Serves `subscriptions/listen`."""
        # By name and connection; the oldest first.
        self._subscribed: OrderedDict[tuple[str, str], ServerSession] = OrderedDict()
        self._following = False
        # Names of sessions with news, and an empty one if the list has changed.
        self._news: dict[str, None] = {}
        self._flushing = False

    def follow(self) -> None:
        """Begin to follow the commands; harmless a second time."""
        if not self._following:
            self._following = True
            self._tasks.start(self._follow())

    def subscribe(self, uri: str, connection: str, session: ServerSession) -> None:
        """
        Tell a handshake client of what is new about a session from now on.

        Args:
            uri: The session; it need not be there yet.
            connection: Tells its connections apart.
            session: By which it is told.

        Raises:
            NoSuchResource: A session cannot have such a name.
        """
        _session_id(uri)
        self._subscribed[uri, connection] = session
        while len(self._subscribed) > _SUBSCRIPTIONS:
            self._subscribed.popitem(last=False)
        self.follow()

    def unsubscribe(self, uri: str, connection: str) -> None:
        """Tell it no more; harmless if it was not told before."""
        self._subscribed.pop((uri, connection), None)

    def close(self) -> None:
        """End all streams of listeners."""
        self.listen.close()

    async def _follow(self) -> None:
        # Live output names the call that started its command, not the session.
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
        """Tell what is new, until nothing is."""
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
                # A client that does not read loses its subscription, so that it holds up nobody.
                self._subscribed.pop(key, None)
