"""Path URIs; every expectation was seen on the real server (docs/protocol.md#paths)."""

import copy
import os
import pickle
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.wire.protocol.paths import ForeignPathUri, InvalidPathUri, PathUri


@pytest.mark.requirement("path.spellings", "path.escapes-kept", "path.lexical")
@pytest.mark.parametrize(
    ("text", "canonical", "native"),
    [
        ("file:///tmp", "file:///tmp", "/tmp"),
        ("file:///", "file:///", "/"),
        # Spellings of the start.
        ("file:/tmp", "file:///tmp", "/tmp"),
        ("FILE:///tmp", "file:///tmp", "/tmp"),
        ("file:tmp", "file:///tmp", "/tmp"),
        ("file:", "file:///", "/"),
        ("file://", "file:///", "/"),
        ("file:////srv/x", "file:///srv/x", "/srv/x"),
        ("file://localhost/tmp", "file:///tmp", "/tmp"),
        ("file://LocalHost", "file:///", "/"),
        ("file://local%68ost/tmp", "file:///tmp", "/tmp"),
        ("file:\\\\\\tmp", "file:///tmp", "/tmp"),
        ("\x00 file:///tmp \x1f", "file:///tmp", "/tmp"),
        ("fi\nle:///t\tm\rp", "file:///tmp", "/tmp"),
        # Slashes.
        ("file:///a/", "file:///a/", "/a"),
        ("file:///a//b", "file:///a//b", "/a/b"),
        ("file:///a\\b", "file:///a/b", "/a/b"),
        ("file:///a%5Cb", "file:///a%5Cb", "/a\\b"),
        ("file:///a%2Fb", "file:///a%2Fb", "/a/b"),
        # Dot segments.
        ("file:///a/./b", "file:///a/b", "/a/b"),
        ("file:///a/../b", "file:///b", "/b"),
        ("file:///a/%2e%2E/b", "file:///b", "/b"),
        ("file:///a/.%2e/b", "file:///b", "/b"),
        ("file:///a/..", "file:///", "/"),
        ("file:///a/.", "file:///a/", "/a"),
        ("file:///../..", "file:///", "/"),
        ("file:///a//../b", "file:///a/b", "/a/b"),
        ("file:///a/..//b", "file:///b", "/b"),
        ("file:///a%2f..%2fb", "file:///a%2f..%2fb", "/b"),
        ("file:///..a/b../...", "file:///..a/b../...", "/..a/b../..."),
        # Escapes.
        ("file:///a b", "file:///a%20b", "/a b"),
        ("file:///é", "file:///%C3%A9", "/é"),
        ("file:///%c3%a9", "file:///%c3%a9", "/é"),
        ("file:///%41", "file:///%41", "/A"),
        ("file:///%FF", "file:///%FF", "/\udcff"),
        ("file:///a%/%zz/%4", "file:///a%/%zz/%4", "/a%/%zz/%4"),
        ("file:///a%25b", "file:///a%25b", "/a%b"),
        ('file:///"<>`{}\x7f', "file:///%22%3C%3E%60%7B%7D%7F", '/"<>`{}\x7f'),
        ("file:///a\x01b", "file:///a%01b", "/a\x01b"),
        ("file:///!$&'()*+,;=@[]^_|~-", "file:///!$&'()*+,;=@[]^_|~-", "/!$&'()*+,;=@[]^_|~-"),
        # What only looks like a drive.
        ("file:///C:a", "file:///C:a", "/C:a"),
        ("file:///%43:/a", "file:///%43:/a", "/C:/a"),
        ("file:///ab:/c", "file:///ab:/c", "/ab:/c"),
        ("file:///a/C:/x", "file:///a/C:/x", "/a/C:/x"),
        ("file:///c|/a", "file:///c|/a", "/c|/a"),
        ("file:///c|/../a", "file:///c|/a", "/c|/a"),
        ("file:///a/c:/../b", "file:///a/c:/b", "/a/c:/b"),
        ("file:///C%3A/..", "file:///", "/"),
    ],
)
def test_a_uri_has_one_canonical_spelling_and_one_path(
    text: str, canonical: str, native: str
) -> None:
    uri = PathUri.parse(text)
    assert str(uri) == canonical
    assert uri.native == uri.shown == native


