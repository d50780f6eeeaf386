"""A client's connection to the server: handshake, requests and session."""

import asyncio
import logging
from functools import cached_property
from time import monotonic

from holdfast.backends import FileSystem, HttpClient, ResolvesNames
from holdfast.base.dialect import texts
from holdfast.base.errors import InvalidParams, InvalidRequest, MalformedMessage, Overloaded
from holdfast.server.dispatch import Dispatcher
from holdfast.server.http_streams import ConnectionBodies
from holdfast.server.open_files import ConnectionFiles
from holdfast.server.operate.journal import SessionJournal
from holdfast.server.operate.records import SessionRecord
from holdfast.server.response_slots import ResponseSlots
from holdfast.server.sessions import Session, short_session
from holdfast.server.state import ServerState
from holdfast.wire.connection import Connection
from holdfast.wire.log_event import LogEvent, clip
from holdfast.wire.protocol import codes
from holdfast.wire.protocol.envelope import Notification, Request
from holdfast.wire.protocol.handshake import InitializeParams, InitializeResponse
from holdfast.wire.protocol.methods import INITIALIZED, PROCESS_ACK, SERVER_STOPPING
from holdfast.wire.protocol.process import AckParams
from holdfast.wire.protocol.wire_types import Empty
from holdfast.wire.rpc.params import decode_params
from holdfast.wire.rpc.router import Route, Router
from holdfast.wire.transports.transport import Transport

__all__ = ["ServerConnection"]

logger = logging.getLogger(__name__)


