"""Starts the command of `holdfast run` in its environment, as the options say."""

import argparse
import errno
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from holdfast.backends import ExecProcess
from holdfast.base.errors import ConnectionLost, HoldfastError, InvalidParams
from holdfast.base.late_import import load
from holdfast.environments.environment import Environment
from holdfast.front.cli.exit_status import FAILED, Ended, refused
from holdfast.front.cli.sandbox_options_parser import CONFINING
from holdfast.front.cli.server_options import say_ignored_variable
from holdfast.front.cli.streams import is_null
from holdfast.front.cli.terminal import terminal_size
from holdfast.wire.protocol.secret_variables import TOKEN_VARIABLE

if TYPE_CHECKING:
    from holdfast.environments.limits import Limits
    from holdfast.wire.protocol.sandbox import SandboxContext

__all__ = ["launch"]


async def launch(
    options: argparse.Namespace, environment: Environment, say: Callable[[str], None]
) -> ExecProcess:
    """
    Start the command; its folder becomes that of the environment, and so the workspace.

    Args:
        options: The parsed command line.
        environment: The machine to run it on, connected.
        say: Shows a line to the user.

    Raises:
        Ended: It cannot be started; the text says why.
        ConnectionLost: The server is lost.
    """
    if environment.is_remote:
        env = await _prepare_there(options, environment)
    else:
        environment.cwd = _folder_here(options.cwd)
        # Also those that a policy keeps from the children of a server: it is the user's shell.
        # The token is for servers that `holdfast` itself reaches.
        inherited = {n: value for n, value in os.environ.items() if n != TOKEN_VARIABLE}
        env = inherited | dict(options.env)
    if options.verbose:
        name = f"`{options.on}`, " if environment.is_remote and options.on else ""
        say(f"running on {name}{environment.where}, in {(await environment.uri()).native}")
        if options.by_default:
            say_ignored_variable(say)
    sandbox, limits = await _confinement(options, environment)
    size = terminal_size() if options.tty and await _knows_sizes(environment) else None
    try:
        return await environment.launch(
            _argv(options.argv, tty=options.tty),
            env=env,
            tty=options.tty,
            size=None if size is None else (size.rows, size.cols),
            stdin=not options.tty and not is_null(0),
            sandbox=sandbox,
            limits=limits,
        )
    except ConnectionLost:
        raise
    except HoldfastError as error:
        raise refused(options.argv[0], error) from error


def _folder_here(wanted: str | None) -> str:
    try:
        # Resolved by the system, because `..` after a link is not where the text says.
        cwd = os.getcwd() if wanted is None else os.path.realpath(wanted, strict=True)
        if not os.path.isdir(cwd):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    except OSError as error:
        raise Ended(FAILED, f"cannot run in {wanted or '.'}: {error.strerror}") from error
    return cwd


async def _prepare_there(options: argparse.Namespace, environment: Environment) -> dict[str, str]:
    """Set the folder on a server, and return the variables beside those of the server."""
    env = dict(options.env)
    try:
        "".join([*options.argv, *env, *env.values()]).encode()
    except UnicodeEncodeError:
        raise Ended(FAILED, "a server takes only UTF-8 in arguments and variables") from None
    if options.tty and "TERM" in os.environ:
        # The terminal is ours, whatever the server's variables say.
        env.setdefault("TERM", os.environ["TERM"])
    environment.cwd = options.cwd
    is_absolute = options.cwd is not None and options.cwd.startswith("/")
    if not is_absolute and (await environment.info()).cwd is None:
        raise Ended(FAILED, "the server does not tell its folder: give one with --cwd /PATH")
    try:
        await environment.uri()
    except InvalidParams as error:
        raise Ended(FAILED, f"cannot run there: {error}") from error
    return env


async def _confinement(
    options: argparse.Namespace, environment: Environment
) -> "tuple[SandboxContext | None, Limits | None]":
    """
    Return the sandbox and the limits of the options.

    Raises:
        Ended: There is no such profile, it cannot be used there, or a limit is invalid.
    """
    if not any(getattr(options, name) is not None for name in CONFINING):
        return None, None
    try:
        # Before the start, so that the error is not one of the command.
        wanted = load("holdfast.environments.sandbox:also_writing")(
            options.sandbox, options.sandbox_write
        )
        sandbox = await environment.sandbox_context(wanted)
    except InvalidParams as error:
        raise Ended(FAILED, str(error)) from error
    return sandbox, load("holdfast.front.cli.sandbox_options:limits_of")(options)


async def _knows_sizes(environment: Environment) -> bool:
    """Return True if a terminal can have a size: only our extensions give it one."""
    return not environment.is_remote or (await environment.capabilities()).process_resize


def _argv(argv: list[str], *, tty: bool) -> list[str]:
    program, *rest = argv
    # On a terminal the protocol looks `a/b` up in PATH [start.program.relative-on-terminal]; a
    # person who types it means the file.
    if tty and "/" in program and not program.startswith(("/", "./", "../")):
        program = f"./{program}"
    return [program, *rest]
