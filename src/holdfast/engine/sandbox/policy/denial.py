"""
Guesses from a command's output whether the sandbox made it fail.

The rule is exactly the protocol's [sandbox.denied], so that clients get the same answer for the
same output. The path and the network flag of a denial are our own addition.
"""

import os
import re
import signal
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

import msgspec

from holdfast.events import Denial, DenialKind
from holdfast.wire.protocol.process import OutputChunk, OutputStream

__all__ = ["find_denial"]

_KEYWORDS = {
    b"operation not permitted": DenialKind.OPERATION_NOT_PERMITTED,
    b"permission denied": DenialKind.PERMISSION_DENIED,
    b"read-only file system": DenialKind.READ_ONLY_FILE_SYSTEM,
    b"seccomp": DenialKind.POLICY_DENIED,
    b"sandbox": DenialKind.POLICY_DENIED,
    b"landlock": DenialKind.POLICY_DENIED,
    b"failed to write file": DenialKind.FAILED_TO_WRITE_FILE,
}

# Exit status of a command that a seccomp filter killed.
_KILLED_FOR_A_CALL = 128 + signal.SIGSYS

# Characters of the quoted line; a minified file can be one line of megabytes.
_MAX_SNIPPET = 512

# Paths in quotes, also typographic ones, and absolute or dotted paths without.
_QUOTED = re.compile(r"""['"\u2018`]([^'"\u2019`]+)['"\u2019`]""")
_ABSOLUTE = re.compile(r"(?:^|[\s(=])((?:\.{1,2})?/[^\s:'\"]*)")

# Prefix of a shell's error message: its own name and a line number of its script.
_SHELL = re.compile(r"\S+: (?:line )?\d+: (?:cannot (?:create|open) )?")

# Words of messages about the network, of curl, git, Python and the C library.
_NETWORK_WORDS = re.compile(
    r"\b(?:sockets?|connect|connection|bind|listen|network|resolve|getaddrinfo|dns)\b"
)


_NO_REASONS: Mapping[str, str] = MappingProxyType({})


def find_denial(
    exit_code: int,
    chunks: Iterable[OutputChunk],
    reasons: Mapping[str, str] = _NO_REASONS,
    cwd: str = "/",
) -> Denial | None:
    """
    Return what the sandbox seems to have denied to a process that exited, or None.

    Args:
        exit_code: Exit status as on the wire.
        chunks: Output that the log still holds; an evicted message cannot be found.
        reasons: Reasons why some paths are read-only; see `Policy.own_reasons`.
        cwd: Working directory of the process, for relative paths.
    """
    if exit_code == 0:
        return None
    found = _find(exit_code, list(chunks))
    if found is None or found.path is None:
        return found
    path = os.path.normpath(os.path.join(cwd, found.path))
    for own, reason in reasons.items():
        if f"{path}/".startswith(f"{own}/"):
            return msgspec.structs.replace(found, reason=reason)
    return found


def _find(exit_code: int, kept: list[OutputChunk]) -> Denial | None:
    # Chunks are joined first, since a read may end inside a message. The streams are searched one
    # by one and then together, as two of them may make up one line.
    for streams in (("stdout", "pty"), ("stderr",), None):
        found = _find_keyword(_text(kept, streams))
        if found is not None:
            return found
    if exit_code == _KILLED_FOR_A_CALL:
        return Denial(kind=DenialKind.SYSTEM_CALL)
    return None


def _text(chunks: list[OutputChunk], streams: Sequence[OutputStream] | None) -> bytes:
    return b"".join([c.chunk for c in chunks if streams is None or c.stream in streams])


def _find_keyword(text: bytes) -> Denial | None:
    # The first keyword of the table is used, not the first one in the text.
    lowered = text.lower()
    keyword = next((keyword for keyword in _KEYWORDS if keyword in lowered), None)
    if keyword is None:
        return None
    at = lowered.index(keyword)
    start = lowered.rfind(b"\n", 0, at) + 1
    end = lowered.find(b"\n", at)
    line = text[start : end if end >= 0 else None]
    before = _decode(line[: at - start])
    after = _decode(line[at - start + len(keyword) :])
    # Only the words before the keyword say what was tried.
    network = _NETWORK_WORDS.search(_decode(lowered[start:at])) is not None
    return Denial(
        kind=_KEYWORDS[keyword],
        snippet=_decode(line).strip()[:_MAX_SNIPPET],
        path=None if network else _path(before, after),
        network=network,
    )


def _decode(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _path(before: str, after: str) -> str | None:
    """
    Return the path that a message is about: `cat: /x: …`, `cannot touch '/x': …`, `…: '/x'`.

    The last path before the keyword is used; without one, the first path after it.
    """
    shell = _SHELL.match(before)
    if shell:
        before = before[shell.end() :]
    quoted = _QUOTED.findall(before)
    if quoted:
        return str(quoted[-1])
    # A path at the very beginning of a message is most often that of the program itself.
    plain = [match for match in _ABSOLUTE.finditer(before) if shell or match.start(1) > 0]
    if plain:
        return plain[-1].group(1)
    if shell:
        # A relative name, perhaps after the name of a builtin: `cd: x: …`.
        *_, name, rest = ["", *before.split(": ")]
        return name if name and not rest else None
    quoted = _QUOTED.findall(after) or _ABSOLUTE.findall(after)
    if quoted:
        return str(quoted[0])
    alone = _ABSOLUTE.match(before)
    return alone.group(1) if alone else None
