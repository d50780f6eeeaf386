"""Files that Holdfast reads and writes for itself."""

from pathlib import Path

import pytest

from holdfast.base import own_files as module
from holdfast.base.own_files import OwnFiles, cache_home, holdfast_home, keep_unchanged, own_files


@pytest.fixture(autouse=True)
def _nothing_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_named", OwnFiles((), ()))
    monkeypatch.setattr(module, "database_home", lambda: "/accounts/me")
    module._folders.cache_clear()


@pytest.mark.requirement("security.own.settings")
def test_settings_state_and_programs_are_found_for_all_variables() -> None:
    environ = {
        "HOME": "/home/me",
        "HOLDFAST_HOME": "/named",
        "HOLDFAST_SH_HOME": "/shells",
        "XDG_CONFIG_HOME": "/config",
        "XDG_STATE_HOME": "relative",
        "XDG_CACHE_HOME": "/cache",
    }
    found = set(own_files(environ).folders)
    homes = ("/home/me", "/accounts/me")
    below = (".config", ".local/state", ".cache", ".local/share")
    assert found == {
        *("/named", "/shells", "/config/holdfast", "/cache/holdfast"),
        *(f"{home}/{base}/holdfast" for home in homes for base in below),
    }


@pytest.mark.requirement("security.own.settings")
def test_the_home_of_holdfast_is_the_one_that_is_named() -> None:
    assert holdfast_home({"HOLDFAST_HOME": "/x", "XDG_CONFIG_HOME": "/y"}) == Path("/x")
    assert holdfast_home({"XDG_CONFIG_HOME": "/y"}) == Path("/y/holdfast")
    assert holdfast_home({"XDG_CONFIG_HOME": "y", "HOME": "/h"}) == Path("/h/.config/holdfast")
    assert cache_home({"HOME": "/h"}) == Path("/h/.cache/holdfast")


def test_files_that_are_named_are_kept_once(tmp_path: Path) -> None:
    log = tmp_path / "audit.log"
    for _ in range(2):
        keep_unchanged("/etc/x.toml")
        # Missing yet: an empty file in its place would not be the same.
        keep_unchanged(log, folder=True)
    assert own_files({})[1:] == (("/etc/x.toml",), (str(tmp_path),))
    log.touch()
    keep_unchanged(log, folder=True)
    assert own_files({}).files == ("/etc/x.toml", str(log))


def test_names_are_bounded() -> None:
    for number in range(module._MOST + 5):
        keep_unchanged(f"/{number}")
    assert len(own_files({}).files) == module._MOST
