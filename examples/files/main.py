"""Files here and on a server, by the same code: write, read, walk, and wait for one to appear."""

import asyncio
import sys
import tempfile

from holdfast import (
    ExecServerClient,
    FileSystem,
    LocalFileSystem,
    NotFound,
    PathUri,
    WalkOptions,
)
from holdfast.wire.protocol.fs import (
    CreateDirectoryParams,
    FileContent,
    GetMetadataParams,
    OpenParams,
    ReadFileParams,
    WalkParams,
    WatchMissingParams,
    WriteFileParams,
)


async def write_and_read(files: FileSystem, folder: PathUri) -> None:
    await files.create_directory(CreateDirectoryParams(folder.child("notes").child("old")))
    note = folder.child("notes").child("today.txt")
    await files.write_file(WriteFileParams(note, data_base64=FileContent(b"buy apples\n")))
    # A reader sees the one content or the other.
    await files.write_file(WriteFileParams(note, data_base64=FileContent(b"buy pears\n")))
    assert await files.read_file(ReadFileParams(note)) == b"buy pears\n"
    assert (await files.get_metadata(GetMetadataParams(note))).size == len(b"buy pears\n")


async def walk(files: FileSystem, folder: PathUri) -> None:
    options = WalkOptions(
        max_depth=8, max_directories=100, max_entries=1000, follow_directory_symlinks=False
    )
    found = await files.walk(WalkParams(folder, options=options))
    above = len(folder.native) + 1
    listed = [(entry.kind, entry.path.native[above:]) for entry in found.entries]
    print("below the folder:", listed)
    assert listed == [
        ("directory", "notes"),
        ("directory", "notes/old"),
        ("file", "notes/today.txt"),
    ]
    assert not found.truncated


async def wait_for_a_file(files: FileSystem, folder: PathUri) -> None:
    late = folder.child("notes").child("late.txt")
    try:
        await files.read_file(ReadFileParams(late))
    except NotFound as error:
        print(f"as expected: {error}")
    else:
        raise AssertionError("a file that does not exist was read")

    watch = await files.watch_missing(WatchMissingParams(watch_id=0, missing=[late]))
    assert watch is not None  # it can be watched, for it is not there
    async with asyncio.TaskGroup() as tasks:
        appeared = tasks.create_task(watch.changed())
        await files.write_file(WriteFileParams(late, data_base64=FileContent(b"better late\n")))
        await appeared
    print(f"{late.native} is there: {await files.read_file(ReadFileParams(late))!r}")


async def replace_in_blocks(files: FileSystem, folder: PathUri) -> None:
    """Write a file in blocks; until the last moment the old content is there."""
    path = folder.child("notes").child("today.txt")
    handle = await files.open(OpenParams(handle_id="", path=path, mode="replace"))
    await handle.write_block(0, b"buy ")
    await handle.write_block(4, b"plums\n")
    assert await files.read_file(ReadFileParams(path)) == b"buy pears\n"
    await handle.aclose()
    assert await files.read_file(ReadFileParams(path)) == b"buy plums\n"


async def show(files: FileSystem) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = PathUri.from_path(name)
        await write_and_read(files, folder)
        await walk(files, folder)
        await replace_in_blocks(files, folder)
        await wait_for_a_file(files, folder)


async def main() -> None:
    async with asyncio.timeout(20):
        async with LocalFileSystem() as here:
            await show(here)
        # A server on its standard streams, on this machine too: both see the same folder.
        command = [sys.executable, "-m", "holdfast", "serve", "--listen", "stdio"]
        async with await ExecServerClient.connect(command) as client:
            await show(client.files)


asyncio.run(main())
