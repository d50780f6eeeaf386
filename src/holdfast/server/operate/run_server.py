"""Runs a server in a process of its own: options, signals, listeners, and its end."""

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
    BadEntrance,
    Entrance,
    EntranceOptions,
    make_entrance,
)
from holdfast.server.operate.reloading import LiveSettings, Reload, Reloading, Reread
from holdfast.server.operate.stop_signals import StopSignals
from holdfast.server.operate.systemd import inherited_sockets, lets_everybody_in, send_signs_of_life
from holdfast.telemetry import Telemetry
from holdfast.telemetry.configure import configure_telemetry
from holdfast.wire.transports.transport import Credential, Receiver, Transport

# Loaded late: this module also runs other kinds of servers, which need no exec-server.
if TYPE_CHECKING:
    from holdfast.server import app, state
    from holdfast.server.app import Server
    from holdfast.server.kept import Keeping
    from holdfast.server.operate import audit as audit_log
    from holdfast.wire.transports import stdio
    from holdfast.wire.transports.tls import ServerTls
else:
    # Only with `--audit-log`.
    audit_log = late_module("holdfast.server.operate.audit")
    # Other kinds of servers never load the exec-server.
    app = late_module("holdfast.server.app")
    state = late_module("holdfast.server.state")
    # A listener does not need it, and it takes 6 ms.
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

# Seconds that a thread may keep the interpreter while others want it; Python's default is 5 ms.
_SWITCH_INTERVAL = 0.001

# Seconds between two searches for orphans that have exited.
_REAP_INTERVAL = 1.0

# Seconds between two checks whether the server is in use, at most.
_IDLE_LOOK = 1.0

# Seconds between SIGTERM and SIGKILL for all processes, if the guardian was killed.
_ORPHANED_GRACE = 2.0


# Parameters of mallopt(3).
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3

# Bytes; the largest value that glibc accepts for either threshold.
_KEPT_MEMORY = 32 << 20


class StartFailed(HoldfastError):
    """The server cannot start; the text is for the user who started it."""


class ListenFailed(StartFailed):
    """An address cannot be bound; the text, which clients compare, does not name it."""

    def __init__(self, error: OSError, address: str) -> None:
        super().__init__(system_text(error), errno=error.errno or None)
        self.address = address
        """The address, as it was given."""


class ServeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of the command line for a server."""

    listen: str = "ws://127.0.0.1:0"
    also_listen: tuple[str, ...] = ()
    """More addresses to listen on, none of them `stdio`."""
    scheme: str = "ws"
    """The scheme of a URL to listen on: `ws`, or `http`."""
    concurrent_requests: int | None = None
    auth: AuthOptions = AuthOptions()
    entrance: EntranceOptions = EntranceOptions()
    """Options of authentication, besides the `--ws-…` options."""
    announces_token: bool = False
    """True if its clients are not ours: a token made here is announced, to be copied by hand."""
    takes_uvloop: bool = True
    """False for asyncio's own event loop, which takes 2 MiB less memory and is slower."""
    pages: bool = False
    """True if `/healthz` and `/metrics` are answered."""
    reloads: bool = False
    """True if SIGHUP reads tokens and certificates again, instead of ending a listener."""
    settings: LiveSettings = LiveSettings()
    """The settings that a reload may change."""
    reread: Callable[[], Reread] | None = None
    """Reads the config file again, at SIGHUP; raises `HoldfastError`."""
    drain: float = 0.0
    """Seconds that commands have to end after SIGTERM, before they are killed."""
    idle_exit: float | None = None
    """Seconds without a connection and a session after which the server ends; None for never."""
    audit_log: str | None = None
    """The file of the audit log, if there is one."""
    audit_log_max_size: int = 64 << 20
    audit_log_keep: int = 5
    keeping: "Keeping | None" = None
    """The directory to take streams from, instead of the process's own; only for `stdio`."""


