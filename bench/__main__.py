"""`python -m bench`: the options, the run, the report."""

from __future__ import annotations

import argparse
import asyncio
import os
import shlex
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import uvloop

from bench.fast_paths import FAST_PATHS, without
from bench.figures import FULL, QUICK, Benchmark, Measurements, Sizes, Subject
from bench.machine import facts
from bench.measures import ALL
from bench.report import as_json, as_markdown
from bench.run import run_rounds
from bench.servers import ServerCommand

_LISTEN = ("--listen", "ws://127.0.0.1:0")
_ROUNDS = 5


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="Measure Holdfast, the real Codex server and peers in the same run.",
    )
    parser.add_argument(
        "--only",
        action="append",
        metavar="NAME",
        choices=[benchmark.name for benchmark in ALL],
        help="run this benchmark only; may be repeated: %(choices)s",
    )
    parser.add_argument(
        "--without",
        metavar="NAME",
        choices=FAST_PATHS,
        help="compare Holdfast with and without a fast path, by default in its own benchmark: "
        "%(choices)s",
    )
    parser.add_argument("--rounds", type=_positive, help=f"default {_ROUNDS}, or 1 with --quick")
    parser.add_argument(
        "--quick", action="store_true", help="tiny sizes: shows that everything works"
    )
    parser.add_argument(
        "--holdfast-command",
        metavar="COMMAND",
        help="how Holdfast's server is started (default: `holdfast exec-server` of this Python)",
    )
    parser.add_argument(
        "--codex",
        metavar="PATH",
        default=os.environ.get("CODEX_BIN"),
        help="the codex binary (default: $CODEX_BIN; without it Codex is left out)",
    )
    parser.add_argument(
        "--peers",
        metavar="PATH",
        default=os.environ.get("PEERS_PYTHON"),
        help="a Python with requirements/peers.txt (default: $PEERS_PYTHON; else left out)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every value here")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the table here too")
    return parser.parse_args(arguments)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def _commands(options: argparse.Namespace) -> dict[Subject, ServerCommand]:
    if options.holdfast_command:
        holdfast = tuple(shlex.split(options.holdfast_command))
    else:
        holdfast = (str(Path(sys.prefix) / "bin" / "holdfast"), "exec-server", *_LISTEN)
    commands = {subject: ServerCommand(holdfast) for subject in (Subject.HOLDFAST, Subject.WITHOUT)}
    if options.codex:
        commands[Subject.CODEX] = ServerCommand((options.codex, "exec-server", *_LISTEN))
    return commands


def _benchmarks(options: argparse.Namespace) -> list[Benchmark]:
    name: str | None = options.without
    only = options.only
    if name is not None and only is None:
        only = [FAST_PATHS[name].benchmark]
    chosen = [one for one in ALL if only is None or one.name in only]
    return chosen if name is None else [without(name, one) for one in chosen]


def _progress(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


async def _measure(
    benchmarks: Sequence[Benchmark],
    commands: Mapping[Subject, ServerCommand],
    *,
    peers: str | None,
    rounds: int,
    sizes: Sizes,
) -> Measurements:
    """Run the rounds; SIGTERM ends them like Ctrl-C, the servers first."""
    task = asyncio.current_task()
    assert task is not None, "a coroutine runs in a task"
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await run_rounds(
        benchmarks, commands, peers=peers, rounds=rounds, sizes=sizes, progress=_progress
    )


def main(arguments: list[str]) -> int:
    """Run the benchmarks; return 0 unless one of them broke, whatever the figures."""
    options = _options(arguments)
    benchmarks = _benchmarks(options)
    figures = [figure for one in benchmarks for figure in one.figures]
    rounds: int = options.rounds or (1 if options.quick else _ROUNDS)
    peers: str | None = options.peers or None
    machine = facts([options.codex, "--version"] if options.codex else None, peers)
    command = shlex.join(["python", "-m", "bench", *arguments])
    sizes = QUICK if options.quick else FULL
    try:
        seen = uvloop.run(
            _measure(benchmarks, _commands(options), peers=peers, rounds=rounds, sizes=sizes)
        )
    except (KeyboardInterrupt, asyncio.CancelledError):
        return 130
    if not options.codex:
        seen.missing.append("the real server: no `--codex` and no $CODEX_BIN")
    remark = ", **with --quick's tiny sizes: no figures to quote**" if options.quick else ""
    table = as_markdown(figures, seen, facts=machine, command=command, rounds=rounds, remark=remark)
    sys.stdout.write(table)
    if options.markdown:
        options.markdown.write_text(table)
    if options.json:
        options.json.write_bytes(
            as_json(figures, seen, facts=machine, command=command, rounds=rounds)
        )
    return 1 if seen.failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
