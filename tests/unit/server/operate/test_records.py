"""One record, as a message of the log and as a line of the audit log."""

import json
import logging
from pathlib import Path

import pytest

from holdfast.server.operate import records as module
from holdfast.server.operate.audit import AuditFile, AuditLog
from holdfast.server.operate.logs import JsonLines, TextLines
from holdfast.server.operate.records import ExitRecord, FileRecord, Records

ENDED = ExitRecord(
    principal="ci",
    session="0123",
    process="1",
    verdict="exited",
    exit_code=3,
    seconds=0.5,
    output_bytes=7,
)
CHANGED = FileRecord(principal="ci", session="0123", operation="remove", path="/x", sandboxed=False)


def test_a_record_is_a_message_and_a_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    audit = AuditLog(AuditFile(str(tmp_path / "audit"), max_bytes=1 << 20, kept=1))
    records = Records(audit)
    with caplog.at_level(logging.INFO, module.__name__):
        records.add(ENDED, at=1.0, program="make")
        records.add(CHANGED, at=2.0)
    audit.close()
    (made,) = caplog.records  # changes of files are in the audit log alone
    assert (
        TextLines()
        .format(made)
        .endswith(
            " INFO holdfast.server.operate.records: process ended process=1 program=make"
            " verdict=exited exit_code=3 seconds=0.5 output_bytes=7 session=0123"
        )
    )
    shown = json.loads(JsonLines().format(made))
    assert (shown["program"], shown["exit_code"], "principal" in shown) == ("make", 3, False)
    first, second = map(json.loads, (tmp_path / "audit").read_text().splitlines())
    assert (first["event"], first["exitCode"], first["principal"]) == ("exit", 3, "ci")
    assert first["time"] == "1970-01-01T00:00:01.000Z"
    assert "program" not in first
    assert (second["event"], second["path"]) == ("file", "/x")


def test_a_message_goes_to_the_writer_of_the_log_without_a_record_of_logging(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    taken: list[tuple[str, str, float]] = []
    monkeypatch.setattr(
        Records,
        "direct",
        lambda at, name, record, more: taken.append((name, str(record.message(more)), at)),
    )
    assert not Records().are_wanted
    with caplog.at_level(logging.INFO, module.__name__):
        assert Records().are_wanted
        Records().add(ENDED, at=1.5, program="make")
    ((name, text, at),) = taken
    assert (name, at) == (module.__name__, 1.5)
    assert text.startswith("process ended process=1 program=make verdict=exited")
    assert caplog.records == []
