"""Links and denied patterns: `fs/*` shows what a command sees that starts at the same moment."""

import os
import random
import shlex
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.depth import times
from tests.e2e.test_sandboxed_files import entry, pattern, sandbox, special
from tests.e2e.wire import (
    Client,
    Refused,
    ServerProcess,
    connect,
    file_uri,
    from_base64,
    serving,
    to_base64,
)
from tests.real.stranger import NOBODY, stranger

DENIED, MISSING, LOOP, OTHER = "EACCES", "ENOENT", "ELOOP", "no file"

# What the C library and `fs/*` say.
ERRORS = {
    "Permission denied": DENIED,
    "No such file or directory": MISSING,
    "Too many levels of symbolic links": LOOP,
    "Symbolic link loop": LOOP,
}

# One line per path: its content, or what a directory contains; kind and size; the real path; and
# whether it is a file that can be written. Bash does most of it without a program.
LOOK = r"""
export LC_ALL=C
list() {
  ls -A "$1" > /dev/null && cd "$1" && for name in *; do
    [ -d "$name" ] && printf '%s/ ' "$name" || { [ -e "$name" ] && printf '%s ' "$name"; }
  done
}
files=() shown=()
for path; do
  [ ! -f "$path" ] || files+=("$path")
  [ ! -f "$path" ] && [ ! -d "$path" ] || shown+=("$path")
done
IFS=$'\n'
[ ${#files[@]} = 0 ] || sizes=($(stat -L -c 'file %s' -- "${files[@]}"))
[ ${#shown[@]} = 0 ] || reals=($(realpath -- "${shown[@]}"))
file=0 one=0
for path; do
  if [ -d "$path" ]; then
    echo "$(list "$path/" 2>&1)|directory|${reals[one++]}|"
  elif [ -f "$path" ]; then
    writable="$( (: >> "$path") 2>&- && echo w)"
    echo "$( (echo "$(< "$path")") 2>&1)|${sizes[file++]}|${reals[one++]}|$writable"
  elif [ -e "$path" ]; then
    echo "no file|||"
  else
    echo "$( (: < "$path") 2>&1)|||"
  fi
done
"""


@dataclass(frozen=True)
class Case:
    """A tree by path, with `->` before the target of a link and None for a directory."""

    tree: Mapping[str, str | None]
    patterns: Sequence[str]
    entries: Sequence[tuple[str, str]] = ()
    """Paths and their access, on top of the usual ones."""
    narrow: bool = False
    """Nothing but the workspace and the system is shown."""
    writable: bool = True
    depth: int | None = None

    def script(self, base: Path) -> str:
        """Shell commands that make the tree."""
        lines = [f"mkdir -p {base}/ws {base}/out {base}/copies"]
        for name, text in self.tree.items():
            path = shlex.quote(str(base / name))
            lines.append(f"mkdir -p {shlex.quote(str((base / name).parent))}")
            if text is None:
                lines.append(f"mkdir -p {path}")
            elif text.startswith("->"):
                target = text.removeprefix("->").format(base=base)
                lines.append(f"ln -sT {shlex.quote(target)} {path}")
            elif text.startswith("="):
                lines.append(f"ln {base}/{text.removeprefix('=')} {path}")
            else:
                lines.append(f"printf %s {shlex.quote(text)} > {path}")
        return "set -e\n" + "\n".join(lines)

    def sandbox(self, base: Path) -> dict[str, Any]:
        """The sandbox of commands and of `fs/*`."""
        shown = special("minimal" if self.narrow else "root", "read")
        project = special("project_roots", "write" if self.writable else "read")
        rules = [*self.entries, ("copies", "write")]
        more = (entry(base / path, access) for path, access in rules)
        denied = (pattern(one.format(base=base)) for one in self.patterns)
        folder = file_uri(base / "ws")
        made = sandbox(shown, project, *more, *denied, cwd=folder, workspaceRoots=[folder])
        if self.depth is not None:
            made["permissions"]["file_system"]["glob_scan_max_depth"] = self.depth
        return made

    def paths(self, base: Path) -> list[str]:
        """All paths of the tree, and some through its links."""
        names = {"ws", "out", *self.tree, *(os.path.dirname(name) for name in self.tree)}
        last = {os.path.basename(name) for name in self.tree}
        links = {name for name, text in self.tree.items() if (text or "").startswith("->")}
        names |= {f"{link}/{name}" for link in links for name in last}
        return [str(base / name) for name in sorted(names)]


