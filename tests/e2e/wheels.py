"""Wheels of the packages that are installed here, for a pip that has no index."""

import zipfile
from pathlib import Path

from holdfast.environments.ssh.bundle import _dependencies

__all__ = ["write_wheels"]


def write_wheels(folder: Path) -> None:
    """Pack what Holdfast needs into a folder, one wheel for each package."""
    folder.mkdir()
    for package in _dependencies():
        about = (package.read_text("WHEEL") or "").splitlines()
        tags = [line.removeprefix("Tag: ").split("-") for line in about if line.startswith("Tag:")]
        tag = "-".join(".".join(sorted(set(part))) for part in zip(*tags, strict=True))
        name = package.name.replace("-", "_")
        with zipfile.ZipFile(folder / f"{name}-{package.version}-{tag}.whl", "w") as wheel:
            for path in package.files or ():
                if ".." not in path.parts and "__pycache__" not in path.parts:
                    wheel.write(str(package.locate_file(path)), path.as_posix())
