"""
Plans the changes of a patch without making them.

Every file is read and every chunk is located before the first write. Later parts of a patch see
the changes of earlier ones. Two paths to one file, through a link, count as one file, so that a
file moved onto itself is not lost.
"""

import asyncio
import errno
import posixpath
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from holdfast.agent.patching.match import ChunkNotFound, TooMuchWork, updated_text
from holdfast.agent.patching.parse import AddFile, DeleteFile, Hunk, Patch, UpdateChunk, UpdateFile
from holdfast.agent.patching.patch_errors import InvalidPatch, PatchFailed, PatchMismatch
from holdfast.backends import FileSystem
from holdfast.base.errors import (
    HoldfastError,
    NotFound,
    Refused,
    RemoteError,
)
from holdfast.base.system_text import system_text
from holdfast.wire.protocol.fs import (
    CanonicalizeParams,
    FileMetadata,
    GetMetadataParams,
    ReadFileParams,
)
from holdfast.wire.protocol.paths import PathUri
from holdfast.wire.protocol.sandbox import SandboxContext

__all__ = [
    "LARGEST_FILE",
    "LARGEST_TOTAL",
    "FileChange",
    "PatchPlan",
    "Rules",
    "make_plan",
    "reason_of",
]

LARGEST_FILE = 32 << 20
"""Most bytes of a file to update or remove."""

LARGEST_TOTAL = 256 << 20
"""Most bytes in memory for all files of one patch, before and after."""

# Size above which chunks are located in a thread.
_LONG = 1 << 16

# Bytes that each chunk adds to this size, since it takes a search.
_CHUNK_COST = 100

_MISSING = system_text(errno.ENOENT)

ChangeKind = Literal["add", "update", "delete"]

Rules = Literal["tool", "program"]
"""
Which patches are accepted: those of the tool, or those of the program `apply_patch`.

The tool requires that a patch names each file only once, and that removed files are UTF-8.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileChange:
    """The change of one file named in a patch."""

    kind: ChangeKind
    name: str
    """Path as written in the patch; for a moved file, the new one."""
    path: PathUri
    """File to add, change or remove."""
    move_to: PathUri | None = None
    """New path of a moved file."""
    hunk: Hunk
    """The part of the patch."""
    real: PathUri
    """Real path of the file to write, or of the entry to remove."""
    replaces: bool = False
    """True if another file is replaced: at the path of an added file, or at a move's new path."""
    touches: tuple[PathUri, ...]
    """All paths to write or remove: as written in the patch, and real paths."""
    old: bytes | None = None
    """Content before; None for a new file."""
    new: str | None = None
    """Content afterwards; None for a removed file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedWrite:
    """A file to write."""

    name: str
    """Absolute path for messages."""
    real: PathUri
    """Real path, so that a link that appears later is not followed."""
    data: bytes
    """New content."""
    before: bytes | None
    """Content before; None for a new file."""
    missing_directories: tuple[PathUri, ...] = ()
    """Missing parent directories, outermost first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRemoval:
    """A file or link to remove."""

    name: str
    """Absolute path for messages."""
    real: PathUri
    """Path with its directory resolved; a link itself is not resolved."""
    before: bytes | None
    """Content before; None for a link, which cannot be restored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchPlan:
    """Changes, writes and removals of a patch."""

    changes: tuple[FileChange, ...]
    """One change for each part of the patch, in order."""
    writes: tuple[PlannedWrite, ...]
    removals: tuple[PlannedRemoval, ...]

    @property
    def touched(self) -> tuple[PathUri, ...]:
        """
        Paths to write or remove, without duplicates.

        A path through a link is listed twice: as written in the patch, and as a real path.
        """
        return tuple(dict.fromkeys(path for change in self.changes for path in change.touches))


async def make_plan(
    patch: Patch,
    *,
    files: FileSystem,
    cwd: PathUri,
    sandbox: SandboxContext | None,
    rules: Rules,
) -> PatchPlan:
    """
    Return the plan of a patch for the current files.

    Raises:
        InvalidPatch: The patch names an impossible path, or a file twice against the rules.
        PatchMismatch: The patch does not match the files.
        PatchFailed: A file cannot be written at its path.
    """
    maker = _PlanMaker(files, cwd, sandbox, rules)
    hunks = [(hunk, maker.locate(hunk.path)) for hunk in patch.hunks]
    # Before any file is read: the answer only depends on the patch.
    if rules == "tool":
        _refuse_repeated([path for _, path in hunks])
    for hunk, path in hunks:
        await maker.take(hunk, path)
    return maker.finish()


def _refuse_repeated(paths: Sequence[PathUri]) -> None:
    seen: set[PathUri] = set()
    for path in paths:
        if path in seen:
            raise InvalidPatch(f"multiple operations target {path.native}")
        seen.add(path)


def reason_of(error: Exception) -> str:
    """Return the server's reason for a failed file operation."""
    cause = error.__cause__
    return cause.message if isinstance(cause, RemoteError) else str(error)


