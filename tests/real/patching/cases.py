"""
The patches that the real Codex and ours are compared on.

A case is a folder and a patch for it. `<WS>` in a patch is the absolute path of the folder.
"""

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["CASES", "Case", "Directory", "Entry", "Link"]


@dataclass(frozen=True)
class Link:
    """A symbolic link; `<WS>` stands for the folder."""

    target: str


@dataclass(frozen=True)
class Directory:
    """An empty directory."""


Entry = str | bytes | Link | Directory


@dataclass(frozen=True, kw_only=True)
class Case:
    """One patch and the folder that it is applied to."""

    name: str
    before: Mapping[str, Entry]
    patch: str
    cwd: str = "."
    """Directory in which the program starts, below that of the case."""
    by_stdin: bool = False
    """True: the patch is standard input, otherwise the one argument."""


CASES: dict[str, Case] = {}


def case(
    name: str,
    patch: str,
    before: Mapping[str, Entry] | None = None,
    *,
    cwd: str = ".",
    by_stdin: bool = False,
) -> None:
    assert name not in CASES, name
    CASES[name] = Case(name=name, before=before or {}, patch=patch, cwd=cwd, by_stdin=by_stdin)


def whole(*lines: str) -> str:
    """Return a patch with its first and last line."""
    return "\n".join(["*** Begin Patch", *lines, "*** End Patch"])


def update(*lines: str, path: str = "f") -> str:
    """Return a patch that updates one file."""
    return whole(f"*** Update File: {path}", *lines)


def numbered(first: int, last: int) -> str:
    return "".join(f"line {number}\n" for number in range(first, last + 1))


ABC = {"f": "a\nb\nc\n"}
LONG = {"f": numbered(1, 40)}
CODE = {
    "f": "class A:\n    def run(self):\n        return 1\n\n\n"
    "class B:\n    def run(self):\n        return 1\n"
}

# -- adding
case("add", whole("*** Add File: new", "+one", "+two"))
case("add.stdin", whole("*** Add File: new", "+one") + "\n", by_stdin=True)
case("add.empty", whole("*** Add File: new"))
case("add.blank-line", whole("*** Add File: new", "+"))
case("add.folders", whole("*** Add File: a/b/c/new", "+x"))
case("add.over-file", whole("*** Add File: f", "+x"), ABC)
case("add.over-folder", whole("*** Add File: d", "+x"), {"d": Directory()})
case("add.below-file", whole("*** Add File: f/new", "+x"), ABC)
case("add.twice", whole("*** Add File: new", "+1", "*** Add File: new", "+2"))
case("add.then-update", whole("*** Add File: n", "+1", "*** Update File: n", "@@", "-1", "+2"))
case("add.then-delete", whole("*** Add File: n", "+1", "*** Delete File: n"))
case("add.no-plus", whole("*** Add File: new", "one"))
case("add.no-plus-later", whole("*** Add File: new", "+one", "two"))
case("add.blank-within", whole("*** Add File: new", "+one", "", "+two"))
case("add.unicode", whole("*** Add File: grüße/日本.txt", "+żółć 👋", "+\u00a0x"))
case("add.blanks-in-name", whole("*** Add File: my file.txt", "+x"))
case("add.blanks-around-name", whole("*** Add File:   padded   ", "+x"))
case("add.no-name", whole("*** Add File: ", "+x"))
case("add.name-without-blank", whole("*** Add File:new", "+x"))
case("add.absolute", whole("*** Add File: <WS>/abs/new", "+x"))
case("add.dot-dot", whole("*** Add File: ../up", "+x"), {"d": Directory()}, cwd="d")
case("add.dot-dot-inside", whole("*** Add File: a/../b/./new", "+x"))
case("add.dot-dot-missing", whole("*** Add File: no/such/../new", "+x"))
case("add.trailing-slash", whole("*** Add File: new/", "+x"))
case("add.marker-as-text", whole("*** Add File: new", "+*** End Patch", "+@@"))
case("add.carriage-returns", "*** Begin Patch\r\n*** Add File: new\r\n+x\r\n*** End Patch\r\n")
case("add.nul-in-text", whole("*** Add File: new", "+a\0b"), by_stdin=True)
case("add.nul-in-name", whole("*** Add File: a\0b", "+x"), by_stdin=True)
case("add.long-name", whole(f"*** Add File: {'n' * 300}", "+x"))
case("add.link", whole("*** Add File: l", "+x"), {"l": Link("f"), "f": "old\n"})
case("add.link-nowhere", whole("*** Add File: l", "+x"), {"l": Link("gone")})
case("add.through-link", whole("*** Add File: l/new", "+x"), {"l": Link("d"), "d": Directory()})
case("add.keeps-others", whole("*** Add File: new", "+x"), ABC)

