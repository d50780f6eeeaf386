"""
Token files of a server: permissions, creation and format.

Each line is a token, or a name and a token separated by white space. Empty lines and lines that
begin with `#` are ignored. Several tokens may share a name, so that a new one can be handed out
before the old one is removed.

Server and client read the same file. A client sends the first token.
"""

import os
import re
import stat
from contextlib import suppress
from errno import ENOSPC
from typing import Final, NamedTuple

from holdfast.base.errors import HoldfastError

__all__ = [
    "DEFAULT_PRINCIPAL",
    "BadTokenFile",
    "NamedToken",
    "NoToken",
    "bad_token_file",
    "check_size",
    "make_token_file",
    "name_fault",
    "new_token",
    "overwrite",
    "parse_tokens",
    "read_private",
    "read_tokens",
    "words_of",
    "write_next_to",
]

DEFAULT_PRINCIPAL: Final = "default"
"""The principal of a token without a name."""

# Principals that need no token; a file must not define them.
_RESERVED: Final = ("local", "anonymous")

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")

# Bytes of a token file; more is a mistake, such as the path of a log.
_LARGEST: Final = 64 << 10


class BadTokenFile(HoldfastError):
    """A file with tokens cannot be used; the text names it and says why."""


class NoToken(BadTokenFile):
    """A file for tokens has none in it."""


class NamedToken(NamedTuple):
    """A token and the name of its principal."""

    name: str
    token: str

    def __repr__(self) -> str:
        return f"NamedToken(name={self.name!r})"


def new_token() -> str:
    """Return a new token that cannot be guessed."""
    return os.urandom(32).hex()


def read_tokens(path: str) -> list[NamedToken]:
    """
    Read the tokens in a file that only its user can read.

    Raises:
        NoToken: There is no token in it.
        BadTokenFile: It is missing or a link, or others can read it.
    """
    return parse_tokens(read_private(path), path)


def read_private(path: str, *, edits: bool = False) -> str:
    """
    Read a file that only its user can read.

    Args:
        path: The file.
        edits: True to edit it. Root may edit the file of another user's server, but a server of
            root must not use such a file: it would let that user in.

    Raises:
        BadTokenFile: It is missing or a link, or others can read it.
    """
    try:
        # O_NONBLOCK, so that a FIFO is refused below instead of waited for.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if os.path.islink(path):
            raise bad_token_file(path, "it is a symbolic link: name the file itself") from error
        raise bad_token_file(path, error.strerror or str(error), error.errno) from error
    try:
        _check_private(path, os.fstat(descriptor), any_owner=edits and os.geteuid() == 0)
        content = os.read(descriptor, _LARGEST + 1)
    except OSError as error:
        raise bad_token_file(path, error.strerror or str(error), error.errno) from error
    finally:
        os.close(descriptor)
    check_size(path, len(content))
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise bad_token_file(path, "it is not valid UTF-8") from None


def check_size(path: str, size: int) -> None:
    """
    Refuse a file that is too large to be one with tokens.

    Raises:
        BadTokenFile: It has too many bytes.
    """
    if size > _LARGEST:
        raise bad_token_file(path, f"it has more than {_LARGEST:,} bytes")


def parse_tokens(text: str, path: str) -> list[NamedToken]:
    """
    Read the lines of such a file.

    Args:
        text: All of it.
        path: Its name, for errors.

    Raises:
        NoToken: There is no token in it.
        BadTokenFile: A line is malformed.
    """
    found: list[NamedToken] = []
    for number, line in enumerate(text.splitlines(), 1):
        words = words_of(line)
        if not words:
            continue
        if len(words) > 2:
            raise bad_token_file(path, f"line {number} is more than a name and a token")
        name = words[0] if len(words) == 2 else DEFAULT_PRINCIPAL
        # The line itself is never quoted: there is a secret in it.
        fault = name_fault(name)
        if fault is not None:
            raise bad_token_file(path, f"the name in line {number} {fault}")
        if not words[-1].isascii() or not words[-1].isprintable():
            raise bad_token_file(path, f"the token in line {number} cannot be sent in a header")
        found.append(NamedToken(name, words[-1]))
    if not found:
        raise NoToken(f"cannot use the token file {path}: there is no token in it", path=path)
    return found


def name_fault(name: str) -> str | None:
    """Return what is wrong with a name of a principal, or None."""
    if not _NAME.fullmatch(name):
        return "is not one of at most 64 letters, digits and `._@-`"
    if name in _RESERVED:
        return f"is one of {', '.join(_RESERVED)}, which need no token"
    return None


def words_of(line: str) -> list[str]:
    """Return the words of a line, none for a comment."""
    words = line.split()
    return [] if words and words[0].startswith("#") else words


def make_token_file(path: str) -> bool:
    """
    Create a file with a new token, unless the path exists.

    Readers never see a partial file; of several concurrent creators one wins.

    Returns:
        True if this call created it.

    Raises:
        BadTokenFile: It cannot be created.
    """
    if os.path.lexists(path):
        return False
    try:
        beside = write_next_to(path, f"{new_token()}\n")
        try:
            # Fails if the path exists: a rename would replace another creator's file.
            os.link(beside, path, follow_symlinks=False)
        finally:
            with suppress(OSError):
                os.unlink(beside)
    except FileExistsError:
        return False
    except OSError as error:
        raise bad_token_file(
            path, f"it cannot be created: {error.strerror or error}", error.errno
        ) from error
    return True


def write_next_to(path: str, text: str) -> str:
    """Write a private file next to another one, and return its path."""
    # In the same directory, since a hard link or a rename cannot cross file systems.
    beside = f"{path}.{os.urandom(8).hex()}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(beside, flags, 0o600), "w") as file:
        try:
            file.write(text)
            file.flush()
        except OSError:
            os.unlink(beside)
            raise
    return beside


def overwrite(file: int, old: bytes, new: bytes) -> None:
    """
    Write a new content over the old one, in the same file, and flush it to the disk.

    The file is not replaced: the kernel would remove what hides it in a sandbox, and the commands
    that run there could read it.

    Args:
        file: A descriptor that can be written to.
        old: The content, all of it.
        new: The new content.

    Raises:
        OSError: The system refused; the content is the old one.
    """
    # In one call, so that readers never find the end of the old content after the new one.
    padded = new.ljust(len(old), b"\n")
    try:
        if os.pwrite(file, padded, 0) < len(padded):
            raise OSError(ENOSPC, os.strerror(ENOSPC))
        os.ftruncate(file, len(new))
        os.fsync(file)
    except OSError:
        # These bytes have their space on the disk, so this does not fail for lack of space.
        os.pwrite(file, old, 0)
        os.ftruncate(file, len(old))
        raise


def _check_private(path: str, about: os.stat_result, *, any_owner: bool) -> None:
    if not stat.S_ISREG(about.st_mode):
        raise bad_token_file(path, "it is not a regular file")
    # Root's file is fine: root can read everything anyway.
    if about.st_uid not in (0, os.geteuid()) and not any_owner:
        raise bad_token_file(path, f"it belongs to another user (uid {about.st_uid})")
    # Any bit for group or others.
    if about.st_mode & 0o077:
        mode = stat.S_IMODE(about.st_mode)
        raise bad_token_file(path, f"others can read it (mode {mode:04o}); run `chmod 600` on it")


def bad_token_file(path: str, why: str, errno: int | None = None) -> BadTokenFile:
    """Return the error for a file that cannot be used."""
    return BadTokenFile(f"cannot use the token file {path}: {why}", errno=errno, path=path)
