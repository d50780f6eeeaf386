"""The whole life of a server that has a process of its own: options, signals, end."""

import asyncio
import gc
import logging
import os
import resource
import signal
import sys
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Protocol, Self

import msgspec

from holdfast.errors import HoldfastError
from holdfast.local_servers import UnusableRuntimeFolder, hide
from holdfast.process.child import owned_pids
from holdfast.process.spawn import raise_descriptor_limit
from holdfast.sandbox.bubblewrap.binary import note_launchers
from holdfast.server.auth import AuthOptions, Check
from holdfast.server.entrance import (
    BadEntrance,
    Entrance,
    EntranceOptions,
    Reloading,
    make_entrance,
)
from holdfast.server.listen import BadListenUrl, ListenUrl, parse_listen_url
from holdfast.server.malloc import keep_freed_memory
from holdfast.server.principals import PrincipalLimits
from holdfast.server.systemd import inherited_sockets, lets_everybody_in, send_signs_of_life
from holdfast.supervision.guardian import (
    children_of_this_process,
    kill_all_children,
    tell_service_manager,
)
from holdfast.supervision.service_manager import READY, STOPPING
from holdfast.system_text import system_text
from holdfast.telemetry import Telemetry
from holdfast.telemetry.configure import configure_telemetry
from holdfast.transports.base import Receiver, Transport

# The exec-server is loaded by those who run one.
if TYPE_CHECKING:
    from holdfast.server.app import Server
    from holdfast.server.audit import AuditLog
    from holdfast.server.kept import Keeping
    from holdfast.transports.tls import ServerTls

__all__ = [
    "ListenFailed",
    "ServeOptions",
    "Service",
    "ServiceMaker",
    "StartFailed",
    "serve_forever",
]

logger = logging.getLogger(__name__)

# Python's are 700, 10 and 10.
_GC_THRESHOLDS = (20_000, 20, 20)

# Seconds between two looks for orphans that ended.
_REAP_INTERVAL = 1.0

# Seconds between two looks whether anybody uses the server, at most.
_IDLE_LOOK = 1.0

# Seconds between the request to end and the kill, when the guardian was killed.
_ORPHANED_GRACE = 2.0


class StartFailed(HoldfastError):
    """The server cannot start; the text is for whoever started it."""


class ListenFailed(StartFailed):
    """The place to listen on cannot be had; the text does not name it, as Codex's does not."""

    def __init__(self, error: OSError, address: str) -> None:
        super().__init__(system_text(error), errno=error.errno or None)
        self.address = address
        """That place, as it was given."""


class ServeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of the command line."""

    listen: str = "ws://127.0.0.1:0"
    also_listen: tuple[str, ...] = ()
    """More places to listen at, none of them `stdio`."""
    scheme: str = "ws"
    """The scheme of a URL to listen on: `ws`, or `http`."""
    concurrent_requests: int | None = None
    auth_mode: str | None = None
    token_file: str | None = None
    token_sha256: str | None = None
    shared_secret_file: str | None = None
    issuer: str | None = None
    audience: str | None = None
    max_clock_skew: int | None = None
    entrance: EntranceOptions = EntranceOptions()
    """Whom to let in, beside the `--ws-…` options."""
    tells_token: bool = False
    """True if its clients are not ours, so that a token made here has to be copied by hand."""
    limits: PrincipalLimits = PrincipalLimits()
    pages: bool = False
    """True if `/healthz` and `/metrics` are answered."""
    reloads: bool = False
    """True if SIGHUP reads tokens and certificates again, instead of ending a listener."""
    idle_exit: float | None = None
    """Seconds without a connection and a session after which the server ends; None: never."""
    audit_log: str | None = None
    """The file of the audit log; None: there is none."""
    audit_log_max_size: int = 64 << 20
    audit_log_keep: int = 5
    keeping: "Keeping | None" = None
    """The folder to take streams from; only for `stdio`, whose own are then not used."""


class Service(Protocol):
    """A server as `serve_forever` runs it: a context manager that serves any number of transports."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *exc: object) -> None: ...

    def accept(self, transport: Transport) -> Receiver:
        """Serve one connection."""

    async def listen(
        self, where: ListenUrl, check: Check | None, *, tls: "ServerTls | None" = None
    ) -> str:
        """Accept connections there until the end, and return the URL."""

    @property
    def is_idle(self) -> bool:
        """True if nobody uses it."""

    async def ask_to_end(self, grace: float) -> None:
        """Give what it started so many seconds to end, before the end of the context kills it."""


