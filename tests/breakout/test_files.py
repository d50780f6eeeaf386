"""The same by file operations, which are not done in a sandbox but must keep to its profile."""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast.base.errors import InvalidRequest, NotFound, OperationFailed
from holdfast.engine.files.local_files import LocalFileSystem
from holdfast.wire.protocol.fs import (
    CopyParams,
    CreateDirectoryParams,
    FileContent,
    OpenParams,
    ReadDirectoryParams,
    ReadFileParams,
    RemoveParams,
    WalkOptions,
    WalkParams,
    WriteFileParams,
)
from holdfast.wire.protocol.paths import PathUri
from holdfast.wire.protocol.sandbox import SandboxContext
from tests.breakout.ground import PROFILES, Prepared

Operation = Callable[[LocalFileSystem, Prepared, SandboxContext | None], Awaitable[object]]


def at(path: Path) -> PathUri:
    return PathUri.from_path(path)


async def write_outside(
    files: LocalFileSystem, ground: Prepared, box: SandboxContext | None
) -> None:
    await files.write_file(
        WriteFileParams(at(ground.path("file")), data_base64=FileContent(b"x"), sandbox=box)
    )


async def write_outside_through_a_link(
    files: LocalFileSystem, ground: Prepared, box: SandboxContext | None
) -> None:
    link = ground.path("work") / "link"
    link.symlink_to(ground.path("file"))
    await files.write_file(WriteFileParams(at(link), data_base64=FileContent(b"x"), sandbox=box))


async def write_outside_in_blocks(
    files: LocalFileSystem, ground: Prepared, box: SandboxContext | None
) -> None:
    handle = await files.open(
        OpenParams(handle_id="", path=at(ground.path("file")), mode="replace", sandbox=box)
    )
    await handle.write_block(0, b"x")
    await handle.aclose()


async def remove_outside(
    files: LocalFileSystem, ground: Prepared, box: SandboxContext | None
) -> None:
    await files.remove(RemoveParams(at(ground.path("outside") / "locked"), sandbox=box))


async def make_a_directory_outside(
    files: LocalFileSystem, ground: Prepared, box: SandboxContext | None
) -> None:
    await files.create_directory(
        CreateDirectoryParams(at(ground.path("outside") / "new/newer"), sandbox=box)
    )


async def copy_to_the_outside(
    files: LocalFileSystem, ground: Prepared, box: SandboxContext | None
) -> None:
    there = at(ground.path("outside") / "copy")
    await files.copy(
        CopyParams(
            source_path=at(ground.path("work") / "sub"),
            destination_path=there,
            recursive=True,
            sandbox=box,
        )
    )


async def write_to_git(
    files: LocalFileSystem, ground: Prepared, box: SandboxContext | None
) -> None:
    await files.write_file(
        WriteFileParams(
            at(ground.path("work") / ".git/config"), data_base64=FileContent(b"x"), sandbox=box
        )
    )


async def make_a_protected_directory(
    files: LocalFileSystem, ground: Prepared, box: SandboxContext | None
) -> None:
    await files.create_directory(
        CreateDirectoryParams(at(ground.path("work") / ".codex/skills"), sandbox=box)
    )


async def remove_the_parent_of_what_is_denied(
    files: LocalFileSystem, ground: Prepared, box: SandboxContext | None
) -> None:
    await files.remove(RemoveParams(at(ground.path("work") / "deep"), sandbox=box))


async def read_what_is_denied(
    files: LocalFileSystem, ground: Prepared, box: SandboxContext | None
) -> None:
    await files.read_file(ReadFileParams(at(ground.path("secret")), sandbox=box))


async def read_what_is_denied_through_a_link(
    files: LocalFileSystem, ground: Prepared, box: SandboxContext | None
) -> None:
    link = ground.path("work") / "link"
    link.symlink_to(ground.path("secret").parent)
    await files.read_file(ReadFileParams(at(link / "key"), sandbox=box))


async def read_what_a_pattern_denies(
    files: LocalFileSystem, ground: Prepared, box: SandboxContext | None
) -> None:
    """A file that came after the start of every sandbox."""
    late = ground.path("work") / "late.env"
    late.write_text("TOKEN=late")
    await files.read_file(ReadFileParams(at(late), sandbox=box))


async def copy_what_is_denied(
    files: LocalFileSystem, ground: Prepared, box: SandboxContext | None
) -> None:
    there = at(ground.path("work") / "copy")
    await files.copy(
        CopyParams(
            source_path=at(ground.path("secret")),
            destination_path=there,
            recursive=False,
            sandbox=box,
        )
    )


async def list_what_is_denied(
    files: LocalFileSystem, ground: Prepared, box: SandboxContext | None
) -> None:
    await files.read_directory(ReadDirectoryParams(at(ground.path("secret").parent), sandbox=box))


OPERATIONS: list[Operation] = [
    write_outside,
    write_outside_through_a_link,
    write_outside_in_blocks,
    remove_outside,
    make_a_directory_outside,
    copy_to_the_outside,
    write_to_git,
    make_a_protected_directory,
    remove_the_parent_of_what_is_denied,
    read_what_is_denied,
    read_what_is_denied_through_a_link,
    read_what_a_pattern_denies,
    copy_what_is_denied,
    list_what_is_denied,
]

EACH = pytest.mark.parametrize(
    "operation", OPERATIONS, ids=[operation.__name__ for operation in OPERATIONS]
)


@contextmanager
def stopped() -> Iterator[None]:
    """By whatever a refusal can be in the protocol."""
    with pytest.raises((InvalidRequest, NotFound, OperationFailed)):
        yield


@EACH
async def test_it_is_done_without_a_sandbox(operation: Operation, ground: Prepared) -> None:
    await operation(LocalFileSystem(), ground, None)


@EACH
async def test_it_is_refused_with_one(operation: Operation, ground: Prepared) -> None:
    before = ground.state()
    with stopped():
        await operation(LocalFileSystem(), ground, PROFILES["guarded"](ground))
    assert ground.state() == before


async def test_a_walk_does_not_show_what_is_denied(ground: Prepared) -> None:
    start, options = (
        at(ground.path("work")),
        WalkOptions(
            max_depth=9, max_directories=99, max_entries=999, follow_directory_symlinks=False
        ),
    )
    freely = await LocalFileSystem().walk(WalkParams(start, options=options))
    kept = await LocalFileSystem().walk(
        WalkParams(start, options=options, sandbox=PROFILES["guarded"](ground))
    )
    secret = PathUri.from_path(ground.path("secret"))
    assert str(secret) in str(freely)
    assert str(secret) not in str(kept)
