"""Patches are applied whole or not at all, whatever happens on the way."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from holdfast.agent.patching import (
    EmptyPatch,
    InvalidPatch,
    PatchFailed,
    PatchMismatch,
    apply_patch,
    tool_error_text,
)
from holdfast.agent.patching import match as matching
from holdfast.agent.patching import parse as parsing
from holdfast.agent.patching import plan as planning
from holdfast.base.errors import ConnectionLost, OperationFailed
from holdfast.engine.files.local_files import LocalFileSystem
from holdfast.environments.local_environment import LocalEnvironment
from holdfast.environments.sandbox import SandboxProfile
from holdfast.wire.protocol.fs import (
    CreateDirectoryParams,
    PathParams,
    RemoveParams,
    WriteFileParams,
)


def patch(*lines: str) -> str:
    return "\n".join(["*** Begin Patch", *lines, "*** End Patch"])


THREE = patch(
    *("*** Update File: a", "@@", "-old", "+new"),
    *("*** Add File: deep/er/b", "+new"),
    *("*** Delete File: c",),
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("a", "c"):
        (tmp_path / name).write_text("old\n")
    return tmp_path


class Failing(LocalFileSystem):
    """A file system on which one operation on one file fails."""

    def __init__(self, operation: str, name: str, error: Exception) -> None:
        super().__init__()
        self._fails = (operation, name)
        self._error = error
        self.lost = False

    def _look(self, operation: str, params: PathParams) -> None:
        if self.lost:
            raise ConnectionLost("the line is down")
        if (operation, Path(params.path.native).name) == self._fails:
            self.lost = isinstance(self._error, ConnectionLost)
            raise self._error

    async def write_file(self, params: WriteFileParams) -> None:
        self._look("write", params)
        await super().write_file(params)

    async def remove(self, params: RemoveParams) -> None:
        self._look("remove", params)
        await super().remove(params)

    async def create_directory(self, params: CreateDirectoryParams) -> None:
        self._look("create", params)
        await super().create_directory(params)


def listed(folder: Path) -> dict[str, str | None]:
    return {
        str(path.relative_to(folder)): path.read_text() if path.is_file() else None
        for path in folder.rglob("*")
    }


async def test_all_of_it(folder: Path) -> None:
    result = await apply_patch(THREE, files=LocalFileSystem(), cwd=str(folder))
    assert listed(folder) == {"a": "new\n", "deep": None, "deep/er": None, "deep/er/b": "new\n"}
    assert result.text == "Success. Updated the following files:\nA deep/er/b\nM a\nD c\n"
    first = result.changes[0]
    assert (first.kind, first.name, first.old, first.new) == ("update", "a", b"old\n", "new\n")


@pytest.mark.parametrize(
    ("operation", "name", "text"),
    [
        ("write", "a", "Failed to write file {}/a"),
        ("write", "b", "Failed to write file {}/deep/er/b"),
        ("create", "er", "Failed to create parent directories for {}/deep/er/b"),
        ("remove", "c", "Failed to delete file {}/c"),
    ],
)
async def test_a_failure_puts_everything_back(
    folder: Path, operation: str, name: str, text: str
) -> None:
    before = listed(folder)
    files = Failing(operation, name, OperationFailed("no space left on device"))
    with pytest.raises(PatchFailed) as failure:
        await apply_patch(THREE, files=files, cwd=str(folder))
    assert str(failure.value) == text.format(folder)
    assert failure.value.left == ()
    assert listed(folder) == before


async def test_a_lost_line_names_what_may_have_changed(folder: Path) -> None:
    files = Failing("write", "b", ConnectionLost("the line is down"))
    with pytest.raises(PatchFailed) as failure:
        await apply_patch(THREE, files=files, cwd=str(folder))
    assert failure.value.left == (f"{folder}/deep/er/b", f"{folder}/a")
    assert f"could not be restored: {folder}/deep/er/b, {folder}/a" in str(failure.value)


async def test_mode_survives(folder: Path) -> None:
    (folder / "a").chmod(0o751)
    await apply_patch(
        patch("*** Update File: a", "@@", "-old", "+new"), files=LocalFileSystem(), cwd=str(folder)
    )
    assert (folder / "a").stat().st_mode & 0o777 == 0o751


class Slow(LocalFileSystem):
    """A file system whose first write waits to be let on."""

    def __init__(self) -> None:
        super().__init__()
        self.writing = asyncio.Event()
        self.go_on = asyncio.Event()

    async def write_file(self, params: WriteFileParams) -> None:
        self.writing.set()
        await self.go_on.wait()
        await super().write_file(params)


async def test_a_cancelled_call_writes_all(folder: Path) -> None:
    files = Slow()
    call = asyncio.create_task(apply_patch(THREE, files=files, cwd=str(folder)))
    async with asyncio.timeout(5):
        await files.writing.wait()
    call.cancel()
    await asyncio.sleep(0)
    files.go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert (folder / "a").read_text() == "new\n"
    assert (folder / "deep/er/b").read_text() == "new\n"
    assert not (folder / "c").exists()


# -- links


async def test_a_link_that_is_put_there_meanwhile_is_not_followed(folder: Path) -> None:
    victim = folder / "victim"
    victim.write_text("precious\n")

    class Swapping(LocalFileSystem):
        async def write_file(self, params: WriteFileParams) -> None:
            (folder / "a").unlink()
            (folder / "a").symlink_to(victim)
            await super().write_file(params)

    with pytest.raises(PatchFailed, match="Failed to write file"):
        await apply_patch(
            patch("*** Update File: a", "@@", "-old", "+new"), files=Swapping(), cwd=str(folder)
        )
    assert victim.read_text() == "precious\n"


async def test_two_names_of_one_file(folder: Path) -> None:
    (folder / "l").symlink_to("a")
    (folder / "a").write_text("1\n2\n")
    both = patch(
        *("*** Update File: a", "@@", "-1", "+one"), *("*** Update File: l", "@@", "-2", "+two")
    )
    await apply_patch(both, files=LocalFileSystem(), cwd=str(folder))
    assert (folder / "a").read_text() == "one\ntwo\n"
    assert (folder / "l").is_symlink()


async def test_no_device_is_written() -> None:
    with pytest.raises(PatchFailed, match="Failed to write file /dev/null"):
        await apply_patch(patch("*** Add File: /dev/null", "+x"), files=LocalFileSystem(), cwd="/")


# -- sandboxes


async def test_a_sandbox_holds(folder: Path) -> None:
    inside, outside = folder / "in", folder / "out"
    inside.mkdir()
    outside.mkdir()
    (inside / "link").symlink_to(outside)
    async with LocalEnvironment() as environment:
        environment.cwd = str(inside)
        # Not `workspace-write`, which allows all of /tmp.
        profile = SandboxProfile("read-only", write=[str(inside)])
        sandbox = await environment.sandbox_context(profile)
        for name in ("../out/x", "link/x", f"{outside}/x"):
            text = patch("*** Add File: fine", "+x", f"*** Add File: {name}", "+x")
            with pytest.raises(PatchFailed):
                await apply_patch(
                    text, files=environment.filesystem, cwd=str(inside), sandbox=sandbox
                )
            assert not (inside / "fine").exists()
        assert not list(outside.iterdir())
        await apply_patch(
            patch("*** Add File: fine", "+x"),
            files=environment.filesystem,
            cwd=str(inside),
            sandbox=sandbox,
        )
    assert (inside / "fine").read_text() == "x\n"


# -- bad input


@pytest.fixture
def small_limits() -> Iterator[None]:
    with (
        mock.patch.object(parsing, "LARGEST_PATCH", 400),
        mock.patch.object(parsing, "MOST_PATCH_LINES", 50),
        mock.patch.object(parsing, "MOST_FILES", 3),
        mock.patch.object(planning, "LARGEST_FILE", 100),
        mock.patch.object(planning, "LARGEST_TOTAL", 250),
        mock.patch.object(matching, "MOST_LINES", 20),
        mock.patch.object(matching, "MOST_STEPS", 30),
    ):
        yield


def update(*lines: str) -> str:
    return patch("*** Update File: a", *lines)


@pytest.mark.usefixtures("small_limits")
@pytest.mark.parametrize(
    ("content", "text", "message"),
    [
        ("", "é" * 250, "Invalid patch: it has 500 bytes, the limit is 400"),
        ("", "\n" * 60, "Invalid patch: it has 60 lines, the limit is 50"),
        ("", patch(*["*** Delete File: x"] * 4), "Invalid patch: it names more than 3 files"),
        ("y" * 200, update("@@", "-x"), "it has 200 bytes, the limit is 100"),
        ("y" * 90, patch("*** Update File: a", "@@", "+" + "z" * 90), "more than 250 bytes"),
        ("y\n" * 30, update("@@", "-x", "+y"), "it has more than 20 lines"),
        ("y\n" * 18, update("@@", "-y", "+1", "@@", "-y ", "-z", "+2"), "Failed to find"),
        (
            "y\nz \n" * 9,
            update("@@", "-z", "-y", "-y", "@@", "-z"),
            "it takes too long to find the chunks in it",
        ),
    ],
)
async def test_too_much(folder: Path, content: str, text: str, message: str) -> None:
    (folder / "a").write_text(content)
    with pytest.raises((InvalidPatch, PatchMismatch)) as refusal:
        await apply_patch(text, files=LocalFileSystem(), cwd=str(folder))
    assert message in str(refusal.value)
    assert (folder / "a").read_text() == content


async def test_half_a_character(folder: Path) -> None:
    with pytest.raises(PatchMismatch, match="lone surrogate"):
        await apply_patch(
            patch("*** Add File: \ud800", "+x"), files=LocalFileSystem(), cwd=str(folder)
        )


async def test_a_relative_folder() -> None:
    with pytest.raises(InvalidPatch, match="cwd is 'here', it must be an absolute path"):
        await apply_patch(patch("*** Add File: x", "+x"), files=LocalFileSystem(), cwd="here")


async def test_an_empty_patch(folder: Path) -> None:
    with pytest.raises(EmptyPatch, match="No files were modified"):
        await apply_patch(patch(), files=LocalFileSystem(), cwd=str(folder))


def test_texts_for_a_model() -> None:
    assert tool_error_text(InvalidPatch("what", line=3)) == (
        "apply_patch verification failed: invalid hunk at line 3, what"
    )
    assert tool_error_text(PatchFailed("Failed to write file /x"), seconds=1.26) == (
        "Exit code: 1\nWall time: 1.3 seconds\nOutput:\nFailed to write file /x\n"
    )