class ServerConnection:
    """
    Handles the messages of a client.

    It is the context of all method handlers, and the owner of a session while it is connected.
    """

    def __init__(
        self,
        transport: Transport,
        state: ServerState,
        router: Router["ServerConnection"],
        tasks: asyncio.TaskGroup,
    ) -> None:
        self.state = state
        self.credential = transport.credential
        self.principal = self.credential.principal
        """Name of the client's token, or `local` or `anonymous`."""
        self.usage = state.principals[self.principal]
        self.connection = Connection(transport, self, prepare=router.prepare)
        self.send_output = self.connection.send_output
        self.paused = False
        """True while the client reads too slowly."""
        self.acknowledges = False
        """True for a Holdfast client, which sends `process/ack`."""
        self.response_slots = ResponseSlots()
        self.bodies = ConnectionBodies(self.connection, tasks)
        # A client whose files are on a dead mount blocks only its own threads.
        self.threads = state.threads.share()
        local = state.local_files
        self.local_files = None if local is None else local.for_client(self.threads)
        self.filesystem: FileSystem = self.local_files or state.filesystem
        self.files = ConnectionFiles(self.filesystem, self.connection, tasks, self.usage)
        self._opened_at = monotonic()
        self._session: Session | None = None
        self._initialized = False
        self._stopping = False
        self._dispatcher = Dispatcher(
            self.connection,
            router,
            self,
            limit=state.concurrent_requests,
            tasks=tasks,
            admit=self._admit,
            telemetry=state.telemetry,
            usage=self.usage,
        )
        if state.telemetry is not None:
            state.telemetry.connection_opened(transport.kind)
        logger.info(LogEvent("connection opened", peer=self._peer))

    @property
    def session(self) -> Session:
        """The session; handlers that need it run only after `initialize`."""
        # `_admit` refuses all handlers that need a session before that.
        assert self._session is not None
        return self._session

    @cached_property
    def http(self) -> HttpClient:
        """The HTTP client; resolves names in the threads of this connection, if it can."""
        http = self.state.http
        if isinstance(http, ResolvesNames):
            return http.resolving_by(self.threads.run)
        return http

    def send(self, message: bytes) -> None:
        self.connection.send(message)

    def abandon(self, reason: str) -> None:
        logger.info("%s ends: %s", self.connection.transport.label, reason)
        self.connection.abandon(reason)

    def refuse(self, error: Overloaded) -> None:
        """Send an error for a connection over the limit, and close it."""
        logger.info("%s is refused: %s", self.connection.transport.label, error)
        self.connection.fail(codes.UNPARSED_ID, codes.OVERLOADED, str(error))
        # Later: the caller is still setting up the transport.
        asyncio.get_running_loop().call_soon(self.connection.close)

    def initialize(self, params: InitializeParams) -> InitializeResponse:
        """
        Open a session or resume one.

        Raises:
            InvalidRequest: The connection is already initialized, or the session is unknown.
            SessionAttached: The session is attached to another connection.
            Overloaded: The principal is at its limit of sessions.
        """
        if self._session is not None:
            raise InvalidRequest(texts.INITIALIZE_ONCE)
        sessions = self.state.sessions
        self.acknowledges = params.acknowledges is True
        if params.resume_session_id is None:
            self.state.check_draining()
            self._session = sessions.open(self)
            self._session.processes.add_observer(SessionJournal(self._session, self.state.records))
        else:
            self._session = sessions.resume(params.resume_session_id, self)
        self.state.newcomers.pop(self, None)
        self.state.records.add(
            SessionRecord(
                principal=self.principal,
                session=short_session(self._session.id),
                state="opened" if params.resume_session_id is None else "resumed",
                peer=self._peer,
                client=clip(params.client_name),
            )
        )
        if self.acknowledges:
            self.connection.transport.expect_heartbeats(self.state.sign_interval)
        # Only clients with Holdfast's extensions expect `data` in an error [envelope.codes].
        self._dispatcher.wants_error_data = self.acknowledges
        return InitializeResponse(
            session_id=self._session.id, environment_info=self.state.environment
        )

    @property
    def _peer(self) -> str:
        return self.connection.transport.label.removeprefix("exec-server ")

    def stop_serving(self) -> None:
        """Ignore requests from now on: the server is ending. Process events are still sent."""
        # The farewell is the response to all later requests.
        self._stopping = True
        self._dispatcher.drop()
        self.bodies.end()
        self.files.end(at_once=True)

    def say_goodbye(self) -> None:
        """Notify a Holdfast client that the server ends, and close the connection."""
        self.connection.notify(SERVER_STOPPING, Empty())
        self.connection.close()

    def _admit(self, route: Route["ServerConnection"]) -> None:
        if self._initialized or route.family is None:
            return
        if self._session is None:
            raise InvalidRequest(texts.initialize_first(route.family))
        raise InvalidRequest(texts.initialized_first(route.family))

    # -- ConnectionHandler

    def request(self, request: Request) -> None:
        if not self._stopping:
            self._dispatcher.request(request)

    def notification(self, notification: Notification) -> None:
        if notification.method == INITIALIZED.name and self._session is not None:
            self._initialized = True
            # From here on, notifications need not wait for earlier requests.
            self._dispatcher.takes_turns = True
            return
        if notification.method == PROCESS_ACK.name and self._initialized and self.acknowledges:
            try:
                ack = decode_params(notification.params, AckParams)
            except InvalidParams as error:
                # A notification has no response, so the error is only logged.
                logger.info("%s: process/ack: %s", self.connection.transport.label, error)
            else:
                self.session.acknowledge(ack.process_id, ack.seq)
                return
        # No other notification exists, and none has a response, so the connection ends
        # [envelope.violation.notification].
        logger.info("%s sent an unexpected notification", self.connection.transport.label)
        self.connection.abandon("protocol violation")

    def malformed(self, error: MalformedMessage) -> None:
        self._dispatcher.malformed(error)

    def lost(self, reason: str) -> None:
        seconds = round(monotonic() - self._opened_at, 3)
        logger.info(
            LogEvent("connection closed", peer=self._peer, reason=clip(reason), seconds=seconds)
        )
        # Requests first: they use the files and bodies that end next.
        self._dispatcher.drop()
        self.bodies.end()
        self.files.end()
        self.threads.leave()
        if self._session is not None:
            transport = self.connection.transport
            self.state.connection_ended(
                self._session,
                silent=self.acknowledges and transport.went_silent,
                closed=transport.was_closed,
            )
        if self.state.telemetry is not None:
            self.state.telemetry.connection_closed(self.connection.transport.kind)
        # Refused connections were counted too, so subtract every one.
        self.state.newcomers.pop(self, None)
        if self in self.state.connections:
            self.state.connections.discard(self)
            self.usage.connections -= 1

    def pause_sending(self) -> None:
        self.paused = True
        self.response_slots.pause()
        self.bodies.pause()
        if self._session is not None:
            self._session.owner_paused(True)

    def resume_sending(self) -> None:
        self.paused = False
        self.response_slots.resume()
        self.bodies.resume()
        if self._session is not None:
            self._session.owner_paused(False)
