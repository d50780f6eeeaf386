"""A fake `FileSystem` with files in memory, controlled by the test."""

import asyncio
import errno
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

from msgspec import UNSET

from holdfast.base.dialect import texts
from holdfast.base.errors import HoldfastError, InvalidRequest, NotFound, OperationFailed
from holdfast.engine.files.copy import INTO_ITSELF, NEEDS_RECURSIVE, OTHER_KIND
from holdfast.engine.files.directories import listed
from holdfast.engine.files.errno_mapping import about, native_path, too_large
from holdfast.engine.files.handle import (
    MAX_FILE,
    check_read_length,
    check_write_range,
    not_a_file,
)
from holdfast.engine.files.walk import check_limits, walk
from holdfast.engine.files.watch import MAX_MISSING
from holdfast.testing.fake_line import Changes
from holdfast.testing.fake_path import FakePath
from holdfast.testing.file_tree import FileLocation, FileNode, FileTree, os_error
from holdfast.wire.protocol.fs import (
    CanonicalizeParams,
    CopyParams,
    CreateDirectoryParams,
    DirectoryEntry,
    FileMetadata,
    GetMetadataParams,
    OpenParams,
    ReadDirectoryParams,
    ReadFileParams,
    RemoveParams,
    RenameParams,
    WalkParams,
    WalkResponse,
    WatchMissingParams,
    WriteFileParams,
)
from holdfast.wire.protocol.paths import PathUri
from holdfast.wire.protocol.sandbox import DisabledProfile, SandboxContext
from holdfast.wire.protocol.wire_types import I64_MAX
from holdfast.wire.rpc.base64 import content_bytes

__all__ = ["FakeFileHandle", "FakeFileSystem", "FakeWatch", "FileCall", "FileRequest"]

FileCall = Literal[
    "read_file",
    "open",
    "write_file",
    "create_directory",
    "get_metadata",
    "canonicalize",
    "read_directory",
    "walk",
    "remove",
    "copy",
    "rename",
    "watch_missing",
    "read_block",
    "write_block",
    "aclose",
]
"""A method of the seam, or of a file handle, that is recorded and can be refused."""

_LINK = "path contains a symbolic link"
_NO_ENTRY = "path must name an entry"
_NOT_REGULAR = "path is not a regular file"


class FileRequest(NamedTuple):
    """One recorded call with its paths."""

    call: FileCall
    paths: tuple[str, ...]


class _Refusal(NamedTuple):
    """An error for calls with one path, or with any path."""

    call: FileCall
    path: str | None
    error: HoldfastError