ServiceMaker = Callable[[ListenUrl, Telemetry | None], Service]
"""Makes the server once it is known where it listens; may raise `StartFailed`."""


def serve_forever(
    options: ServeOptions,
    *,
    lifeline: int,
    announce: Callable[[str], None],
    make: ServiceMaker | None = None,
) -> int:
    """
    Serve until a signal comes, the guardian dies or (on stdio) the input ends.

    Args:
        options: What the command line said.
        lifeline: Readable when the guardian is gone.
        announce: Called with the URL once connections are accepted; not on stdio, but
            with the folder of a server that streams are handed to.
        make: Makes the server to run; an exec-server unless given.

    Returns:
        The exit status.

    Raises:
        StartFailed: Before anything was served.
    """
    try:
        places = _places(options)
        entrance = make_entrance(options.entrance, _auth_options(options), places)
    except (BadListenUrl, BadEntrance) as error:
        raise StartFailed(str(error), errno=error.errno, path=error.path) from error
    if not (options.entrance.no_auth or options.entrance.insecure_no_auth):
        _refuse_open_sockets(places)
    where = places[0]
    if options.idle_exit is not None and where.kind == "stdio" and options.keeping is None:
        raise StartFailed("--idle-exit is for a listener, and for stdio only with --keep")
    audit = _open_audit_log(options)
    if make is None:
        make = _exec_server_maker(options, audit)
    raise_descriptor_limit()
    # For all that is started here [sandbox.core]: what crashes leaves no copy of its memory.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    keep_freed_memory()
    exporting = configure_telemetry()
    telemetry = None if exporting is None else exporting.telemetry
    try:
        return _run(_serve(make, options, places, entrance, lifeline, announce, telemetry))
    finally:
        if exporting is not None:
            exporting.close()
        if audit is not None:
            audit.close()


def _places(options: ServeOptions) -> list[ListenUrl]:
    """
    Return where to listen: on the sockets that were handed over, or else where we were told.

    Raises:
        BadListenUrl: There is no such place.
    """
    urls = (options.listen, *options.also_listen)
    given = [parse_listen_url(url, scheme=options.scheme) for url in urls]
    if len(given) > 1 and any(place.kind == "stdio" for place in given):
        raise BadListenUrl("--listen stdio goes with no other --listen")
    # Not for HTTP, whose server listens by itself.
    return (inherited_sockets() if given[0].kind in ("ws", "unix") else []) or given


def _auth_options(options: ServeOptions) -> AuthOptions:
    return AuthOptions(
        mode=options.auth_mode,
        token_file=options.token_file,
        token_sha256=options.token_sha256,
        shared_secret_file=options.shared_secret_file,
        issuer=options.issuer,
        audience=options.audience,
        max_clock_skew=options.max_clock_skew,
    )


def _refuse_open_sockets(places: Sequence[ListenUrl]) -> None:
    """
    Make sure that no socket file that was handed over lets everybody in by accident.

    Raises:
        StartFailed: One of them does.
    """
    for place in places:
        if lets_everybody_in(place):
            raise StartFailed(
                f"every user of this machine can connect to {place.path} and run commands; give"
                " the unit of the socket `SocketMode=0600`"
            )


