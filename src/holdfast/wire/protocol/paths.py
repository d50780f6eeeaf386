"""
Paths on the wire: `file:` URIs, and what each means on this host.

The rules (docs/protocol.md#paths) are the WHATWG ones for the `file` scheme, as clients interpret
them. A few checks of the protocol follow. A URI may be well formed and still belong to another
system (`file:///C:/x`), so there are two steps with an error each: `PathUri.parse` reads a string,
`PathUri.native` returns a path of this host.

This module does not access the file system: `..` is resolved in the text alone. Two things are left
out on purpose, because they affect only the wording of a refusal: URIs of other schemes are refused
by their scheme without examining their host, and international host names use Python's own tables.
"""

from __future__ import annotations

import base64
import binascii
import ipaddress
import os
import re
import unicodedata
from functools import lru_cache
from typing import Final
from urllib.parse import unquote_to_bytes

__all__ = ["ForeignPathUri", "InvalidPathUri", "PathUri"]


class InvalidPathUri(ValueError):
    """A text is not a path URI; the message is the one for the wire (-32602)."""


class ForeignPathUri(ValueError):
    """A path URI does not name a path of this host; the message is the one for the wire."""

    def __init__(self, uri: PathUri) -> None:
        super().__init__(_invalid_here(str(uri)))
        self.uri = uri


class PathUri:
    """
    A path in its wire form.

    Instances are immutable, compare by their canonical text and can be keys. `str()` gives that
    text, which is what error messages and replies contain.
    """

    __slots__ = ("_native", "_text")

    def __init__(self) -> None:
        """Use `parse`, `from_path` or `child` instead."""
        raise TypeError("use PathUri.parse or PathUri.from_path")

    @classmethod
    def parse(cls, text: str) -> PathUri:
        """
        Read a URI from the wire.

        Raises:
            InvalidPathUri: The text is not a path URI on any host.
        """
        # Cached: an agent names the same files again and again.
        return _parse_once(text) if len(text) <= _REMEMBERED else _parse(text)

    @classmethod
    def from_path(cls, path: str | bytes | os.PathLike[str]) -> PathUri:
        """
        Return the URI of an absolute native path, resolving `.` and `..` in the text.

        Bytes that are not UTF-8 survive, as returned by `os.fsdecode`. A path whose plain spelling
        would mean something else (`/C:/x`) is wrapped.

        Raises:
            ValueError: The path is not absolute.
        """
        raw = os.fsencode(path)
        return _spell_once(raw) if len(raw) <= _REMEMBERED else _spell(raw)

    @property
    def native(self) -> str:
        """
        The path on this host, absolute and without `.`, `..` or a last slash.

        It can be passed to system calls as it is. One made from a wrapped URI may contain a NUL,
        which those refuse with a `ValueError`.

        Raises:
            ForeignPathUri: The URI has a host, a drive letter or a bad wrapping.
        """
        if self._native is None:
            # Computed on first use, so that a foreign URI can be held and shown. Two threads
            # would compute the same value.
            object.__setattr__(self, "_native", _native(self))
        # Set above.
        assert self._native is not None
        return self._native

    @property
    def shown(self) -> str:
        """The path to show to a person or a model: `native`, or the URI of another machine."""
        try:
            return self.native
        except ForeignPathUri:
            return str(self)

    def child(self, name: str | bytes) -> PathUri:
        """
        Return the URI of an entry of this directory, keeping the spelling of the directory.

        Args:
            name: One component, as returned by `os.listdir`.

        Raises:
            ValueError: It is not the name of an entry.
            ForeignPathUri: The URI is a wrapped one; those have no children.
        """
        raw = os.fsencode(name)
        if raw in {b"", b".", b".."} or b"/" in raw or b"\0" in raw:
            raise ValueError(f"not the name of an entry: {name!r}")
        if self._text.startswith(_WRAPPED):
            raise ForeignPathUri(self)
        return _make(f"{self._text.removesuffix('/')}/{_quote(raw)}", None)

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"PathUri({self._text!r})"

    def __eq__(self, other: object) -> bool:
        return self._text == other._text if isinstance(other, PathUri) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._text)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"PathUri does not change: {name}")

    def __reduce__(self) -> tuple[object, ...]:
        return _make, (self._text, None)

    # Declared for the checkers; `_make` fills them in.
    _text: str
    _native: str | None


