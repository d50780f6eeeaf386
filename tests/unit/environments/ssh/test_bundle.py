"""Packages that a client carries to a host."""

import io
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

from holdfast.base.version import __version__
from holdfast.environments.ssh import bundle
from holdfast.environments.ssh.bundle import pack_files, pack_wheel


@pytest.mark.slow
def test_the_files_are_all_that_is_needed_to_run(tmp_path: Path) -> None:
    packed = pack_files()
    assert packed is not None
    assert packed.header()["size"] == len(packed.data)
    with tarfile.open(fileobj=io.BytesIO(packed.data)) as archive:
        names = archive.getnames()
        # Python 3.11.4 has filters, and 3.11.2, which some systems ship, has none.
        safely: Any = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        archive.extractall(tmp_path, **safely)
    assert not [name for name in names if name.startswith(("/", "..")) or ".pyc" in name]
    # Without the site's packages: nothing but what was packed can be found.
    program = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r});"
        "from holdfast.front.cli.__main__ import main; sys.exit(main())"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program, "serve", "--listen", "stdio"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=10,
    )
    assert (done.returncode, done.stderr) == (0, b"")


def test_what_an_extra_needs_stays_here() -> None:
    names = {package.name.lower() for package in bundle._dependencies()}
    assert "msgspec" in names
    assert "opentelemetry-sdk" not in names
    assert "pytest" not in names


def test_a_package_without_a_record_cannot_be_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    class Unrecorded:
        files = None

    monkeypatch.setattr(bundle, "_dependencies", lambda: [Unrecorded()])
    assert pack_files() is None


def test_the_wheel_is_one() -> None:
    packed = pack_wheel()
    assert packed.name == f"holdfast_exec-{__version__}-py3-none-any.whl"
    with zipfile.ZipFile(io.BytesIO(packed.data)) as wheel:
        names = wheel.namelist()
        folder = f"holdfast_exec-{__version__}.dist-info"
        assert b"Requires-Dist: msgspec" in wheel.read(f"{folder}/METADATA")
        record = [line.split(",")[0] for line in wheel.read(f"{folder}/RECORD").decode().split()]
    assert sorted(record) == sorted(names)
    assert "holdfast/front/cli/__main__.py" in names