def _open_audit_log(options: ServeOptions) -> "AuditLog | None":
    """
    Open the audit log, if there is to be one.

    Raises:
        StartFailed: It cannot be written.
    """
    if options.audit_log is None:
        return None
    from holdfast.server.audit import AuditFile, AuditLog, AuditUnusable

    try:
        file = AuditFile(
            options.audit_log, max_bytes=options.audit_log_max_size, kept=options.audit_log_keep
        )
    except AuditUnusable as error:
        raise StartFailed(str(error), errno=error.errno, path=error.path) from error
    return AuditLog(file)


def _exec_server_maker(options: ServeOptions, audit: "AuditLog | None") -> ServiceMaker:
    def make(where: ListenUrl, telemetry: Telemetry | None) -> "Server":
        from holdfast.server.app import Server
        from holdfast.server.state import DEFAULT_CONCURRENT_REQUESTS

        return Server(
            concurrent_requests=options.concurrent_requests or DEFAULT_CONCURRENT_REQUESTS,
            telemetry=telemetry,
            resumable=where.kind != "stdio" or options.keeping is not None,
            limits=options.limits,
            pages=options.pages,
            audit=audit,
        )

    return make


def _run(main: Coroutine[object, object, int]) -> int:
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    return uvloop.run(main)


async def _serve(
    make: ServiceMaker,
    options: ServeOptions,
    places: Sequence[ListenUrl],
    entrance: Entrance,
    lifeline: int,
    announce: Callable[[str], None],
    telemetry: Telemetry | None,
) -> int:
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    where = places[0]
    hang_up = stopped.set
    if options.reloads and where.kind != "stdio":
        hang_up = Reloading(entrance, stopped.set).hang_up
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            action = hang_up if number == signal.SIGHUP else stopped.set
            loop.add_signal_handler(number, action)
    orphaned = False

    def guardian_gone() -> None:
        nonlocal orphaned
        orphaned = True
        loop.remove_reader(lifeline)
        stopped.set()

    loop.add_reader(lifeline, guardian_gone)
    note_launchers()
    server = make(where, telemetry)
    async with AsyncExitStack() as stack:
        stack.enter_context(hide(entrance.hidden))
        await stack.enter_async_context(server)
        try:
            if options.keeping is not None:
                from holdfast.server.app import Server

                # Only an exec-server can be kept.
                assert isinstance(server, Server)
                server.take_streams(options.keeping, stopped.set)
                announce(options.keeping.folder.path)
            elif where.kind == "stdio":
                await _serve_stdio(server, stopped)
            else:
                urls = [
                    await _listen(server, place, entrance, stack, tells=options.tells_token)
                    for place in places
                ]
                for warning in entrance.warnings:
                    sys.stderr.write(f"Warning: {warning}\n")
                sys.stderr.flush()
                for url in urls:
                    announce(url)
        except OSError as error:
            raise ListenFailed(error, options.listen) from error
        # What was made until here lives as long as the server: no need to look at it again.
        gc.collect()
        gc.freeze()
        # Nor is there much to find in what is made from here on, such as a thousand processes
        # that are kept for their clients: objects that refer to each other are rare.
        gc.set_threshold(*_GC_THRESHOLDS)
        loop.call_later(_REAP_INTERVAL, _reap_orphans, loop)
        tell_service_manager(READY)
        send_signs_of_life(loop)
        if options.idle_exit is not None:
            _end_when_idle(server, options.idle_exit, stopped)
        # Somebody reads it.
        if logger.isEnabledFor(logging.WARNING):
            await asyncio.gather(stopped.wait(), loop.run_in_executor(None, _look_at_sandboxes))
        else:
            await stopped.wait()
        logger.info("the server ends")
        tell_service_manager(STOPPING)
        if orphaned:
            # Nobody decided that it ends now.
            await server.ask_to_end(_ORPHANED_GRACE)
    if orphaned:
        kill_all_children()
    return 0


