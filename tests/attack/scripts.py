"""
Writes random scripts that run a forbidden command, and sees that none of them hides it.

Each script is read as rules read it. If the reader neither notices the command nor says that it
could not read the script, a real shell runs it: bash, dash or zsh, with programs in place of the
commands that only note how they were called. A script that the reader calls unparsable must be
one that its shell refuses to parse. What is found is cut down to the shortest script that still
shows it.

The long form: `python -m tests.attack.scripts --count 200000`.
"""

import argparse
import os
import posixpath
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from holdfast.agent.approvals.dangerous import danger_of
from holdfast.agent.approvals.split import Split, split_command
from tests.attack.script_generator import SHELLS, ScriptGenerator

__all__ = ["Figures", "attack_scripts"]

BATCH = 400
"""Scripts that one shell runs, each in a subshell."""

_BATCH_LIMIT = 8.0
"""Seconds after which a batch goes on behind the script that holds it up, which runs alone."""

_ONE_LIMIT = 5.0
"""Seconds for one script alone."""

_OUTPUT = re.compile(r"(?:\$\(|`)([^$`()]*)[)`]")
_RUNS_TEXT = re.compile(r"\b(eval|source|(ba|da|z)?sh)\b|\.(?= )")

_LINKED = (
    *("cat", "tee", "env", "nohup", "nice", "timeout", "sh", "dash", "bash", "zsh"),
    *("xargs", "find", "stat", "date", "seq", "basename", "dirname", "expr"),
)

_NOTED = ("rm", "hostname", "git")

# Called as a program only, not as the file of a shell, it has the option of its first line. The
# directory is the number of the script.
_NOTE = """#!/bin/sh -f
case $- in *f*) ;; *) exit ;; esac
{ printf '%s' "$PWD"; printf '\\37%s' "${0##*/}" "$@"; printf '\\36'; } >> CALLS
"""


@dataclass
class Figures:
    """The findings of one run."""

    scripts: int = 0
    noticed: int = 0
    """Scripts whose command was noticed."""
    unseen: int = 0
    """Scripts that could not be read to their end."""
    unparsable: int = 0
    """Those of them with a syntax error."""
    run: int = 0
    """Scripts that a shell ran, because the reader saw no forbidden command in them."""
    hidden: list[tuple[str, str]] = field(default_factory=list)
    """Shells and scripts that ran a forbidden command unnoticed, cut short."""
    known: int = 0
    """Those that ran one unnoticed as the output of another command, which no rule can see."""
    parsed: list[tuple[str, str]] = field(default_factory=list)
    """Shells and scripts that were called unparsable, and are not."""


def attack_scripts(count: int, seed: int, *, shorten: bool = True) -> Figures:
    """
    Try `count` scripts.

    Args:
        count: The number of scripts.
        seed: The same seed makes the same scripts.
        shorten: Cut down what is found.
    """
    figures = Figures()
    generator = ScriptGenerator(seed)
    with _ground() as ground:
        for start in range(0, count, 16 * BATCH):
            suspects: dict[str, list[str]] = {shell: [] for shell in ground.shells}
            for _ in range(start, min(start + 16 * BATCH, count)):
                shell, script = generator.script()
                if shell in ground.shells and "\0" not in script:
                    _read(ground, shell, script, suspects, figures)
            for shell, scripts in suspects.items():
                for first in range(0, len(scripts), BATCH):
                    for script in ground.forbidden_runs(shell, scripts[first : first + BATCH]):
                        _found(ground, shell, script, figures, shorten=shorten)
    return figures


def _read(
    ground: "_Ground", shell: str, script: str, suspects: dict[str, list[str]], figures: Figures
) -> None:
    figures.scripts += 1
    split = split_command([shell, "-c", script])
    if _is_noticed(split):
        figures.noticed += 1
    elif split.unseen is not None:
        figures.unseen += 1
    else:
        figures.run += 1
        suspects[shell].append(script)
    if split.fault is not None:
        figures.unparsable += 1
        # One in ten is enough: they are many, and each needs a shell for itself.
        if figures.unparsable % 10 == 0 and ground.parses(shell, script):
            figures.parsed.append((shell, script))


