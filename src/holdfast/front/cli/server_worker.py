"""The worker of a server command, which runs under a guardian."""

import argparse
import os
import stat
import sys
from collections.abc import Callable
from contextlib import suppress

from holdfast.base.own_files import keep_unchanged
from holdfast.base.url_schemes import is_stdio
from holdfast.front.cli.serve import reloads
from holdfast.server.handed_streams import Keeping
from holdfast.server.listen import BadListenUrl, meant_listen_url
from holdfast.server.operate.auth import AuthOptions
from holdfast.server.operate.listener_auth import ListenerAuthOptions
from holdfast.server.operate.logs import LogFormat, start_logging
from holdfast.server.operate.reloading import LiveSettings, Reread
from holdfast.server.operate.run_server import (
    ListenFailed,
    ServeOptions,
    ServiceMaker,
    StartFailed,
    serve_forever,
)
from holdfast.server.principals import PrincipalLimits

__all__ = ["run_server", "set_log_level"]


def run_server(
    options: argparse.Namespace,
    lifeline: int,
    announce: Callable[[str], None],
    keeping: Keeping | None = None,
    make: ServiceMaker | None = None,
    read: Callable[[], argparse.Namespace] | None = None,
) -> int:
    """
    Serve in this process, which has a guardian, and return the exit status.

    Args:
        options: The parsed command line.
        lifeline: Descriptor that ends when the guardian exits.
        announce: Called with the URL.
        keeping: Set for a server that outlives its stdio.
        make: Creates a server other than an exec-server.
        read: Reloads the config file, and returns the merged options.
    """
    try:
        set_log_level(
            _log_level(options),
            options.log_format,
            # A server on stdio writes to the stderr of its client, in order.
            threaded=not is_stdio(options.listen),
        )
    except ValueError:
        print("Error: HOLDFAST_LOG must be error, warning, info or debug", file=sys.stderr)
        return 1
    _keep_settings(options)
    command = getattr(options, "command", "")
    if is_stdio(options.listen) and command != "exec-server" and sys.stdin.isatty():
        print(
            "holdfast: waiting for a client on the standard streams; clients usually start"
            " this command themselves, and Ctrl-C ends it",
            file=sys.stderr,
        )
    try:
        return serve_forever(
            _serve_options(options, keeping, make, read),
            lifeline=lifeline,
            announce=announce,
            make=make,
        )
    except StartFailed as error:
        # Clients compare the texts of `exec-server`; other servers have better ones.
        text = str(error)
        if command != "exec-server":
            text = _advised(error)
        print(f"Error: {text}", file=sys.stderr)
        return 1


def _keep_settings(options: argparse.Namespace) -> None:
    """Prevent sandboxed commands from changing the files that the options name."""
    # An app-server does not have these options.
    for name, folder in (("config", False), ("default_config", True)):
        path = getattr(options, name, None)
        if path is not None:
            keep_unchanged(path, folder=folder)


def _advised(error: StartFailed) -> str:
    """Return the text of an error with its address, or a suggestion."""
    if isinstance(error, ListenFailed):
        return f"cannot listen on {error.address}: {error}"
    cause = error.__cause__
    if isinstance(cause, BadListenUrl) and cause.url is not None:
        return f"{error}{meant_listen_url(cause.url)}"
    return str(error)


def _serve_options(
    options: argparse.Namespace,
    keeping: Keeping | None,
    make: ServiceMaker | None,
    read: Callable[[], argparse.Namespace] | None,
) -> ServeOptions:
    # Only for exec-servers: the audit log records commands that the server starts itself.
    audit = () if make is not None else ("audit_log", "audit_log_max_size", "audit_log_keep")
    return ServeOptions(
        listen=options.listen,
        also_listen=options.also_listen,
        concurrent_requests=options.concurrent_requests,
        auth=AuthOptions(
            mode=options.ws_auth,
            token_file=options.ws_token_file,
            token_sha256=options.ws_token_sha256,
            shared_secret_file=options.ws_shared_secret_file,
            issuer=options.ws_issuer,
            audience=options.ws_audience,
            max_clock_skew=options.ws_max_clock_skew_seconds,
        ),
        listener_auth=ListenerAuthOptions(
            token_file=options.token_file,
            makes_token=not options.as_codex,
            no_auth=options.no_auth,
            insecure_no_auth=options.insecure_no_auth,
            tls_cert=options.tls_cert,
            tls_key=options.tls_key,
        ),
        announces_token=make is not None,
        pages=not options.as_codex,
        reloads=reloads(options),
        settings=_live_settings(options),
        reread=None if read is None else lambda: _reread(options, read()),
        # An app-server ends its commands with their connections.
        drain=getattr(options, "drain", 0.0),
        idle_exit=options.idle_exit,
        keeping=keeping,
        **{name: getattr(options, name) for name in audit},
    )


def _log_level(options: argparse.Namespace) -> str:
    level: str = options.log_level or os.environ.get("HOLDFAST_LOG", "error")
    return level.lower()


def _live_settings(options: argparse.Namespace) -> LiveSettings:
    return LiveSettings(log_level=_log_level(options), limits=_limits(options))


def _reread(first: argparse.Namespace, now: argparse.Namespace) -> Reread:
    """Return the reloaded settings, compared with those at the start."""
    live = {"log_level", *(f"max_{name}" for name in PrincipalLimits.__struct_fields__)}
    changed = {name for name, value in vars(first).items() if getattr(now, name, None) != value}
    return Reread(
        _live_settings(now), sorted(name.replace("_", "-") for name in changed.difference(live))
    )


def _limits(options: argparse.Namespace) -> PrincipalLimits:
    names = PrincipalLimits.__struct_fields__
    # An app-server does not have these options.
    return PrincipalLimits(**{name: getattr(options, f"max_{name}", None) for name in names})


def set_log_level(name: str, style: LogFormat = "text", *, threaded: bool = False) -> None:
    """
    Set up logging to stderr; by default only errors are logged.

    Raises:
        ValueError: There is no such level.
    """
    start_logging(name.lower(), style, threaded=threaded)
    with suppress(OSError):
        path, about = os.readlink("/proc/self/fd/2"), os.fstat(2)
        # A temporary file may have been unlinked.
        if stat.S_ISREG(about.st_mode) and os.path.samestat(os.stat(path), about):
            keep_unchanged(path)
