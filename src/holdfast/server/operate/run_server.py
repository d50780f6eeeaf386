"""Runs a server as a separate process: options, signals, listeners and shutdown."""

import asyncio
import ctypes
import gc
import logging
import os
import resource
import sys
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Protocol, Self, runtime_checkable

import msgspec

from holdfast.base.errors import HoldfastError
from holdfast.base.late_import import late_module
from holdfast.base.local_servers import UnusableRuntimeDirectory, hide
from holdfast.base.own_files import keep_unchanged
from holdfast.base.system_text import system_text
from holdfast.engine.linux.child_signals import block_child_signals
from holdfast.engine.process.child import owned_pids
from holdfast.engine.process.spawn import raise_descriptor_limit
from holdfast.engine.sandbox.bubblewrap.binary import note_launchers
from holdfast.engine.supervision.guardian import (
    children_of_this_process,
    kill_all_children,
    notify_service_manager,
)
from holdfast.engine.supervision.service_manager import READY, STOPPING
from holdfast.server.listen import BadListenUrl, ListenUrl, parse_listen_url
from holdfast.server.operate.auth import AuthOptions, Check
from holdfast.server.operate.listener_auth import (
    BadListenerAuth,
    ListenerAuth,
    ListenerAuthOptions,
    make_listener_auth,
)
from holdfast.server.operate.reloading import LiveSettings, Reload, Reloading, Reread
from holdfast.server.operate.stop_signals import StopSignals
from holdfast.server.operate.systemd import inherited_sockets, lets_everybody_in, send_signs_of_life
from holdfast.telemetry import Telemetry
from holdfast.telemetry.configure import configure_telemetry
from holdfast.wire.transports.transport import Credential, Receiver, Transport

# Imported late: this module also runs other kinds of servers, which do not need the exec-server.
if TYPE_CHECKING:
    from holdfast.server import app, state
    from holdfast.server.app import Server
    from holdfast.server.handed_streams import Keeping
    from holdfast.server.operate import audit as audit_log
    from holdfast.wire.transports import stdio
    from holdfast.wire.transports.tls import ServerTls
else:
    # Only needed with `--audit-log`.
    audit_log = late_module("holdfast.server.operate.audit")
    # Not needed by other kinds of servers.
    app = late_module("holdfast.server.app")
    state = late_module("holdfast.server.state")
    # Takes 6 ms, and a listener does not need it.
    stdio = late_module("holdfast.wire.transports.stdio")

__all__ = [
    "ListenFailed",
    "ServeOptions",
    "Service",
    "ServiceMaker",
    "StartFailed",
    "serve_forever",
]

logger = logging.getLogger(__name__)

# Python's defaults are 700, 10 and 10. See `_tune_garbage_collector`.
_GC_THRESHOLDS = (20_000, 20, 20)

# Seconds that a thread may hold the GIL while others wait; Python's default is 5 ms.
_SWITCH_INTERVAL = 0.001

# Seconds between searches for exited orphans.
_REAP_INTERVAL = 1.0

# Maximum seconds between checks whether the server is in use.
_IDLE_LOOK = 1.0

# Seconds between SIGTERM and SIGKILL for all processes if the guardian was killed.
_ORPHANED_GRACE = 2.0


# Parameters of mallopt(3).
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3

# Bytes: the largest value that glibc accepts for either threshold.
_KEPT_MEMORY = 32 << 20


class StartFailed(HoldfastError):
    """The server cannot start; the message is for the user who started it."""


class ListenFailed(StartFailed):
    """An address cannot be bound; the message, which clients compare, does not name it."""

    def __init__(self, error: OSError, address: str) -> None:
        super().__init__(system_text(error), errno=error.errno or None)
        self.address = address
        """The address as given."""


class ServeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Command-line options of a server."""

    listen: str = "ws://127.0.0.1:0"
    also_listen: tuple[str, ...] = ()
    """Further addresses to listen on, except `stdio`."""
    scheme: str = "ws"
    """Scheme of the URLs to listen on: `ws` or `http`."""
    concurrent_requests: int | None = None
    auth: AuthOptions = AuthOptions()
    listener_auth: ListenerAuthOptions = ListenerAuthOptions()
    """Options for authentication, except for the `--ws-…` options."""
    announces_token: bool = False
    """True to announce a new token to the user, who copies it for clients other than Holdfast's."""
    takes_uvloop: bool = True
    """False for asyncio's event loop, which is slower and takes 2 MiB less memory."""
    pages: bool = False
    """True to serve `/healthz` and `/metrics`."""
    reloads: bool = False
    """True if SIGHUP reloads tokens and certificates instead of stopping a listener."""
    settings: LiveSettings = LiveSettings()
    """Settings that a reload may change."""
    reread: Callable[[], Reread] | None = None
    """Reloads the config file at SIGHUP; may raise `HoldfastError`."""
    drain: float = 0.0
    """Seconds between SIGTERM and SIGKILL for commands."""
    idle_exit: float | None = None
    """Seconds without connections and sessions after which the server stops; None for never."""
    audit_log: str | None = None
    """File of the audit log, if any."""
    audit_log_max_size: int = 64 << 20
    audit_log_keep: int = 5
    keeping: "Keeping | None" = None
    """Source of streams that replace the standard streams; only for `stdio`."""