FILES = {"ws/a": "plain", "out/key": "secret"}
ENV = ("**/*.env",)

CASES = {
    "a file": Case({**FILES, "ws/x.env": "secret", "ws/d/x.env": "secret"}, ENV),
    "a link out of the workspace": Case({**FILES, "ws/x.env": "->{base}/out/key"}, ENV),
    "a relative link": Case({**FILES, "ws/d/x.env": "->../../out/key"}, ENV),
    "a link in the workspace": Case({**FILES, "ws/x.env": "->a"}, ENV),
    "a workspace that is read-only": Case(
        {**FILES, "ws/x.env": "->../out/key"}, ENV, writable=False
    ),
    "the first of several links": Case(
        {**FILES, "ws/x.env": "->b", "ws/b": "->c", "ws/c": "->../out/key"}, ENV
    ),
    "one in the middle": Case(
        {**FILES, "ws/b": "->x.env", "ws/x.env": "->c", "ws/c": "->../out/key"}, ENV
    ),
    "the last one": Case({**FILES, "ws/b": "->c", "ws/c": "->x.env", "ws/x.env": "->a"}, ENV),
    "a link to a matching file": Case({**FILES, "ws/x.env": "secret", "ws/b": "->x.env"}, ENV),
    "a link to a directory": Case({**FILES, "ws/x.env": "->../out", "out/y": "text"}, ENV),
    "a link through one": Case(
        {**FILES, "ws/d": "->../out", "ws/x.env": "->d/key", "out/y.env": "text"}, ENV
    ),
    "a link in a linked directory": Case(
        {**FILES, "ws/d": "->../out", "out/x.env": "->key", "out/y.env": "text"}, ENV
    ),
    "a pattern for a linked directory": Case(
        {**FILES, "link": "->out", "out/d/x.env": "->../key", "out/d/y.env": "text"},
        ("{base}/link/**/*.env",),
    ),
    "a pattern for another place": Case(
        {**FILES, "out/x.env": "->../ws/a", "ws/y.env": "text"}, ("{base}/out/*.env",)
    ),
    "nothing at the end": Case({**FILES, "ws/x.env": "->nothing", "ws/y.env": "->x.env"}, ENV),
    "a loop": Case({**FILES, "ws/x.env": "->y.env", "ws/y.env": "->x.env"}, ENV),
    "a system file": Case({**FILES, "ws/x.env": "->/etc/hostname"}, ENV, narrow=True),
    "what each sandbox has for itself": Case(
        {**FILES, "ws/x.env": "->/dev/null", "ws/y.env": "->/proc/sys/kernel/ostype"}, ENV
    ),
    "a hidden file": Case({**FILES, "ws/x.env": "->../out/key"}, ENV, narrow=True),
    "a denied directory": Case(
        {**FILES, "ws/x.env": "->s/key", "ws/s/key": "secret", "ws/b": "->s/key"},
        ENV,
        entries=[("ws/s", "deny")],
    ),
    "a directory that is opened again": Case(
        {**FILES, "ws/x.env": "->s/d/key", "ws/s/d/key": "secret", "ws/s/y.env": "text"},
        ENV,
        entries=[("ws/s", "deny"), ("ws/s/d", "write")],
    ),
    "a link that is hidden": Case(
        {**FILES, "out/s/x.env": "->../../ws/a", "out/s/b": "text"},
        ("{base}/out/**/*.env",),
        narrow=True,
    ),
    "a file that an entry names": Case(
        {**FILES, "out/x.env": "secret", "ws/x.env": "->../out/key"},
        ("**/*.env", "{base}/out/*.env"),
        entries=[("out/x.env", "read"), ("out/key", "read")],
        narrow=True,
    ),
    "a file that may be written": Case(
        {**FILES, "ws/x.env": "secret", "ws/y.env": "->a"},
        ENV,
        entries=[("ws/x.env", "write"), ("ws/a", "write")],
        writable=False,
    ),
    "another name of a file": Case(
        {**FILES, "ws/x.env": "->a", "ws/b": "=ws/a", "ws/c": "->b"}, ENV
    ),
    "two links to one file": Case({**FILES, "ws/x.env": "->a", "ws/d/y.env": "->../a"}, ENV),
    "too deep": Case(
        {**FILES, "ws/d/e/x.env": "->../../../out/key", "ws/x.env": "->a", "ws/d/e/y.env": "text"},
        ENV,
        depth=2,
    ),
    "a protected name": Case({**FILES, "ws/.git/config": "text", "ws/x.env": "->.git/config"}, ENV),
    "everything": Case({**FILES, "ws/d/b": "->../../out/key", "ws/c": "->d"}, ("**",)),
    "up and down again": Case({**FILES, "ws/d/x.env": "->../../ws/d/../a", "ws/d/b": "text"}, ENV),
}