# -- deleting
case("delete", whole("*** Delete File: f"), ABC)
case("delete.missing", whole("*** Delete File: gone"))
case("delete.folder", whole("*** Delete File: d"), {"d": Directory()})
case("delete.folder-full", whole("*** Delete File: d"), {"d/f": "x"})
case("delete.link", whole("*** Delete File: l"), {"l": Link("f"), "f": "x\n"})
case("delete.link-nowhere", whole("*** Delete File: l"), {"l": Link("gone")})
case("delete.link-to-folder", whole("*** Delete File: l"), {"l": Link("d"), "d": Directory()})
case("delete.binary", whole("*** Delete File: f"), {"f": b"\xff\xfe\0"})
case("delete.twice", whole("*** Delete File: f", "*** Delete File: f"), ABC)
case("delete.then-add", whole("*** Delete File: f", "*** Add File: f", "+new"), ABC)
case("delete.with-lines", whole("*** Delete File: f", "-a"), ABC)
case("delete.blank-after", whole("*** Delete File: f", "", "*** Add File: n", "+x"), ABC)

# -- updating
case("update", update("@@", " a", "-b", "+B", " c"), ABC)
case("update.no-at", update(" a", "-b", "+B", " c"), ABC)
case("update.missing", update("@@", "-a", "+b"))
case("update.folder", update("@@", "-a", "+b"), {"f": Directory()})
case("update.no-chunk", update(), ABC)
case("update.empty-chunk", update("@@"), ABC)
case("update.empty-chunk-then-header", update("@@", "*** Add File: n", "+x"), ABC)
case("update.only-context", update("@@", " a", " b"), ABC)
case("update.only-add", update("@@", "+z"), ABC)
case("update.only-add-no-newline", update("@@", "+z"), {"f": "a\nb"})
case("update.only-add-after-at", update("@@ b", "+z"), ABC)
case("update.only-add-empty-file", update("@@", "+z"), {"f": ""})
case("update.only-delete", update("@@", "-b"), ABC)
case("update.delete-all", update("@@", "-a", "-b", "-c"), ABC)
case("update.empty-file", update("@@", "-a", "+b"), {"f": ""})
case("update.not-found", update("@@", " a", "-x", "+y"), ABC)
case("update.context-not-found", update("@@ def nothing():", "-a", "+b"), ABC)
case(
    "update.context",
    update("@@ class B:", "     def run(self):", "-        return 1", "+        return 2"),
    CODE,
)
case(
    "update.two-contexts",
    update("@@ class B:", "@@     def run(self):", "-        return 1", "+        return 2"),
    CODE,
)
case(
    "update.context-trimmed",
    update("@@ def run(self):", "-        return 1", "+        return 3"),
    CODE,
)
case(
    "update.context-blanks",
    update("@@   class B:  ", "-    def run(self):", "+    def go(self):"),
    CODE,
)
case(
    "update.at-without-blank",
    update("@@class B:", "-    def run(self):", "+    def go(self):"),
    CODE,
)
case("update.context-git-style", update("@@ -1,3 +1,3 @@", " a", "-b", "+B"), ABC)
case("update.context-is-first-old", update("@@ b", "-b", "+B"), ABC)
case("update.ambiguous", update("@@", "-        return 1", "+        return 2"), CODE)
case(
    "update.two-chunks",
    update("@@", "-line 3", "+line three", "@@", "-line 30", "+line thirty"),
    LONG,
)
case(
    "update.out-of-order",
    update("@@", "-line 30", "+line thirty", "@@", "-line 3", "+line three"),
    LONG,
)
case(
    "update.out-of-order-context",
    update("@@ line 29", "-line 30", "+XXX", "@@ line 2", "-line 3", "+YYY"),
    LONG,
)
case(
    "update.overlapping",
    update("@@", " line 3", "-line 4", "+four", " line 5", "@@", " line 5", "-line 6", "+six"),
    LONG,
)
case(
    "update.overlapping-removed",
    update("@@", "-line 4", "-line 5", "+x", "@@", "-line 5", "+y"),
    LONG,
)
case("update.sees-new-lines", update("@@", "-a", "+b", "@@", "-b", "+x"), ABC)
case("update.same-chunk-twice", update("@@", "-x", "+y", "@@", "-x", "+z"), {"f": "x\nx\n"})
case(
    "update.twice-same-file",
    whole("*** Update File: f", "@@", "-a", "+A", "*** Update File: f", "@@", "-A", "+AA"),
    ABC,
)
case(
    "update.twice-second-fails",
    whole("*** Update File: f", "@@", "-a", "+A", "*** Update File: f", "@@", "-a", "+AA"),
    ABC,
)
case("update.blank-line-as-context", update("@@", " a", "", "-b", "+B"), {"f": "a\n\nb\n"})
case("update.blank-lines-at-end", update("@@", "-a", "+A", ""), ABC)
case(
    "update.blank-before-at",
    update("@@", "-line 3", "+three", "", "@@", "-line 30", "+thirty"),
    LONG,
)
case("update.blank-after-at", update("@@", "", "-b", "+B"), ABC)
case("update.blank-after-header", whole("*** Update File: f", "", "@@", "-b", "+B"), ABC)
case("update.bad-line", update("@@", " a", "?b", "+B"), ABC)
case("update.bad-first-line", update("@@", "b", "+B"), ABC)
case("update.unprefixed-context", update("@@", "a", "-b", "+B"), ABC)
case("update.markers-as-text", update("@@", " a", "+*** End Patch", " b"), ABC)
case("update.end-of-file", update("@@", " b", "-c", "+C", "*** End of File"), ABC)
case("update.end-of-file-not-at-end", update("@@", "-a", "+A", "*** End of File"), ABC)
case(
    "update.end-of-file-last-of-two",
    update("@@", "-x", "+LAST", "*** End of File"),
    {"f": "x\ny\nx\n"},
)
case("update.end-of-file-add", update("@@", "+z", "*** End of File"), ABC)
case("update.end-of-file-first", update("@@", "*** End of File"), ABC)
case(
    "update.end-of-file-then-more",
    update("@@", "-c", "+C", "*** End of File", "@@", "-a", "+A"),
    ABC,
)
case("update.end-of-file-then-line", update("@@", "-c", "+C", "*** End of File", "+x"), ABC)
case("update.no-newline", update("@@", "-b", "+B"), {"f": "a\nb"})
case("update.no-newline-keep", update("@@", "-a", "+A"), {"f": "a\nb"})
case("update.trailing-empty-old", update("@@", " a", "-b", "+B", " "), {"f": "a\nb\n"})
case("update.trailing-empty-pattern", update("@@", "-b", "-", "+B"), {"f": "a\nb\n"})
case("update.blank-lines-at-file-end", update("@@", "-c", "+C"), {"f": "a\nc\n\n\n"})
case("update.fuzzy-trailing", update("@@", " a", "-b", "+B"), {"f": "a  \nb\t\nc\n"})
case("update.fuzzy-trailing-in-patch", update("@@", " a  ", "-b  ", "+B"), ABC)
case(
    "update.fuzzy-indent",
    update("@@", " def f():", "-return 1", "+return 2"),
    {"f": "def f():\n    return 1\n"},
)
case("update.fuzzy-dashes", update("@@", "-a - b", "+x"), {"f": "a \u2013 b\n"})
case("update.fuzzy-minus", update("@@", "-a - b", "+x"), {"f": "a \u2212 b\n"})
case(
    "update.fuzzy-quotes",
    update("@@", '-say "hi" it\'s', "+x"),
    {"f": "say \u201chi\u201d it\u2019s\n"},
)
case(
    "update.fuzzy-low-quotes",
    update("@@", "-\"a\" 'b'", "+x"),
    {"f": "\u201ea\u201f \u201ab\u201b\n"},
)
case("update.fuzzy-spaces", update("@@", "-a b c d", "+x"), {"f": "a\u00a0b\u2003c\u3000d\n"})
case("update.fuzzy-narrow-space", update("@@", "-a b c", "+x"), {"f": "a\u202fb\u205fc\n"})
case("update.fuzzy-zero-width", update("@@", "-a b", "+x"), {"f": "a\u200bb\n"})
case("update.fuzzy-ellipsis", update("@@", "-a...", "+x"), {"f": "a\u2026\n"})
case("update.fuzzy-in-patch", update("@@", "-a \u2013 \u201cb\u201d", "+x"), {"f": 'a - "b"\n'})
case("update.fuzzy-case", update("@@", "-ABC", "+x"), {"f": "abc\n"})
case("update.fuzzy-inner-blanks", update("@@", "-a b", "+x"), {"f": "a  b\n"})
case(
    "update.fuzzy-context-line",
    update("@@ class \u201cB\u201d:", "-    x", "+    y"),
    {"f": 'class "B":\n    x\n'},
)
case("update.exact-beats-fuzzy", update("@@", "-x", "+y"), {"f": "  x\nx \nx\n"})
case("update.trailing-beats-indent", update("@@", "-x", "+y"), {"f": "  x\nx \n"})
case("update.context-kept-as-file", update("@@", " a", "-b", "+B", " c"), {"f": "a \nb \nc \n"})
case("update.crlf", update("@@", " a", "-b", "+B", " c"), {"f": "a\r\nb\r\nc\r\n"})
case("update.crlf-add", update("@@", " a", "+n", " b"), {"f": "a\r\nb\r\n"})
case("update.crlf-mixed", update("@@", "-b", "+B"), {"f": "a\r\nb\nc\r\n"})
case("update.crlf-mixed-mostly-lf", update("@@", "-b", "+B"), {"f": "a\r\nb\nc\nd\n"})
case("update.crlf-only-add", update("@@", "+z"), {"f": "a\r\nb\r\n"})
case("update.crlf-no-newline", update("@@", "-b", "+B"), {"f": "a\r\nb"})
case("update.crlf-one-line", update("@@", "-a", "+A"), {"f": "a"})
case("update.crlf-context", update("@@ a", "-b", "+B"), {"f": "a\r\nb\r\nc\r\n"})
case("update.crlf-patch", update("@@", " a", "-b", "+B").replace("\n", "\r\n"), ABC)
case(
    "update.crlf-both",
    update("@@", " a", "-b", "+B").replace("\n", "\r\n"),
    {"f": "a\r\nb\r\nc\r\n"},
)
case(
    "update.crlf-move",
    whole("*** Update File: f", "*** Move to: g", "@@", "-b", "+B"),
    {"f": "a\r\nb\r\n"},
)
case("update.lone-returns", update("@@", "-b", "+B"), {"f": "a\rx\nb\n"})
case("update.form-feed", update("@@", "-b", "+B"), {"f": "a\x0c\x0b\u2028x\x85\nb\n"})
case("update.byte-order-mark", update("@@", "-a", "+A"), {"f": "\ufeffa\nb\n"})
case("update.binary", update("@@", "-a", "+b"), {"f": b"a\n\xff\xfe\0\n"})
case("update.nul", update("@@", "-b", "+B"), {"f": "a\0\nb\n"})
case("update.no-change", update("@@", "-a", "+a"), ABC)
case("update.link", update("@@", "-b", "+B"), {"f": Link("real"), "real": "a\nb\n"})
case("update.link-nowhere", update("@@", "-b", "+B"), {"f": Link("gone")})
case("update.through-link", update("@@", "-b", "+B", path="l/f"), {"l": Link("d"), "d/f": "a\nb\n"})
case("update.absolute", update("@@", "-b", "+B", path="<WS>/f"), ABC)
case("update.dot-dot", update("@@", "-b", "+B", path="../f"), {**ABC, "d": Directory()}, cwd="d")
case("update.blanks-in-name", update("@@", "-b", "+B", path="a file"), {"a file": "b\n"})
case("update.tab-in-name", update("@@", "-b", "+B", path="a\tb"), {"a\tb": "b\n"})
case("update.long-not-found", update("@@", *(f"-missing {n}" for n in range(5)), "+x"), ABC)
case(
    "update.huge",
    update("@@", "-line 90000", "+changed"),
    {"f": numbered(1, 100_000)},
    by_stdin=True,
)
case(
    "update.many-chunks",
    update(*(text for n in range(1, 2001, 2) for text in ("@@", f"-line {n}", f"+new {n}"))),
    {"f": numbered(1, 2001)},
    by_stdin=True,
)

