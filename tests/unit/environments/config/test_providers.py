"""The first source that applies says which environments there are; nothing is merged."""

from pathlib import Path

import pytest

from holdfast.base.errors import InvalidConfig
from holdfast.environments.config.home import NOISE_VARIABLES, codex_home, holdfast_home
from holdfast.environments.config.providers import (
    FileProvider,
    GivenProvider,
    UrlProvider,
    provider_from_env,
)
from holdfast.environments.config.snapshot import ConfiguredEnvironments, Entry, ServerUrl

NOISE = dict.fromkeys(NOISE_VARIABLES, "x")
NOTHING = ConfiguredEnvironments(include_local=False, default=None)


def remote(url: str) -> ConfiguredEnvironments:
    entry = Entry(
        id="remote",
        transport=ServerUrl(url=url, connect_timeout=10.0),
        initialize_timeout=10.0,
    )
    return ConfiguredEnvironments(entries=(entry,), include_local=False, default="remote")


@pytest.mark.requirement("environments.url-variable")
@pytest.mark.parametrize(
    ("value", "snapshot"),
    [
        (None, ConfiguredEnvironments(include_local=True, default="local")),
        ("", ConfiguredEnvironments()),
        (" \t", ConfiguredEnvironments()),
        ("none", NOTHING),
        (" NoNe ", NOTHING),
        (" ws://x ", remote("ws://x")),
        ("no url at all", remote("no url at all")),
    ],
)
def test_a_variable_names_one_server_or_nothing_or_this_machine(
    value: str | None, snapshot: ConfiguredEnvironments
) -> None:
    assert UrlProvider(value).snapshot() == snapshot


@pytest.mark.requirement("environments.url-variable")
@pytest.mark.parametrize(
    ("environ", "snapshot"),
    [
        ({}, ConfiguredEnvironments()),
        ({"CODEX_EXEC_SERVER_URL": "ws://c"}, remote("ws://c")),
        ({"HOLDFAST_EXEC_SERVER_URL": "ws://h"}, remote("ws://h")),
        (
            {"HOLDFAST_EXEC_SERVER_URL": "ws://h", "CODEX_EXEC_SERVER_URL": "ws://c"},
            remote("ws://h"),
        ),
        (
            {"HOLDFAST_EXEC_SERVER_URL": " ", "CODEX_EXEC_SERVER_URL": "ws://c"},
            remote("ws://c"),
        ),
        ({"HOLDFAST_EXEC_SERVER_URL": "none", "CODEX_EXEC_SERVER_URL": "ws://c"}, NOTHING),
    ],
)
def test_our_own_variable_comes_first(
    environ: dict[str, str], snapshot: ConfiguredEnvironments, tmp_path: Path
) -> None:
    assert provider_from_env(environ, tmp_path).snapshot() == snapshot


@pytest.mark.requirement("environments.sources")
def test_a_file_comes_before_the_variable_even_if_it_is_empty(tmp_path: Path) -> None:
    environ = {"CODEX_EXEC_SERVER_URL": "ws://c"}
    file = tmp_path / "environments.toml"
    file.touch()
    assert provider_from_env(environ, tmp_path).snapshot() == ConfiguredEnvironments()
    file.write_text('[[environments]]\nid = "a"\nurl = "ws://a"\n')
    snapshot = provider_from_env(environ, tmp_path).snapshot()
    assert snapshot.ids == ["local", "a"]
    assert snapshot.default == "local"


def test_a_file_that_cannot_be_read_is_not_passed_over(tmp_path: Path) -> None:
    (tmp_path / "environments.toml").symlink_to(tmp_path / "nowhere")
    provider = provider_from_env({}, tmp_path)
    assert isinstance(provider, FileProvider)
    with pytest.raises(InvalidConfig, match="failed to read environment config"):
        provider.snapshot()


@pytest.mark.requirement("environments.sources")
def test_the_noise_variables_come_before_the_file(tmp_path: Path) -> None:
    (tmp_path / "environments.toml").touch()
    with pytest.raises(InvalidConfig) as caught:
        provider_from_env(NOISE, tmp_path)
    assert str(caught.value) == (
        "environment registry configuration error:"
        " Holdfast does not support environments behind a Noise relay"
    )
    assert caught.value.advice is not None
    assert all(name in caught.value.advice for name in NOISE_VARIABLES)


@pytest.mark.requirement("environments.noise-partial")
@pytest.mark.parametrize("missing", NOISE_VARIABLES)
def test_some_of_the_noise_variables_are_not_enough(missing: str, tmp_path: Path) -> None:
    environ = {**NOISE, missing: " "}
    with pytest.raises(InvalidConfig) as caught:
        provider_from_env(environ, tmp_path)
    assert str(caught.value) == (
        "environment registry configuration error: Noise environment requires"
        " CODEX_EXEC_SERVER_NOISE_REGISTRY_URL, CODEX_EXEC_SERVER_NOISE_ENVIRONMENT_ID,"
        " and CODEX_EXEC_SERVER_NOISE_AUTH_TOKEN"
    )


@pytest.mark.requirement("environments.noise-partial")
def test_blank_noise_variables_are_none(tmp_path: Path) -> None:
    environ = dict.fromkeys(NOISE_VARIABLES, "")
    environ["CODEX_EXEC_SERVER_NOISE_CHATGPT_ACCOUNT_ID"] = "x"
    assert provider_from_env(environ, tmp_path).snapshot() == ConfiguredEnvironments()


def test_a_program_can_name_them_itself() -> None:
    snapshot = remote("ws://x")
    assert GivenProvider(snapshot).snapshot() is snapshot


@pytest.mark.parametrize(
    ("environ", "home"),
    [
        ({"HOLDFAST_HOME": "/h", "XDG_CONFIG_HOME": "/x", "HOME": "/me"}, "/h"),
        ({"XDG_CONFIG_HOME": "/x", "HOME": "/me"}, "/x/holdfast"),
        ({"HOLDFAST_HOME": "", "XDG_CONFIG_HOME": "", "HOME": "/me"}, "/me/.config/holdfast"),
        ({"XDG_CONFIG_HOME": "relative", "HOME": "/me"}, "/me/.config/holdfast"),
    ],
)
def test_our_home_is_where_configuration_is_kept(environ: dict[str, str], home: str) -> None:
    assert holdfast_home(environ) == Path(home)


@pytest.mark.parametrize(
    ("environ", "home"),
    [({"CODEX_HOME": "/c", "HOME": "/me"}, "/c"), ({"HOME": "/me"}, "/me/.codex")],
)
def test_the_home_of_codex_is_known(environ: dict[str, str], home: str) -> None:
    assert codex_home(environ) == Path(home)


def test_without_a_home_the_user_database_is_asked() -> None:
    assert holdfast_home({}) == Path("~/.config/holdfast").expanduser()
