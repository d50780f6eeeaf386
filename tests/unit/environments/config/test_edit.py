"""Changing `environments.toml` keeps what its author wrote, and never leaves a broken file."""

import os
import stat
from pathlib import Path

import pytest

from holdfast.base.errors import InvalidConfig
from holdfast.environments.config import config_file as config
from holdfast.environments.config import edit
from holdfast.environments.config.snapshot import Entry, ServerUrl, ServingProgram

WRITTEN = """\
# My environments.
# Ask Ada before changing them.
default = "b"   # where I work

# the old box
[[environments]]
id = "a"
url = "ws://a"
# connect_timeout_sec = 3

# --- the others ---

# the new box
[[environments]]
id = "b"   # short for Bergen
program = "ssh"
args = [
  "bergen",
  "[[environments]]",
]

[environments.env]
NOTE = \"\"\"
[[environments]]
# no comment
\"\"\"

# the last
[[ environments ]]
id = 'c'
url = "ws://c"

# the end
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "environments.toml"
    path.write_text(WRITTEN)
    return path


def without(*parts: str) -> str:
    text = WRITTEN
    for part in parts:
        assert part in text
        text = text.replace(part, "")
    return text


A = """\
# the old box
[[environments]]
id = "a"
url = "ws://a"
# connect_timeout_sec = 3

"""
B = WRITTEN[WRITTEN.index("# the new box") : WRITTEN.index("# the last")]
C = """\
# the last
[[ environments ]]
id = 'c'
url = "ws://c"

"""


@pytest.mark.parametrize(
    ("environment_id", "left"),
    [("a", without(A)), ("b", without(B, 'default = "b"   # where I work\n')), ("c", without(C))],
)
def test_an_entry_is_taken_out_and_all_else_stays(
    path: Path, environment_id: str, left: str
) -> None:
    edit.remove(path, environment_id)
    assert path.read_text() == left
    assert environment_id not in config.load(path).ids


def test_all_can_be_taken_out_one_by_one(path: Path) -> None:
    for environment_id in ("c", "a", "b"):
        edit.remove(path, environment_id)
    assert config.load(path).ids == ["local"]
    kept = [
        "# My environments.",
        "# Ask Ada before changing them.",
        "# --- the others ---",
        "# the end",
    ]
    assert [line for line in path.read_text().splitlines() if line] == kept


def test_the_last_entry_leaves_no_blank_line(path: Path) -> None:
    path.write_text('default = "none"\n\n\n[[environments]]\nid = "a"\nurl = "ws://a"\n')
    edit.remove(path, "a")
    assert path.read_text() == 'default = "none"\n'


def test_comments_between_two_entries_belong_to_the_second(path: Path) -> None:
    first = '[[environments]]\nid = "a"\nurl = "ws://a"\n'
    second = '# about b\n[[environments]]\nid = "b"\nurl = "ws://b"\n'
    path.write_text(first + second)
    edit.remove(path, "a")
    assert path.read_text() == second


def test_what_a_file_begins_with_stays(path: Path) -> None:
    path.write_text('# mine\n[[environments]]\nid = "a"\nurl = "ws://a"\n')
    edit.remove(path, "a")
    assert path.read_text() == "# mine\n"


def test_lines_keep_their_ends(path: Path) -> None:
    path.write_bytes(WRITTEN.replace("\n", "\r\n").encode())
    edit.remove(path, "a")
    assert path.read_bytes() == without(A).replace("\n", "\r\n").encode()


def test_one_that_is_not_there_is_named_with_those_that_are(path: Path) -> None:
    with pytest.raises(InvalidConfig) as caught:
        edit.remove(path, "x")
    assert str(caught.value) == f"environment `x` is not in `{path}`"
    assert caught.value.advice == "there: `a`, `b`, `c`"
    assert path.read_text() == WRITTEN


def test_without_a_file_there_is_nothing_to_remove(tmp_path: Path) -> None:
    path = tmp_path / "environments.toml"
    with pytest.raises(InvalidConfig) as caught:
        edit.remove(path, "x")
    assert str(caught.value) == f"environment `x` is not in `{path}`"
    assert caught.value.advice == "there: nothing"
    assert not path.exists()


@pytest.mark.parametrize(
    "text",
    [
        'environments = [{ id = "a", url = "ws://a" }]\n',
        # The comment above the table is the end of a text.
        '[[environments]]\nid = "x"\nprogram = "p"\ncwd = """\n#"""\n'
        '[[environments]]\nid = "a"\nurl = "ws://a"\n',
        'default = """\\\n  a\\\n  """\n[[environments]]\nid = "a"\nurl = "ws://a"\n',
    ],
)
def test_what_cannot_be_changed_safely_is_not_changed(path: Path, text: str) -> None:
    path.write_text(text)
    with pytest.raises(InvalidConfig) as caught:
        edit.remove(path, "a")
    assert path.read_text() == text
    assert os.listdir(path.parent) == [path.name]
    assert caught.value.advice is not None
    assert "by hand" in caught.value.advice


def test_nothing_is_added_to_a_list_in_one_line(path: Path) -> None:
    path.write_text('environments = [{ id = "a", url = "ws://a" }]\n')
    with pytest.raises(InvalidConfig, match="cannot be edited"):
        edit.add(path, Entry(id="b", transport=ServerUrl(url="ws://b")))