class Service(Protocol):
    """A kind of server that `serve_forever` runs, on any number of transports."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *exc: object) -> None: ...

    def accept(self, transport: Transport) -> Receiver:
        """Serve one connection."""

    async def listen(
        self, where: ListenUrl, check: Check | None, *, tls: "ServerTls | None" = None
    ) -> str:
        """Accept connections at an address until the end, and return its URL."""

    def revoke(self, admits: Callable[[Credential], bool]) -> None:
        """End the connections and sessions of clients for which `admits` returns False."""

    @property
    def is_idle(self) -> bool:
        """True if it has no connection and no session."""

    async def drain(self, limit: float) -> None:
        """Refuse new work, ask all processes to end, and wait for that, `limit` seconds at most."""


@runtime_checkable
class _TakesStreams(Protocol):
    """A server that can serve streams of other processes; the exec-server does."""

    def take_streams(self, keeping: "Keeping", end: Callable[[], None]) -> None:
        """Serve connections on streams that other processes pass to this one."""


@runtime_checkable
class _FollowsReloads(Protocol):
    """A server whose settings a reload may change; the exec-server does."""

    def follow(self, reload: Reload) -> None:
        """Apply the settings that were read again."""


ServiceMaker = Callable[[ListenUrl, Telemetry | None], Service]
"""Makes the server, given its first address; may raise `StartFailed`."""


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
        options: The options of the command line.
        lifeline: A descriptor that is readable when the guardian is gone.
        announce: Called with each URL once connections are accepted; on stdio only with
            `keeping`, and with its directory.
        make: Makes the server to run; by default an exec-server.

    Returns:
        The exit status.

    Raises:
        StartFailed: The server could not start; nothing was served.
    """
    try:
        addresses = _addresses(options)
        entrance = make_entrance(options.entrance, options.auth, addresses)
    except (BadListenUrl, BadEntrance) as error:
        raise StartFailed(str(error), errno=error.errno, path=error.path) from error
    if not (options.entrance.no_auth or options.entrance.insecure_no_auth):
        _refuse_open_sockets(addresses)
    where = addresses[0]
    if options.idle_exit is not None and where.kind == "stdio" and options.keeping is None:
        raise StartFailed("--idle-exit is for a listener, and for stdio only with --keep")
    audit = _open_audit_log(options)
    if make is None:
        make = _exec_server_maker(options, audit)
    raise_descriptor_limit()
    # Inherited by all processes [sandbox.core]: a core dump would copy their memory to the disk.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _keep_freed_memory()
    exporting = configure_telemetry()
    telemetry = None if exporting is None else exporting.telemetry
    try:
        serving = _serve(make, options, addresses, entrance, lifeline, announce, telemetry)
        return _run(serving) if options.takes_uvloop else asyncio.run(serving)
    finally:
        if exporting is not None:
            exporting.close()
        if audit is not None:
            audit.close()


def _addresses(options: ServeOptions) -> list[ListenUrl]:
    """
    Return the addresses to listen on: sockets from systemd, or else those of the options.

    Raises:
        BadListenUrl: An address is invalid.
    """
    urls = (options.listen, *options.also_listen)
    given = [parse_listen_url(url, scheme=options.scheme) for url in urls]
    if len(given) > 1 and any(address.kind == "stdio" for address in given):
        raise BadListenUrl("--listen stdio goes with no other --listen")
    # Not for HTTP, whose server makes its own sockets.
    return (inherited_sockets() if given[0].kind in ("ws", "unix") else []) or given


