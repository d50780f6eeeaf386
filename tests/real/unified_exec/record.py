"""
Records rows from the real Codex: `python -m tests.real.unified_exec.record`.

Each case is played three times. What is not the same three times is reported and not written.
`$CODEX_BIN` names the program.
"""

import argparse
import asyncio
import json
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.real.unified_exec import on_codex
from tests.real.unified_exec.cases import CASES
from tests.real.unified_exec.normal import Row
from tests.real.unified_exec.script import Case, Mode

ROWS = Path(__file__).parent / "rows.json"


def load() -> dict[str, Row]:
    """Return the recorded rows by name: that of the case, `@`, and where commands ran."""
    if not ROWS.exists():
        return {}
    rows: dict[str, Row] = json.loads(ROWS.read_text())
    return rows


def save(rows: dict[str, Row]) -> None:
    """Write rows in the order of the cases."""
    names = [f"{case.name}@{mode}" for case in CASES.values() for mode in case.modes]
    kept = {name: rows[name] for name in names if name in rows}
    ROWS.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n")


async def record(case: Case, mode: Mode, times: int) -> tuple[Row | None, str]:
    """Return the row that every run agreed on, or None and what differed."""
    # Cases that only wait are cheap to play side by side.
    at_once = asyncio.Semaphore(1 if case.busy else times)

    async def once() -> Row:
        async with at_once:
            root = Path(tempfile.mkdtemp(prefix="rec"))
            try:
                return await on_codex.play(case, mode, root)
            finally:
                shutil.rmtree(root, ignore_errors=True)

    rows: list[Row] = []
    for found in await asyncio.gather(*(once() for _ in range(times)), return_exceptions=True):
        if isinstance(found, BaseException):
            return None, f"did not run: {found!r}"
        rows.append(found)
        if found != rows[0]:
            return None, difference(rows[0], found)
    return rows[0], ""


def difference(first: object, second: object, where: str = "") -> str:
    """Return the first position where two rows differ, with both values."""
    if isinstance(first, dict) and isinstance(second, dict):
        for key in [*first, *(key for key in second if key not in first)]:
            if first.get(key) != second.get(key):
                return difference(first.get(key), second.get(key), f"{where}.{key}")
    if isinstance(first, list) and isinstance(second, list) and len(first) == len(second):
        for index, (left, right) in enumerate(zip(first, second, strict=True)):
            if left != right:
                return difference(left, right, f"{where}[{index}]")
    return f"{where}: {first!r:.600} and {second!r:.600}"


async def record_all(
    wanted: Sequence[tuple[Case, Mode]], times: int, tell: Callable[[str], object]
) -> int:
    """Record cases one after the other, write each at once, and return how many differed."""
    differing = 0
    for case, mode in wanted:
        began = time.monotonic()
        row, problem = await record(case, mode, times)
        if row is None:
            # A busy machine disturbs times: once more before it is given up.
            row, problem = await record(case, mode, times)
        name = f"{case.name}@{mode}"
        rows = load()
        if row is None:
            differing += 1
            rows.pop(name, None)
            tell(f"DIFFERS {name} {problem}\n")
        else:
            rows[name] = row
            tell(f"recorded {name} ({time.monotonic() - began:.0f} s)\n")
        save(rows)
    return differing


def main() -> int:
    """Record what the arguments name; the exit status is 1 if a case could not be recorded."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--filter", default="", help="only cases whose name contains this")
    parser.add_argument("--mode", choices=("local", "remote", "both", "none"))
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--new", action="store_true", help="only cases without a row")
    options = parser.parse_args()
    # Commands on pipes inherit ignored signals: as a job in the background of a shell, this
    # would have SIGINT ignored by all of them.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    rows = load()
    wanted: list[tuple[Case, Mode]] = [
        (case, mode)
        for case in CASES.values()
        for mode in case.modes
        if options.filter in case.name
        and options.mode in (None, mode)
        and not (options.new and f"{case.name}@{mode}" in rows)
    ]
    differing = asyncio.run(record_all(wanted, options.times, _tell))
    _tell(f"{len(wanted) - differing} recorded, {differing} not\n")
    return 1 if differing else 0


def _tell(line: str) -> None:
    sys.stdout.write(line)
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
