"""
Finds the program that a rule with `sandbox="none"` permits outside the sandbox.

The name in the rule must refer to a file that commands in the sandbox cannot change, since they
would otherwise decide what runs outside. That file is executed directly, without a shell, so that
startup files, aliases, functions and later changes of `PATH` have no effect.
"""

import os
import posixpath
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from holdfast.agent.approvals.write_access import writable_roots
from holdfast.base.errors import HoldfastError
from holdfast.engine.linux.mounts import MountTable, Place, mount_table
from holdfast.engine.linux.search_path import candidates
from holdfast.engine.sandbox.policy.known_paths import PLATFORM_DIRECTORIES
from holdfast.engine.sandbox.policy.policy import covers
from holdfast.wire.protocol.sandbox import SandboxContext

__all__ = ["RealProgram", "StaysInside", "real_program"]

# Variables that make a program or interpreter load other files, possibly from the workspace.
_LOADING = (
    *("LD_PRELOAD", "LD_LIBRARY_PATH", "LD_AUDIT", "GCONV_PATH", "BASH_ENV", "ENV", "ZDOTDIR"),
    *("PYTHONPATH", "PYTHONHOME", "PYTHONUSERBASE", "PYTHONPYCACHEPREFIX", "PYTHONSTARTUP"),
    *("PERL5LIB", "PERLLIB", "PERL5OPT", "RUBYLIB", "RUBYOPT", "BUNDLE_GEMFILE"),
    *("NODE_PATH", "NODE_OPTIONS", "LUA_INIT", "LUA_PATH", "LUA_CPATH", "DOTNET_STARTUP_HOOKS"),
    *("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "PHPRC", "PHP_INI_SCAN_DIR"),
)

# Bytes that the kernel reads for a `#!` line (BINPRM_BUF_SIZE), and most levels of scripts.
_BEGINNING = 256
_LEVELS = 4


class StaysInside(HoldfastError):
    """A command has to stay in its sandbox; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RealProgram:
    """A program to execute outside the sandbox."""

    argv: tuple[str, ...]
    """The real path of the file, and the arguments."""
    arg0: str | None
    """The name that it receives as its own; None for the path."""
    env: Mapping[str, str]
    """Variables to override."""


def real_program(
    words: Sequence[str],
    *,
    cwd: str,
    variables: Mapping[str, str],
    sandbox: SandboxContext | None,
    listed: Sequence[str] | None = None,
    tty: bool = False,
) -> RealProgram:
    """
    Return what to execute for a command that a rule permits outside its sandbox.

    Blocks while it accesses files.

    Args:
        words: The command.
        cwd: Its working directory.
        variables: Its variables.
        sandbox: The sandbox that it would leave, with all permissions ever added.
        listed: The permitted paths of the program; None for any.
        tty: True if it gets a terminal. Its name is then its path.

    Raises:
        StaysInside: A command in the sandbox could change the program, or it is not found.
    """
    roots = writable_roots(sandbox, tmpdir=variables.get("TMPDIR"))
    if roots is None:
        raise StaysInside("commands in the sandbox can write every file")
    try:
        search = _ProgramSearch(_Writable.of(roots), cwd, variables.get("PATH"))
    except OSError as error:
        raise StaysInside(f"the mounts of this machine cannot be read: {error}") from error
    found = search.find(words[0], search.path)
    real = search.check(found)
    if listed is not None and not {posixpath.normpath(found), real} & set(listed):
        raise StaysInside(f"no host_executable lists {found}")
    name = posixpath.basename(words[0])
    # Programs such as busybox act by their name, which a program on a terminal cannot be given.
    if tty and posixpath.basename(real) != name:
        raise StaysInside(f"on a terminal, `{name}` would be called {real}")
    env = {name: "" for name in _LOADING if variables.get(name)}
    # Programs that it starts by name are found in the same directories.
    env["PATH"] = search.trusted_path
    return RealProgram(argv=(real, *words[1:]), arg0=None if tty else words[0], env=env)


@dataclass(frozen=True, slots=True)
class _Writable:
    """Files that commands in a sandbox can change."""

    roots: tuple[str, ...]
    """Real paths."""
    mounts: MountTable
    places: frozenset[Place]
    """The mounted locations of the roots: a directory may be mounted at several paths."""

    @classmethod
    def of(cls, roots: Sequence[str]) -> "_Writable":
        real = tuple(os.path.realpath(root) for root in roots if root.startswith("/"))
        mounts = mount_table()
        places = frozenset(place for root in real for place in mounts.places_below(root))
        return cls(real, mounts, places)

    def covers(self, path: str) -> bool:
        """Return True if a real path can be changed."""
        if any(covers(root, path) for root in self.roots):
            return True
        return any(
            device == other and covers(root, place)
            for device, place in self.mounts.places(path)
            for other, root in self.places
        )


@dataclass(slots=True)
class _ProgramSearch:
    """Finds programs that commands in a sandbox cannot change."""

    writable: _Writable
    cwd: str
    path: str | None
    """The value of `PATH`."""
    trusted_path: str = field(init=False)
    """`PATH` with real paths only, and without writable directories."""

    def __post_init__(self) -> None:
        folders = ("/bin:/usr/bin" if self.path is None else self.path).split(":")
        # Real paths, since a link in the workspace may change later.
        real = (os.path.realpath(folder) for folder in folders if folder.startswith("/"))
        trusted = (folder for folder in dict.fromkeys(real) if not self.writable.covers(folder))
        # An empty `PATH` would mean the working directory.
        self.trusted_path = ":".join(trusted) or os.devnull

    def find(self, name: str, path: str | None) -> str:
        """
        Return the absolute path of a program, found as by a shell.

        Raises:
            StaysInside: The program does not exist.
        """
        for candidate in (name,) if "/" in name else candidates(name, path):
            found = posixpath.join(self.cwd, candidate)
            if os.path.isfile(found) and os.access(found, os.X_OK):
                return found
        raise StaysInside(f"there is no program `{name}`")

    def check(self, path: str, levels: int = _LEVELS) -> str:
        """
        Return the real path of a program after checking it and its interpreters.

        Raises:
            StaysInside: One of them can be changed by commands in the sandbox.
        """
        try:
            real = os.path.realpath(path, strict=True)
            if self.writable.covers(real):
                raise StaysInside(f"commands in the sandbox can write {real}")
            about = os.stat(real)
            # Checked before opening, since a FIFO would block.
            if not stat.S_ISREG(about.st_mode):
                raise StaysInside(f"{real} is not a file")
            # Another name may be in the workspace, as package managers link files. System programs
            # also have several names, but all in protected directories.
            linked = about.st_nlink > 1 and os.access(real, os.W_OK)
            if linked and not any(covers(folder, real) for folder in PLATFORM_DIRECTORIES):
                raise StaysInside(f"{real} has other names, by which it may be written")
            with open(real, "rb") as file:
                beginning = file.read(_BEGINNING)
        except OSError as error:
            raise StaysInside(f"{path}: {error.strerror}") from error
        if beginning.startswith(b"#!"):
            if not levels:
                raise StaysInside(f"{path} is a script of too many interpreters")
            for interpreter in self._interpreters(real, beginning):
                self.check(interpreter, levels - 1)
        elif not beginning.startswith(b"\x7fELF"):
            raise StaysInside(f"{real} is neither a program nor a script with a `#!` line")
        return real

    def _interpreters(self, script: str, beginning: bytes) -> Iterator[str]:
        """Yield the program that the kernel executes for a script, and the one that `env` runs."""
        said, end, _ = beginning[2:].partition(b"\n")
        line = os.fsdecode(said).strip()
        program, _, rest = line.replace("\t", " ").partition(" ")
        if not end or not program.startswith("/"):
            raise StaysInside(f"{script} has no full path of an interpreter in its first line")
        yield program
        if posixpath.basename(program) != "env":
            return
        words = rest.strip().removeprefix("-S").split()
        if not words or words[0].startswith("-") or "=" in words[0]:
            raise StaysInside(f"{script} leaves its interpreter to `{line}`")
        yield self.find(words[0], self.trusted_path)