def _refuse_open_sockets(addresses: Sequence[ListenUrl]) -> None:
    """
    Refuse a socket file from systemd that every local user can connect to.

    Raises:
        StartFailed: A socket is open to all users.
    """
    for address in addresses:
        if lets_everybody_in(address):
            raise StartFailed(
                f"every user of this machine can connect to {address.path} and run commands; give"
                " the unit of the socket `SocketMode=0600`"
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
    # Once the file exists: a sandbox cannot cover a missing one. With the directory, since full
    # files are renamed.
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
        # An optional dependency; without it, asyncio's own loop does.
        import uvloop
    except ImportError:
        return asyncio.run(main)
    return uvloop.run(main)


async def _serve(
    make: ServiceMaker,
    options: ServeOptions,
    addresses: Sequence[ListenUrl],
    entrance: Entrance,
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
            entrance, stopped.set, settings=options.settings, reread=options.reread
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
        stack.enter_context(hide(entrance.hidden))
        await stack.enter_async_context(server)
        _follow_reloads(server, entrance, reloading)
        try:
            await _open(server, options, addresses, entrance, stack, stopped, announce)
        except OSError as error:
            raise ListenFailed(error, options.listen) from error
        _tune_garbage_collector()
        # A thread that decodes or compares for long lets the event loop run that soon.
        sys.setswitchinterval(_SWITCH_INTERVAL)
        loop.call_later(_REAP_INTERVAL, _reap_orphans, loop)
        # After the listeners: systemd starts units that need this one at READY.
        notify_service_manager(READY)
        send_signs_of_life(loop)
        if options.idle_exit is not None:
            _end_when_idle(server, options.idle_exit, stopped)
        # The probe is only for the log. Without a reader of the log, the first profile probes.
        if logger.isEnabledFor(logging.WARNING):
            await asyncio.gather(stopped.wait(), loop.run_in_executor(None, _probe_sandboxes))
        else:
            await stopped.wait()
        logger.info("the server ends")
        notify_service_manager(STOPPING)
        # If the guardian was killed, which nobody planned, processes get time to end, too.
        grace = options.drain if signals.count else _ORPHANED_GRACE if orphaned else 0.0
        if grace:
            await signals.unless_repeated(server.drain(grace))
    if orphaned:
        kill_all_children()
    return 0


def _follow_reloads(server: Service, entrance: Entrance, reloading: Reloading | None) -> None:
    """Let a server know of tokens that are revoked, and of settings that change."""
    entrance.revoke = server.revoke
    if reloading is not None and isinstance(server, _FollowsReloads):
        reloading.follow = server.follow


async def _open(
    server: Service,
    options: ServeOptions,
    addresses: Sequence[ListenUrl],
    entrance: Entrance,
    stack: AsyncExitStack,
    stopped: asyncio.Event,
    announce: Callable[[str], None],
) -> None:
    """Start serving: on streams of other processes, on stdio, or at all addresses."""
    if options.keeping is not None:
        # The command line accepts `--keep` for an exec-server only.
        assert isinstance(server, _TakesStreams)
        server.take_streams(options.keeping, stopped.set)
        announce(options.keeping.folder.path)
    elif addresses[0].kind == "stdio":
        await _serve_stdio(server, stopped)
    else:
        urls = [
            await _listen(server, address, entrance, stack, announces=options.announces_token)
            for address in addresses
        ]
        for warning in (*entrance.warnings, *_root_warning(options)):
            sys.stderr.write(f"Warning: {warning}\n")
        sys.stderr.flush()
        for url in urls:
            announce(url)


def _root_warning(options: ServeOptions) -> tuple[str, ...]:
    # Clients that start `exec-server` read its output, which has no such line.
    if os.geteuid() != 0 or not options.entrance.makes_token:
        return ()
    return (
        "this server runs as root: a command without a sandbox can do anything to this machine;"
        " start it as an ordinary user",
    )


def _tune_garbage_collector() -> None:
    """Exclude all existing objects from garbage collection, and collect less often."""
    # These objects live as long as the server, so there is no need to traverse them again.
    gc.collect()
    gc.freeze()
    # A server may keep thousands of processes for its clients, and reference cycles are rare:
    # frequent collections would find nothing.
    gc.set_threshold(*_GC_THRESHOLDS)


def _keep_freed_memory() -> None:
    """
    Return freed memory to the kernel later than glibc would by default.

    A block of a file is in memory three times: as a message, as text and as bytes. By default
    each of them is mapped anew, and the kernel has to clear it page by page. That takes twice as
    long as all other work on the block (`scripts/bench --without kept-memory`). With another C
    library nothing happens.
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
    entrance: Entrance,
    stack: AsyncExitStack,
    *,
    announces: bool,
) -> str:
    """
    Accept connections at one address, list it for clients of this user, and return its URL.

    Args:
        server: The server that gets the connections.
        address: The address.
        entrance: Checks tokens, and has the certificate.
        stack: Removes the server from the user's list at its end.
        announces: True if the user is told where the token is.

    Raises:
        ListenFailed: The address cannot be bound.
        StartFailed: The token cannot be written to a file, so that no client could connect.
    """
    try:
        if address.kind == "unix":
            # No token: the mode of the socket file decides who may connect.
            url = await server.listen(address, None)
        else:
            url = await server.listen(address, entrance.check, tls=entrance.tls)
    except OSError as error:
        raise ListenFailed(error, address.url) from error
    if address.kind != "stdio":
        try:
            listed = entrance.write_down(address, url, os.environ)
        except UnusableRuntimeDirectory as error:
            raise StartFailed(
                f"{error}; give --token-file, or --no-auth", errno=error.errno, path=error.path
            ) from error
        if listed is not None:
            stack.callback(listed.remove)
            if announces and entrance.made_token and address.is_network:
                sys.stderr.write(
                    f"Clients have to send `Authorization: Bearer TOKEN`. The token was made for"
                    f" this start: it is `token` in {listed.path}. With --token-file FILE it"
                    " stays the same.\n"
                )
    logger.info("listening on %s", url)
    return url


def _probe_sandboxes() -> None:
    """Probe and log which sandboxes this machine can enforce, before the first profile does."""
    # Imported late: a server without a log does this for the first profile, if there is one.
    from holdfast.engine.sandbox.factory import shared_sandboxes

    try:
        shared_sandboxes().probe_support()
    except Exception:
        # A start with a sandbox will get the error. All others do not need one.
        logger.exception("what can be enforced here could not be found out")


async def _serve_stdio(server: Service, stopped: asyncio.Event) -> None:
    def accept(transport: Transport) -> Receiver:
        return _StopAtEnd(server.accept(transport), stopped)

    await stdio.serve_stdio(accept)


class _StopAtEnd:
    """Receiver that passes everything on, and stops the server with its only connection."""

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
    """Stop the server after `limit` seconds without a connection and a session."""
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
    Reap orphans, and schedule the next search whatever happens in this one.

    Args:
        loop: Runs the next search.
        seen: Children without an owner in the last search. Only these are reaped: a new one
            may belong to a thread that has just forked it and not registered it yet.
    """
    found: frozenset[int] = frozenset()
    try:
        # One cheap system call, before the lists of children of all threads are read.
        if _has_zombie():
            found = frozenset(children_of_this_process()) - owned_pids()
        for pid in found & seen:
            # The child was reaped since the list was read.
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
    except OSError as error:
        logger.warning("orphans are reaped later: %s", system_text(error))
    finally:
        loop.call_later(_REAP_INTERVAL, _reap_orphans, loop, found)


def _has_zombie() -> bool:
    """Return True if a child has exited and is not reaped yet, owned or not."""
    try:
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_ALL, 0, flags) is not None
    except ChildProcessError:
        # This process has no children at all.
        return False