class Service(Protocol):
    """A kind of server for `serve_forever`, on any number of transports."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *exc: object) -> None: ...

    def accept(self, transport: Transport) -> Receiver:
        """Serve one connection."""

    async def listen(
        self, where: ListenUrl, check: Check | None, *, tls: "ServerTls | None" = None
    ) -> str:
        """Accept connections at an address until the server ends, and return its URL."""

    def revoke(self, admits: Callable[[Credential], bool]) -> None:
        """End the connections and sessions of clients for which `admits` returns False."""

    @property
    def is_idle(self) -> bool:
        """True without connections and sessions."""

    async def drain(self, limit: float) -> None:
        """Refuse new work, ask all processes to end, and wait at most `limit` seconds."""


@runtime_checkable
class _TakesStreams(Protocol):
    """A server that can serve streams of other processes, like the exec-server."""

    def take_streams(self, keeping: "Keeping", end: Callable[[], None]) -> None:
        """Serve connections on streams that other processes pass to this one."""


@runtime_checkable
class _FollowsReloads(Protocol):
    """A server whose settings a reload may change, like the exec-server."""

    def follow(self, reload: Reload) -> None:
        """Apply the reloaded settings."""


ServiceMaker = Callable[[ListenUrl, Telemetry | None], Service]
"""Creates the server, given its first address; may raise `StartFailed`."""


def serve_forever(
    options: ServeOptions,
    *,
    lifeline: int,
    announce: Callable[[str], None],
    make: ServiceMaker | None = None,
) -> int:
    """
    Serve until a signal arrives, the guardian dies or (on stdio) the input ends.

    Args:
        options: Command-line options.
        lifeline: A descriptor that becomes readable when the guardian exits.
        announce: Called with each URL once connections are accepted; on stdio only with
            `keeping`, with its directory.
        make: Creates the server; by default an exec-server.

    Returns:
        The exit status.

    Raises:
        StartFailed: The server could not start; nothing was served.
    """
    try:
        addresses = _addresses(options)
        listener_auth = make_listener_auth(options.listener_auth, options.auth, addresses)
    except (BadListenUrl, BadListenerAuth) as error:
        raise StartFailed(str(error), errno=error.errno, path=error.path) from error
    if not (options.listener_auth.no_auth or options.listener_auth.insecure_no_auth):
        _refuse_open_sockets(addresses)
    where = addresses[0]
    if options.idle_exit is not None and where.kind == "stdio" and options.keeping is None:
        raise StartFailed("--idle-exit is for a listener, and for stdio only with --keep")
    audit = _open_audit_log(options)
    if make is None:
        make = _exec_server_maker(options, audit)
    raise_descriptor_limit()
    # Inherited by all processes [sandbox.core]: a core dump would copy their memory to disk.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _keep_freed_memory()
    exporting = configure_telemetry()
    telemetry = None if exporting is None else exporting.telemetry
    try:
        serving = _serve(make, options, addresses, listener_auth, lifeline, announce, telemetry)
        return _run(serving) if options.takes_uvloop else asyncio.run(serving)
    finally:
        if exporting is not None:
            exporting.close()
        if audit is not None:
            audit.close()


def _addresses(options: ServeOptions) -> list[ListenUrl]:
    """
    Return the addresses to listen on: sockets from systemd, else those of the options.

    Raises:
        BadListenUrl: An address is invalid.
    """
    urls = (options.listen, *options.also_listen)
    given = [parse_listen_url(url, scheme=options.scheme) for url in urls]
    if len(given) > 1 and any(address.kind == "stdio" for address in given):
        raise BadListenUrl("--listen stdio cannot be combined with another --listen")
    # Except for HTTP, whose server creates its own sockets.
    return (inherited_sockets() if given[0].kind in ("ws", "unix") else []) or given


def _refuse_open_sockets(addresses: Sequence[ListenUrl]) -> None:
    """
    Refuse a socket file from systemd that any local user can connect to.

    Raises:
        StartFailed: A socket is open to all users.
    """
    for address in addresses:
        if lets_everybody_in(address):
            raise StartFailed(
                f"every user of this machine can connect to {address.path} and run commands; set"
                " `SocketMode=0600` in the socket unit"
            )


def _open_audit_log(options: ServeOptions) -> "audit_log.AuditLog | None":
    """
    Open the audit log, if the options name one.

    Raises:
        StartFailed: The file cannot be written.
    """
    if options.audit_log is None:
        return None
    try:
        file = audit_log.AuditFile(
            options.audit_log, max_bytes=options.audit_log_max_size, kept=options.audit_log_keep
        )
    except audit_log.AuditUnusable as error:
        raise StartFailed(str(error), errno=error.errno, path=error.path) from error
    # Only now that the file exists: a sandbox cannot cover a missing one. With the directory,
    # since full files are renamed.
    keep_unchanged(options.audit_log, folder=True)
    return audit_log.AuditLog(file)


def _exec_server_maker(options: ServeOptions, audit: "audit_log.AuditLog | None") -> ServiceMaker:
    def make(where: ListenUrl, telemetry: Telemetry | None) -> "Server":
        return app.Server(
            concurrent_requests=options.concurrent_requests or state.DEFAULT_CONCURRENT_REQUESTS,
            telemetry=telemetry,
            resumable=where.kind != "stdio" or options.keeping is not None,
            limits=options.settings.limits,
            pages=options.pages,
            audit=audit,
        )

    return make


def _run(main: Coroutine[object, object, int]) -> int:
    try:
        # An optional dependency; the fallback is asyncio's event loop.
        import uvloop
    except ImportError:
        return asyncio.run(main)
    return uvloop.run(main)


async def _serve(
    make: ServiceMaker,
    options: ServeOptions,
    addresses: Sequence[ListenUrl],
    listener_auth: ListenerAuth,
    lifeline: int,
    announce: Callable[[str], None],
    telemetry: Telemetry | None,
) -> int:
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(initializer=block_child_signals))
    stopped = asyncio.Event()
    reloading: Reloading | None = None
    if options.reloads and addresses[0].kind != "stdio":
        reloading = Reloading(
            listener_auth, stopped.set, settings=options.settings, reread=options.reread
        )
    signals = StopSignals(stopped, hang_up=None if reloading is None else reloading.hang_up)
    orphaned = False

    def guardian_gone() -> None:
        nonlocal orphaned
        orphaned = True
        loop.remove_reader(lifeline)
        stopped.set()

    loop.add_reader(lifeline, guardian_gone)
    note_launchers()
    server = make(addresses[0], telemetry)
    async with AsyncExitStack() as stack:
        stack.enter_context(hide(listener_auth.hidden))
        await stack.enter_async_context(server)
        _follow_reloads(server, listener_auth, reloading)
        try:
            await _open(server, options, addresses, listener_auth, stack, stopped, announce)
        except OSError as error:
            raise ListenFailed(error, options.listen) from error
        _tune_garbage_collector()
        # Bounds how long a thread that decodes or compares delays the event loop.
        sys.setswitchinterval(_SWITCH_INTERVAL)
        loop.call_later(_REAP_INTERVAL, _reap_orphans, loop)
        # After the listeners are ready: systemd then starts units that depend on this one.
        notify_service_manager(READY)
        send_signs_of_life(loop)
        if options.idle_exit is not None:
            _end_when_idle(server, options.idle_exit, stopped)
        # The probe is only for the log. If nothing is logged, the first profile probes.
        if logger.isEnabledFor(logging.WARNING):
            await asyncio.gather(stopped.wait(), loop.run_in_executor(None, _probe_sandboxes))
        else:
            await stopped.wait()
        logger.info("the server ends")
        notify_service_manager(STOPPING)
        # If the guardian was killed, processes get time to end, too.
        grace = options.drain if signals.count else _ORPHANED_GRACE if orphaned else 0.0
        if grace:
            await signals.unless_repeated(server.drain(grace))
    if orphaned:
        kill_all_children()
    return 0


def _follow_reloads(
    server: Service, listener_auth: ListenerAuth, reloading: Reloading | None
) -> None:
    """Notify a server of revoked tokens and changed settings."""
    listener_auth.revoke = server.revoke
    if reloading is not None and isinstance(server, _FollowsReloads):
        reloading.follow = server.follow


async def _open(
    server: Service,
    options: ServeOptions,
    addresses: Sequence[ListenUrl],
    listener_auth: ListenerAuth,
    stack: AsyncExitStack,
    stopped: asyncio.Event,
    announce: Callable[[str], None],
) -> None:
    """Start serving, on streams of other processes, on stdio, or at all addresses."""
    if options.keeping is not None:
        # The command line accepts `--keep` only for an exec-server.
        assert isinstance(server, _TakesStreams)
        server.take_streams(options.keeping, stopped.set)
        announce(options.keeping.folder.path)
    elif addresses[0].kind == "stdio":
        await _serve_stdio(server, stopped)
    else:
        urls = [
            await _listen(server, address, listener_auth, stack, announces=options.announces_token)
            for address in addresses
        ]
        for warning in (*listener_auth.warnings, *_root_warning(options)):
            sys.stderr.write(f"Warning: {warning}\n")
        sys.stderr.flush()
        for url in urls:
            announce(url)


def _root_warning(options: ServeOptions) -> tuple[str, ...]:
    # Clients that start `exec-server` read its output, which has no such line.
    if os.geteuid() != 0 or not options.listener_auth.makes_token:
        return ()
    return (
        "this server runs as root: a command without a sandbox can do anything to this machine;"
        " start it as an ordinary user",
    )


def _tune_garbage_collector() -> None:
    """Exclude existing objects from garbage collection, and collect less often."""
    # These objects live as long as the server and need not be traversed again.
    gc.collect()
    gc.freeze()
    # A server may have thousands of processes, and reference cycles are rare: frequent collections
    # would find nothing.
    gc.set_threshold(*_GC_THRESHOLDS)


def _keep_freed_memory() -> None:
    """
    Return freed memory to the kernel later than glibc would by default.

    A block of a file is in memory three times: as a message, as text and as bytes. By default
    glibc maps new memory for each, and the kernel has to clear it page by page. That takes twice as
    long as all other work on the block (`scripts/bench --without kept-memory`). Does nothing with
    another C library.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:
        return
    mallopt(_M_MMAP_THRESHOLD, _KEPT_MEMORY)
    mallopt(_M_TRIM_THRESHOLD, _KEPT_MEMORY)