def random_case(seed: int) -> Case:
    """A tree of files, links and directories, and some patterns and rules."""
    pick = random.Random(seed)
    names = ("a", "b", "x.env", "y.env", "d", "e")

    def path() -> str:
        return "/".join(
            [pick.choice(("ws", "out")), *pick.choices(names, k=pick.choice((1, 1, 2, 2, 3)))]
        )

    tree: dict[str, str | None] = {}
    for _ in range(pick.randint(4, 9)):
        name = path()
        if any(
            f"{name}/".startswith(f"{other}/") or other.startswith(f"{name}/") for other in tree
        ):
            continue
        kind = pick.random()
        if kind < 0.35:
            tree[name] = f"content of {name}"
        elif kind < 0.65:
            tree[name] = "->{base}/" + path()
        elif kind < 0.95:
            tree[name] = (
                "->" + pick.choice(("", "", "../", "../../")) + pick.choice((*names, path()))
            )
        else:
            tree[name] = None
    patterns = ["**/*.env", "*.env", "d/**", "**/e/*", "**/[ab]", "**", "{base}/out/**/*.env"]
    # What entries make of a missing path differs on purpose.
    there = sorted(name for name, text in tree.items() if not (text or "").startswith("->"))
    rules = pick.sample(there, k=min(len(there), pick.choice((0, 0, 1, 2))))
    entries = [(name, pick.choice(("read", "write", "deny"))) for name in rules]
    return Case(
        tree,
        pick.sample(patterns, k=pick.choice((1, 1, 2))),
        entries,
        narrow=pick.random() < 0.3,
        writable=pick.random() < 0.7,
        depth=pick.choice((None, None, None, 1, 2)),
    )


def error_of(text: str) -> str:
    return next((name for words, name in ERRORS.items() if words in text), OTHER)


class Seen(NamedTuple):
    """What can be learnt about a path."""

    content: str
    """Content of a file, entries of a directory, or the error."""
    kind: str
    """Kind of the target, and the size of a file."""
    real: str
    """Real path."""


class Sights(NamedTuple):
    """What can be seen at some paths, and the paths of those files that can be written."""

    seen: dict[str, Seen]
    writable: set[str]


async def seen_by_command(
    client: Client, base: Path, case: Case, paths: list[str]
) -> Sights | None:
    """Return what a command sees; None if it cannot start."""
    argv = ["/bin/bash", "--norc", "-c", LOOK, "look", *paths]
    run = await client.run(argv, cwd=file_uri(base / "ws"), sandbox=case.sandbox(base))
    if run.stderr.startswith(b"cannot enforce"):
        return None
    assert not run.stderr, run.stderr
    sights = Sights({}, set())
    for path, line in zip(paths, run.stdout.decode().splitlines(), strict=True):
        content, kind, real, writable = line.split("|")
        if content.startswith(("look: ", "ls: ")):
            content = error_of(content)
        elif kind == "directory":
            content = " ".join(sorted(content.split()))
        sights.seen[path] = Seen(content, kind, real)
        if writable:
            sights.writable.add(path)
    return sights