@pytest.mark.requirement("path.refused", "path.opaque.refused")
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("/tmp", "invalid URI: relative URL without a base"),
        ("tmp", "invalid URI: relative URL without a base"),
        ("", "invalid URI: relative URL without a base"),
        ("//server/a", "invalid URI: relative URL without a base"),
        ("1a:b", "invalid URI: relative URL without a base"),
        ("ht tp://x", "invalid URI: relative URL without a base"),
        ("\ufefffile:///tmp", "invalid URI: relative URL without a base"),
        ("HTTP://x/", "unsupported path URI scheme `http`"),
        ("C:\\a", "unsupported path URI scheme `c`"),
        ("mailto:a", "unsupported path URI scheme `mailto`"),
        ("file:///tmp?", "query parameters are not allowed in path URIs"),
        ("file:///a%00b?x#y", "query parameters are not allowed in path URIs"),
        ("file:///tmp#", "fragments are not allowed in path URIs"),
        ("file:#a?b", "fragments are not allowed in path URIs"),
        ("file://user@host/a", "invalid URI: invalid international domain name"),
        ("file://host:80/a", "invalid URI: invalid international domain name"),
        ("file://a b?x", "invalid URI: invalid international domain name"),
        ("file://%/c", "invalid URI: invalid international domain name"),
        ("file://%ff/c", "invalid URI: invalid international domain name"),
        ("file://xn--/x", "invalid URI: invalid international domain name"),
        ("file://xn--a/x", "invalid URI: invalid international domain name"),
        ("file://xn--é/x", "invalid URI: invalid international domain name"),
        ("file://\xad/x", "invalid URI: empty host"),
        ("file://1.2.3.4.5/x", "invalid URI: invalid IPv4 address"),
        ("file://09/x", "invalid URI: invalid IPv4 address"),
        ("file://1.2.3.256/x", "invalid URI: invalid IPv4 address"),
        ("file://[zz]/x", "invalid URI: invalid IPv6 address"),
        ("file://[::1/x", "invalid URI: invalid IPv6 address"),
        ("file:///a%00b", "'file:///a%00b' is invalid on 'linux'"),
        ("file:///a\x00b", "'file:///a%00b' is invalid on 'linux'"),
        ("file:///c:/%00", "'file:///c:/%00' is invalid on 'linux'"),
        ("file://h/%00", "'file://h/%00' is invalid on 'linux'"),
        ("file:///%00/bad/path/", "'file:///%00/bad/path/' is invalid on 'linux'"),
        ("file:///%00/bad/path/!", "'file:///%00/bad/path/!' is invalid on 'linux'"),
        ("file:///%00/bad/path/YR", "'file:///%00/bad/path/YR' is invalid on 'linux'"),
        ("file:///%00/bad/path/YQ==", "'file:///%00/bad/path/YQ==' is invalid on 'linux'"),
    ],
)
def test_a_text_that_is_no_path_uri_is_refused_in_the_words_of_the_real_server(
    text: str, message: str
) -> None:
    with pytest.raises(InvalidPathUri) as refusal:
        PathUri.parse(text)
    assert str(refusal.value) == message


@pytest.mark.requirement("path.foreign", "path.opaque.refused")
@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("file://SERVER/share", "file://server/share"),
        ("file://ser%76er\\x", "file://server/x"),
        ("file:/\\server", "file://server/"),
        ("file://h//a", "file://h/a"),
        ("file://h/..", "file://h/"),
        ("file://h/c%3A/a", "file://h/c%3A/a"),
        ("file://h//c:/a", "file://h/c:/a"),
        ("file://.", "file://./"),
        ("file://localhost./tmp", "file://localhost./tmp"),
        ("file://[::127.0.0.1]/x", "file://[::7f00:1]/x"),
        ("file://0x7f.1/a", "file://127.0.0.1/a"),
        ("file://256/a", "file://0.0.1.0/a"),
        ("file://010.0x/a", "file://8.0.0.0/a"),
        ("file://é/c", "file://xn--9ca/c"),
        ("file://xn--9ca/c", "file://xn--9ca/c"),
        ("file://ß。\uff41/c", "file://xn--zca.a/c"),
        ("file:///c:/a", "file:///C:/a"),
        ("file:///c:", "file:///C:"),
        ("file:///c%3A/a", "file:///C%3A/a"),
        ("file:///./c:\\a", "file:///C:/a"),
        ("file:///c:/../..", "file:///C:/"),
        ("file:c|/a", "file:///C:/a"),
        ("file:///../c|/a", "file:///C:/a"),
        ("file:/c|", "file:///C:"),
        ("file://c|/a", "file:///C:/a"),
        ("file://host/c|/a", "file:///C:/a"),
        ("file://host/a/../c:/x", "file:///C:/x"),
        # Wrapped: relative, with a plain spelling, not resolved.
        ("file:///%00/bad/path/YQ", "file:///%00/bad/path/YQ"),
        ("file:///%00/bad/path/L2V0Yw", "file:///%00/bad/path/L2V0Yw"),
        ("file:///%00/bad/path/L0M6Ly4veA", "file:///%00/bad/path/L0M6Ly4veA"),
    ],
)
def test_a_path_of_another_system_can_be_held_but_not_used(text: str, canonical: str) -> None:
    uri = PathUri.parse(text)
    assert str(uri) == uri.shown == canonical
    with pytest.raises(ForeignPathUri) as refusal:
        _ = uri.native
    assert str(refusal.value) == f"'{canonical}' is invalid on 'linux'"
    assert refusal.value.uri is uri
    assert not isinstance(refusal.value, InvalidPathUri)