# -- moving
MOVE = ("*** Update File: f", "*** Move to: g", "@@", "-b", "+B")
case("move", whole(*MOVE), ABC)
case("move.no-chunk", whole("*** Update File: f", "*** Move to: g"), ABC)
case("move.onto-existing", whole(*MOVE), {**ABC, "g": "old\n"})
case("move.onto-itself", whole("*** Update File: f", "*** Move to: f", "@@", "-b", "+B"), ABC)
case(
    "move.onto-itself-spelled",
    whole("*** Update File: f", "*** Move to: ./f", "@@", "-b", "+B"),
    ABC,
)
case("move.onto-folder", whole(*MOVE), {**ABC, "g": Directory()})
case("move.new-folders", whole("*** Update File: f", "*** Move to: x/y/g", "@@", "-b", "+B"), ABC)
case("move.missing", whole(*MOVE))
case("move.not-found", whole("*** Update File: f", "*** Move to: g", "@@", "-x", "+B"), ABC)
case("move.link", whole(*MOVE), {"f": Link("real"), "real": "a\nb\n"})
case("move.onto-link", whole(*MOVE), {**ABC, "g": Link("h"), "h": "old\n"})
case("move.then-update", whole(*MOVE, "*** Update File: g", "@@", "-B", "+BB"), ABC)
case(
    "move.swap",
    whole(
        "*** Update File: f",
        "*** Move to: g",
        "@@",
        "-b",
        "+B",
        "*** Update File: g",
        "*** Move to: f",
        "@@",
        "-B",
        "+BB",
    ),
    {**ABC, "g": "B\n"},
)
case("move.after-at", whole("*** Update File: f", "@@", "-b", "+B", "*** Move to: g"), ABC)
case("move.no-name", whole("*** Update File: f", "*** Move to: ", "@@", "-b", "+B"), ABC)
case("move.in-add", whole("*** Add File: n", "*** Move to: g", "+x"))

