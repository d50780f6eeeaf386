"""
The same sandbox without a server: bubblewrap with the arguments that Holdfast gives it.

They are not written down a second time. Holdfast is asked to start the command, and the execution
is intercepted at the last moment: arguments, environment and every descriptor. Only the numbers of
the descriptors are changed, and messages of the launcher to the server go to `/dev/null`. The
program that Holdfast runs inside before the command is left out: bubblewrap loads the filter and
executes the command itself.
"""

from __future__ import annotations

import os
import platform
import stat
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from bench import bare
from bench.errors import BenchError

__all__ = ["BareSandbox", "bare_sandbox"]

_FIRST_FD = 3

_WITH_DESCRIPTOR = frozenset(
    {"--args", "--seccomp", "--add-seccomp-fd", "--block-fd", "--info-fd", "--json-status-fd"}
    | {"--sync-fd", "--file", "--bind-data", "--ro-bind-data"}
)
"""Options of bubblewrap that take the number of a descriptor."""


_PROTECTED = (".git", ".agents", ".codex", ".aws")
"""Names that no command may create in a writable directory."""


@dataclass(frozen=True, kw_only=True)
class _Execution:
    """The command that Holdfast executes."""

    program: str
    argv: Sequence[str]
    cwd: str
    env: Mapping[str, str]
    contents: Sequence[bytes | None]
    """Content of each descriptor from the first on; `None` for an empty one."""
    mount_points: Sequence[str]
    """Missing mount points, which bubblewrap creates."""


class _Taken(Exception):
    """Raised in place of the start."""

    def __init__(self, execution: _Execution) -> None:
        super().__init__("not started")
        self.execution = execution


@asynccontextmanager
async def _execution(
    sandbox: Mapping[str, object], argv: Sequence[str], cwd: Path, env: Mapping[str, str]
) -> AsyncIterator[_Execution]:
    """Yield the command that Holdfast executes; files that it created for it are removed."""
    # Only imported here: no other code that measures a server imports Holdfast.
    from holdfast.engine.process.executable_lookup import Launch
    from holdfast.engine.sandbox.bubblewrap import sandboxed_child as child
    from holdfast.engine.sandbox.bubblewrap.bubblewrap_enforcer import BubblewrapSandbox
    from holdfast.engine.sandbox.bubblewrap.filter import filter_program
    from holdfast.engine.sandbox.bubblewrap.init_program import INIT_PATH
    from holdfast.engine.sandbox.factory import Sandboxes
    from holdfast.wire.protocol.sandbox import SandboxContext
    from holdfast.wire.rpc.params import decode_params

    def without_init(content: bytes | None) -> bytes | None:
        """Return the arguments with the filter in place of that program."""
        assert content is not None  # the arguments are a file
        words = content.split(b"\0")
        at = words.index(INIT_PATH.encode())
        return b"\0".join([*words[: at - 5], b"--seccomp", words[at - 1], *words[at + 1 :]])

    def take(
        outer: Launch, env: Mapping[str, str], *, pass_fds: Sequence[int], **_: object
    ) -> None:
        arguments, _init, *others = [_content(fd) for fd in pass_fds]
        network = getattr(context.permissions, "network", "enabled")
        loaded = filter_program("restricted" if network == "restricted" else "open", machine)
        contents = [without_init(arguments), loaded, *others]
        raise _Taken(
            _Execution(
                program=outer.program,
                argv=[*outer.argv[:-1], *argv],
                cwd=outer.cwd,
                env=env,
                contents=contents,
                mount_points=[path for path in missing if os.path.isdir(path)],
            )
        )

    machine = platform.machine()
    context = decode_params(sandbox, SandboxContext)
    names = [*(cwd / name for name in _PROTECTED), *(Path("/tmp", name) for name in _PROTECTED)]
    missing = [str(path) for path in names if not path.exists()]
    made = await Sandboxes().get(context, cwd=str(cwd), env=env)
    if not isinstance(made, BubblewrapSandbox):
        raise BenchError(f"no sandbox: {made}")
    try:
        with mock.patch.object(child.SandboxedChild, "on_pipes", take):
            await made.start(Launch(argv[0], list(argv), str(cwd)), env)
        raise BenchError("Holdfast now starts sandboxes in another way")
    except _Taken as taken:
        execution = taken.execution
    finally:
        made.close()
    yield execution


def _content(fd: int) -> bytes | None:
    if fd < 0 or not stat.S_ISREG((found := os.fstat(fd)).st_mode):
        return None
    return os.pread(fd, found.st_size, 0)


class BareSandbox:
    """Starts one command in one sandbox repeatedly."""

    def __init__(self, execution: _Execution, stack: ExitStack) -> None:
        self._execution = execution
        null = os.open(os.devnull, os.O_RDWR)
        stack.callback(os.close, null)
        numbers = {str(_FIRST_FD + at): null for at in range(len(execution.contents))}
        self._rewound: list[int] = []
        for at, content in enumerate(execution.contents):
            if content is not None:
                fd = os.memfd_create("bench")
                stack.callback(os.close, fd)
                self._rewound.append(fd)
                numbers[str(_FIRST_FD + at)] = fd
        self._null = null
        for fd, content in zip(
            self._rewound, (data for data in execution.contents if data is not None), strict=True
        ):
            os.write(fd, _renumbered_bytes(content, numbers))
        self._argv = _renumbered(list(execution.argv), numbers)
        self._argv[0] = execution.program

    def clean(self) -> None:
        """Remove the mount points that bubblewrap created and leaves behind."""
        for path in self._execution.mount_points:
            with suppress(FileNotFoundError):
                os.rmdir(path)

    def start(self) -> None:
        """Start the command with pipes, read both to their end, and wait for it."""
        for fd in self._rewound:
            os.lseek(fd, 0, os.SEEK_SET)
        bare.start_with_pipes(
            self._argv,
            env=self._execution.env,
            cwd=self._execution.cwd,
            pass_fds=(*self._rewound, self._null),
        )


def _renumbered(words: list[str], numbers: Mapping[str, int]) -> list[str]:
    before = ["", *words]
    return [
        str(numbers[word]) if option in _WITH_DESCRIPTOR else word
        for option, word in zip(before, words, strict=False)
    ]


def _renumbered_bytes(content: bytes, numbers: Mapping[str, int]) -> bytes:
    """Do the same for a file of arguments, each of which ends with a NUL; keep other files."""
    if not content.startswith(b"--"):
        return content
    words = _renumbered(os.fsdecode(content).split("\0")[:-1], numbers)
    return b"".join(os.fsencode(word) + b"\0" for word in words)


@asynccontextmanager
async def bare_sandbox(
    sandbox: Mapping[str, object], argv: Sequence[str], cwd: Path, env: Mapping[str, str]
) -> AsyncIterator[BareSandbox]:
    """
    Intercept how Holdfast starts a command in a sandbox; leave nothing behind.

    Raises:
        BenchError: The start cannot be intercepted.
    """
    async with _execution(sandbox, argv, cwd, env) as execution:
        with ExitStack() as stack:
            yield BareSandbox(execution, stack)
