"""What a client carries to a host that has no Holdfast: its own files, or a wheel of itself."""

import base64
import gzip
import hashlib
import io
import re
import tarfile
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Literal

import holdfast
from holdfast._version import DISTRIBUTION, __version__

__all__ = ["Bundle", "pack_files", "pack_wheel"]

_NAME = re.compile(r"[A-Za-z0-9._-]+")
"""The beginning of a requirement."""

_QUICK = 3
"""How hard gzip tries: what is saved beyond that costs more time than it spares."""


@dataclass(frozen=True, slots=True)
class Bundle:
    """Bytes to send, and what a host has to know about them."""

    how: Literal["files", "wheel"]
    data: bytes
    name: str = ""
    """Of the wheel."""

    def header(self) -> dict[str, object]:
        """What goes before them."""
        return {
            "how": self.how,
            "version": __version__,
            "name": self.name,
            "size": len(self.data),
            "sha256": hashlib.sha256(self.data).hexdigest(),
        }


def pack_files() -> Bundle | None:
    """
    Every file that runs here, for a host with the same kind of Python and processor.

    Returns:
        Nothing if it is not known which files belong to a package we need.
    """
    files = dict(_own_files())
    for dependency in _dependencies():
        if dependency.files is None:
            return None  # installed by something that keeps no record
        for path in dependency.files:
            if ".." not in path.parts and "__pycache__" not in path.parts:
                files[path.as_posix()] = Path(str(dependency.locate_file(path)))
    return Bundle("files", _tar(files))


def _tar(files: Mapping[str, Path]) -> bytes:
    packed = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=_QUICK, mtime=0) as squeezed,
        tarfile.open(fileobj=squeezed, mode="w") as archive,
    ):
        for name, path in sorted(files.items()):
            data = path.read_bytes()
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            entry.mode = 0o600
            archive.addfile(entry, io.BytesIO(data))
    return packed.getvalue()


def pack_wheel() -> Bundle:
    """Holdfast alone, for a host whose own pip fetches the rest."""
    name = f"{DISTRIBUTION.replace('-', '_')}-{__version__}"
    folder = f"{name}.dist-info"
    contents = {file: path.read_bytes() for file, path in _own_files()}
    contents[f"{folder}/METADATA"] = _metadata().encode()
    contents[f"{folder}/WHEEL"] = (
        b"Wheel-Version: 1.0\nGenerator: holdfast\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    )
    record = [f"{file},{_record(data)},{len(data)}" for file, data in contents.items()]
    record += [f"{folder}/RECORD,,", ""]
    contents[f"{folder}/RECORD"] = "\n".join(record).encode()
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for file, data in contents.items():
            archive.writestr(zipfile.ZipInfo(file), data, zipfile.ZIP_DEFLATED)
    return Bundle("wheel", packed.getvalue(), f"{name}-py3-none-any.whl")


def _own_files() -> Iterator[tuple[str, Path]]:
    """From where they are, which may be a checkout that is only linked to."""
    assert holdfast.__file__ is not None  # a package of files
    package = Path(holdfast.__file__).parent
    for path in package.rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            yield f"holdfast/{path.relative_to(package).as_posix()}", path


def _dependencies() -> list[Distribution]:
    """What Holdfast needs to run, and what that needs; what is installed here is what is needed."""
    found: dict[str, Distribution] = {}
    waiting = [DISTRIBUTION]
    while waiting:
        for requirement in distribution(waiting.pop()).requires or ():
            name = _NAME.match(requirement)
            # What is wanted for an extra is not wanted to run. Any other condition was
            # looked at by whoever installed us: what it is not true for is not here.
            if name is None or "extra ==" in requirement or name[0].lower() in found:
                continue
            try:
                found[name[0].lower()] = distribution(name[0])
            except PackageNotFoundError:
                continue
            waiting.append(name[0])
    return list(found.values())


def _metadata() -> str:
    text = distribution(DISTRIBUTION).read_text("METADATA")
    assert text is not None  # a distribution has one
    return text


def _record(data: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"sha256={digest}"