# -- the frame
case("frame.empty", "*** Begin Patch\n*** End Patch")
case("frame.empty-text", "")
case("frame.blank", "   \n \n")
case("frame.no-begin", "*** Add File: n\n+x\n*** End Patch")
case("frame.no-end", "*** Begin Patch\n*** Add File: n\n+x")
case("frame.only-begin", "*** Begin Patch")
case("frame.garbage", "hello")
case("frame.blanks-around", "  *** Begin Patch  \n*** Add File: n\n+x\n  *** End Patch  \n\n")
case("frame.blank-lines-around", "\n\n*** Begin Patch\n*** Add File: n\n+x\n*** End Patch\n\n")
case("frame.indented-header", whole("  *** Add File: n", "+x"))
case("frame.header-trailing", whole("*** Add File: n  ", "+x"))
case("frame.blank-after-begin", whole("", "*** Add File: n", "+x"))
case("frame.blank-between", whole("*** Add File: n", "+x", "", "*** Add File: m", "+y"))
case("frame.unknown-header", whole("*** Change File: f", "+x"))
case("frame.text-before-header", whole("hello", "*** Add File: n", "+x"))
case("frame.text-after-end", "*** Begin Patch\n*** Add File: n\n+x\n*** End Patch\nmore")
case("frame.end-twice", "*** Begin Patch\n*** Add File: n\n+x\n*** End Patch\n*** End Patch")
case("frame.begin-twice", "*** Begin Patch\n*** Begin Patch\n*** Add File: n\n+x\n*** End Patch")
case("frame.two-patches", whole("*** Add File: n", "+x") + "\n" + whole("*** Add File: m", "+y"))
case("frame.lower-case", "*** begin patch\n*** Add File: n\n+x\n*** end patch")
case("frame.environment-id", whole("*** Environment ID: local", "*** Add File: n", "+x"))
case("frame.heredoc", "<<EOF\n" + whole("*** Add File: n", "+x") + "\nEOF")
case("frame.heredoc-single", "<<'EOF'\n" + whole("*** Add File: n", "+x") + "\nEOF\n")
case("frame.heredoc-double", '<<"EOF"\n' + whole("*** Add File: n", "+x") + "\nEOF\n")
case("frame.heredoc-other-word", "<<'PATCH'\n" + whole("*** Add File: n", "+x") + "\nPATCH\n")
case("frame.heredoc-no-end", "<<'EOF'\n" + whole("*** Add File: n", "+x") + "\n")
case("frame.heredoc-half-quoted", "<<'EOF\n" + whole("*** Add File: n", "+x") + "\nEOF\n")
case("frame.heredoc-bad-inside", "<<EOF\n*** Begin Patch\n*** Add File: n\n+x\nEOF")
case("frame.code-fence", "```\n" + whole("*** Add File: n", "+x") + "\n```")
case("frame.unified-diff", "--- a/f\n+++ b/f\n@@ -1 +1 @@\n-a\n+b\n", ABC)