class Files:
    """`fs/*` within one sandbox."""

    def __init__(self, client: Client, within: dict[str, Any]) -> None:
        self._client = client
        self._within = within

    async def call(self, method: str, **params: object) -> Any:
        return await self._client.call(f"fs/{method}", {"sandbox": self._within, **params})

    async def refusal(self, method: str, **params: object) -> str:
        """Return the kind of the error of a request."""
        try:
            await self.call(method, **params)
        except Refused as error:
            return error_of(str(error))
        return ""

    async def seen(self, path: str) -> Seen:
        """Return what can be learnt about a path."""
        uri, kind, real = file_uri(path), "", ""
        with suppress(Refused):
            found = await self.call("getMetadata", path=uri)
            if found["isDirectory"]:
                kind = "directory"
            elif found["isFile"]:
                kind = f"file {found['size']}"
            if kind:
                real = (await self.call("canonicalize", path=uri))["path"].removeprefix("file://")
        content = self._content if kind != "directory" else self._entries
        try:
            return Seen(await content(uri), kind, real)
        except Refused as error:
            return Seen(error_of(str(error)), kind, real)

    async def _entries(self, uri: str) -> str:
        found = (await self.call("readDirectory", path=uri))["entries"]
        shown = [one["fileName"] + "/" * one["isDirectory"] for one in found]
        # The protected names of a workspace are mount points for a command.
        return " ".join(sorted(name for name in shown if not name.startswith(".")))

    async def _content(self, uri: str) -> str:
        """Read a file as a whole and in blocks, which has to be the same."""
        opened = await self.refusal("open", path=uri, handleId="h")
        if opened:
            assert opened == await self.refusal("readFile", path=uri)
        content = from_base64((await self.call("readFile", path=uri))["dataBase64"]).decode()
        block = await self._client.call("fs/readBlock", {"handleId": "h", "offset": 0, "len": 4096})
        await self._client.call("fs/close", {"handleId": "h"})
        assert from_base64(block["chunk"]).decode() == content
        return content.rstrip()

    async def walked(self, folder: Path) -> dict[str, str]:
        """Return all files and directories below a directory, with their kinds."""
        limits = {"maxDepth": 9, "maxDirectories": 99, "maxEntries": 999}
        options = {**limits, "followDirectorySymlinks": False}
        found = await self.call("walk", path=file_uri(folder), options=options)
        return {one["path"].removeprefix("file://"): one["kind"] for one in found["entries"]}

    async def copied(self, path: str, target: Path) -> str | None:
        """Copy a file; return its content, or None if it is refused."""
        if await self.refusal(
            "copy", sourcePath=file_uri(path), destinationPath=file_uri(target), recursive=False
        ):
            return None
        found = await self._client.call("fs/readFile", {"path": file_uri(target)})
        await self._client.call("fs/remove", {"path": file_uri(target)})
        return from_base64(found["dataBase64"]).decode()


async def check(client: Client, base: Path, case: Case) -> None:
    """Make a tree, and compare what both see."""
    assert (await client.run_shell(case.script(base))).exit_code == 0
    await compare(client, base, case, case.paths(base))


async def compare(client: Client, base: Path, case: Case, paths: list[str]) -> None:
    by_command = await seen_by_command(client, base, case, paths)
    files = Files(client, case.sandbox(base))
    if by_command is None:
        assert await files.refusal("readFile", path=file_uri(base / "ws")) == OTHER
        return
    assert {path: await files.seen(path) for path in paths} == by_command.seen
    walked = await files.walked(base / "ws")
    for path in walked.keys() & by_command.seen.keys():
        seen = by_command.seen[path]
        assert (seen.kind.split()[0], seen.real) == (walked[path], path)
    for path, (content, kind, real) in by_command.seen.items():
        if not kind.startswith("file") or not real.startswith(f"{base}/"):
            continue
        shown = None if content in ERRORS.values() else content
        # By its real path only: a copy of a link is a link.
        if real == path:
            assert await files.copied(path, base / "copies/copy") == shown
        text = to_base64((shown or "").encode())
        refused = await files.refusal("writeFile", path=file_uri(path), dataBase64=text)
        assert (not refused) == (path in by_command.writable), path


