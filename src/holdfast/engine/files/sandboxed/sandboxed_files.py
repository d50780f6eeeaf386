"""
File operations with the permissions of a sandbox, in the server's own process [fs.sandbox.*].

No helper process is started. `resolve` resolves each path as the sandbox would show it, and the
operation uses the descriptors of the result. The responses are those that a process inside of the
sandbox would give, with two exceptions. A write to a directory that exists only
in the helper's sandbox, and would be lost, is refused. A recursive removal that cannot finish
does not begin.
"""

import errno
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import msgspec

from holdfast.base.dialect import texts
from holdfast.base.errors import InvalidRequest, OperationFailed
from holdfast.engine.files.atomic_write import OLD, WriteTarget, write_pieces
from holdfast.engine.files.directories import listed
from holdfast.engine.files.handle import OpenFile, not_a_file, read_all, reading, replacing
from holdfast.engine.files.nowait import metadata_of
from holdfast.engine.files.sandboxed.resolve import (
    KeptMissing,
    ResolvedPath,
    Resolver,
    failure,
    reopen,
)
from holdfast.engine.files.sandboxed.visibility import Sight, View
from holdfast.engine.linux.shared_directories import creates_over
from holdfast.engine.sandbox.policy.policy import Policy
from holdfast.wire.protocol.fs import (
    CanonicalizeParams,
    CreateDirectoryParams,
    DirectoryEntry,
    FileMetadata,
    GetMetadataParams,
    OpenParams,
    ReadDirectoryParams,
    ReadFileParams,
    WriteFileParams,
)

__all__ = ["Confined"]

_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY
_LIST = os.O_RDONLY | os.O_DIRECTORY
_LINK = "path contains a symbolic link"
_NO_ENTRY = "path must name an entry"
# Attempts to make a directory with its parents, in addition to two for each component.
_ROUNDS = 64


