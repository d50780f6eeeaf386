"""Packs Holdfast for installation on a host: the installed files, or a wheel."""

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
from holdfast.base.version import DISTRIBUTION, __version__

__all__ = ["Bundle", "pack_files", "pack_wheel"]

# Name at the start of a requirement.
_NAME = re.compile(r"[A-Za-z0-9._-]+")

# gzip level: higher levels take more time than they save in transfer.
_QUICK = 3


@dataclass(frozen=True, slots=True)
class Bundle:
    """A package to send, with a description for the host."""

    how: Literal["files", "wheel"]
    data: bytes
    name: str = ""
    """File name of the wheel."""

    def header(self) -> dict[str, object]:
        """Return the description that is sent before the data."""
        return {
            "how": self.how,
            "version": __version__,
            "name": self.name,
            "size": len(self.data),
            "sha256": hashlib.sha256(self.data).hexdigest(),
        }


def pack_files() -> Bundle | None:
    """
    Pack all installed files, for a host with the same Python ABI and processor.

    Returns:
        None if a dependency has no record of its files.
    """
    files = dict(_own_files())
    for dependency in _dependencies():
        if dependency.files is None:
            # Its installer wrote no RECORD.
            return None
        for path in dependency.files:
            # Scripts are recorded outside the package; compiled files contain paths of this
            # machine.
            if ".." not in path.parts and "__pycache__" not in path.parts:
                files[path.as_posix()] = Path(str(dependency.locate_file(path)))
    return Bundle("files", _tar(files))


def _tar(files: Mapping[str, Path]) -> bytes:
    # No timestamps, so that the result is reproducible.
    packed = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=_QUICK, mtime=0) as squeezed,
        tarfile.open(fileobj=squeezed, mode="w") as archive,
    ):
        for name, path in sorted(files.items()):
            data = path.read_bytes()
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            # Readable only by the owner, like the files that the host creates with umask 077.
            entry.mode = 0o600
            archive.addfile(entry, io.BytesIO(data))
    return packed.getvalue()


def pack_wheel() -> Bundle:
    """Pack only Holdfast, as a wheel; the host's pip fetches the dependencies."""
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
    """Yield Holdfast's files from where they are, such as a checkout installed as editable."""
    # Set for every package that consists of files.
    assert holdfast.__file__ is not None
    package = Path(holdfast.__file__).parent
    for path in package.rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            yield f"holdfast/{path.relative_to(package).as_posix()}", path


def _dependencies() -> list[Distribution]:
    """Return the installed distributions that Holdfast depends on, directly or indirectly."""
    found: dict[str, Distribution] = {}
    waiting = [DISTRIBUTION]
    while waiting:
        for requirement in distribution(waiting.pop()).requires or ():
            name = _NAME.match(requirement)
            # Extras are not needed. Other markers were evaluated by the installer: a package
            # whose marker is false is not installed here.
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
    # Every installed distribution has METADATA.
    assert text is not None
    return text


def _record(data: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"sha256={digest}"