async def check_each(server: ServerProcess, base: Path, cases: Mapping[str, Case]) -> None:
    for name, case in cases.items():
        async with connect(server.url) as client:
            try:
                await check(client, base / name.replace(" ", "-"), case)
            except (AssertionError, TimeoutError) as error:
                raise AssertionError(f"{name}: {case}") from error


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return tmp_path.resolve()


@pytest.mark.requirement("sandbox.globs.link-target", "fs.sandbox.links")
@pytest.mark.parametrize("name", CASES)
async def test_files_show_what_a_command_sees(client: Client, base: Path, name: str) -> None:
    await check(client, base, CASES[name])


@pytest.mark.slow
@pytest.mark.timeout(90)
@pytest.mark.skipif(os.geteuid() != 0, reason="those before are played by an ordinary user here")
async def test_files_show_what_a_command_of_an_ordinary_user_sees() -> None:
    with stranger() as user, tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        os.chmod(folder, 0o777)  # for the other user
        serve = [user.python, "-m", "holdfast.front.cli", "exec-server"]
        with serving(command=serve, **user.popen) as server:
            await check_each(server, Path(folder), {**CASES, **random_cases(1000)})


@pytest.mark.slow
@pytest.mark.timeout(90)
async def test_files_show_what_a_command_sees_in_random_trees(
    server: ServerProcess, base: Path
) -> None:
    await check_each(server, base, random_cases(0))


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a directory of another user")
async def test_a_link_where_only_root_can_look_denies_its_target(
    client: Client, base: Path
) -> None:
    """The threads of a root server have the rights of a command, but the search has its own."""
    case = Case({**FILES, "ws/d/x.env": "->../../out/key"}, ENV)
    assert (await client.run_shell(case.script(base))).exit_code == 0
    os.chown(base / "ws/d", NOBODY, NOBODY)
    os.chmod(base / "ws/d", 0o700)
    await compare(client, base, case, [str(base / "out/key"), str(base / "ws/a")])


@pytest.mark.requirement("fs.sandbox.links")
async def test_a_matching_link_can_be_removed_and_copied_as_by_a_command(
    client: Client, base: Path
) -> None:
    case = Case({**FILES, "ws/d/x.env": "->../../out/key", "ws/y.env": "->a"}, ENV)
    assert (await client.run_shell(case.script(base))).exit_code == 0
    files = Files(client, case.sandbox(base))
    copied = {"sourcePath": file_uri(base / "ws/d"), "destinationPath": file_uri(base / "copies/d")}
    await files.call("copy", recursive=True, **copied)
    assert os.readlink(base / "copies/d/x.env") == "../../out/key"
    # A copy of the file itself is refused, by each of its names.
    for path in ("ws/y.env", "ws/a"):
        params = {"sourcePath": file_uri(base / path), "destinationPath": file_uri(base / "ws/b")}
        refused = await files.refusal("copy", recursive=False, **params)
        assert refused == ("" if path == "ws/y.env" else DENIED)
    assert os.readlink(base / "ws/b") == "a"
    assert await files.seen(str(base / "ws/b")) == Seen(DENIED, "file 0", str(base / "ws/a"))
    # The directory may go, as no file in it matches; a file that a link leads to stays.
    await files.call("remove", path=file_uri(base / "ws/d"), recursive=True)
    assert await files.refusal("remove", path=file_uri(base / "ws/a")) == OTHER
    await files.call("remove", path=file_uri(base / "ws/y.env"))
    assert sorted(name for name in os.listdir(base / "ws") if name[0] != ".") == ["a", "b"]
    await compare(client, base, case, case.paths(base))


def random_cases(first: int) -> dict[str, Case]:
    return {f"seed-{first + n}": random_case(first + n) for n in range(times(8))}
