"""The worker of `holdfast shell`: runs the prompt of `holdfast.front.prompt` on a terminal."""

import argparse
import asyncio
import os
import signal
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from holdfast.agent.approvals import UNTRUSTED, Approvals, TerminalApprover, load_rules
from holdfast.agent.approvals.requirements import REQUIREMENTS_FILE
from holdfast.agent.unified_exec import Options, SessionInfo, UnifiedExec
from holdfast.backends import ExecProcess
from holdfast.base.errors import HoldfastError
from holdfast.engine.supervision.guardian import kill_all_children
from holdfast.environments.config.home import holdfast_home
from holdfast.environments.connect import connect
from holdfast.environments.environment import Environment
from holdfast.environments.limits import Limits
from holdfast.environments.sandbox import also_writing
from holdfast.front.cli.exit_status import FAILED, Ended, text_with_advice
from holdfast.front.cli.sandbox_options import given_limits
from holdfast.front.cli.server_options import choose_environment, split_command
from holdfast.front.cli.table import aligned
from holdfast.front.cli.terminal import RawTerminal, terminal_size
from holdfast.front.cli.token import bearer_token
from holdfast.front.prompt.console import Console
from holdfast.front.prompt.reading import make_reader
from holdfast.front.prompt.screen import Screen, wants_colours

__all__ = ["run_shell"]

# Ctrl-]: the key that detaches.
_DETACH = 0x1D

_HISTORY = "shell_history"


def run_shell(options: argparse.Namespace, lifeline: int) -> int:
    """Run the prompt in this process, which has a guardian; return the exit status."""
    try:
        return asyncio.run(_main(options, lifeline))
    except Ended as end:
        print(f"holdfast: {end.text}", file=sys.stderr)
        return end.status
    except HoldfastError as error:
        print(f"holdfast: {text_with_advice(error)}", file=sys.stderr)
        return FAILED
    finally:
        kill_all_children()


async def _main(options: argparse.Namespace, lifeline: int) -> int:
    async with (
        _environment(options) as environment,
        UnifiedExec(environment, options=_options(options)) as tools,
    ):
        on_terminal = sys.stdin.isatty() and sys.stdout.isatty()
        screen = Screen(sys.stdout, colours=wants_colours(sys.stdout, os.environ), table=aligned)
        if on_terminal:
            screen.line("type a command; :help shows more, Ctrl-D exits", "dim")
        console = Console(
            tools,
            reader=make_reader(
                sys.stdin,
                sys.stdout,
                history=_history(),
                sessions=lambda: [one.session_id for one in tools.sessions()],
            ),
            screen=screen,
            attach=_pass_keys if on_terminal else None,
            wait=options.wait,
            login=options.login,
            model_text=options.model_text,
        )
        running = asyncio.ensure_future(console.run())
        _listen(lifeline, console, running)
        try:
            await running
        except asyncio.CancelledError:
            return 128 + signal.SIGTERM
    return 0


def _listen(lifeline: int, console: Console, running: object) -> None:
    """Handle signals forwarded by the guardian; end if the guardian exits."""
    loop = asyncio.get_running_loop()

    def obey() -> None:
        numbers = os.read(lifeline, 64)
        if set(numbers) - {signal.SIGINT} or not numbers:
            loop.remove_reader(lifeline)
            running.cancel()  # type: ignore[attr-defined]  # a future
        elif not console.interrupt():
            print(flush=True)

    loop.add_reader(lifeline, obey)


def _environment(options: argparse.Namespace) -> Environment:
    choose_environment(options)
    where: str | list[str] | None = options.on or options.url or "local"
    if options.cmd is not None:
        where = split_command(options.cmd)
    token = bearer_token(options) if options.url is not None else None
    return connect(where, bearer_token=token, cwd=options.cwd)


def _options(options: argparse.Namespace) -> Options:
    limits = given_limits(options)
    approvals = None
    if options.policy is not None or options.rules:
        policy = options.policy or "on-request"
        approvals = Approvals(
            policy=UNTRUSTED if policy == "untrusted" else policy,
            rules=load_rules(
                home=holdfast_home(os.environ),
                explicit=options.rules,
                requirements=REQUIREMENTS_FILE,
            ),
            # In a script, lines are commands, not answers.
            approver=TerminalApprover() if sys.stdin.isatty() else None,
        )
    return Options(
        sandbox=also_writing(options.sandbox, options.sandbox_write),
        limits=None if limits == Limits() else limits,
        approvals=approvals,
        extras=True,
    )


def _history() -> Path | None:
    """Return the history file, readable only by its owner; None if it cannot be created."""
    path = holdfast_home(os.environ) / _HISTORY
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
    except OSError:
        return None
    return path


async def _pass_keys(session: SessionInfo, process: ExecProcess) -> None:
    """Forward keys until Ctrl-]; a command without a terminal gets none."""
    loop = asyncio.get_running_loop()
    typed: asyncio.Queue[bytes] = asyncio.Queue(64)

    def read() -> None:
        try:
            typed.put_nowait(os.read(0, 4096))
        except OSError:
            # The terminal was hung up.
            typed.put_nowait(b"")
        if typed.full():
            # Backpressure: keys stay in the terminal until the command reads.
            loop.remove_reader(0)

    size = terminal_size()
    if session.tty and size is not None:
        # The server may lack `process/resize`.
        with suppress(HoldfastError):
            await process.resize(size.rows, size.cols)
    with RawTerminal(0) if session.tty else _unbuffered(0):
        loop.add_reader(0, read)
        try:
            while True:
                keys = await typed.get()
                loop.add_reader(0, read)
                before, detach, _ = keys.partition(bytes([_DETACH]))
                if before and session.tty:
                    try:
                        await process.write(before)
                    except HoldfastError:
                        return
                if detach or not keys:
                    return
        finally:
            loop.remove_reader(0)


@contextmanager
def _unbuffered(fd: int) -> Iterator[None]:
    """Deliver single keys without echo; Ctrl-C is still a signal."""
    modes = termios.tcgetattr(fd)
    try:
        tty.setcbreak(fd, termios.TCSANOW)
        yield
    finally:
        termios.tcsetattr(fd, termios.TCSANOW, modes)
