"""The same rules files and commands: `holdfast policy check` beside `codex execpolicy check`."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from holdfast.front.cli.__main__ import main
from tests.real.codex import codex, codex_env
from tests.real.rules_generator import Case, Generator

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.timeout(120)]

FEW = 40
MANY = int(os.environ.get("HOLDFAST_POLICY_RUNS", "1000"))

NEWER = "canonical_matching: false, "

Answer = tuple[int, str, str]


def without_parser_words(text: str) -> str:
    """
    Return an error without the words of the parser: docs/compatibility.md, rules.parse-words.

    Nor with a member of rules that 0.166.0 does not have.
    """
    text = text.replace("canonical_matching: false, ", "")
    return re.sub(r"Parse error: .*", "Parse error", text)


class Checks:
    """Asks both programs about a case, in one directory."""

    def __init__(self, folder: Path, capture: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self.capture = capture
        self.env = {**codex_env(folder / "codex"), "RUST_BACKTRACE": "0"}
        version = subprocess.run([codex(), "--version"], capture_output=True, text=True, check=True)
        self.older = "0.166.0" in version.stdout

    def both(self, case: Case) -> tuple[Answer, Answer]:
        arguments: list[str] = []
        for index, text in enumerate(case.files):
            (self.folder / f"{index}.rules").write_bytes(text.encode())
            arguments += ["--rules", f"{index}.rules"]
        arguments += [*case.options, "--", *case.command]
        return self.original(arguments), self.ours(arguments)

    def original(self, arguments: list[str]) -> Answer:
        done = subprocess.run(
            [codex(), "execpolicy", "check", *arguments],
            capture_output=True,
            text=True,
            cwd=self.folder,
            env=self.env,
            check=False,
        )
        kept = [line for line in done.stderr.split("\n") if not line.startswith("WARNING: proc")]
        return done.returncode, done.stdout, without_parser_words("\n".join(kept))

    def ours(self, arguments: list[str]) -> Answer:
        self.capture.readouterr()
        status = main(["policy", "check", *arguments])
        said = self.capture.readouterr()
        error = without_parser_words(said.err)
        # A member that 0.166.0 did not have.
        return status, said.out, error.replace(NEWER, "") if self.older else error


@pytest.fixture
def checks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Checks:
    monkeypatch.chdir(tmp_path)
    return Checks(tmp_path, capsys)


def compare(checks: Checks, seeds: range) -> None:
    answered = 0
    for seed in seeds:
        case = Generator(seed).case()
        original, ours = checks.both(case)
        assert ours == original, f"seed {seed}: {case}"
        answered += original[0] == 0
    # Otherwise the generator would make one kind only, and show nothing about the other.
    assert len(seeds) * 0.3 < answered < len(seeds) * 0.95


@pytest.mark.requirement("rules.check.differential")
def test_generated_rules_get_the_answers_of_the_original(checks: Checks) -> None:
    compare(checks, range(FEW))


@pytest.mark.soak
@pytest.mark.timeout(60 + MANY)
@pytest.mark.requirement("rules.check.differential")
def test_many_generated_rules_get_the_answers_of_the_original(checks: Checks) -> None:
    compare(checks, range(1000, 1000 + MANY))