def _found(ground: "_Ground", shell: str, script: str, figures: Figures, *, shorten: bool) -> None:
    # A subshell may differ from a shell for itself.
    if not ground.hides(shell, script):
        return
    short = _shortened(ground, shell, script)
    if _runs_output(ground, shell, script, short):
        figures.known += 1
    else:
        figures.hidden.append((shell, short if shorten else script))


def _runs_output(ground: "_Ground", shell: str, script: str, short: str) -> bool:
    """Return True if it is output that runs as a command: that is known not to be noticed."""
    # A command there would be noticed.
    if not _is_noticed(split_command([shell, "-c", _OUTPUT.sub("hostname", short)])):
        return False
    # Neither what makes the output runs one, nor what is around it.
    if any(ground.runs(shell, text) for text in (*_OUTPUT.findall(short), _OUTPUT.sub(":", short))):
        return False
    # What a shell or `eval` runs must be noticed, and may have been cut down to this.
    joined = script.replace("\\\n", "")
    if len(_RUNS_TEXT.findall(joined)) > len(_RUNS_TEXT.findall(script)):
        script = joined
    return ground.runs(shell, _RUNS_TEXT.sub(":", script))


def _is_noticed(split: Split) -> bool:
    return any(map(_is_forbidden, split.literals))


def _is_forbidden(call: Sequence[str]) -> bool:
    """Return True for a forced removal, and for what rules for `hostname` and `git push` match."""
    name = posixpath.basename(call[0])
    return (
        name == "hostname" or (name, *call[1:2]) == ("git", "push") or danger_of(call) is not None
    )


