"""
Works out what a patch changes, without changing anything.

Every file is read and every chunk is placed before the first write. Later parts of a patch
see what earlier ones do. Two paths that lead to one file by a link are one file here, so a file
that is moved onto itself is not lost.
"""

import asyncio
import posixpath
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from holdfast.backends import FileSystem
from holdfast.errors import (
    HoldfastError,
    NotFound,
    Refused,
    RemoteError,
)
from holdfast.patching.errors import InvalidPatch, PatchFailed, PatchMismatch
from holdfast.patching.match import ChunkNotFound, TooMuchWork, updated_text
from holdfast.patching.parse import AddFile, DeleteFile, Hunk, Patch, UpdateChunk, UpdateFile
from holdfast.protocol.fs import FileMetadata
from holdfast.protocol.paths import PathUri
from holdfast.protocol.sandbox import SandboxContext

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
"""Bytes that a file may have to be updated or removed."""

LARGEST_TOTAL = 256 << 20
"""Bytes of all files together, before and after, that one patch may hold in memory."""

_LONG = 1 << 16
"""Bytes of a file above which its chunks are placed in a thread."""

_CHUNK_COST = 100
"""Bytes that a chunk counts as, to judge how long its search takes."""

_MISSING = "No such file or directory (os error 2)"

ChangeKind = Literal["add", "update", "delete"]

Rules = Literal["tool", "program"]
"""
What is accepted: what Codex's tool accepts, or what its program `apply_patch` accepts.

The tool wants each file named once, and files that are removed to be text.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileChange:
    """One file that a patch names, as the model wrote it and as it is meant."""

    kind: ChangeKind
    name: str
    """The path as the patch has it; of a file that is moved, the new one."""
    path: PathUri
    """The file that is added, changed or removed."""
    move_to: PathUri | None = None
    old: bytes | None = None
    """Its content before; None if it is new."""
    new: str | None = None
    """Its content afterwards; None if it is removed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedWrite:
    """A file that gets a content."""

    name: str
    """Its path as the patch means it, for texts."""
    real: PathUri
    """The same with links resolved: no link that is put there later is followed."""
    data: bytes
    before: bytes | None
    """What it had; None if there was no such file."""
    new_folders: tuple[PathUri, ...] = ()
    """Directories above it that are missing, the uppermost first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRemoval:
    """A name that goes away."""

    name: str
    real: PathUri
    """The name itself in its directory, whose links are resolved."""
    before: bytes | None
    """What it had; None for a link, which cannot be put back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchPlan:
    """All that a patch does."""

    changes: tuple[FileChange, ...]
    """One for each part of the patch, in its order."""
    writes: tuple[PlannedWrite, ...]
    removals: tuple[PlannedRemoval, ...]

    @property
    def touched(self) -> tuple[PathUri, ...]:
        """
        The paths that are written or removed, each once.

        A path that leads elsewhere by a link is there twice: as it is named, and as it is.
        """
        named = (path for change in self.changes for path in (change.path, change.move_to) if path)
        written = (one.real for one in self.writes)
        removed = (one.real for one in self.removals)
        return tuple(dict.fromkeys((*named, *written, *removed)))


async def make_plan(
    patch: Patch,
    *,
    files: FileSystem,
    cwd: PathUri,
    sandbox: SandboxContext | None,
    rules: Rules,
) -> PatchPlan:
    """
    Return what a patch does to the files as they are.

    Raises:
        InvalidPatch: It names a path that cannot be, or one file twice if that is not accepted.
        PatchMismatch: It does not fit the files.
        PatchFailed: A file cannot be written where it is to be.
    """
    maker = _PlanMaker(files, cwd, sandbox, rules)
    hunks = [(hunk, maker.locate(hunk.path)) for hunk in patch.hunks]
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
    """Return why an operation on a file failed, as the side of the file says it."""
    cause = error.__cause__
    return cause.message if isinstance(cause, RemoteError) else str(error)


@dataclass(slots=True, kw_only=True)
class _Spot:
    """A path of the patch as it was found on disk."""

    path: PathUri
    real: PathUri
    """The file behind it; of a missing one, where it would be."""
    entry: PathUri
    """The name itself in its directory, whose links are resolved."""
    found: FileMetadata | None
    new_folders: tuple[PathUri, ...] = ()
    before: bytes | None = None

    @property
    def is_link(self) -> bool:
        return self.found is not None and self.found.is_symlink


