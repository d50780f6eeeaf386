"""The machine code of the table walk is what an assembler makes of its listing."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from holdfast.engine.linux.assembler import _LISTINGS, _WALKS, RESULT

HEADS = {"x86_64": ".intel_syntax noprefix\n", "aarch64": ""}


@pytest.fixture(params=sorted(_LISTINGS))
def machine(request: pytest.FixtureRequest) -> str:
    """Each processor; skipped without binutils for it, except where everything is required."""
    name: str = request.param
    missing = [
        tool for tool in ("as", "objcopy") if shutil.which(f"{name}-linux-gnu-{tool}") is None
    ]
    if missing:
        text = f"install binutils-{name.replace('_', '-')}-linux-gnu"
        if os.environ.get("CI") == "true" or os.environ.get("HOLDFAST_REQUIRE_REAL") == "1":
            pytest.fail(text, pytrace=False)
        pytest.skip(text)
    return name


def instructions(listing: str) -> str:
    """Return what an assembler takes: without the bytes before it and the remark behind."""
    lines = [line.partition(";")[0].strip() for line in listing.splitlines()]
    return "\n".join(re.sub(r"^[0-9a-f]{4,}\s+", "", line) for line in lines)


def assemble(machine: str, source: str, folder: Path) -> bytes:
    (folder / "walk.s").write_text(f"{HEADS[machine]}.set RESULT, {RESULT}\n{source}\n")
    for command in (
        ["as", "-o", "walk.o", "walk.s"],
        ["objcopy", "-O", "binary", "--only-section=.text", "walk.o", "walk.bin"],
    ):
        argv = [f"{machine}-linux-gnu-{command[0]}", *command[1:]]
        done = subprocess.run(
            argv, cwd=folder, capture_output=True, text=True, timeout=10, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")
    return (folder / "walk.bin").read_bytes()


def test_the_bytes_are_those_of_the_instructions(machine: str, tmp_path: Path) -> None:
    listing = _LISTINGS[machine]

    assembled = assemble(machine, instructions(listing), tmp_path)

    assert assembled.hex() == _WALKS[machine].hex()


def test_another_instruction_is_noticed(machine: str, tmp_path: Path) -> None:
    other = instructions(_LISTINGS[machine]).replace("16]", "24]", 1)

    assert assemble(machine, other, tmp_path) != _WALKS[machine]
