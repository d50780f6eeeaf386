"""Runs one command from start to end, locally or remotely, for `holdfast run`."""

import argparse
import asyncio
import errno
import os
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING

from holdfast.backends import ExecProcess
from holdfast.base.errors import ConnectionLost, HoldfastError, InvalidParams
from holdfast.base.late_import import load
from holdfast.engine.supervision.guardian import kill_all_children, reap_children
from holdfast.environments.environment import Environment
from holdfast.front.cli.exit_status import FAILED, Ended, refused
from holdfast.front.cli.foreground import ForegroundCommand
from holdfast.front.cli.sandbox_options_parser import CONFINING
from holdfast.front.cli.server_options import (
    choose_environment,
    is_remote,
    opened,
    say_ignored_variable,
)
from holdfast.front.cli.streams import is_null
from holdfast.front.cli.terminal import terminal_size
from holdfast.wire.protocol.secret_variables import TOKEN_VARIABLE

if TYPE_CHECKING:
    from holdfast.environments.limits import Limits
    from holdfast.wire.protocol.sandbox import SandboxContext

__all__ = ["attend", "launch", "run_attended"]

# Seconds between checks for exited orphans; a zombie only takes an entry in the process table.
_REAP_INTERVAL = 2.0


def run_attended(options: argparse.Namespace, lifeline: int) -> int:
    """Run the command in this process, the worker of a guardian; return the exit status."""
    try:
        choose_environment(options)
        return _run_loop(attend(options, lifeline), fast=is_remote(options))
    except Ended as end:
        if end.text:
            with suppress(OSError):
                print(f"holdfast: {end.text}", file=sys.stderr)
        return end.status
    finally:
        # In case the guardian, which does the same, was killed.
        kill_all_children()


def _run_loop(main: Coroutine[object, object, int], *, fast: bool) -> int:
    # Importing uvloop takes longer than most local commands.
    if fast:
        try:
            uvloop_run = load("uvloop:run")
        except ImportError:
            # Not available on some platforms.
            pass
        else:
            status: int = uvloop_run(main)
            return status
    return asyncio.run(main)


async def attend(options: argparse.Namespace, lifeline: int) -> int:
    """
    Run the command of the options in the foreground.

    Args:
        options: The parsed command line.
        lifeline: Descriptor that delivers signals; it ends when the guardian exits.

    Returns:
        The exit status.

    Raises:
        Ended: The command has no status, or there is no one to report it to.
    """
    try:
        async with asyncio.TaskGroup() as tasks:
            foreground = ForegroundCommand(tasks, lifeline, tty=options.tty)
            async with opened(options, foreground.say) as environment:
                process = await launch(options, environment, foreground.say)
                # A local process is a child of this one.
                if not environment.is_remote and process.pid is not None:
                    foreground.start_task(_reap_orphans(process.pid))
                status = await foreground.attend(process)
            foreground.close()
    except ExceptionGroup as failures:
        # A task group raises all errors together; report only the first to the user.
        raise _first(failures) from failures
    return status


def _first(failures: ExceptionGroup[Exception]) -> Exception:
    """Return the error that ended the run, as text for the user unless it is a bug."""
    found = failures.exceptions[0]
    if isinstance(found, HoldfastError):
        return Ended(FAILED, str(found))
    if isinstance(found, TimeoutError):
        return Ended(FAILED, "the server does not respond")
    return found


async def _reap_orphans(pid: int) -> None:
    """Reap orphans of the command, which the kernel reparents to this process, a subreaper."""
    while True:
        await asyncio.sleep(_REAP_INTERVAL)
        reap_children(spare=(pid,))


async def launch(
    options: argparse.Namespace, environment: Environment, say: Callable[[str], None]
) -> ExecProcess:
    """
    Start the command; its directory becomes that of the environment, and so the workspace.

    Args:
        options: The parsed command line.
        environment: The machine to run it on, connected.
        say: Prints a line to the user.

    Raises:
        Ended: It cannot be started; the message says why.
        ConnectionLost: The connection to the server is lost.
    """
    if environment.is_remote:
        env = await _prepare_there(options, environment)
    else:
        environment.cwd = _folder_here(options.cwd)
        # Including those that a policy hides from the children of a server, since this is the
        # user's shell. Except the token, which is for servers that `holdfast` connects to.
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
        # Resolved by the kernel, because `..` after a link does not lead to the directory in the
        # text.
        cwd = os.getcwd() if wanted is None else os.path.realpath(wanted, strict=True)
        if not os.path.isdir(cwd):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    except OSError as error:
        raise Ended(FAILED, f"cannot run in {wanted or '.'}: {error.strerror}") from error
    return cwd


async def _prepare_there(options: argparse.Namespace, environment: Environment) -> dict[str, str]:
    """Set the directory on a server, and return the variables to add to those of the server."""
    env = dict(options.env)
    try:
        "".join([*options.argv, *env, *env.values()]).encode()
    except UnicodeEncodeError:
        raise Ended(FAILED, "a server only accepts UTF-8 in arguments and variables") from None
    if options.tty and "TERM" in os.environ:
        # The terminal is that of this process, despite the server's variables.
        env.setdefault("TERM", os.environ["TERM"])
    environment.cwd = options.cwd
    is_absolute = options.cwd is not None and options.cwd.startswith("/")
    if not is_absolute and (await environment.info()).cwd is None:
        raise Ended(FAILED, "the server does not report its directory: add --cwd /PATH")
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
        Ended: The profile does not exist or cannot be used there, or a limit is invalid.
    """
    if not any(getattr(options, name) is not None for name in CONFINING):
        return None, None
    try:
        # Before the start, so that an error is not attributed to the command.
        wanted = load("holdfast.environments.sandbox:also_writing")(
            options.sandbox, options.sandbox_write
        )
        sandbox = await environment.sandbox_context(wanted)
    except InvalidParams as error:
        raise Ended(FAILED, str(error)) from error
    return sandbox, load("holdfast.front.cli.sandbox_options:limits_of")(options)


async def _knows_sizes(environment: Environment) -> bool:
    """Return True if terminals can be resized, which needs Holdfast's extensions."""
    return not environment.is_remote or (await environment.capabilities()).process_resize


def _argv(argv: list[str], *, tty: bool) -> list[str]:
    program, *rest = argv
    # On a terminal the protocol looks up `a/b` in PATH [start.program.relative-on-terminal], but
    # the user means the file.
    if tty and "/" in program and not program.startswith(("/", "./", "../")):
        program = f"./{program}"
    return [program, *rest]
