"""
Plans the changes of a patch, without making them.

Every file is read and every chunk is located before the first write. Later parts of a patch see
the changes of earlier ones. Two paths of one file, by a link, count as one file. So a file that
is moved onto itself is not lost.
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
"""Bytes of a file that is updated or removed."""

LARGEST_TOTAL = 256 << 20
"""Bytes of all files of one patch in memory, before and after."""

# Size above which the chunks of a file are searched in a thread.
_LONG = 1 << 16

# Bytes that a chunk counts for this size: each takes a search.
_CHUNK_COST = 100

_MISSING = system_text(errno.ENOENT)

ChangeKind = Literal["add", "update", "delete"]

Rules = Literal["tool", "program"]
"""
Accepted patches: those of the tool, or those of the program `apply_patch`.

The tool requires that each file is named once, and that removed files are UTF-8.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileChange:
    """Change of one file that a patch names."""

    kind: ChangeKind
    name: str
    """Path as written in the patch; of a moved file, the new one."""
    path: PathUri
    """File that is added, changed or removed."""
    move_to: PathUri | None = None
    """New path of a moved file."""
    hunk: Hunk
    """The part of the patch."""
    real: PathUri
    """Real path of the file that is written, or of the entry that is removed."""
    replaces: bool = False
    """True if another file is lost: the one at an added path, or where a file is moved to."""
    touches: tuple[PathUri, ...]
    """All paths that are written or removed: as written in the patch, and real ones."""
    old: bytes | None = None
    """Content before; None for a new file."""
    new: str | None = None
    """Content afterwards; None for a removed file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedWrite:
    """File to write."""

    name: str
    """Absolute path for messages."""
    real: PathUri
    """Real path: a link that appears later is not followed."""
    data: bytes
    """New content."""
    before: bytes | None
    """Content before; None for a new file."""
    new_folders: tuple[PathUri, ...] = ()
    """Missing directories above it, parents first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRemoval:
    """File or link to remove."""

    name: str
    """Absolute path for messages."""
    real: PathUri
    """Path with the real path of its directory; a link itself is not resolved."""
    before: bytes | None
    """Content before; None for a link, which cannot be restored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchPlan:
    """Changes, writes and removals of a patch."""

    changes: tuple[FileChange, ...]
    """One change for each part of the patch, in its order."""
    writes: tuple[PlannedWrite, ...]
    removals: tuple[PlannedRemoval, ...]

    @property
    def touched(self) -> tuple[PathUri, ...]:
        """
        Paths that are written or removed, each once.

        A path with a link is listed twice: as written in the patch, and as a real path.
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
    Return the plan of a patch for the files as they are now.

    Raises:
        InvalidPatch: The patch names an impossible path, or one file twice against the rules.
        PatchMismatch: The patch does not fit the files.
        PatchFailed: A file cannot be written at its path.
    """
    maker = _PlanMaker(files, cwd, sandbox, rules)
    hunks = [(hunk, maker.locate(hunk.path)) for hunk in patch.hunks]
    # Before any file is read: the answer depends on the patch alone.
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
    """Return the reason of a failed file operation, in the words of the server."""
    cause = error.__cause__
    return cause.message if isinstance(cause, RemoteError) else str(error)


@dataclass(slots=True, kw_only=True)
class _Spot:
    """State of a path of the patch on disk."""

    path: PathUri
    real: PathUri
    """Real path of the file, or the one that a missing file would have."""
    entry: PathUri
    """Path with the real path of its directory; a link itself is not resolved."""
    found: FileMetadata | None
    """Metadata; None for a missing file."""
    new_folders: tuple[PathUri, ...] = ()
    before: bytes | None = None

    @property
    def is_link(self) -> bool:
        return self.found is not None and self.found.is_symlink


class _NotText(Exception):
    """A file is not UTF-8."""


class _PlanMaker:
    """Reads the files of a patch, and collects their new contents."""

    def __init__(
        self, files: FileSystem, cwd: PathUri, sandbox: SandboxContext | None, rules: Rules
    ) -> None:
        self._files = files
        self._cwd = cwd
        self._sandbox = sandbox
        self._rules = rules
        self._spots: dict[PathUri, _Spot] = {}
        # New contents by real path; None for removed files.
        self._contents: dict[PathUri, bytes | None] = {}
        self._owners: dict[PathUri, _Spot] = {}
        # Removed links, by their entry.
        self._links: dict[PathUri, _Spot] = {}
        self._directories: dict[str, tuple[str, list[str]]] = {}
        self._changes: list[FileChange] = []
        self._total = 0

    def locate(self, name: str) -> PathUri:
        """
        Return the absolute path of a name in the patch.

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
        """Return the plan, with one write or removal per file."""
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
            # The tool and the program have different texts for the same error.
            text = f"Failed to read {path.native}: {reason_of(error)}"
            if self._rules == "program":
                text = f"Failed to delete file {path.native}"
            raise PatchMismatch(text, path=path.native) from error
        self._take_away(self._spots[path])
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
        spot = self._spots[path]
        # A file that is moved onto itself, perhaps by a link, must not be removed.
        same = spot.real == self._spots[target].real
        if spot.is_link or not same:
            self._take_away(spot)
        replaces = lost is not None and not same
        self._note("update", hunk, path, move_to=target, old=source, new=new, replaces=replaces)

    async def _changed(self, old: str, chunks: Sequence[UpdateChunk], path: PathUri) -> str:
        try:
            if len(old) + _CHUNK_COST * len(chunks) < _LONG:
                return updated_text(old, chunks)
            # In a thread, so that the event loop stays free.
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
        # A removal takes the link away, a write follows it.
        gone = None if new is not None and move_to is None else self._spots[path].entry
        written = None if new is None else self._spots[move_to or path].real
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
                # The tool checks the disk only, not earlier parts of the patch.
                raise NotFound(_MISSING)
            if spot.real not in self._contents and spot.found is not None:
                await self._load(spot)
                # `_load` has set it.
                assert spot.before is not None
                return spot.before
            content = self._contents.get(spot.real)
            if content is not None:
                return content
        raise NotFound(_MISSING)

    async def _write(self, path: PathUri, text: str) -> bytes | None:
        """
        Store the new content of a file, and return the one before.

        Raises:
            PatchFailed: No file can be written at the path.
        """
        failure = f"Failed to write file {path.native}"
        try:
            spot = await self._look(path)
        # The path is below a file, too long, or a loop of links.
        except Refused as error:
            raise PatchFailed(failure, path=path.native) from error
        if spot.found is not None and not spot.found.is_file:
            raise PatchFailed(failure, path=path.native)
        if spot.found is None and await self._is_broken_link(spot):
            raise PatchFailed(f"{failure}: it is a link that leads nowhere", path=path.native)
        # The order of removal and write could not be kept: links are removed last.
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
        # A patch may contain half a surrogate pair, which JSON allows.
        data = text.encode(errors="surrogatepass")
        self._count(len(data))
        self._contents[spot.real] = data
        return before

    def _take_away(self, spot: _Spot) -> None:
        if spot.is_link:
            self._links[spot.entry] = spot
            return
        # The first path of a file knows its content before the patch.
        self._owners.setdefault(spot.real, spot)
        self._contents[spot.real] = None

    async def _load(self, spot: _Spot) -> None:
        """Read a file from disk, unless it has been read."""
        if spot.before is not None:
            return
        # Callers have checked that the file exists.
        assert spot.found is not None
        # By the metadata, before the content takes memory and time on the connection.
        if spot.found.is_file and spot.found.size > LARGEST_FILE:
            raise PatchMismatch(
                f"it has {spot.found.size} bytes, the most are {LARGEST_FILE}",
                path=spot.path.native,
            )
        data = await self._files.read_file(ReadFileParams(spot.path, sandbox=self._sandbox))
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
        """Return the state of a path, which is looked up once."""
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
                real = await self._files.canonicalize(
                    CanonicalizeParams(path, sandbox=self._sandbox)
                )
                entry, new_folders = real, ()
                if found.is_symlink:
                    above_it = await self._files.canonicalize(
                        CanonicalizeParams(PathUri.from_path(folder), sandbox=self._sandbox)
                    )
                    entry = PathUri.from_path(posixpath.join(above_it.native, name))
            spot = _Spot(path=path, real=real, entry=entry, found=found, new_folders=new_folders)
            self._spots[path] = spot
        return spot

    async def _is_broken_link(self, spot: _Spot) -> bool:
        # In a missing directory there can be no link.
        if spot.new_folders:
            return False
        try:
            await self._files.get_metadata(
                GetMetadataParams(spot.entry, follow_symlinks=False, sandbox=self._sandbox)
            )
        except Refused:
            return False
        return True

    async def _nearest(self, folder: str) -> tuple[str, list[str]]:
        """Return the nearest existing directory above, and the missing names below it."""
        # Cached: files of one patch are often in the same new directory.
        found = self._directories.get(folder)
        if found is None:
            found = self._directories[folder] = await self._find_nearest(folder)
        return found

    async def _find_nearest(self, folder: str) -> tuple[str, list[str]]:
        missing: list[str] = []
        while True:
            uri = PathUri.from_path(folder)
            if folder == "/" or await self._metadata(uri) is not None:
                real = await self._files.canonicalize(
                    CanonicalizeParams(uri, sandbox=self._sandbox)
                )
                return real.native, missing[::-1]
            folder, name = posixpath.split(folder)
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