class _Ground:
    """
    A place where scripts may run: a namespace in which nothing else can be written or reached.

    The programs that note their calls are also mounted over the real ones: a login shell, `env -i`
    and `command -p` find those.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._calls = folder / "calls"
        self._cwd = folder / "cwd"
        programs = folder / "bin"
        programs.mkdir()
        for name in _LINKED:
            if path := shutil.which(name):
                (programs / name).symlink_to(path)
        self.shells = tuple(shell for shell in SHELLS if (programs / shell).exists())
        bwrap = shutil.which("bwrap")
        if bwrap is None:
            raise FileNotFoundError("bwrap: please install bubblewrap")
        self._command = [bwrap, "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]
        self._command += ["--tmpfs", "/tmp"]
        self._command += ["--bind", os.fspath(folder), os.fspath(folder), "--unshare-all"]
        self._command += ["--die-with-parent", "--new-session", "--cap-drop", "ALL"]
        for name in _NOTED:
            note = programs / name
            note.write_text(_NOTE.replace("CALLS", shlex.quote(str(self._calls))))
            note.chmod(0o755)
            if real := shutil.which(name):
                self._command += ["--ro-bind", os.fspath(note), os.path.realpath(real)]
        self._env = {"PATH": str(programs), "HOME": str(folder), "LANG": "C.UTF-8"}

    def forbidden_runs(self, shell: str, scripts: Sequence[str]) -> Iterator[str]:
        """Run scripts; yield those that ran a forbidden command, or may have done so."""
        driver = self._folder / "driver"
        progress = self._folder / "progress"
        done = 0
        while done < len(scripts):
            self._clean(len(scripts) - done)
            lines = [
                f"echo {number} >&9; (cd {number}; exec 9>&-; eval {shlex.quote(script)})\n"
                for number, script in enumerate(scripts[done:])
            ]
            driver.write_text(f"ulimit -t 2\nulimit -f 64\nexec 9> {progress}\n" + "".join(lines))
            status = self._run([shell, os.fspath(driver)], _BATCH_LIMIT, self._cwd)
            last = int((progress.read_text().split() or ["0"])[-1])
            suspects = self._take_forbidden()
            if status == -1:
                # It may only have begun.
                suspects.add(last)
            for number in sorted(suspects):
                yield scripts[done + number]
            done += last + 1

    def hides(self, shell: str, script: str) -> bool:
        """Return True if a script runs a forbidden command unnoticed."""
        split = split_command([shell, "-c", script])
        if split.unseen is not None or _is_noticed(split):
            return False
        return self.runs(shell, script)

    def runs(self, shell: str, script: str) -> bool:
        """Return True if a script runs a forbidden command."""
        self._clean(1)
        self._run([shell, "-c", script], _ONE_LIMIT, self._cwd / "0")
        return bool(self._take_forbidden())

    def parses(self, shell: str, script: str) -> bool:
        """Return True if a shell can parse a script."""
        self._clean(1)
        said = self._folder / "said"
        with said.open("wb") as errors:
            status = self._run([shell, "-n", "-c", script], _ONE_LIMIT, self._cwd / "0", errors)
        # For some errors in a test, bash has the status 0.
        lines = said.read_bytes().splitlines()
        return status == 0 and all(b"warning:" in line for line in lines)

    def check(self) -> None:
        """
        Raise if scripts do not run here, or can do something elsewhere.

        Without the first, nothing would ever be found; without the second, something might be lost.
        """
        with tempfile.TemporaryDirectory() as elsewhere:
            file = Path(elsewhere) / "file"
            script = f"X=rm; $X -f x; : > {shlex.quote(str(file))}"
            for shell in self.shells:
                if not self.runs(shell, script):
                    raise RuntimeError(f"bwrap: cannot run {shell}")
                if file.exists():
                    raise RuntimeError("bwrap: scripts are not confined")

    def _clean(self, count: int) -> None:
        """Make as many directories, each with a file `f` that stays empty."""
        shutil.rmtree(self._cwd, ignore_errors=True)
        for number in range(count):
            (self._cwd / str(number)).mkdir(parents=True)
            (self._cwd / str(number) / "f").symlink_to(os.devnull)

    def _run(
        self, argv: list[str], limit: float, cwd: Path, errors: IO[bytes] | None = None
    ) -> int:
        """Run a shell; nothing that it starts is left."""
        process = subprocess.Popen(
            [*self._command, "--chdir", os.fspath(cwd), "--", *argv],
            env=self._env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors or subprocess.DEVNULL,
        )
        try:
            return process.wait(limit)
        except subprocess.TimeoutExpired:
            return -1
        finally:
            process.kill()
            process.wait()

    def _take_forbidden(self) -> set[int]:
        """Return the numbers of the scripts that ran a forbidden command since the last time."""
        if not self._calls.exists():
            return set()
        calls = self._calls.read_text(errors="replace").split("\36")[:-1]
        self._calls.unlink()
        noted = [call.split("\37") for call in calls]
        numbers = [cwd.rpartition("/")[2] for cwd, *call in noted if call and _is_forbidden(call)]
        return {int(number) for number in numbers if number.isdigit()}


@contextmanager
def _ground() -> Iterator[_Ground]:
    with tempfile.TemporaryDirectory() as folder:
        ground = _Ground(Path(folder))
        ground.check()
        yield ground


def _shortened(ground: _Ground, shell: str, script: str) -> str:
    """Return the script without what it does not need to hide its command."""
    size = len(script) // 2
    while size:
        at = 0
        while at < len(script):
            shorter = script[:at] + script[at + size :]
            if ground.hides(shell, shorter):
                script = shorter
            else:
                at += size
        size //= 2
    return script


def _main() -> None:
    parser = argparse.ArgumentParser(description="Look for scripts that hide a command.")
    parser.add_argument("--count", type=int, default=20_000, help="the number of scripts")
    parser.add_argument("--seed", type=int, default=2026, help="makes the same scripts again")
    options = parser.parse_args()
    figures = attack_scripts(options.count, options.seed)
    lines = [
        f"{figures.scripts} scripts: {figures.noticed} noticed, {figures.unseen} unseen"
        f" ({figures.unparsable} with a syntax error), {figures.run} run,"
        f" {figures.known} with output as a command"
    ]
    lines += [f"hidden: {shell} {script!r}" for shell, script in figures.hidden]
    lines += [f"parsed: {shell} {script!r}" for shell, script in figures.parsed]
    sys.stdout.write("\n".join(lines) + "\n")
    if figures.hidden or figures.parsed:
        sys.exit(1)


if __name__ == "__main__":
    _main()
