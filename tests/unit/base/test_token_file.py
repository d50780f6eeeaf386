"""Files with tokens: who may read them, how they are made, what is in them."""

import os
import threading
from pathlib import Path

import pytest

from holdfast.base.token_file import BadTokenFile, NamedToken, make_token_file, read_tokens
from holdfast.client.target import TargetOptions


def refusal(path: Path) -> str:
    with pytest.raises(BadTokenFile) as caught:
        read_tokens(str(path))
    assert str(path) in str(caught.value)
    return str(caught.value)


def private(path: Path, text: str) -> Path:
    path.touch(0o600)
    path.write_text(text)
    return path


@pytest.mark.requirement("security.token-file.names")
def test_tokens_have_names_and_names_have_several_tokens(tmp_path: Path) -> None:
    text = "# of the build\nci one\n\nci  two \n\tthree\n  # alice gone\nalice@home four"
    assert read_tokens(str(private(tmp_path / "tokens", text))) == [
        NamedToken("ci", "one"),
        NamedToken("ci", "two"),
        NamedToken("default", "three"),
        NamedToken("alice@home", "four"),
    ]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "there is no token in it"),
        ("\n# only words\n", "there is no token in it"),
        ("a b c", "line 1 is more than a name and a token"),
        ("ok secret\nlocal secret", "the name in line 2"),
        ("anonymous secret", "the name in line 1"),
        ("a/b secret", "the name in line 1"),
        ("tökén", "the token in line 1 cannot be sent"),
        ("x" * 70_000, "more than 65,536 bytes"),
    ],
)
def test_what_makes_no_sense_is_refused_and_never_quoted(
    tmp_path: Path, text: str, why: str
) -> None:
    said = refusal(private(tmp_path / "tokens", text))
    assert why in said
    assert "secret" not in said


@pytest.mark.requirement("security.token-file.refused")
@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o666])
def test_a_file_that_others_can_open_is_refused(tmp_path: Path, mode: int) -> None:
    path = private(tmp_path / "tokens", "token")
    path.chmod(mode)
    assert f"others can read it (mode {mode:04o})" in refusal(path)


@pytest.mark.requirement("security.token-file.refused")
def test_only_a_file_of_ones_own_is_read(tmp_path: Path) -> None:
    real = private(tmp_path / "real", "token")
    link = tmp_path / "link"
    link.symlink_to(real)
    assert "it is a symbolic link" in refusal(link)
    os.mkfifo(tmp_path / "fifo", 0o600)  # with nobody at its other end
    assert "it is not a regular file" in refusal(tmp_path / "fifo")
    assert "it is not a regular file" in refusal(tmp_path)
    assert "No such file" in refusal(tmp_path / "missing")
    if os.geteuid() == 0:
        os.chown(real, 12345, 12345)
        assert "another user (uid 12345)" in refusal(real)


@pytest.mark.requirement("security.token-file.made")
def test_a_missing_file_is_made_once_however_many_make_it(tmp_path: Path) -> None:
    path = tmp_path / "token"
    made: list[bool] = []
    ready = threading.Barrier(8)

    def make() -> None:
        ready.wait()
        made.append(make_token_file(str(path)))

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(made) == [False] * 7 + [True]
    assert [entry.name for entry in tmp_path.iterdir()] == ["token"]
    assert path.stat().st_mode & 0o777 == 0o600
    ((name, token),) = read_tokens(str(path))
    assert (name, len(token)) == ("default", 64)


def test_nothing_is_made_through_a_link_or_where_there_is_no_folder(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "elsewhere")
    assert not make_token_file(str(link))
    assert not (tmp_path / "elsewhere").exists()
    with pytest.raises(BadTokenFile, match="it cannot be created: No such file"):
        make_token_file(str(tmp_path / "missing" / "token"))


def test_a_token_is_in_no_repr() -> None:
    assert repr(NamedToken("ci", "secret")) == "NamedToken(name='ci')"
    assert "secret" not in repr(TargetOptions(bearer_token="secret"))