# -- several files, and failures in the middle
MIXED = {"f": "a\nb\nc\n", "g": "x\n", "h": "y\n"}
case(
    "several",
    whole(
        "*** Add File: n",
        "+1",
        "*** Update File: f",
        "@@",
        "-b",
        "+B",
        "*** Delete File: g",
        "*** Update File: h",
        "*** Move to: k",
        "@@",
        "-y",
        "+Y",
    ),
    MIXED,
)
case(
    "several.order",
    whole("*** Delete File: g", "*** Update File: f", "@@", "-b", "+B", "*** Add File: n", "+1"),
    MIXED,
)
case(
    "several.second-missing",
    whole("*** Add File: n", "+1", "*** Update File: gone", "@@", "-b", "+B"),
    MIXED,
)
case(
    "several.second-not-found",
    whole("*** Add File: n", "+1", "*** Update File: f", "@@", "-zz", "+B"),
    MIXED,
)
case(
    "several.second-delete-missing", whole("*** Add File: n", "+1", "*** Delete File: gone"), MIXED
)
case(
    "several.second-add-over-folder",
    whole("*** Update File: f", "@@", "-b", "+B", "*** Add File: d", "+x"),
    {**MIXED, "d": Directory()},
)
case("several.second-malformed", whole("*** Add File: n", "+1", "*** Oops"), MIXED)
case("several.later-chunk-fails", update("@@", "-a", "+A", "@@", "-zz", "+x"), MIXED)