class Confined:
    """
    File operations that a policy allows; see `Operations`.

    Paths are absolute and without dots; each operation resolves them again. The methods block.
    """

    def __init__(self, policy: Policy) -> None:
        self._resolver = Resolver(View(policy))

    @property
    def resolver(self) -> Resolver:
        """Resolver of paths in the sandbox."""
        return self._resolver

    # -- reading

    def read_file(self, params: ReadFileParams) -> bytes:
        """Return the content of a regular file; see `handle.read_file`."""
        descriptor = self._open_to_read(params.path.native, params.follow_symlinks is not False)
        try:
            return read_all(descriptor, params)
        finally:
            os.close(descriptor)

    def open(self, params: OpenParams) -> OpenFile:
        """Open a regular file; see `handle.open_file`."""
        path = params.path.native
        if params.mode == "read":
            return reading(self._open_to_read(path, follow_symlinks=True))
        target = self._target(path, follow_symlinks=True)
        # Blocks at offsets are meaningless for a device or a FIFO.
        if target.old >= 0 and not stat.S_ISREG(os.fstat(target.old).st_mode):
            target.close()
            raise not_a_file(path)
        return replacing(target, params.permissions)

    def _open_to_read(self, path: str, follow_symlinks: bool) -> int:
        # The usual case in one system call: a readable path without links.
        descriptor = self._resolver.open_at_once(path, _READ)
        if descriptor >= 0:
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                return descriptor
            os.close(descriptor)
        if not follow_symlinks:
            _check_entry(path)
        with self._resolver.find(
            path, follow=follow_symlinks, links_on_the_way=follow_symlinks
        ) as resolved:
            resolved.present()
            if resolved.is_symlink:
                raise failure(errno.ELOOP)
            if resolved.sight is Sight.DENIED or resolved.sight is Sight.TRAVERSABLE_DENIED:
                raise failure(errno.EACCES)
            if not stat.S_ISREG(resolved.mode):
                raise (not_a_file(path) if follow_symlinks else InvalidRequest(texts.NOT_REGULAR))
            return reopen(resolved.descriptor, _READ)

    def get_metadata(self, params: GetMetadataParams) -> FileMetadata:
        """Return the metadata of a file; for a denied one only its kind."""
        follow = params.follow_symlinks is not False
        with self._resolver.find(
            params.path.native, follow=follow, links_on_the_way=follow
        ) as resolved:
            resolved.present()
            if resolved.is_symlink:
                raise InvalidRequest(_LINK)
            found = metadata_of(resolved.descriptor, "")
            # A sandbox masks a denied file with an empty one, or a directory by an empty tmpfs.
            if resolved.sight is Sight.DENIED:
                return FileMetadata(
                    is_directory=found.is_directory,
                    is_file=not found.is_directory,
                    is_symlink=resolved.is_link,
                    size=0,
                    created_at_ms=0,
                    modified_at_ms=0,
                )
            return msgspec.structs.replace(found, is_symlink=resolved.is_link)

    def canonicalize(self, params: CanonicalizeParams) -> str:
        """Return the real path of an existing file."""
        with self._resolver.find(params.path.native) as resolved:
            return resolved.present().path

    def read_directory(self, params: ReadDirectoryParams) -> list[DirectoryEntry]:
        """Return the entries of a directory; a link to a hidden path is left out."""
        with self._resolver.find(params.path.native) as resolved:
            return listed((name, kind) for name, kind, _ in self.list_folder(resolved))

    def list_folder(self, resolved: ResolvedPath) -> Iterable[tuple[str, str | None, bool]]:
        """
        Yield name, kind (see `directories.kind_of`) and whether it is a link, per entry.

        A link to a hidden path counts as dangling.

        Raises:
            OSError: The path is not a directory, or may not be listed.
        """
        resolved.present()
        if not resolved.is_folder:
            raise failure(errno.ENOTDIR)
        if resolved.sight is Sight.DENIED or resolved.sight is Sight.TRAVERSABLE_DENIED:
            raise failure(errno.EACCES)
        descriptor = reopen(resolved.descriptor, _LIST)
        # Most directories hide nothing, and need no check of each name.
        view = self._resolver.view
        in_part = view.shows_part_of(resolved.path)
        try:
            with os.scandir(descriptor) as entries:
                for entry in entries:
                    path = f"{resolved.path.rstrip('/')}/{entry.name}"
                    if in_part and view.sight(path, patterns=False) is Sight.HIDDEN:
                        continue
                    is_link = entry.is_symlink()
                    kind = self._kind_behind(path) if is_link else _kind_of(entry)
                    yield entry.name, kind, is_link
        finally:
            os.close(descriptor)

    def _kind_behind(self, path: str) -> str | None:
        """Return the kind of a link's target; None for a hidden or missing one."""
        try:
            with self._resolver.find(path) as resolved:
                mode = resolved.present().mode
        except OSError:
            return None
        if stat.S_ISDIR(mode):
            return "directory"
        masked = resolved.sight is Sight.DENIED
        return "file" if masked or stat.S_ISREG(mode) else "other"

    # -- writing

    def write_file(self, params: WriteFileParams, pieces: Iterable[bytes]) -> None:
        """Replace the content of a file; see `atomic_write.write_pieces`."""
        follow_symlinks = params.follow_symlinks is not False
        write_pieces(self._target(params.path.native, follow_symlinks=follow_symlinks), pieces)

    def target(self, path: str) -> WriteTarget:
        """Return a file for writing, if that is allowed; see `atomic_write.find_target`."""
        return self._target(path, follow_symlinks=True)

    def _target(self, path: str, *, follow_symlinks: bool) -> WriteTarget:
        if not follow_symlinks:
            _check_entry(path)
        with self.find_to_write(
            path, follow=follow_symlinks, links_on_the_way=follow_symlinks
        ) as resolved:
            # Each errno is the one that a command in the sandbox would get.
            if not resolved.exists:
                self.check_may_appear(resolved)
                return WriteTarget(os.dup(resolved.folder), resolved.name, -1)
            if resolved.is_symlink:
                raise failure(errno.ELOOP)
            if resolved.is_folder:
                raise failure(errno.EISDIR)
            if resolved.sight is Sight.DENIED:
                # A process inside gets different errors in the two cases.
                raise failure(errno.EROFS if follow_symlinks else errno.EACCES)
            if resolved.sight is not Sight.WRITE:
                raise failure(errno.EROFS)
            if not follow_symlinks and not stat.S_ISREG(resolved.mode):
                raise InvalidRequest(texts.NOT_REGULAR)
            is_device = stat.S_ISCHR(resolved.mode) or stat.S_ISBLK(resolved.mode)
            if is_device and not self._resolver.view.has_device(resolved.path):
                raise failure(errno.EACCES)
            if not creates_over(os.fstat(resolved.descriptor), os.fstat(resolved.folder)):
                raise failure(errno.EACCES)
            old = reopen(resolved.descriptor, OLD)
            # Replacing it requires that a new file may be created in its directory.
            inside = resolved.folder_sight is Sight.WRITE and stat.S_ISREG(resolved.mode)
            return WriteTarget(os.dup(resolved.folder) if inside else -1, resolved.name, old)

    def create_directory(self, params: CreateDirectoryParams) -> None:
        """Make a directory; see `directories.create_directory` and `nofollow`."""
        path, follow_symlinks = params.path.native, params.follow_symlinks is not False
        if params.recursive is not False:
            self.make_folders(path, follow_symlinks=follow_symlinks)
            return
        if not follow_symlinks and path == "/":
            raise OperationFailed(texts.DIRECTORY_EXISTS)
        with self.find_to_write(path, follow=False, links_on_the_way=follow_symlinks) as resolved:
            if resolved.exists:
                raise failure(errno.EEXIST)
            self.check_may_appear(resolved, patterns=False)
            os.mkdir(resolved.name, dir_fd=resolved.folder)

    def make_folders(self, path: str, *, follow_symlinks: bool) -> None:
        """Make a directory and its parents; existing ones are fine."""
        missing = [path]
        # Bounded: another process may keep removing the directories that are made here.
        for _ in range(_ROUNDS + 2 * path.count("/")):
            try:
                is_there = self._make_folder(missing[-1], follow_symlinks)
            except FileNotFoundError:
                missing.append(os.path.dirname(missing[-1]))
                continue
            if is_there:
                missing.pop()
            if not missing:
                return
        raise failure(errno.EBUSY)

    def _make_folder(self, path: str, follow_symlinks: bool) -> bool:
        """Make one directory unless it exists; return False to try again."""
        with self._resolver.find(path, follow=False, links_on_the_way=follow_symlinks) as resolved:
            if resolved.is_folder:
                return True
            if resolved.exists:
                if follow_symlinks and self._kind_behind(path) == "directory":
                    return True
                raise failure(errno.EEXIST if follow_symlinks else errno.ENOTDIR)
            self.check_may_appear(resolved, patterns=False)
            try:
                os.mkdir(resolved.name, dir_fd=resolved.folder)
            except FileExistsError:
                # Another process made it meanwhile, perhaps as something else.
                return False
        return True

    @contextmanager
    def find_to_write(
        self, path: str, *, follow: bool, links_on_the_way: bool = True
    ) -> Iterator[ResolvedPath]:
        """Resolve a path for writing: as `Resolver.find`, with EROFS for a kept-missing one."""
        try:
            with self._resolver.find(
                path, follow=follow, links_on_the_way=links_on_the_way
            ) as resolved:
                yield resolved
        except KeptMissing:
            raise self._resolver.with_reason(failure(errno.EROFS), path) from None

    def check_may_appear(self, resolved: ResolvedPath, *, patterns: bool = True) -> None:
        """
        Check that a missing path may be created.

        Raises:
            OSError: It may not. Also if its directory exists only in a sandbox's tmpfs, where
                the content would be lost.
        """
        sight = self._resolver.view.sight(resolved.path, patterns=patterns)
        if sight is Sight.DENIED:
            raise failure(errno.EACCES)
        if sight is not Sight.WRITE or resolved.folder_sight is not Sight.WRITE:
            raise failure(errno.EROFS)


def _check_entry(path: str) -> None:
    if path == "/":
        raise InvalidRequest(_NO_ENTRY)


def _kind_of(entry: "os.DirEntry[str]") -> str:
    if entry.is_dir(follow_symlinks=False):
        return "directory"
    return "file" if entry.is_file(follow_symlinks=False) else "other"