async def _listen(
    server: Service,
    address: ListenUrl,
    listener_auth: ListenerAuth,
    stack: AsyncExitStack,
    *,
    announces: bool,
) -> str:
    """
    Accept connections at an address, list it for clients of this user, and return its URL.

    Args:
        server: Serves the connections.
        address: The address.
        listener_auth: Token check and certificate.
        stack: Removes the server from the user's list at the end.
        announces: True to print where the token is.

    Raises:
        ListenFailed: The address cannot be bound.
        StartFailed: The token cannot be written to a file, so clients could not connect.
    """
    try:
        if address.kind == "unix":
            # Without a token: the mode of the socket file decides who may connect.
            url = await server.listen(address, None)
        else:
            url = await server.listen(address, listener_auth.check, tls=listener_auth.tls)
    except OSError as error:
        raise ListenFailed(error, address.url) from error
    if address.kind != "stdio":
        try:
            listed = listener_auth.write_down(address, url, os.environ)
        except UnusableRuntimeDirectory as error:
            raise StartFailed(
                f"{error}; use --token-file or --no-auth", errno=error.errno, path=error.path
            ) from error
        if listed is not None:
            stack.callback(listed.remove)
            if announces and listener_auth.made_token and address.is_network:
                sys.stderr.write(
                    f"Clients must send `Authorization: Bearer TOKEN`. The token of this run is"
                    f" `token` in {listed.path}. With --token-file FILE it stays the same.\n"
                )
    logger.info("listening on %s", url)
    return url


