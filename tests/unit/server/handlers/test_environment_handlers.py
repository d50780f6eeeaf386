"""`environment/*` and `environmentConfig/read` as a client sees them."""

from pathlib import Path
from typing import Any

import pytest

from tests.unit.server.serving import Client


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("CODEX_HOME", raising=False)
    (tmp_path / ".codex").mkdir()
    (tmp_path / ".codex" / "config.toml").write_text('model = "m"\nother = 1\n')
    return tmp_path


def selection(**changes: Any) -> dict[str, Any]:
    return {"cwd": "file:///", "configPaths": [["model"]], "requirementsPaths": [], **changes}


@pytest.mark.requirement("environment.config")
async def test_the_configuration_is_read_for_the_selected_keys(client: Client, home: Path) -> None:
    reply = await client.call("environmentConfig/read", **selection())
    assert reply.keys() == {"userHomeDir", "codexHomeDir", "hostname", "config", "requirements"}
    (layer,) = reply["config"]["layers"]
    assert layer["source"] == f"user ({home}/.codex/config.toml)"
    assert layer["toml"].strip() == 'model = "m"'


@pytest.mark.requirement("environment.config.selectors")
@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"configPaths": []}, "at least one config or requirements path is required"),
        ({"configPaths": [[]]}, "TOML paths must contain at least one key segment"),
        ({"cwd": "file:///C:/x"}, "'file:///C:/x' is invalid on 'linux'"),
        ({"cwd": "file://host/x"}, "'file://host/x' is invalid on 'linux'"),
        ({"cwd": "/x"}, "invalid URI: relative URL without a base"),
    ],
)
async def test_a_selection_that_cannot_be_served_is_refused(
    client: Client, changes: dict[str, Any], text: str
) -> None:
    reply = await client.call("environmentConfig/read", **selection(**changes))
    assert reply == (-32602, text)
