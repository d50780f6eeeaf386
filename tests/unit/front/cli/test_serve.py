"""Messages of a server to a person who started it in a terminal."""

import pytest

from holdfast.front.cli.parser import make_parser
from holdfast.front.cli.serve import _announce

URL = "ws://127.0.0.1:4500"


@pytest.mark.parametrize(
    ("words", "asks"),
    [(["serve"], True), (["serve", "--no-auth"], False), (["exec-server"], False)],
    ids=["serve", "open", "codex"],
)
def test_the_hint_fits_the_token(
    words: list[str],
    asks: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("HOLDFAST_HINT", "1")
    _announce(URL, make_parser().parse_args(words))
    out, err = capsys.readouterr()
    assert out == f"{URL}\n"
    assert f"scripts/holdfast run --url {URL} -- echo hello" in err
    # Codex takes no token with this variable.
    assert (f"CODEX_EXEC_SERVER_URL={URL} codex" in err) is not asks