ENTRIES = [
    Entry(id="d", transport=ServerUrl(url="ws://d")),
    Entry(
        id="e",
        transport=ServerUrl(
            url="wss://e/x?y", bearer_token='a "quoted" \\ token', connect_timeout=2.5
        ),
        initialize_timeout=0.0,
    ),
    Entry(id="f", transport=ServingProgram(program="docker")),
    Entry(
        id="g",
        transport=ServingProgram(
            program="ssh",
            args=("host", "a 'b' \"c\"\n", ""),
            env={"A": "1", "with space": "ä\t"},
            cwd="/srv",
        ),
        initialize_timeout=60.0,
    ),
]


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.id)
def test_what_was_added_is_read_back(path: Path, entry: Entry) -> None:
    edit.add(path, entry)
    assert path.read_text().startswith(WRITTEN)
    assert config.load(path).entry(entry.id) == entry


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.id)
def test_what_was_added_can_be_taken_out(path: Path, entry: Entry) -> None:
    edit.add(path, entry)
    edit.remove(path, entry.id)
    assert path.read_text() == WRITTEN


@pytest.mark.parametrize("text", ["", "default = 'local'", "default = 'local'\n"])
def test_a_new_entry_stands_apart(path: Path, text: str) -> None:
    path.write_text(text)
    edit.add(path, ENTRIES[0])
    edit.add(path, ENTRIES[2])
    start = text.rstrip() + "\n\n" if text else ""
    assert path.read_text() == (
        f'{start}[[environments]]\nid = "d"\nurl = "ws://d"\n'
        '\n[[environments]]\nid = "f"\nprogram = "docker"\n'
    )


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        (Entry(id="a", transport=ServerUrl(url="ws://d")), "environment `a` already exists in "),
        (Entry(id="local", transport=ServerUrl(url="ws://d")), "`local` is reserved"),
        (Entry(id="d", transport=ServerUrl(url="http://d")), "must use ws:// or wss://"),
        (Entry(id="d", transport=ServingProgram(program=" ")), "program cannot be empty"),
    ],
)
def test_what_could_not_be_read_is_not_written(path: Path, entry: Entry, text: str) -> None:
    with pytest.raises(InvalidConfig, match=text):
        edit.add(path, entry)
    assert path.read_text() == WRITTEN


def test_a_broken_file_is_not_made_worse(path: Path) -> None:
    path.write_text("default = ")
    with pytest.raises(InvalidConfig, match="failed to parse"):
        edit.add(path, ENTRIES[0])
    with pytest.raises(InvalidConfig, match="failed to parse"):
        edit.remove(path, "a")
    assert path.read_text() == "default = "


def test_the_file_is_for_its_owner_only(path: Path) -> None:
    path.chmod(0o644)
    edit.add(path, ENTRIES[0])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_new_file_gets_a_folder_for_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "home" / "environments.toml"
    edit.add(path, ENTRIES[0])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_link_stays_one(path: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.toml"
    link.symlink_to(path)
    edit.add(link, ENTRIES[0])
    assert link.is_symlink()
    assert config.load(path).entry("d") == ENTRIES[0]


def test_what_cannot_be_written_is_told(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: int, data: bytes, at: int) -> int:
        # The first write only: it is undone by another one.
        monkeypatch.undo()
        return os.pwrite(file, data[:-1], at)

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(InvalidConfig) as caught:
        edit.add(path, ENTRIES[0])
    assert str(caught.value) == (
        f"failed to write environment config `{path}`: No space left on device (os error 28)"
    )
    assert path.read_text() == WRITTEN
    assert os.listdir(path.parent) == [path.name]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", 'default = "new"\n\n[[environments]]\nid = "new"\nurl = "ws://h"\n'),
        (
            'default = "none"  # for now\n',
            'default = "new"\n\n[[environments]]\nid = "new"\nurl = "ws://h"\n',
        ),
        (
            "include_local = false\n\n[[environments]]\nid = 'a'\nurl = 'ws://a'\n",
            "include_local = false\n\ndefault = \"new\"\n\n[[environments]]\nid = 'a'\n"
            'url = \'ws://a\'\n\n[[environments]]\nid = "new"\nurl = "ws://h"\n',
        ),
        (
            "include_local = true\n# x\n[[environments]]\nid = 'a'\nurl = 'ws://a'\n",
            "include_local = true\ndefault = \"new\"\n# x\n[[environments]]\nid = 'a'\n"
            'url = \'ws://a\'\n\n[[environments]]\nid = "new"\nurl = "ws://h"\n',
        ),
        (
            "# about\n\n'default'='a '\n[[environments]]\nid = 'a'\nurl = 'ws://a'\n",
            "# about\n\ndefault = \"new\"\n[[environments]]\nid = 'a'\nurl = 'ws://a'\n"
            '\n[[environments]]\nid = "new"\nurl = "ws://h"\n',
        ),
    ],
)
def test_the_new_one_can_be_the_default(tmp_path: Path, before: str, after: str) -> None:
    path = tmp_path / "environments.toml"
    if before:
        path.write_text(before)
    edit.add(path, Entry(id="new", transport=ServerUrl(url="ws://h")), default=True)
    assert path.read_text() == after
    assert config.load(path).default == "new"


@pytest.mark.parametrize("value", ['"""\\\n  a\\\n  """', '"""\n#\na"""'])
def test_a_default_in_several_lines_is_not_changed(path: Path, value: str) -> None:
    text = f"default = {value}\n[[environments]]\nid = 'a'\nurl = 'ws://a'\n"
    path.write_text(text)
    with pytest.raises(InvalidConfig):
        edit.add(path, ENTRIES[0], default=True)
    assert path.read_text() == text
