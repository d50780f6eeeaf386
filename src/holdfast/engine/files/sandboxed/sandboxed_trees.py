"""
Walks, copies and removes directory trees with the permissions of a sandbox.

Each path is resolved again, so a file that is replaced meanwhile cannot lead out of the sandbox. A
removal works by descriptors of directories that have been checked.
"""

import errno
import os
import stat
from collections.abc import Iterable
from functools import partial

from holdfast.base.dialect import texts
from holdfast.base.errors import InvalidRequest, OperationFailed
from holdfast.engine.files.copy import INTO_ITSELF, NEEDS_RECURSIVE, OTHER_KIND, copy_content
from holdfast.engine.files.directories import remove_tree
from holdfast.engine.files.errno_mapping import about
from holdfast.engine.files.sandboxed.resolve import ResolvedPath, failure, reopen
from holdfast.engine.files.sandboxed.sandboxed_files import Confined
from holdfast.engine.files.sandboxed.visibility import Sight
from holdfast.engine.files.walk import WalkedPath, walk
from holdfast.wire.protocol.fs import CopyParams, RemoveParams, WalkParams, WalkResponse

__all__ = ["SandboxedFiles"]

_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY
_LINK = "path contains a symbolic link"
_NO_ENTRY = "path must name an entry"


class SandboxedFiles(Confined):
    """All file operations that a policy allows."""

    def walk(self, params: WalkParams) -> WalkResponse:
        """Walk a directory; a denied directory is listed but not entered. See `walk.walk`."""
        return walk(params.path, params.options, tree=_SandboxedTree(self))

    def remove(self, params: RemoveParams) -> None:
        """
        Remove a file or a directory; see `directories.remove` and `nofollow.remove`.

        A tree with an entry that must stay is not removed in part, unless it changes meanwhile.
        """
        path, follow_symlinks = params.path.native, params.follow_symlinks is not False
        recursive = params.recursive is not False
        if not follow_symlinks:
            if recursive:
                raise OperationFailed(texts.NO_RECURSIVE_REMOVAL)
            if path == "/":
                raise InvalidRequest(_NO_ENTRY)
        try:
            with self.resolver.find(
                path, follow=False, links_on_the_way=follow_symlinks
            ) as resolved:
                resolved.present()
                if resolved.is_symlink and not follow_symlinks:
                    raise InvalidRequest(_LINK)
                _remove(self, resolved, recursive)
        except FileNotFoundError:
            if params.force is False:
                raise

    def copy(self, params: CopyParams) -> None:
        """Copy a file, a link or a directory within the sandbox; see `copy.copy`."""
        source, destination = params.source_path.native, params.destination_path.native
        # Errors about the destination get its path from the inner blocks.
        with about(source):
            with self.resolver.find(source, follow=False) as resolved:
                resolved.present()
                if not resolved.is_folder:
                    _copy_entry(self, resolved, destination)
                    return
                if not params.recursive:
                    raise InvalidRequest(NEEDS_RECURSIVE)
                # Compare real paths: the destination may lead into the source by a link.
                if _is_within(_real(self, destination), resolved.path):
                    raise InvalidRequest(INTO_ITSELF, path=destination)
            _copy_tree(self, source, destination)


class _SandboxedTree:
    """Tree that a sandbox shows, for a walk."""

    def __init__(self, files: Confined) -> None:
        self._files = files

    def facts(self, path: str) -> WalkedPath:
        with self._files.resolver.find(path) as resolved:
            found = os.fstat(resolved.present().descriptor)
            return WalkedPath(resolved.is_folder, resolved.is_link, (found.st_dev, found.st_ino))

    def entries(self, path: str) -> Iterable[tuple[str, str | None, bool]]:
        with self._files.resolver.find(path) as resolved:
            yield from self._files.list_folder(resolved)

    def check(self, path: str) -> None:
        with self._files.resolver.find(path, follow=False) as resolved:
            resolved.present()


# -- removing