class FakeFileSystem:
    """
    Files in memory, with the errors of a real file system.

    Every call is recorded, and a test may refuse or hold it. The test itself accesses files with
    `path`, immediately and unrecorded. Calls with a sandbox that restricts anything are refused.
    """

    def __init__(self, contents: Mapping[str, str | bytes] | None = None) -> None:
        """
        Args:
            contents: Files by absolute path. Missing parent directories are created.
        """
        self.asked: list[FileRequest] = []
        """Every call in order, including refused and held ones."""
        self._tree = FileTree()
        self._changes = Changes()
        self._refusals: list[_Refusal] = []
        # The calls to hold, None for all; and how many of them may still proceed.
        self._held: set[FileCall] | None = set()
        self._let: int = 0
        for path, content in (contents or {}).items():
            file = self.path(path)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content.encode() if isinstance(content, str) else content)

    # -- for the test

    def path(self, path: str) -> FakePath:
        """Return a path for the test itself, with methods as in `pathlib.Path`."""
        return FakePath(self._tree, path)

    def refuse(self, call: FileCall, error: HoldfastError | None, path: str | None = None) -> None:
        """
        Make a call fail with this error from now on.

        Args:
            call: The method.
            error: Raised by each such call; None makes it succeed again.
            path: Refuse only calls whose first path is this one; by default all.
        """
        self._refusals = [it for it in self._refusals if (it.call, it.path) != (call, path)]
        if error is not None:
            self._refusals.append(_Refusal(call, path, error))

    def hold(self, *calls: FileCall) -> None:
        """Make these calls wait for `let`; all calls if none is named."""
        self._held = set(calls) if calls else None
        self._let = 0

    def let(self, count: int | None = None) -> None:
        """Let the next `count` held calls proceed; without a number, all from now on."""
        if count is None:
            self._held = set()
        else:
            self._let += count
        self._changes.notify()

    async def until(self, holds: Callable[[], bool]) -> None:
        """
        Wait until a condition holds. It is checked after each call.

        Raises:
            TimeoutError: It did not hold within 5 s.
        """
        await self._changes.until(holds)

    # -- the seam: content

    async def read_file(self, params: ReadFileParams) -> bytes:
        native = await self.begin("read_file", params.path, sandbox=params.sandbox)
        with about(native):
            content = self._to_read(native, params.follow_symlinks is not False).content
            if params.max_bytes is not UNSET and len(content) > params.max_bytes:
                raise too_large(params.max_bytes)
            return content

    async def open(self, params: OpenParams) -> "FakeFileHandle":
        native = await self.begin("open", params.path, sandbox=params.sandbox)
        with about(native):
            if params.mode == "read":
                # The current content: replacing the file later does not affect this handle.
                content = self._to_read(native, follow=True).content
                return FakeFileHandle(self, self._tree, params.path, content)
            # Through links, including dangling ones: the file is created at their target.
            where = self._tree.locate(native)
            self._tree.check_writable(where.node)
            if where.node is not None and where.node.kind != "file":
                raise not_a_file(native)
            permissions = None if params.permissions is UNSET else params.permissions
            return FakeFileHandle(self, self._tree, params.path, b"", where, permissions)

    def _to_read(self, path: str, follow: bool) -> FileNode:
        """Return a regular file."""
        if follow:
            node = self._tree.get(path)
            if node.kind != "file":
                raise not_a_file(path)
            return node
        node = self._entry(path)
        if node.kind == "link":
            raise os_error(errno.ELOOP)
        if node.kind != "file":
            raise InvalidRequest(_NOT_REGULAR)
        return node

    def _entry(self, path: str) -> FileNode:
        """Return an entry of a directory, on a path without links before it."""
        if path == "/":
            raise InvalidRequest(_NO_ENTRY)
        return self._tree.get(path, "refuse")

    async def write_file(self, params: WriteFileParams) -> None:
        data = content_bytes(params.data_base64)
        native = await self.begin("write_file", params.path, sandbox=params.sandbox)
        with about(native):
            if params.follow_symlinks is not False:
                self._tree.write(self._tree.locate(native), data)
                return
            if native == "/":
                raise InvalidRequest(_NO_ENTRY)
            where = self._tree.locate(native, "refuse")
            if where.node is not None and where.node.kind == "link":
                raise os_error(errno.ELOOP)
            self._tree.check_writable(where.node)
            if where.node is not None and where.node.kind != "file":
                raise InvalidRequest(_NOT_REGULAR)
            self._tree.write(where, data)

    # -- the seam: names

    async def create_directory(self, params: CreateDirectoryParams) -> None:
        native = await self.begin("create_directory", params.path, sandbox=params.sandbox)
        follow = params.follow_symlinks is not False
        with about(native):
            if params.recursive is not False:
                self._make_directories(native, follow)
            elif follow:
                self._tree.make_directory(native)
            elif native == "/":
                raise OperationFailed(texts.DIRECTORY_EXISTS)
            else:
                if self._tree.locate(native, "refuse").node is not None:
                    raise os_error(errno.EEXIST)
                self._tree.make_directory(native)

    def _make_directories(self, path: str, follow: bool) -> None:
        """Create a directory and its parents, unless they exist."""
        names = [name for name in path.split("/") if name]
        for count in range(1, len(names) + 1):
            prefix = "/" + "/".join(names[:count])
            old = self._tree.locate(prefix, "keep last").node
            if old is None:
                self._tree.make_directory(prefix)
            elif not follow and old.kind != "directory":
                raise os_error(errno.ENOTDIR)
            # A file on the way fails the next look-up, with a different error.
            elif self._tree.kind_of(prefix) != "directory" and (
                count == len(names) or old.kind == "link"
            ):
                raise os_error(errno.EEXIST)

    async def get_metadata(self, params: GetMetadataParams) -> FileMetadata:
        native = await self.begin("get_metadata", params.path, sandbox=params.sandbox)
        with about(native):
            if params.follow_symlinks is not False:
                return self._tree.metadata(native)
            if native != "/" and self._entry(native).kind == "link":
                raise InvalidRequest(_LINK)
            return self._tree.metadata(native, "refuse")

    async def canonicalize(self, params: CanonicalizeParams) -> PathUri:
        native = await self.begin("canonicalize", params.path, sandbox=params.sandbox)
        with about(native):
            where = self._tree.locate(native)
            if where.node is None:
                raise os_error(errno.ENOENT)
            return PathUri.from_path(where.path)

    async def read_directory(self, params: ReadDirectoryParams) -> list[DirectoryEntry]:
        native = await self.begin("read_directory", params.path, sandbox=params.sandbox)
        with about(native):
            return listed((name, kind) for name, kind, _ in self._tree.entries(native))

    async def walk(self, params: WalkParams) -> WalkResponse:
        native = await self.begin("walk", params.path, sandbox=params.sandbox)
        # The same code as for a real disk, for the same order and limits.
        check_limits(params.options)
        with about(native):
            return walk(params.path, params.options, tree=self._tree)

    async def remove(self, params: RemoveParams) -> None:
        native = await self.begin("remove", params.path, sandbox=params.sandbox)
        recursive, follow = params.recursive is not False, params.follow_symlinks is not False
        if recursive and not follow:
            raise OperationFailed("recursive no-follow removal is unsupported")
        with about(native):
            try:
                self._remove(native, recursive=recursive, follow=follow)
            except FileNotFoundError:
                if params.force is False:
                    raise

    def _remove(self, path: str, *, recursive: bool, follow: bool) -> None:
        if not follow and self._entry(path).kind == "link":
            raise InvalidRequest(_LINK)
        where = self._tree.locate(path, "keep last" if follow else "refuse")
        if where.node is None:
            raise os_error(errno.ENOENT)
        if where.node.entries and not recursive:
            raise os_error(errno.ENOTEMPTY)
        self._tree.unlink(where)

    async def copy(self, params: CopyParams) -> None:
        paths = params.source_path, params.destination_path
        origin = await self.begin("copy", *paths, sandbox=params.sandbox)
        target = native_path(params.destination_path)
        with about(origin):
            node = self._tree.get(origin, "keep last")
        if node.kind == "directory":
            if not params.recursive:
                raise InvalidRequest(NEEDS_RECURSIVE, path=origin)
            # With links resolved: through them the destination could be inside, too.
            real = self._tree.real_path(origin)
            with about(target):
                inside = f"{self._tree.real_path(target)}/".startswith(f"{real.rstrip('/')}/")
            if inside:
                raise InvalidRequest(INTO_ITSELF, path=target)
        elif node.kind not in ("file", "link"):
            raise InvalidRequest(OTHER_KIND, path=origin)
        with about(target):
            self._copy(node, target)

    def _copy(self, node: FileNode, target: str) -> None:
        """Copy a file, a link, or a directory with its contents; other kinds are skipped."""
        if node.kind == "link":
            self._tree.make_link(target, node.target)
        elif node.kind == "file":
            self._tree.write(self._tree.locate(target), node.content, node.permissions)
        elif node.kind == "directory":
            self._make_directories(target, follow=True)
            for name, inner in list(node.entries.items()):
                self._copy(inner, f"{target.rstrip('/')}/{name}")

    async def rename(self, params: RenameParams) -> None:
        origin = await self.begin("rename", params.source_path, params.destination_path)
        target = native_path(params.destination_path)
        # Separately, so that the error names the path at fault.
        with about(origin):
            self._tree.get(origin, "keep last")
        with about(target):
            moved = self._tree.locate(origin, "keep last")
            self._tree.rename(moved, self._tree.locate(target, "keep last"))

    async def watch_missing(self, params: WatchMissingParams) -> "FakeWatch | None":
        try:
            await self.begin("watch_missing", *params.missing)
            paths = [native_path(path) for path in params.missing]
            existing = None if params.present is None else native_path(params.present)
        except InvalidRequest:
            # As on a real disk: the caller gets None and polls for the files.
            return None
        if not 1 <= len(paths) <= MAX_MISSING or any(map(self._tree.find, paths)):
            return None
        if existing is not None and self._tree.find(existing) is None:
            return None
        return FakeWatch(self._tree, paths, existing)

    # -- internal

    async def begin(
        self, call: FileCall, *paths: PathUri, sandbox: SandboxContext | None = None
    ) -> str:
        """
        Record a call, hold or refuse it if the test asked for that, and return its first path.

        Raises:
            InvalidRequest: The path belongs to another operating system, or a sandbox restricts
                the call.
        """
        # First, as a real file system refuses such a path before anything else.
        natives = tuple(native_path(path) for path in paths)
        self.asked.append(FileRequest(call, natives))
        self._changes.notify()
        if self._is_held(call):
            await self._changes.wait(lambda: not self._is_held(call) or self._let > 0)
            # Counted only while calls are held: `let()` without a number ends that.
            if self._is_held(call):
                self._let -= 1
        first = natives[0] if natives else ""
        # After the wait, so that a test can refuse a call that it holds.
        for refusal in self._refusals:
            if refusal.call == call and refusal.path in (None, first):
                raise refusal.error
        if sandbox is not None and not isinstance(sandbox.permissions, DisabledProfile):
            raise InvalidRequest("a fake file system enforces no sandbox", path=first)
        return first

    def _is_held(self, call: FileCall) -> bool:
        return self._held is None or call in self._held