def _make(text: str, native: str | None) -> PathUri:
    uri = object.__new__(PathUri)
    object.__setattr__(uri, "_text", text)
    object.__setattr__(uri, "_native", native)
    return uri


def _parse(text: str) -> PathUri:
    if _PLAIN.fullmatch(text):
        # Nearly every URI: canonical already, and the path is the text without its scheme.
        return _make(text, text[len(_EMPTY_HOST) :])
    return _make(_canonical(text), None)


_parse_once = lru_cache(maxsize=1024)(_parse)


def _spell(raw: bytes) -> PathUri:
    if not raw.startswith(b"/"):
        raise ValueError(f"not an absolute path: {os.fsdecode(raw)!r}")
    raw = _resolve_native(raw)
    if _needs_wrapping(raw):
        return _make(_wrap(raw), os.fsdecode(raw))
    return _make(_EMPTY_HOST + _quote(raw), os.fsdecode(raw))


_spell_once = lru_cache(maxsize=1024)(_spell)

# Longest URI to cache, so that a thousand entries stay small.
_REMEMBERED: Final = 512

_EMPTY_HOST: Final = "file://"
# Prefix of the base64url bytes of a path that has no plain spelling.
_WRAPPED: Final = "file:///%00/bad/path/"

# Matches most URIs that `_canonical` would return unchanged.
_PLAIN: Final = re.compile(
    r"file://(?!/[A-Za-z]:(?:/|\Z))"  # a drive letter needs a closer look
    r"(?:/(?!\.{1,2}(?:/|\Z))[\w!$&'()*+,\-.:;=@\[\]^|~]+)+",
    re.ASCII,
)

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*):")
# Space and the C0 controls, which the URL rules cut off at both ends.
_BLANKS: Final = "".join(map(chr, range(0x21)))

_IGNORED: Final = str.maketrans("", "", "\t\n\r")
# Bytes of a native path that are spelled as an escape.
_ENCODED: Final = re.compile(rb"[^!$&'()*+,\-./0-9:;=@A-Z\[\]^_a-z|~]")

# Runs of a URI that are spelled as escapes; a `%` stays what it is.
_ENCODED_KEEPING_ESCAPES: Final = re.compile(r"[^!$%&'()*+,\-./0-9:;=@A-Z\[\]^_a-z|~]+")

_DOT: Final = frozenset({".", "%2e"})
_DOT_DOT: Final = frozenset({"..", ".%2e", "%2e.", "%2e%2e"})
_DRIVE: Final = re.compile(r"[A-Za-z][:|]")
_DRIVE_SEGMENT: Final = re.compile(r"file:///[A-Za-z](?::|%3[Aa])(?:/|\Z)")
_FORBIDDEN_IN_HOST: Final = re.compile(r"[\x00-\x20\x7f#%/:<>?@\[\\\]^|]")
_INVISIBLE: Final = re.compile("[\u00ad\u034f\u180b-\u180f\u200b\u2060\u2064\ufe00-\ufe0f\ufeff]")
_FULL_STOPS: Final = str.maketrans("\u3002\uff0e\uff61", "...")

_BAD_DOMAIN: Final = "invalid URI: invalid international domain name"
_BAD_IPV4: Final = "invalid URI: invalid IPv4 address"
_BAD_IPV6: Final = "invalid URI: invalid IPv6 address"


def _invalid_here(uri: str) -> str:
    # The system is a constant: Holdfast runs on Linux only.
    return f"'{uri}' is invalid on 'linux'"