@pytest.mark.requirement("path.canonical", "path.opaque")
@pytest.mark.parametrize(
    ("path", "canonical"),
    [
        ("/", "file:///"),
        ("//", "file:///"),
        ("/a b/%41", "file:///a%20b/%2541"),
        ("/a\\b?#", "file:///a%5Cb%3F%23"),
        ("/é\udcff", "file:///%C3%A9%FF"),
        ("/a/./b//../c/", "file:///a/c"),
        ("/c|/x", "file:///c|/x"),
        ("/C:x", "file:///C:x"),
        ("/C%3A", "file:///C%253A"),
        ("/C:/x", "file:///%00/bad/path/L0M6L3g"),
        ("/a\0b", "file:///%00/bad/path/L2EAYg"),
    ],
)
def test_a_native_path_is_spelled_so_that_it_comes_back(path: str, canonical: str) -> None:
    uri = PathUri.from_path(path)
    assert str(uri) == canonical
    assert PathUri.parse(canonical) == uri
    assert PathUri.parse(canonical).native == uri.native


def test_only_absolute_paths_have_a_uri() -> None:
    for path in ("", "a", "./a"):
        with pytest.raises(ValueError, match="not an absolute path"):
            PathUri.from_path(path)


def test_paths_bytes_and_texts_are_spelled_alike() -> None:
    assert (
        PathUri.from_path(Path("/a b")) == PathUri.from_path(b"/a b") == PathUri.from_path("/a b")
    )


def test_a_child_keeps_the_spelling_of_its_folder() -> None:
    folder = PathUri.parse("file:///%61//b/")
    assert str(folder.child("x y")) == "file:///%61//b/x%20y"
    assert folder.child(b"\xff").native == "/a/b/\udcff"
    assert str(PathUri.parse("file:///").child("a")) == "file:///a"
    assert str(PathUri.parse("file:///a//").child("b")) == "file:///a//b"


@pytest.mark.requirement("path.opaque.childless")
def test_a_child_is_one_component_of_a_plain_folder() -> None:
    folder = PathUri.parse("file:///a")
    for name in ("", ".", "..", "a/b", "a\0b"):
        with pytest.raises(ValueError, match="not the name of an entry"):
            folder.child(name)
    with pytest.raises(ForeignPathUri):
        PathUri.from_path("/C:/x").child("a")


def test_the_root_has_a_child_that_looks_like_a_drive_and_is_refused() -> None:
    with pytest.raises(ForeignPathUri):
        _ = PathUri.parse("file:///").child("C:").native


def test_uris_are_values() -> None:
    uri = PathUri.parse("file:/tmp")
    assert {uri: 1}[PathUri.parse("file:///tmp")] == 1
    assert uri != PathUri.parse("file:///tmp/")
    assert uri != "file:///tmp"
    assert repr(uri) == "PathUri('file:///tmp')"
    assert copy.deepcopy(uri) == pickle.loads(pickle.dumps(uri)) == uri
    with pytest.raises(AttributeError):
        uri._text = "file:///etc"
    with pytest.raises(TypeError):
        PathUri()


native_paths = st.lists(
    st.binary(min_size=1, max_size=8).filter(
        lambda part: b"/" not in part and part not in {b".", b".."}
    ),
    max_size=5,
).map(lambda parts: b"/" + b"/".join(parts))


@pytest.mark.requirement("path.bytes")
@given(native_paths)
@example(b"/C:")
@example(b"/%00")
@example(b"/\xed\xa0\x80")
def test_every_native_path_survives_the_wire(path: bytes) -> None:
    uri = PathUri.parse(str(PathUri.from_path(path)))
    assert os.fsencode(uri.native) == path


uri_pieces = st.sampled_from(
    [
        *("/", "//", "\\", ".", "..", "%2e", "%2E.", "%2F", "%", "%4", "%41", "%ff", "%00"),
        *("a", "b", "c:", "C:", "c|", "c%3A", "é", " ", "\t", "~", "[", "localhost", "host"),
        *("?", "#", "file:", "1.2"),
    ]
)


@given(
    st.sampled_from(["file:///", "file://", "file:/", "file:", "FILE:////", " "]),
    st.lists(uri_pieces, max_size=8).map("".join) | st.text(max_size=12),
)
def test_a_canonical_spelling_names_the_same_path_again(start: str, rest: str) -> None:
    try:
        uri = PathUri.parse(start + rest)
    except InvalidPathUri:
        return
    assert str(uri).isascii()
    try:
        native = uri.native
    except ForeignPathUri:
        return
    again = PathUri.parse(str(uri))
    assert again == uri
    assert again.native == native
    assert native == "/" or not native.endswith("/")
    # And the path spelled afresh is the same path, though often another spelling.
    assert PathUri.parse(str(PathUri.from_path(native))).native == native


@given(st.lists(st.sampled_from("ab.-_:C|/~"), max_size=12).map("".join))
def test_the_quick_way_agrees_with_the_long_one(rest: str) -> None:
    text = f"file:///{rest}"
    # A blank in front is cut off, and keeps the text from being plain.
    long_way = PathUri.parse(f" {text}")
    assert PathUri.parse(text) == long_way
    try:
        native = long_way.native
    except ForeignPathUri:
        return
    assert PathUri.parse(text).native == native