async def _listen(
    server: Service, place: ListenUrl, entrance: Entrance, stack: AsyncExitStack, *, tells: bool
) -> str:
    """
    Accept connections at one place, let clients find it, and return its URL.

    Args:
        server: What to connect to.
        place: Where.
        entrance: Who may.
        stack: Takes the server off the list of this user's servers at its end.
        tells: True if whoever started the server is told where its token is.

    Raises:
        ListenFailed: It cannot be had.
        StartFailed: Nobody could connect, since the token cannot be written down.
    """
    try:
        if place.kind == "unix":
            # The mode of the file says who may connect.
            url = await server.listen(place, None)
        else:
            url = await server.listen(place, entrance.check, tls=entrance.tls)
    except OSError as error:
        raise ListenFailed(error, place.url) from error
    if place.kind != "stdio":
        try:
            listed = entrance.write_down(place, url, os.environ)
        except UnusableRuntimeFolder as error:
            raise StartFailed(
                f"{error}; give --token-file, or --no-auth", errno=error.errno, path=error.path
            ) from error
        if listed is not None:
            stack.callback(listed.remove)
            if tells and entrance.made_token and place.is_network:
                sys.stderr.write(
                    f"Clients have to send `Authorization: Bearer TOKEN`. It was made for this"
                    f" start, and is in {listed.path}; with --token-file FILE it stays the same.\n"
                )
    logger.info("listening on %s", url)
    return url


def _look_at_sandboxes() -> None:
    """Find out, and log, what can be enforced here; otherwise the first profile asks."""
    from holdfast.process.sandboxed.factory import shared_sandboxes

    try:
        shared_sandboxes().probe_support()
    except Exception:
        # Whoever asks for a sandbox will meet it; others can do without.
        logger.exception("what can be enforced here could not be found out")


async def _serve_stdio(server: Service, stopped: asyncio.Event) -> None:
    from holdfast.transports.stdio import serve_stdio

    def accept(transport: Transport) -> Receiver:
        return _StopAtEnd(server.accept(transport), stopped)

    await serve_stdio(accept)


class _StopAtEnd:
    """Passes everything on, and stops the server with its only connection."""

    def __init__(self, inner: Receiver, stopped: asyncio.Event) -> None:
        self.received = inner.received
        self.pause_sending = inner.pause_sending
        self.resume_sending = inner.resume_sending
        self._inner = inner
        self._stopped = stopped

    def lost(self, reason: str) -> None:
        self._inner.lost(reason)
        self._stopped.set()


def _end_when_idle(server: Service, limit: float, stopped: asyncio.Event) -> None:
    """Stop the server once nobody has used it for `limit` seconds, counted from now on."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + limit

    def look() -> None:
        nonlocal deadline
        now = loop.time()
        if not server.is_idle:
            deadline = now + limit
        elif now >= deadline:
            logger.info("nobody has used this server for %gs: it ends", limit)
            stopped.set()
            return
        loop.call_later(min(_IDLE_LOOK, limit), look)

    look()


def _reap_orphans(loop: asyncio.AbstractEventLoop, seen: frozenset[int] = frozenset()) -> None:
    """
    Reap orphans, again and again: no failure of one look may be the last look.

    Args:
        loop: Runs the next look.
        seen: Children that nobody owned at the look before. Others may belong to a thread
            that has just started them, and is about to say so.
    """
    found: frozenset[int] = frozenset()
    try:
        # Or there is no need to go through the children of all threads.
        if _has_zombie():
            found = frozenset(children_of_this_process()) - owned_pids()
        for pid in found & seen:
            # It was reaped since the list was made.
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
    except OSError as error:
        logger.warning("orphans are reaped later: %s", system_text(error))
    finally:
        loop.call_later(_REAP_INTERVAL, _reap_orphans, loop, found)


def _has_zombie() -> bool:
    """Return True if a child has ended that is not reaped, whoever owns it."""
    try:
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_ALL, 0, flags) is not None
    except ChildProcessError:
        # There is no child at all.
        return False