def _canonical(text: str) -> str:
    """Turn any spelling of a path URI into the one that replies use."""
    text = text.strip(_BLANKS).translate(_IGNORED)
    scheme = _SCHEME.match(text)
    if scheme is None:
        raise InvalidPathUri("invalid URI: relative URL without a base")
    # Schemes are case-insensitive.
    name = scheme[1].lower()
    if name != "file":
        raise InvalidPathUri(f"unsupported path URI scheme `{name}`")
    before_fragment, fragment, _ = text[scheme.end() :].partition("#")
    rest, query, _ = before_fragment.partition("?")
    rest = rest.replace("\\", "/")

    host = ""
    path = rest.removeprefix("/")
    if rest.startswith("//"):
        authority, slash, path = rest[2:].partition("/")
        if _DRIVE.fullmatch(authority):
            # `file://C:/x`: the empty host is missing.
            path = rest[2:]
        else:
            host = _read_host(authority)
            if not host:
                # This slash counts as a segment. So `c|` is not a drive in `file:///c|/x`, but is
                # one in `file:c|/x`.
                path = slash + path
    path, has_drive = _resolve(path)
    if has_drive:
        # A drive is always local.
        host = ""

    # Refused only after the path was resolved: clients rely on the order of the errors.
    if query:
        raise InvalidPathUri("query parameters are not allowed in path URIs")
    if fragment:
        raise InvalidPathUri("fragments are not allowed in path URIs")
    uri = f"{_EMPTY_HOST}{host}{path}"
    if "%00" in path and not _is_wrapped(uri):
        raise InvalidPathUri(_invalid_here(uri))
    if _DRIVE_SEGMENT.match(uri):
        # Drive letters are compared in upper case.
        uri = uri[:8] + uri[8].upper() + uri[9:]
    return uri


def _resolve(path: str) -> tuple[str, bool]:
    """
    Encode a path (without its first slash) and remove the dot segments.

    Returns the path with one slash at its start, and whether it begins with a
    drive letter.
    """
    done: list[str] = []
    has_drive = False
    segments = _ENCODED_KEEPING_ESCAPES.sub(_escape_match, path).split("/")
    last = len(segments) - 1
    for index, segment in enumerate(segments):
        folded = segment.lower() if len(segment) <= len("%2e%2e") else segment
        if folded in _DOT_DOT:
            # `..` never climbs above a drive letter, even one in the middle.
            if done and not _DRIVE.fullmatch(done[-1]):
                done.pop()
        elif folded in _DOT:
            pass
        else:
            if not done and _DRIVE.fullmatch(segment):
                segment = f"{segment[0]}:"
                has_drive = True
            done.append(segment)
            continue
        if index == last:
            # `/a/..` ends in a slash, like a directory.
            done.append("")
    start = 0
    while start < len(done) - 1 and not done[start]:
        # `file:////a`: several leading slashes count as one.
        start += 1
    return "/" + "/".join(done[start:]), has_drive


def _escape_match(run: re.Match[str]) -> str:
    return _escape(run[0].encode("utf-8", "surrogatepass"))


def _escape(raw: bytes) -> str:
    return "".join([f"%{byte:02X}" for byte in raw])


def _quote(raw: bytes) -> str:
    """Spell native bytes; a literal `%` is escaped, too."""
    return _ENCODED.sub(lambda match: _escape(match[0]).encode("ascii"), raw).decode("ascii")


def _read_host(authority: str) -> str:
    """
    Return the canonical host, empty for this host.

    Every other host ends as a foreign path, so this only decides between the two errors and the
    host that the second one shows.
    """
    if not authority:
        return ""
    if authority.startswith("["):
        try:
            if "%" in authority or not authority.endswith("]"):
                raise ValueError
            return f"[{ipaddress.IPv6Address(authority[1:-1])}]"
        except ValueError:
            raise InvalidPathUri(_BAD_IPV6) from None
    try:
        domain = unquote_to_bytes(authority).decode("utf-8")
        host = ".".join(map(_read_label, _fold_domain(domain).split(".")))
    except UnicodeError:
        raise InvalidPathUri(_BAD_DOMAIN) from None
    if _FORBIDDEN_IN_HOST.search(host):
        raise InvalidPathUri(_BAD_DOMAIN)
    if not host:
        raise InvalidPathUri("invalid URI: empty host")
    # `localhost` means this host, by the URL rules for `file`.
    return "" if host == "localhost" else _read_ipv4(host)


