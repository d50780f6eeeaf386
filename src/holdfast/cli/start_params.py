"""Start parameters of `holdfast run`, made from its options."""

import argparse
import errno
import os

import msgspec

from holdfast.cli.exit_status import FAILED, Ended
from holdfast.cli.loading import load
from holdfast.cli.sandbox_options_parser import CONFINING
from holdfast.cli.streams import is_null
from holdfast.cli.terminal import terminal_size
from holdfast.process.variable_marks import MARK_VARIABLE
from holdfast.protocol.handshake import EnvironmentInfo
from holdfast.protocol.paths import ForeignPathUri, InvalidPathUri, PathUri
from holdfast.protocol.process import EnvPolicy, StartParams

__all__ = ["local_request", "remote_request"]

# The command gets the server's variables, as if it were started there by hand.
_ALL_OF_THE_SERVERS = EnvPolicy(
    inherit="all", ignore_default_excludes=True, exclude=[], set={}, include_only=[]
)


def local_request(options: argparse.Namespace) -> StartParams:
    """
    Return the parameters of a local command, with the variables of this process.

    Raises:
        Ended: There is no such directory.
    """
    try:
        # Resolved by the system, because `..` after a link is not where the text says.
        cwd = os.getcwd() if options.cwd is None else os.path.realpath(options.cwd, strict=True)
        if not os.path.isdir(cwd):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    except OSError as error:
        raise Ended(FAILED, f"cannot run in {options.cwd or '.'}: {error.strerror}") from error
    folder = PathUri.from_path(cwd)
    return _confined(_request(options, folder, {**os.environ, **dict(options.env)}), options)


def remote_request(options: argparse.Namespace, info: EnvironmentInfo | None) -> StartParams:
    """
    Return the parameters of a command on a server, with the server's variables.

    Args:
        options: The parsed command line.
        info: The server's description of its machine.

    Raises:
        Ended: The directory is unknown, or an argument is not UTF-8.
    """
    env = dict(options.env)
    try:
        "".join([*options.argv, *env, *env.values()]).encode()
    except UnicodeEncodeError:
        raise Ended(FAILED, "a server takes only UTF-8 in arguments and variables") from None
    if options.tty and "TERM" in os.environ:
        # The terminal is ours, whatever the server's variables say.
        env.setdefault("TERM", os.environ["TERM"])
    if options.sandbox is None and info is not None and info.capabilities.process_end_marked:
        # Daemons are found by this variable at the end, as the guardian does locally.
        env[MARK_VARIABLE] = os.urandom(8).hex()
    knows_sizes = info is not None and info.capabilities.process_resize
    request = _request(
        options,
        _remote_folder(options.cwd, info),
        env,
        env_policy=_ALL_OF_THE_SERVERS,
        sized=knows_sizes,
    )
    return _confined(request, options, remote=True, info=info)


def _request(
    options: argparse.Namespace,
    cwd: PathUri,
    env: dict[str, str],
    *,
    env_policy: EnvPolicy | None = None,
    sized: bool = True,
) -> StartParams:
    return StartParams(
        # Random, since the session may be shared by several commands.
        process_id=f"run-{os.urandom(8).hex()}",
        argv=_argv(options.argv, tty=options.tty),
        cwd=cwd,
        env=env,
        env_policy=env_policy,
        tty=options.tty,
        pipe_stdin=not options.tty and not is_null(0),
        terminal_size=terminal_size() if options.tty and sized else None,
    )


def _confined(
    request: StartParams,
    options: argparse.Namespace,
    *,
    remote: bool = False,
    info: EnvironmentInfo | None = None,
) -> StartParams:
    """Return the request with the sandbox and the limits of the options."""
    if not any(getattr(options, name) is not None for name in CONFINING):
        return request
    return msgspec.structs.replace(
        request,
        sandbox=load("sandbox_of")(options, request.cwd, remote=remote, info=info),
        limits=load("limits_of")(options),
    )


def _argv(argv: list[str], *, tty: bool) -> list[str]:
    program, *rest = argv
    # On a terminal the protocol looks `a/b` up in PATH [start.program.relative-on-terminal]; a
    # person who types it means the file.
    if tty and "/" in program and not program.startswith(("/", "./", "../")):
        program = f"./{program}"
    return [program, *rest]


def _remote_folder(wanted: str | None, info: EnvironmentInfo | None) -> PathUri:
    try:
        if wanted is not None and wanted.startswith("/"):
            return PathUri.from_path(wanted)
        if info is None or info.cwd is None:
            raise Ended(FAILED, "the server does not tell its folder: give one with --cwd /PATH")
        here = PathUri.parse(info.cwd)
        return here if wanted is None else PathUri.from_path(os.path.join(here.native, wanted))
    except (InvalidPathUri, ForeignPathUri) as error:
        raise Ended(FAILED, f"cannot run there: {error}") from error