def _probe_sandboxes() -> None:
    """Probe and log which sandboxes this machine can enforce, ahead of the first profile."""
    # Imported late: a server without a log only needs it if a client uses a profile.
    from holdfast.engine.sandbox.factory import shared_sandboxes

    try:
        shared_sandboxes().probe_support()
    except Exception:
        # Only starts with a sandbox fail, with this error.
        logger.exception("the probe of sandboxes failed")


async def _serve_stdio(server: Service, stopped: asyncio.Event) -> None:
    def accept(transport: Transport) -> Receiver:
        return _StopAtEnd(server.accept(transport), stopped)

    await stdio.serve_stdio(accept)


class _StopAtEnd:
    """Receiver that forwards everything, and stops the server when its connection ends."""

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
    """Stop the server after `limit` seconds without connections and sessions."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + limit

    def look() -> None:
        nonlocal deadline
        now = loop.time()
        if not server.is_idle:
            deadline = now + limit
        elif now >= deadline:
            logger.info("the server was idle for %gs: it ends", limit)
            stopped.set()
            return
        loop.call_later(min(_IDLE_LOOK, limit), look)

    look()


def _reap_orphans(loop: asyncio.AbstractEventLoop, seen: frozenset[int] = frozenset()) -> None:
    """
    Reap orphans, and schedule the next search, even after an error.

    Args:
        loop: Runs the next search.
        seen: Children without an owner in the last search. Only these are reaped: a new one may
            have just been forked by a thread that has not registered it yet.
    """
    found: frozenset[int] = frozenset()
    try:
        # A cheap system call, before the lists of children of all threads are read.
        if _has_zombie():
            found = frozenset(children_of_this_process()) - owned_pids()
        for pid in found & seen:
            # The child may have been reaped since the list was read.
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
    except OSError as error:
        logger.warning("orphans are reaped later: %s", system_text(error))
    finally:
        loop.call_later(_REAP_INTERVAL, _reap_orphans, loop, found)


def _has_zombie() -> bool:
    """Return True if any child has exited and was not reaped yet, owned or not."""
    try:
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_ALL, 0, flags) is not None
    except ChildProcessError:
        # This process has no children.
        return False