def _fold_domain(domain: str) -> str:
    if domain.isascii():
        return domain.lower()
    domain = _INVISIBLE.sub("", domain).translate(_FULL_STOPS)
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", domain).lower())


def _read_label(label: str) -> str:
    if not label.isascii():
        if label.startswith("xn--"):
            raise UnicodeError("encoded already, and yet not ASCII")
        return "xn--" + label.encode("punycode").decode("ascii")
    # An encoded label must be one that an encoder would write.
    if label.startswith("xn--"):
        meaning = label[4:].encode("ascii").decode("punycode")
        usual = meaning.isprintable() and meaning == _fold_domain(meaning)
        if not usual or meaning.isascii() or meaning.encode("punycode") != label[4:].encode():
            raise UnicodeError("not what an encoder writes")
    return label


def _read_ipv4(host: str) -> str:
    """Return a host as it is, or in dotted form where it ends in a number."""
    parts = host.removesuffix(".").split(".")
    if _ipv4_number(parts[-1]) is None and not re.fullmatch(r"[0-9]+", parts[-1]):
        return host
    numbers = [_ipv4_number(part) for part in parts]
    if len(parts) > 4 or None in numbers:
        raise InvalidPathUri(_BAD_IPV4)
    *high, low = [number for number in numbers if number is not None]
    if any(number > 255 for number in high) or low >= 256 ** (4 - len(high)):
        raise InvalidPathUri(_BAD_IPV4)
    for index, number in enumerate(high):
        low += number << (8 * (3 - index))
    return str(ipaddress.IPv4Address(low))


def _ipv4_number(text: str) -> int | None:
    if re.fullmatch(r"0[xX][0-9A-Fa-f]*", text):
        return int(text[2:] or "0", 16)
    if re.fullmatch(r"0[0-7]*", text):
        return int(text, 8)
    # Longer ones do not fit anyway, and `int` has a limit itself.
    return int(text) if re.fullmatch(r"[1-9][0-9]{0,10}", text) else None


def _wrap(raw: bytes) -> str:
    return _WRAPPED + base64.urlsafe_b64encode(raw).rstrip(b"=").decode("ascii")


def _is_wrapped(uri: str) -> bool:
    return uri.startswith(_WRAPPED) and _unwrap(uri) is not None


def _unwrap(uri: str) -> bytes | None:
    """Return the bytes after `_WRAPPED`, or `None` if no encoder would write them so."""
    payload = uri[len(_WRAPPED) :]
    try:
        raw = base64.b64decode(payload + "=" * (-len(payload) % 4), b"-_", validate=True)
    except (ValueError, binascii.Error):
        return None
    # An encoder leaves no padding and no loose bits; they would give one path two spellings.
    return raw if raw and _wrap(raw) == uri else None


def _native(uri: PathUri) -> str:
    text = str(uri)
    if text.startswith(_WRAPPED):
        raw = _unwrap(text)
        # `_canonical` and `from_path` accept no other.
        assert raw is not None
        if not (raw.startswith(b"/") and raw == _resolve_native(raw) and _needs_wrapping(raw)):
            raise ForeignPathUri(uri)
        return os.fsdecode(raw)
    if not text.startswith("file:///") or _DRIVE_SEGMENT.match(text):
        raise ForeignPathUri(uri)
    return os.fsdecode(_resolve_native(unquote_to_bytes(text[len(_EMPTY_HOST) :])))


def _resolve_native(raw: bytes) -> bytes:
    """
    Remove `.`, `..` and surplus slashes from an absolute path.

    Not `os.path.normpath`, which keeps two slashes at the start and, up to
    Python 3.12, ends at a NUL.
    """
    done: list[bytes] = []
    for part in raw.split(b"/"):
        if part == b"..":
            del done[-1:]
        elif part and part != b".":
            done.append(part)
    return b"/" + b"/".join(done)


def _needs_wrapping(raw: bytes) -> bool:
    """Return True if the plain spelling of a resolved path would be misread."""
    return b"\0" in raw or re.match(rb"/[A-Za-z]:(?:/|\Z)", raw) is not None
