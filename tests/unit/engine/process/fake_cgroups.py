"""A tree of cgroups that is made of plain folders, and a kernel that minds its rules."""

import errno
import os
from os import getpid
from pathlib import Path

import pytest

from holdfast.engine.linux import cgroupfs
from holdfast.engine.process.limits import cgroup


class FakeTree:
    """
    Mounted at one folder, with `/proc` at another.

    Kept of the kernel's rules: a cgroup has either processes or controllers for those below
    it, unless it is the first of all; a process is in one of them; none can be removed that
    holds anything.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.top = folder / "cgroup"
        self.proc = folder / "proc"
        self.refused: set[str] = set()
        """What may not be written, by the name of the file."""
        self.admitted: list[int] = []
        """Processes of this machine that were put anywhere; they are only noted."""
        (self.proc / "self").mkdir(parents=True)
        self.mount()
        self._rmdir, self._mkdir = os.rmdir, os.mkdir
        (self.proc / str(getpid())).mkdir()
        self._make(self.top, "memory pids")
        (self.top / "cgroup.type").unlink()
        monkeypatch.setattr(os, "mkdir", self._fake_mkdir)
        monkeypatch.setattr(os, "rmdir", self._fake_rmdir)
        for module in (cgroupfs, cgroup):
            monkeypatch.setattr(module, "write", self._write)

    # -- for tests

    def mount(self, *, root: str = "/", kind: str = "cgroup2") -> None:
        """Say what is mounted."""
        escaped = str(self.top).replace(" ", "\\040")
        lines = [
            "22 1 0:20 / / rw - ext4 /dev/root rw",
            f"31 22 0:28 {root} {escaped} rw,nosuid shared:4 - {kind} {kind} rw",
        ]
        (self.proc / "self" / "mountinfo").write_text("\n".join(lines))

    def add(self, path: str, controllers: str = "memory pids") -> Path:
        """A cgroup, and those above it."""
        folder = self.top / path
        if not folder.parent.exists():
            self.add(str(Path(path).parent), controllers)
        self._make(folder, controllers)
        return folder

    def be_in(self, path: str) -> Path:
        """Put this process there."""
        (self.proc / "self" / "cgroup").write_text(f"3:cpu:/old\n0::/{path}\n")
        self.enter(path, getpid())
        return self.top / path

    def enter(self, path: str, pid: int, *, parent: int = 1, name: str = "program") -> None:
        """Put a process there."""
        folder = self.proc / str(pid)
        if not folder.exists():
            self._mkdir(folder)
        (folder / "stat").write_text(f"{pid} (a (b) c) S {parent} 1 1 0")
        (folder / "comm").write_text(f"{name}\n")
        self._put(self.top / path, pid)

    def processes(self, path: str) -> list[int]:
        return [int(word) for word in (self.top / path / "cgroup.procs").read_text().split()]

    def below(self, path: str) -> set[str]:
        return {entry.name for entry in (self.top / path).iterdir() if entry.is_dir()}

    def enabled(self, path: str) -> list[str]:
        return (self.top / path / "cgroup.subtree_control").read_text().split()

    # -- the kernel

    def _make(self, folder: Path, controllers: str) -> None:
        self._mkdir(folder)
        texts = {
            "cgroup.procs": "",
            "cgroup.type": "domain",
            "cgroup.controllers": controllers,
            "cgroup.subtree_control": "",
            "memory.max": "max",
            "memory.oom.group": "0",
            "memory.events": "low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\n",
            "pids.max": "max",
            "pids.events": "max 0\n",
        }
        for name, text in texts.items():
            (folder / name).write_text(text)

    def _fake_mkdir(self, path: str | Path, mode: int = 0o777) -> None:
        assert Path(path).is_relative_to(self.top)
        self._make(Path(path), "memory pids")

    def _fake_rmdir(self, path: str | Path) -> None:
        folder = Path(path)
        assert folder.is_relative_to(self.top)
        held = (folder / "cgroup.procs").read_text()
        if held or any(entry.is_dir() for entry in folder.iterdir()):
            raise OSError(errno.EBUSY, "Device or resource busy")
        for file in folder.iterdir():
            file.unlink()
        self._rmdir(folder)

    def _write(self, path: str, text: str) -> None:
        file = Path(path)
        if not file.exists():
            raise FileNotFoundError(errno.ENOENT, "No such file or directory")
        if file.name in self.refused:
            raise PermissionError(errno.EACCES, "Permission denied")
        if file.name == "cgroup.procs":
            if file.parent != self.top and self.enabled(str(file.parent.relative_to(self.top))):
                raise OSError(errno.EBUSY, "Device or resource busy")
            if (self.proc / text).exists():
                self._put(file.parent, int(text))
            else:
                self.admitted.append(int(text))
        elif file.name == "cgroup.subtree_control":
            self._change(file, text)
        else:
            file.write_text(text)

    def _put(self, folder: Path, pid: int) -> None:
        for file in self.top.rglob("cgroup.procs"):
            held = [word for word in file.read_text().split() if word != str(pid)]
            if file.parent == folder:
                held.append(str(pid))
            file.write_text("\n".join(held))

    def _change(self, file: Path, text: str) -> None:
        if "+" in text and (file.parent / "cgroup.procs").read_text() and file.parent != self.top:
            raise OSError(errno.EBUSY, "Device or resource busy")
        enabled = set(file.read_text().split())
        for word in text.split():
            (enabled.add if word[0] == "+" else enabled.discard)(word[1:])
        file.write_text(" ".join(sorted(enabled)))
