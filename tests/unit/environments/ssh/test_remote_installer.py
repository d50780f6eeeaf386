"""Installation on a host: as a whole, or not at all."""

import ast
import io
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

import pytest

from holdfast.environments.ssh import remote_installer
from holdfast.environments.ssh.remote_installer import Failed, install

PROGRAM = """
import sys
def main():
    if "--version" in sys.argv: print("holdfast 1.0")
    return 0
"""


def tar(files: Mapping[str, str]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, text in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
    return packed.getvalue()


WHOLE = tar(
    {
        "holdfast/__init__.py": "",
        "holdfast/front/__init__.py": "",
        "holdfast/front/cli/__init__.py": "",
        "holdfast/front/cli/__main__.py": PROGRAM,
    }
)


def sent(data: bytes, **changes: object) -> io.BytesIO:
    about = {"how": "files", "version": "1.0", "name": "", "size": len(data)}
    header = {**about, "sha256": sha256(data).hexdigest(), **changes}
    return io.BytesIO(json.dumps(header).encode() + b"\n" + data)


def test_a_program_is_installed_and_runs(tmp_path: Path) -> None:
    program = install(sent(WHOLE), tmp_path / "a/b")
    assert program == tmp_path / "a/b/1.0/bin/holdfast"
    assert subprocess.check_output([program, "--version"]) == b"holdfast 1.0\n"
    assert os.listdir(tmp_path / "a/b") == ["1.0"]
    assert (tmp_path / "a/b").stat().st_mode & 0o077 == 0


def test_one_that_was_quicker_is_left_alone(tmp_path: Path) -> None:
    program = install(sent(WHOLE), tmp_path)
    before = program.stat().st_ino
    assert install(sent(WHOLE), tmp_path) == program
    assert program.stat().st_ino == before
    assert os.listdir(tmp_path) == ["1.0"]


@pytest.mark.parametrize(
    ("stream", "why"),
    [
        (io.BytesIO(b""), "broke off before any data arrived"),
        (sent(WHOLE[:100], size=len(WHOLE)), f"broke off after 100 of {len(WHOLE)} bytes"),
        (sent(WHOLE, sha256="0" * 64), "the data was changed on the way"),
    ],
)
def test_what_does_not_arrive_whole_leaves_no_folder(
    tmp_path: Path, stream: io.BytesIO, why: str
) -> None:
    with pytest.raises(Failed, match=why):
        install(stream, tmp_path / "base")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("program", "version", "why"),
    [
        ("import no_such_module\n", "1.0", "it does not run with .*: ModuleNotFoundError: "),
        (PROGRAM, "2.0", "this is `holdfast 1.0`, not `holdfast 2.0`"),
    ],
)
def test_what_does_not_run_is_taken_away(
    tmp_path: Path, program: str, version: str, why: str
) -> None:
    data = tar(
        {
            "holdfast/__init__.py": "",
            "holdfast/front/__init__.py": "",
            "holdfast/front/cli/__main__.py": program,
        }
    )
    with pytest.raises(Failed, match=why):
        install(sent(data, version=version), tmp_path)
    assert os.listdir(tmp_path) == []


def test_what_an_earlier_attempt_left_is_taken_away(tmp_path: Path) -> None:
    old, new = tmp_path / ".new-old", tmp_path / ".new-new"
    for folder in (old, new):
        folder.mkdir()
    os.utime(old, (0, 0))
    install(sent(WHOLE), tmp_path)
    assert sorted(os.listdir(tmp_path)) == [".new-new", "1.0"]


def test_nothing_but_the_standard_library_is_used() -> None:
    imported = set()
    for node in ast.walk(ast.parse(Path(remote_installer.__file__).read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(str(node.module))
    assert "tarfile" in imported
    assert imported <= sys.stdlib_module_names