class FakeFileHandle:
    """An open file of a fake file system."""

    def __init__(
        self,
        files: FakeFileSystem,
        tree: FileTree,
        path: PathUri,
        content: bytes,
        target: FileLocation | None = None,
        permissions: int | None = None,
    ) -> None:
        """
        Args:
            files: Records the calls.
            tree: Has the file.
            path: Its path, for errors.
            content: The content to read; empty for a file to replace.
            target: The file to replace; None to read.
            permissions: Permission bits for a replaced file; unchanged if None.
        """
        self._files = files
        self._tree = tree
        self._path = path
        self._content = bytearray(content)
        self._target = target
        self._permissions = permissions
        self._is_open = True

    async def read_block(self, offset: int, size: int) -> tuple[bytes, bool]:
        check_read_length(size)
        native = await self._begin("read_block")
        with about(native):
            if self._target is not None or offset > I64_MAX:
                # As with a real file, a failed read closes the handle and discards written data.
                self.discard()
                raise os_error(errno.EINVAL if self._target is None else errno.EBADF)
            return bytes(self._content[offset : offset + size]), offset + size >= len(self._content)

    async def write_block(self, offset: int, data: bytes) -> None:
        check_write_range(offset, len(data))
        native = await self._begin("write_block")
        with about(native):
            if self._target is None:
                raise os_error(errno.EBADF)
            if offset + len(data) > MAX_FILE:
                raise os_error(errno.EFBIG)
            # The gap before a block beyond the end is filled with zeros.
            self._content.extend(bytes(max(0, offset - len(self._content))))
            self._content[offset : offset + len(data)] = data

    async def aclose(self) -> None:
        if not self._is_open:
            return
        native = await self._files.begin("aclose", self._path)
        self._is_open = False
        target = self._target
        if target is not None and target.parent is not None:
            # Look the name up again: it may have been removed or created since.
            target = target._replace(node=target.parent.entries.get(target.name))
            with about(native):
                self._tree.write(target, bytes(self._content), self._permissions)

    def discard(self) -> None:
        self._is_open = False

    async def _begin(self, call: FileCall) -> str:
        if not self._is_open:
            raise NotFound("the file handle is closed")
        return await self._files.begin(call, self._path)


class FakeWatch:
    """A watch of a fake file system, which fires once."""

    def __init__(self, tree: FileTree, missing: Sequence[str], present: str | None) -> None:
        self._tree = tree
        self._missing = missing
        self._present = present
        self._before = self._state()
        self._fired = asyncio.Event()
        tree.watch(self._look)

    async def changed(self) -> None:
        """Wait until one of the missing files may have appeared."""
        try:
            await self._fired.wait()
        finally:
            self.cancel()

    def cancel(self) -> None:
        """Stop watching; idempotent."""
        self._tree.unwatch(self._look)

    def _look(self) -> None:
        # Stays set if the file vanishes again: a watch fires once.
        if self._state() != self._before:
            self._fired.set()

    def _state(self) -> object:
        """Return the existing part of each missing path, and the content of the present one."""
        depths = []
        for path in self._missing:
            names = path.split("/")
            prefixes = ["/".join(names[:count]) for count in range(2, len(names) + 1)]
            depths.append(sum(self._tree.find(prefix) is not None for prefix in prefixes))
        node = None if self._present is None else self._tree.find(self._present)
        return depths, None if node is None else (id(node), node.content, node.permissions)