class _NotText(Exception):
    """A file is no UTF-8."""


class _PlanMaker:
    """Looks at files, and keeps what becomes of them."""

    def __init__(
        self, files: FileSystem, cwd: PathUri, sandbox: SandboxContext | None, rules: Rules
    ) -> None:
        self._files = files
        self._cwd = cwd
        self._sandbox = sandbox
        self._rules = rules
        self._spots: dict[PathUri, _Spot] = {}
        # What the patch makes of files, by the path with links resolved; None for removed ones.
        self._contents: dict[PathUri, bytes | None] = {}
        self._owners: dict[PathUri, _Spot] = {}
        self._links: dict[PathUri, _Spot] = {}
        """Links that are removed, by their entry."""
        self._directories: dict[str, tuple[str, list[str]]] = {}
        self._changes: list[FileChange] = []
        self._total = 0

    def locate(self, name: str) -> PathUri:
        """
        Return the path that a name in the patch means.

        Raises:
            PatchMismatch: No file can have that name.
        """
        try:
            name.encode()
        except UnicodeEncodeError:
            raise PatchMismatch(f"the path {name!r} has half a surrogate pair") from None
        if "\0" in name:
            raise PatchMismatch(f"'{name}' is invalid on 'linux'")
        return PathUri.from_path(posixpath.join(self._cwd.native, name))

    def finish(self) -> PatchPlan:
        """Return everything that was noted, with the least that has to be written."""
        writes: list[PlannedWrite] = []
        removals: list[PlannedRemoval] = []
        for real, data in self._contents.items():
            spot = self._owners[real]
            name = spot.path.native
            if data is not None:
                writes.append(
                    PlannedWrite(
                        name=name,
                        real=real,
                        data=data,
                        before=spot.before,
                        new_folders=spot.new_folders,
                    )
                )
            elif spot.found is not None:
                removals.append(PlannedRemoval(name=name, real=real, before=spot.before))
        for entry, spot in self._links.items():
            removals.append(PlannedRemoval(name=spot.path.native, real=entry, before=None))
        return PatchPlan(
            changes=tuple(self._changes), writes=tuple(writes), removals=tuple(removals)
        )

    # -- the parts of a patch

    async def take(self, hunk: Hunk, path: PathUri) -> None:
        """Note what one part of the patch does."""
        match hunk:
            case AddFile():
                old = await self._write(path, hunk.content)
                self._note("add", hunk.path, path, old=old, new=hunk.content)
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
            text = f"Failed to read {path.native}: {reason_of(error)}"
            if self._rules == "program":
                text = f"Failed to delete file {path.native}"
            raise PatchMismatch(text, path=path.native) from error
        self._take_away(self._spots[path])
        self._note("delete", hunk.path, path, old=source, new=None)

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
            self._note("update", hunk.path, path, old=source, new=new)
            return
        target = self.locate(hunk.move_to)
        await self._write(target, new)
        spot = self._spots[path]
        if spot.is_link or spot.real != self._spots[target].real:
            self._take_away(spot)
        self._note("update", hunk.move_to, path, move_to=target, old=source, new=new)

    async def _changed(self, old: str, chunks: Sequence[UpdateChunk], path: PathUri) -> str:
        try:
            if len(old) + _CHUNK_COST * len(chunks) < _LONG:
                return updated_text(old, chunks)
            # Other calls go on meanwhile.
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
        name: str,
        path: PathUri,
        *,
        old: bytes | None,
        new: str | None,
        move_to: PathUri | None = None,
    ) -> None:
        self._changes.append(
            FileChange(kind=kind, name=name, path=path, move_to=move_to, old=old, new=new)
        )

    # -- files, as the patch has left them so far

    async def _read(self, path: PathUri) -> bytes:
        """
        Return the content of a file.

        Raises:
            HoldfastError: It cannot be read, or the patch has removed it.
        """
        spot = await self._look(path)
        if spot.entry not in self._links:
            if self._rules == "tool" and spot.found is None:
                # The tool checks against the disk alone.
                raise NotFound(_MISSING)
            if spot.real not in self._contents and spot.found is not None:
                await self._load(spot)
                assert spot.before is not None  # just read
                return spot.before
            content = self._contents.get(spot.real)
            if content is not None:
                return content
        raise NotFound(_MISSING)

    async def _write(self, path: PathUri, text: str) -> bytes | None:
        """
        Note the new content of a file, and return the one before.

        Raises:
            PatchFailed: There can be no file.
        """
        failure = f"Failed to write file {path.native}"
        try:
            spot = await self._look(path)
        except Refused as error:  # below a file, too long, or a loop of links
            raise PatchFailed(failure, path=path.native) from error
        if spot.found is not None and not spot.found.is_file:
            raise PatchFailed(failure, path=path.native)
        if spot.found is None and await self._is_broken_link(spot):
            raise PatchFailed(f"{failure}: it is a link that leads nowhere", path=path.native)
        if spot.entry in self._links:
            raise PatchFailed(f"{failure}: the patch removes this link", path=path.native)
        if spot.real in self._contents:
            before = self._contents[spot.real]
        else:
            if spot.found is not None:
                try:
                    await self._load(spot)
                except HoldfastError as error:
                    raise PatchFailed(failure, path=path.native) from error
            before = spot.before
            self._owners[spot.real] = spot
        data = text.encode(errors="surrogatepass")
        self._count(len(data))
        self._contents[spot.real] = data
        return before

    def _take_away(self, spot: _Spot) -> None:
        if spot.is_link:
            self._links[spot.entry] = spot
            return
        self._owners.setdefault(spot.real, spot)
        self._contents[spot.real] = None

    async def _load(self, spot: _Spot) -> None:
        """Read a file that is on disk, once."""
        if spot.before is not None:
            return
        assert spot.found is not None  # the caller has looked
        if spot.found.is_file and spot.found.size > LARGEST_FILE:
            raise PatchMismatch(
                f"it has {spot.found.size} bytes, the most are {LARGEST_FILE}",
                path=spot.path.native,
            )
        data = await self._files.read_file(spot.path, sandbox=self._sandbox)
        self._count(len(data))
        spot.before = data

    def _count(self, size: int) -> None:
        self._total += size
        if self._total > LARGEST_TOTAL:
            raise PatchMismatch(
                f"the files of the patch have more than {LARGEST_TOTAL} bytes together"
            )

    # -- the disk

    async def _look(self, path: PathUri) -> _Spot:
        """Return what is at a path, which is looked at once."""
        spot = self._spots.get(path)
        if spot is None:
            found = await self._metadata(path)
            folder, name = posixpath.split(path.native)
            if found is None:
                above, missing = await self._nearest(folder)
                real = entry = PathUri.from_path(posixpath.join(above, *missing, name))
                new_folders = tuple(
                    PathUri.from_path(posixpath.join(above, *missing[: depth + 1]))
                    for depth in range(len(missing))
                )
            else:
                real = await self._files.canonicalize(path, sandbox=self._sandbox)
                entry, new_folders = real, ()
                if found.is_symlink:
                    above_it = await self._files.canonicalize(
                        PathUri.from_path(folder), sandbox=self._sandbox
                    )
                    entry = PathUri.from_path(posixpath.join(above_it.native, name))
            spot = _Spot(path=path, real=real, entry=entry, found=found, new_folders=new_folders)
            self._spots[path] = spot
        return spot

    async def _is_broken_link(self, spot: _Spot) -> bool:
        if spot.new_folders:
            return False
        try:
            await self._files.get_metadata(spot.entry, follow_symlinks=False, sandbox=self._sandbox)
        except Refused:
            return False
        return True

    async def _nearest(self, folder: str) -> tuple[str, list[str]]:
        """Return the nearest directory above that exists, and the names that are missing."""
        found = self._directories.get(folder)
        if found is None:
            found = self._directories[folder] = await self._find_nearest(folder)
        return found

    async def _find_nearest(self, folder: str) -> tuple[str, list[str]]:
        missing: list[str] = []
        while True:
            uri = PathUri.from_path(folder)
            if folder == "/" or await self._metadata(uri) is not None:
                real = await self._files.canonicalize(uri, sandbox=self._sandbox)
                return real.native, missing[::-1]
            folder, name = posixpath.split(folder)
            missing.append(name)

    async def _metadata(self, path: PathUri) -> FileMetadata | None:
        try:
            return await self._files.get_metadata(path, sandbox=self._sandbox)
        except NotFound:
            return None


def _decoded(data: bytes) -> str:
    """
    Return the text of a file.

    Raises:
        _NotText: It is no UTF-8; the text is the one of the original.
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