# -- finer points of matching
BLANKS = {"f": "a\nb\n\n\n"}
case("fine.add-before-blank-end", update("@@", "+z"), BLANKS)
case("fine.add-then-change", update("@@", "+z", "@@", "-a", "+A"), ABC)
case("fine.change-then-add", update("@@", "-a", "+A", "@@", "+z"), ABC)
case("fine.add-twice", update("@@", "+y", "@@", "+z"), ABC)
case("fine.add-context-missing", update("@@ nothing", "+z"), ABC)
case("fine.same-text-other-blanks", update("@@", "-a", "+a"), {"f": "a \nb\n"})
case("fine.same-text-among-others", update("@@", "-a", "-b", "+a", "+B"), {"f": "a \nb \nc\n"})
case("fine.context-between", update("@@", "-a", " b", "+x", " c", "-d"), {"f": "a\nb \nc \nd\ne\n"})
case(
    "fine.context-indent-kept",
    update("@@", " if x:", "-y", "+z", " w"),
    {"f": "  if x:\n    y\n    w\n"},
)
case("fine.old-trailing-blank-missing", update("@@", "-zz", "-", "+x"), ABC)
case("fine.drop-blank-new-too", update("@@", " a", " b", "-c", "+C", " "), ABC)
case("fine.drop-blank-new-only", update("@@", " b", "-c", "-", "+C", "+"), ABC)
case("fine.blank-pattern-only", update("@@", "-", "+x"), ABC)
case("fine.blank-pattern-found", update("@@", "-", "+x"), {"f": "a\n\nb\n"})
case("fine.blank-context-only", update("@@", " "), ABC)
case("fine.pattern-longer-than-file", update("@@", *(f" {n}" for n in "abcdef"), "+x"), ABC)
case("fine.return-in-line", update("@@", "-a", "+A"), {"f": "a\rx\nb\n"})
case("fine.return-only", update("@@", "-b", "+B"), {"f": "a\rb\rc\r"})
case("fine.return-first-lf", update("@@", "-b", "+B"), {"f": "a\nb\r\nc\r\n"})
case("fine.double-return", update("@@", "-a", "+A"), {"f": "a\r\r\nb\n"})
case("fine.crlf-context-lines", update("@@", " a", "-b", "+B", "+C"), {"f": "x\na\r\nb\r\n"})
case("fine.crlf-last-line", update("@@", "-c", "+C"), {"f": "a\r\nb\r\nc"})
case("fine.crlf-untouched-end", update("@@", "-a", "+A"), {"f": "a\r\nb"})
case("fine.strip-unit-separator", update("@@", "-a", "+x"), {"f": "a\x1f\nb\n"})
case("fine.strip-next-line", update("@@", "-a", "+x"), {"f": "a\x85\nb\n"})
case("fine.strip-nbsp", update("@@", "-a", "+x"), {"f": "a\u00a0\nb\n"})
case(
    "fine.dash-kinds",
    update("@@", "-------", "+x"),
    {"f": "\u2010\u2011\u2012\u2013\u2014\u2015\n"},
)
case("fine.guillemets", update("@@", '-"a"', "+x"), {"f": "\u00aba\u00bb\n"})
case("fine.prime", update("@@", "-a'", "+x"), {"f": "a\u2032\n"})
case(
    "fine.space-kinds",
    update("@@", "-" + " ".join("abcdefghijk"), "+x"),
    {"f": "a\u2002b\u2003c\u2004d\u2005e\u2006f\u2007g\u2008h\u2009i\u200aj\u1680k\n"},
)
case("fine.context-normalised", update("@@ a - b", "-x", "+y"), {"f": "a \u2013 b\nx\n"})
case("fine.context-empty", update("@@ ", "-b", "+B"), ABC)
case("fine.context-tab", update("@@\tb", "-c", "+C"), ABC)
case("fine.at-indented", update("  @@", "-b", "+B"), ABC)
case("fine.at-indented-context", update("  @@ a", "-b", "+B"), ABC)
case("fine.at-trailing", update("@@   ", "-b", "+B"), ABC)
case("fine.chunk-without-at-second", update("@@", "-a", "+A", "*** End of File", "-b", "+B"), ABC)
case("fine.end-of-file-indented", update("@@", "-c", "+C", "  *** End of File"), ABC)
case("fine.end-of-file-trailing", update("@@", "-c", "+C", "*** End of File  "), ABC)
case("fine.end-of-file-fuzzy", update("@@", "-c", "+C", "*** End of File"), {"f": "a\n  c \n"})
case("fine.end-of-file-blank-end", update("@@", "-b", "+B", "*** End of File"), BLANKS)
case("fine.end-of-file-no-newline", update("@@", "-b", "+B", "*** End of File"), {"f": "a\nb"})
case("fine.end-of-file-blank-after", update("@@", "-c", "+C", "*** End of File", ""), ABC)
case("fine.end-of-file-after-blank", update("@@", "-c", "+C", " ", "*** End of File"), ABC)
case("fine.stars-in-chunk", update("@@", "-a", "+A", "*** hello"), ABC)
case("fine.end-in-chunk-twice", update("@@", "-a", "+A") + "\n*** End Patch", ABC)
case("fine.end-blank-end", whole("*** Add File: n", "+x") + "\n\n*** End Patch")
case("fine.end-text-end", whole("*** Add File: n", "+x") + "\nhello\n*** End Patch")
case("fine.end-only", "*** End Patch")
case("fine.end-in-add", whole("*** Add File: n", "+x", "  *** End Patch", "+y"))
case("fine.environment-empty", whole("*** Environment ID: ", "*** Add File: n", "+x"))
case("fine.environment-later", whole("*** Add File: n", "+x", "*** Environment ID: local"))
case(
    "fine.environment-twice",
    whole("*** Environment ID: a", "*** Environment ID: b", "*** Add File: n", "+x"),
)
case("fine.heredoc-line-number", "<<EOF\n" + whole("*** Oops") + "\nEOF")
case("fine.heredoc-blank-lines", "<<EOF\n\n" + whole("*** Add File: n", "+x") + "\n\nEOF\n\n")
case(
    "fine.move-twice",
    whole("*** Update File: f", "*** Move to: g", "*** Move to: h", "@@", "-b", "+B"),
    ABC,
)
case("fine.move-indented", whole("*** Update File: f", "  *** Move to: g", "@@", "-b", "+B"), ABC)
case("fine.move-trailing", whole("*** Update File: f", "*** Move to: g  ", "@@", "-b", "+B"), ABC)
case("fine.move-no-at", whole("*** Update File: f", "*** Move to: g", "-b", "+B"), ABC)
case("fine.move-alias", whole(*MOVE), {**ABC, "g": Link("f")})
case(
    "fine.update-alias",
    whole("*** Update File: f", "@@", "-a", "+A", "*** Update File: l", "@@", "-b", "+B"),
    {**ABC, "l": Link("f")},
)
case("fine.delete-no-name", whole("*** Delete File: "), ABC)
case("fine.update-no-name", whole("*** Update File:   ", "@@", "-a", "+b"), ABC)
case("fine.blank-before-chunk-no-at", update("", "-b", "+B"), ABC)
case("fine.blank-lines-between-files", update("@@", "-b", "+B", "", "*** Add File: n", "+x"), ABC)
case("fine.many-blank-lines", update("@@", "-b", "+B", "", "", "", "*** Add File: n", "+x"), ABC)
case("fine.second-chunk-context-back", update("@@ b", "-c", "+C", "@@ b", "+z"), ABC)
case("fine.add-crlf-lines", "*** Begin Patch\n*** Add File: n\n+a\r\r\n+b\n*** End Patch")
case("fine.only-context-no-newline", update("@@", " a"), {"f": "a"})
case("fine.only-context-empty-file", update("@@", " "), {"f": ""})
case("fine.one-newline-file", update("@@", "+z"), {"f": "\n"})
case("fine.blank-context-before-add", update("@@", " a", " ", "+x"), {"f": "a\nb\n"})
case("fine.blank-removed-before-add", update("@@", " a", "-", "+x"), {"f": "a\nb\n"})
case("fine.blank-context-before-two", update("@@", " a", " ", "+x", "+"), {"f": "a\nb\n"})
case(
    "fine.blank-after-header-in-file",
    whole("*** Update File: f", "", "@@", "-b", "+B"),
    {"f": "b\n\nc\n"},
)
case(
    "fine.indented-end-after-chunk",
    "*** Begin Patch\n*** Update File: f\n@@\n-b\n+B\n  *** End Patch",
    ABC,
)
case("fine.indented-end-after-at", "*** Begin Patch\n*** Update File: f\n@@\n  *** End Patch", ABC)
case(
    "fine.blank-then-stars", update("@@", "-b", "+B", "*** End of File", "", "hello"), {"f": "b\n"}
)
case("fine.blank-first-then-bad", update("", "hello"), ABC)
case("fine.context-with-blanks-after", update("@@ a  ", "-b", "+B"), ABC)
case("fine.environment-no-blank", whole("*** Environment ID:local", "*** Add File: n", "+x"))
case("fine.environment-indented", whole("  *** Environment ID: local  ", "*** Add File: n", "+x"))
