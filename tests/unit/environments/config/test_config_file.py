"""`environments.toml` is read as strictly as Codex reads it, and told about in its words."""

import os
from pathlib import Path

import pytest

from holdfast.base.errors import InvalidConfig
from holdfast.environments.config import config_file as config
from holdfast.environments.config.snapshot import (
    ConfiguredEnvironments,
    Entry,
    ServerUrl,
    ServingProgram,
)
from tests.unit.environments.cases import EVERYTHING, NO_IDS, NO_SENSE, PROGRAM, UNFIT, URL, A

PATH = Path("/home/me/.codex/environments.toml")


def refusal(text: str) -> InvalidConfig:
    with pytest.raises(InvalidConfig) as caught:
        config.parse(text, PATH)
    return caught.value


@pytest.mark.requirement("environments.file.keys")
def test_every_key_is_read() -> None:
    assert config.parse(EVERYTHING, PATH) == ConfiguredEnvironments(
        entries=(
            Entry(
                id="devbox",
                transport=ServerUrl(
                    url="wss://devbox.example/exec", bearer_token="secret", connect_timeout=5.5
                ),
                initialize_timeout=20.0,
            ),
            Entry(
                id="ssh-dev",
                transport=ServingProgram(
                    program="ssh",
                    args=("dev", "codex exec-server --listen stdio"),
                    env={"LANG": "C.UTF-8"},
                    cwd="/home/me/.codex/work",
                ),
            ),
        ),
        include_local=True,
        default="ssh-dev",
    )


@pytest.mark.requirement("environments.file.keys")
def test_what_is_not_said_has_a_default() -> None:
    (entry,) = config.parse(URL, PATH).entries
    assert entry == Entry(
        id="a", transport=ServerUrl(url="ws://x", connect_timeout=10), initialize_timeout=10
    )


@pytest.mark.parametrize("cwd", ["/srv", "~", ""])
def test_a_folder_is_found_beside_the_file_unless_it_is_absolute(cwd: str) -> None:
    (entry,) = config.parse(f'{PROGRAM}cwd = "{cwd}"', PATH).entries
    assert isinstance(entry.transport, ServingProgram)
    assert entry.transport.cwd == os.path.join("/home/me/.codex", cwd)


@pytest.mark.requirement("environments.file.default")
@pytest.mark.parametrize(
    ("text", "include_local", "default"),
    [
        ("", True, "local"),
        (URL, True, "local"),
        ("include_local = false\n" + URL, False, None),
        ('default = "local"\n', True, "local"),
        ('default = " a "\n' + URL, True, "a"),
        ('default = "none"\n', True, None),
        ('default = " NoNe "\n' + URL, True, None),
        ('default = "a"\ninclude_local = false\n' + URL, False, "a"),
    ],
)
def test_the_default_is_the_one_named_or_this_machine(
    text: str, include_local: bool, default: str | None
) -> None:
    snapshot = config.parse(text, PATH)
    assert (snapshot.include_local, snapshot.default) == (include_local, default)


@pytest.mark.parametrize(
    "environment_id", ["Local", "LOCAL", "remote", "a-b_C9", "-", "a" * 64, "none-of-these"]
)
def test_these_are_ids(environment_id: str) -> None:
    config.check_id(environment_id)
    text = f'[[environments]]\nid = "{environment_id}"\nurl = "ws://x"'
    assert config.parse(text, PATH).ids == ["local", environment_id]


@pytest.mark.requirement("environments.file.ids")
@pytest.mark.parametrize(
    ("environment_id", "text"),
    NO_IDS,
)
def test_these_are_no_ids(environment_id: str, text: str) -> None:
    error = refusal(f'[[environments]]\nid = "{environment_id}"\nurl = "ws://x"')
    assert str(error) == text


@pytest.mark.requirement("environments.file.texts")
@pytest.mark.parametrize(
    ("written", "text"),
    NO_SENSE,
)
def test_what_makes_no_sense_is_told_in_the_words_of_codex(written: str, text: str) -> None:
    assert str(refusal(written)) == text


@pytest.mark.requirement("environments.file.parse")
@pytest.mark.parametrize(
    ("written", "detail"),
    UNFIT,
)
def test_what_does_not_fit_is_named_with_its_place(written: str, detail: str) -> None:
    text = f"failed to parse environment config `{PATH}`: {detail}"
    assert str(refusal(written)) == text


@pytest.mark.requirement("environments.file.parse")
@pytest.mark.parametrize("written", ["default = ", "[[environments]", 'x = "1\n"', A + 'id = "b"'])
def test_what_is_no_toml_is_told_with_its_place(written: str) -> None:
    text = str(refusal(written))
    assert text.startswith(f"failed to parse environment config `{PATH}`: ")
    assert " (at " in text


def test_a_mistake_in_an_earlier_entry_is_told_first() -> None:
    assert "`a b`" in str(refusal('[[environments]]\nid="a b"\nurl="ws://x"\n' + A))


@pytest.mark.parametrize(
    ("written", "advice"),
    [
        (A + 'url = "http://x"', "try `ws://x`"),
        (A + 'url = "https://x"', "try `wss://x`"),
        (A + 'url = "ssh://x"', 'use `program = "ssh"`'),
        (A + 'url = "x:1"', "did you mean `ws://x:1`?"),
        (A + 'url = "x"', "`program` instead of `url`"),
        ('default = "x"\n' + URL, "configured: `local`, `a`"),
        ('default = "x"\ninclude_local = false', "configured: nothing"),
        ('[[environments]]\nid = "local"\nurl = "ws://x"', "choose another id"),
    ],
)
def test_advice_stands_beside_the_text(written: str, advice: str) -> None:
    error = refusal(written)
    assert error.advice is not None
    assert advice in error.advice
    assert error.__notes__ == [error.advice]
    assert error.advice not in str(error)


@pytest.mark.requirement("environments.file.texts")
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    path = tmp_path / "environments.toml"
    with pytest.raises(InvalidConfig) as caught:
        config.load(path)
    assert str(caught.value) == (
        f"failed to read environment config `{path}`: No such file or directory (os error 2)"
    )
    path.write_bytes(b"default = \xff")
    with pytest.raises(InvalidConfig, match="stream did not contain valid UTF-8"):
        config.load(str(path))
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(InvalidConfig, match=f"config `{path}`: it is not a regular file"):
        config.load(path)


def test_a_file_with_a_mark_of_its_encoding_is_read(tmp_path: Path) -> None:
    path = tmp_path / "environments.toml"
    path.write_bytes(b'\xef\xbb\xbfdefault = "local"\r\n')
    assert config.load(path) == ConfiguredEnvironments()


def test_a_token_is_not_shown() -> None:
    assert "secret" not in repr(config.parse(EVERYTHING, PATH))