def _remove(files: Confined, resolved: ResolvedPath, recursive: bool) -> None:
    whole = recursive and resolved.is_folder
    if whole and resolved.sight in {Sight.DENIED, Sight.TRAVERSABLE_DENIED}:
        raise failure(errno.EACCES)
    if resolved.folder_sight in {Sight.READ, Sight.TRAVERSABLE_DENIED}:
        raise failure(errno.EROFS)
    if whole and resolved.sight is Sight.READ:
        raise failure(errno.EROFS)
    # In a sandbox the path would be a mount point, which is busy.
    if resolved.folder_sight is not Sight.WRITE:
        raise failure(errno.EBUSY)
    _check_goes(files, resolved.path, resolved.is_folder or resolved.is_symlink)
    if not resolved.is_folder:
        os.unlink(resolved.name, dir_fd=resolved.folder)
    elif not recursive:
        os.rmdir(resolved.name, dir_fd=resolved.folder)
    else:
        _check_tree(files, resolved.path)
        # Checked again at each removal, for entries that have appeared meanwhile.
        remove_tree(
            resolved.name,
            resolved.folder,
            path=resolved.path,
            check=partial(_check_goes, files),
        )


def _check_goes(files: Confined, path: str, is_folder_or_link: bool) -> None:
    if not files.resolver.view.may_go(path, patterns=not is_folder_or_link):
        raise failure(errno.EBUSY)


def _check_tree(files: Confined, path: str) -> None:
    """Raise if an entry of a tree must stay, before anything is removed."""
    pending = [path]
    while pending:
        path = pending.pop()
        with files.resolver.find(path, follow=False) as resolved:
            if not resolved.is_folder:
                continue
            # Only checks what can be listed: hidden entries make the removal fail later.
            for name, kind, is_link in files.list_folder(resolved):
                inner = f"{path}/{name}"
                is_folder = kind == "directory"
                _check_goes(files, inner, is_folder or is_link)
                if is_folder and not is_link:
                    pending.append(inner)


# -- copying


def _copy_entry(files: Confined, resolved: ResolvedPath, destination: str) -> None:
    """Copy a file or a link."""
    if resolved.sight is Sight.DENIED:
        raise failure(errno.EACCES)
    if resolved.is_symlink:
        text = os.readlink("", dir_fd=resolved.descriptor)
        with about(destination), files.find_to_write(destination, follow=False) as target:
            if target.exists:
                raise failure(errno.EEXIST)
            files.check_may_appear(target)
            os.symlink(text, target.name, dir_fd=target.folder)
    elif stat.S_ISREG(resolved.mode):
        descriptor = reopen(resolved.descriptor, _READ)
        with about(destination):
            copy_content(descriptor, lambda: files.target(destination))
    else:
        raise InvalidRequest(OTHER_KIND)


def _copy_tree(files: Confined, source: str, destination: str) -> None:
    pending = [(source, destination)]
    while pending:
        source, destination = pending.pop()
        with files.resolver.find(source, follow=False) as folder:
            entries = list(files.list_folder(folder))
        with about(destination):
            files.make_folders(destination, follow_symlinks=True)
        for name, kind, is_link in entries:
            inner, target = f"{source.rstrip('/')}/{name}", f"{destination.rstrip('/')}/{name}"
            if kind == "directory" and not is_link:
                pending.append((inner, target))
            elif kind == "file" or is_link:
                with files.resolver.find(inner, follow=False) as resolved:
                    if resolved.is_symlink or stat.S_ISREG(resolved.present().mode):
                        _copy_entry(files, resolved, target)


def _real(files: Confined, path: str) -> str:
    """Return the real path of a file, or the one it would have if it were created."""
    rest = ""
    while True:
        try:
            with files.resolver.find(path) as resolved:
                return resolved.path + rest
        except FileNotFoundError:
            path, _, name = path.rpartition("/")
            path, rest = path or "/", f"/{name}{rest}"
        except OSError:
            # The copy will fail with this error when it creates the directory.
            return path + rest


def _is_within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")