@dataclass(slots=True, kw_only=True)
class _DiskPath:
    """The state on disk of a path in the patch."""

    path: PathUri
    real: PathUri
    """Real path of the file, or the one a missing file would have."""
    entry: PathUri
    """Path with its directory resolved; a link itself is not resolved."""
    found: FileMetadata | None
    """Metadata; None for a missing file."""
    missing_directories: tuple[PathUri, ...] = ()
    before: bytes | None = None

    @property
    def is_link(self) -> bool:
        return self.found is not None and self.found.is_symlink


class _NotText(Exception):
    """A file is not UTF-8."""


class _PlanMaker:
    """Reads the files of a patch and collects their new contents."""

    def __init__(
        self, files: FileSystem, cwd: PathUri, sandbox: SandboxContext | None, rules: Rules
    ) -> None:
        self._files = files
        self._cwd = cwd
        self._sandbox = sandbox
        self._rules = rules
        self._disk_paths: dict[PathUri, _DiskPath] = {}
        # New contents by real path; None for removed files.
        self._contents: dict[PathUri, bytes | None] = {}
        self._owners: dict[PathUri, _DiskPath] = {}
        # Removed links by entry.
        self._links: dict[PathUri, _DiskPath] = {}
        self._directories: dict[str, tuple[str, list[str]]] = {}
        self._changes: list[FileChange] = []
        self._total = 0

    def locate(self, name: str) -> PathUri:
        """
        Return the absolute path of a name in the patch.

        Raises:
            PatchMismatch: The name is not possible for a file.
        """
        try:
            name.encode()
        except UnicodeEncodeError:
            raise PatchMismatch(f"the path {name!r} has a lone surrogate") from None
        if "\0" in name:
            raise PatchMismatch(f"'{name}' is invalid on 'linux'")
        return PathUri.from_path(posixpath.join(self._cwd.native, name))

    def finish(self) -> PatchPlan:
        """Return the plan with one write or removal per file."""
        writes: list[PlannedWrite] = []
        removals: list[PlannedRemoval] = []
        for real, data in self._contents.items():
            disk_path = self._owners[real]
            name = disk_path.path.native
            if data is not None:
                writes.append(
                    PlannedWrite(
                        name=name,
                        real=real,
                        data=data,
                        before=disk_path.before,
                        missing_directories=disk_path.missing_directories,
                    )
                )
            elif disk_path.found is not None:
                removals.append(PlannedRemoval(name=name, real=real, before=disk_path.before))
        for entry, disk_path in self._links.items():
            removals.append(PlannedRemoval(name=disk_path.path.native, real=entry, before=None))
        return PatchPlan(
            changes=tuple(self._changes), writes=tuple(writes), removals=tuple(removals)
        )

    # -- the parts of a patch

    async def take(self, hunk: Hunk, path: PathUri) -> None:
        """Add one part of the patch to the plan."""
        match hunk:
            case AddFile():
                old = await self._write(path, hunk.content)
                replaces = old is not None
                self._note("add", hunk, path, old=old, new=hunk.content, replaces=replaces)
            case DeleteFile():
                await self._delete(hunk, path)
            case UpdateFile():
                await self._update(hunk, path)

    async def _delete(self, hunk: DeleteFile, path: PathUri) -> None:
        try:
            source = await self._read(path)
            if self._rules == "tool":
                _decoded(source)
        except (HoldfastError, _NotText) as error:
            # The tool and the program use different texts for the same error.
            text = f"Failed to read {path.native}: {reason_of(error)}"
            if self._rules == "program":
                text = f"Failed to delete file {path.native}"
            raise PatchMismatch(text, path=path.native) from error
        self._plan_removal(self._disk_paths[path])
        self._note("delete", hunk, path, old=source, new=None)

    async def _update(self, hunk: UpdateFile, path: PathUri) -> None:
        try:
            source = await self._read(path)
            text = _decoded(source)
        except (HoldfastError, _NotText) as error:
            raise PatchMismatch(
                f"Failed to read file to update {path.native}: {reason_of(error)}",
                path=path.native,
            ) from error
        new = await self._changed(text, hunk.chunks, path)
        if hunk.move_to is None:
            await self._write(path, new)
            self._note("update", hunk, path, old=source, new=new)
            return
        target = self.locate(hunk.move_to)
        lost = await self._write(target, new)
        disk_path = self._disk_paths[path]
        # A file moved onto itself, perhaps through a link, must not be removed.
        same = disk_path.real == self._disk_paths[target].real
        if disk_path.is_link or not same:
            self._plan_removal(disk_path)
        replaces = lost is not None and not same
        self._note("update", hunk, path, move_to=target, old=source, new=new, replaces=replaces)

    async def _changed(self, old: str, chunks: Sequence[UpdateChunk], path: PathUri) -> str:
        try:
            if len(old) + _CHUNK_COST * len(chunks) < _LONG:
                return updated_text(old, chunks)
            # In a thread, to not block the event loop.
            return await asyncio.to_thread(updated_text, old, chunks)
        except ChunkNotFound as error:
            if error.context is not None:
                text = f"Failed to find context '{error.context}' in {path.native}"
            else:
                wanted = "\n".join(error.lines)
                text = f"Failed to find expected lines in {path.native}:\n{wanted}"
            raise PatchMismatch(text, path=path.native) from None
        except TooMuchWork as error:
            raise PatchMismatch(
                f"Failed to update file {path.native}: {error}", path=path.native
            ) from None

    def _note(
        self,
        kind: ChangeKind,
        hunk: Hunk,
        path: PathUri,
        *,
        old: bytes | None,
        new: str | None,
        move_to: PathUri | None = None,
        replaces: bool = False,
    ) -> None:
        # A removal removes a link itself; a write follows it.
        gone = None if new is not None and move_to is None else self._disk_paths[path].entry
        written = None if new is None else self._disk_paths[move_to or path].real
        touches = (path, gone, move_to, written)
        real = written or gone
        assert real is not None, "a change writes or removes"
        moved = isinstance(hunk, UpdateFile) and hunk.move_to
        self._changes.append(
            FileChange(
                kind=kind,
                name=moved or hunk.path,
                path=path,
                move_to=move_to,
                hunk=hunk,
                real=real,
                replaces=replaces,
                touches=tuple(one for one in touches if one is not None),
                old=old,
                new=new,
            )
        )

    # -- files with the changes planned so far

    async def _read(self, path: PathUri) -> bytes:
        """
        Return the content of a file.

        Raises:
            HoldfastError: It cannot be read, or the patch has removed it.
        """
        disk_path = await self._look(path)
        if disk_path.entry not in self._links:
            if self._rules == "tool" and disk_path.found is None:
                # The tool only checks the disk, not earlier parts of the patch.
                raise NotFound(_MISSING)
            if disk_path.real not in self._contents and disk_path.found is not None:
                await self._load(disk_path)
                # `_load` has set it.
                assert disk_path.before is not None
                return disk_path.before
            content = self._contents.get(disk_path.real)
            if content is not None:
                return content
        raise NotFound(_MISSING)

    async def _write(self, path: PathUri, text: str) -> bytes | None:
        """
        Store the new content of a file and return the previous one.

        Raises:
            PatchFailed: The file cannot be written at that path.
        """
        failure = f"Failed to write file {path.native}"
        try:
            disk_path = await self._look(path)
        # The path is below a file, too long, or in a loop of links.
        except Refused as error:
            raise PatchFailed(failure, path=path.native) from error
        if disk_path.found is not None and not disk_path.found.is_file:
            raise PatchFailed(failure, path=path.native)
        if disk_path.found is None and await self._is_broken_link(disk_path):
            raise PatchFailed(f"{failure}: it is a dangling link", path=path.native)
        # Links are removed last, so the write would precede the removal.
        if disk_path.entry in self._links:
            raise PatchFailed(f"{failure}: the patch removes this link", path=path.native)
        if disk_path.real in self._contents:
            before = self._contents[disk_path.real]
        else:
            if disk_path.found is not None:
                try:
                    await self._load(disk_path)
                except HoldfastError as error:
                    raise PatchFailed(failure, path=path.native) from error
            before = disk_path.before
            self._owners[disk_path.real] = disk_path
        # A patch may contain a lone surrogate, which JSON allows.
        data = text.encode(errors="surrogatepass")
        self._count(len(data))
        self._contents[disk_path.real] = data
        return before

    def _plan_removal(self, disk_path: _DiskPath) -> None:
        if disk_path.is_link:
            self._links[disk_path.entry] = disk_path
            return
        # The first path of a file has the content before the patch.
        self._owners.setdefault(disk_path.real, disk_path)
        self._contents[disk_path.real] = None

    async def _load(self, disk_path: _DiskPath) -> None:
        """Read a file from disk, unless it has been read."""
        if disk_path.before is not None:
            return
        # Callers have checked that the file exists.
        assert disk_path.found is not None
        # Check the metadata before the content takes memory and time on the connection.
        if disk_path.found.is_file and disk_path.found.size > LARGEST_FILE:
            raise PatchMismatch(
                f"it has {disk_path.found.size} bytes, the limit is {LARGEST_FILE}",
                path=disk_path.path.native,
            )
        data = await self._files.read_file(ReadFileParams(disk_path.path, sandbox=self._sandbox))
        self._count(len(data))
        disk_path.before = data

    def _count(self, size: int) -> None:
        self._total += size
        if self._total > LARGEST_TOTAL:
            raise PatchMismatch(
                f"the files of the patch have more than {LARGEST_TOTAL} bytes in total"
            )

    # -- the disk

    async def _look(self, path: PathUri) -> _DiskPath:
        """Return the state of a path; each path is looked up once."""
        disk_path = self._disk_paths.get(path)
        if disk_path is None:
            found = await self._metadata(path)
            directory, name = posixpath.split(path.native)
            if found is None:
                above, missing = await self._nearest(directory)
                real = entry = PathUri.from_path(posixpath.join(above, *missing, name))
                missing_directories = tuple(
                    PathUri.from_path(posixpath.join(above, *missing[: depth + 1]))
                    for depth in range(len(missing))
                )
            else:
                real = await self._files.canonicalize(
                    CanonicalizeParams(path, sandbox=self._sandbox)
                )
                entry, missing_directories = real, ()
                if found.is_symlink:
                    above_it = await self._files.canonicalize(
                        CanonicalizeParams(PathUri.from_path(directory), sandbox=self._sandbox)
                    )
                    entry = PathUri.from_path(posixpath.join(above_it.native, name))
            disk_path = _DiskPath(
                path=path,
                real=real,
                entry=entry,
                found=found,
                missing_directories=missing_directories,
            )
            self._disk_paths[path] = disk_path
        return disk_path

    async def _is_broken_link(self, disk_path: _DiskPath) -> bool:
        # A missing directory cannot contain a link.
        if disk_path.missing_directories:
            return False
        try:
            await self._files.get_metadata(
                GetMetadataParams(disk_path.entry, follow_symlinks=False, sandbox=self._sandbox)
            )
        except Refused:
            return False
        return True

    async def _nearest(self, directory: str) -> tuple[str, list[str]]:
        """Return the nearest existing parent directory and the missing names below it."""
        # Cached, since files of one patch are often in the same new directory.
        found = self._directories.get(directory)
        if found is None:
            found = self._directories[directory] = await self._find_nearest(directory)
        return found

    async def _find_nearest(self, directory: str) -> tuple[str, list[str]]:
        missing: list[str] = []
        while True:
            uri = PathUri.from_path(directory)
            if directory == "/" or await self._metadata(uri) is not None:
                real = await self._files.canonicalize(
                    CanonicalizeParams(uri, sandbox=self._sandbox)
                )
                return real.native, missing[::-1]
            directory, name = posixpath.split(directory)
            missing.append(name)

    async def _metadata(self, path: PathUri) -> FileMetadata | None:
        try:
            return await self._files.get_metadata(GetMetadataParams(path, sandbox=self._sandbox))
        except NotFound:
            return None


def _decoded(data: bytes) -> str:
    """
    Return the text of a file.

    Raises:
        _NotText: The file is not UTF-8.
    """
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        if error.reason == "unexpected end of data":
            text = f"incomplete utf-8 byte sequence from index {error.start}"
        else:
            size = error.end - error.start
            text = f"invalid utf-8 sequence of {size} bytes from index {error.start}"
        raise _NotText(text) from None
