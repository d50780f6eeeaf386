"""The manual page, and the files that name options of the command line."""

import configparser
import json
import re
import shlex
from pathlib import Path

import pytest

from holdfast.front.cli.parser import make_parser
from scripts.manual import manual_page

ROOT = Path(__file__).parents[4]
UNITS = sorted((ROOT / "packaging" / "systemd").glob("*/holdfast.service"))


def test_the_manual_page_is_current() -> None:
    assert (ROOT / "man" / "holdfast.1").read_text() == manual_page(), "run scripts/man"


def test_the_manual_page_has_every_option_and_no_line_that_is_no_text() -> None:
    page = manual_page()
    for name in ("audit\\-log", "listen", "sandbox", "ask\\-for\\-approval"):
        assert f"\\fB\\-\\-{name}\\fR" in page
    known = {".TH", ".SH", ".SS", ".TP", ".B"}
    assert {line.split()[0] for line in page.splitlines() if line.startswith(".")} <= known
    assert not any(line.startswith("'") for line in page.splitlines())


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.parent.name)
def test_the_units_start_a_server_as_it_wants_to_be_started(unit: Path) -> None:
    found = configparser.ConfigParser(strict=False, interpolation=None)
    found.optionxform = str  # type: ignore[assignment,method-assign]  # names have capitals
    found.read(unit)
    service = found["Service"]
    _, *arguments = shlex.split(service["ExecStart"])
    assert make_parser().parse_args(arguments).config is not None
    assert service["Type"] == "notify"
    assert "NotifyAccess" not in service  # commands must not speak for the service
    assert service["KillMode"] == "mixed"
    # Each of these would take the sandbox away.
    for name in ("RestrictNamespaces", "SystemCallFilter", "ProtectKernelTunables", "PrivateUsers"):
        assert name not in service


def test_there_is_a_unit_for_the_system_and_one_for_a_user() -> None:
    assert [path.parent.name for path in UNITS] == ["system", "user"]
    sockets = [path.with_suffix(".socket").read_text() for path in UNITS]
    assert all("ListenStream=" in text for text in sockets)
    assert "SocketMode=0600" in sockets[1]


def test_the_image_starts_a_server_and_names_no_package_host() -> None:
    text = (ROOT / "Dockerfile").read_text()
    found = re.findall(r"^(?:ENTRYPOINT|CMD) (\[.*\])$", text, re.MULTILINE)
    entry, command = map(json.loads, found)
    options = make_parser().parse_args([*entry[1:], *command])
    assert options.listen == "ws://0.0.0.0:4500"
    assert options.token_file == "/var/lib/holdfast/token"
    assert "://" not in text.replace("ws://", "")
