"""The file of the audit log: rotated, found again, refused where it cannot be one."""

import asyncio
import logging
import os
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.client.client import ExecServerClient
from holdfast.server.app import Server
from holdfast.server.operate.audit import AuditFile, AuditLog, AuditUnusable
from holdfast.server.operate.line_writer import PartlyWritten
from holdfast.server.operate.records import FileRecord, RefusalRecord, bounded
from tests.unit.engine.process.starting import program

SMALL = 64 << 10


def lines(path: Path) -> list[dict[str, Any]]:
    return [msgspec.json.decode(line) for line in path.read_bytes().splitlines()]


def audit_file(path: Path | str, *, max_bytes: int = SMALL, kept: int = 2) -> AuditFile:
    return AuditFile(str(path), max_bytes=max_bytes, kept=kept)


def file_line(path: str, size: int | None = None) -> FileRecord:
    return FileRecord(
        principal="me",
        session="5f0c9a31",
        operation="writeFile",
        path=path,
        bytes=size,
        sandboxed=False,
    )


def test_a_new_file_is_private_and_an_old_one_is_appended_to(tmp_path: Path) -> None:
    path = tmp_path / "audit"
    for _ in range(2):
        log = AuditLog(audit_file(path))
        log.write(file_line("caf\N{LATIN SMALL LETTER E WITH ACUTE}\udcff"))
        log.close()
    assert path.stat().st_mode & 0o777 == 0o600
    first, second = lines(path)
    assert first.pop("time") <= second.pop("time")
    assert first == second
    assert first == {
        "event": "file",
        "principal": "me",
        "session": "5f0c9a31",
        "operation": "writeFile",
        # A byte that is not UTF-8 is shown as an escape.
        "path": "caf\N{LATIN SMALL LETTER E WITH ACUTE}\\udcff",
        "sandboxed": False,
    }
    assert path.read_bytes().isascii()
    assert path.read_bytes().startswith(b'{"time":"')


def test_full_files_are_renamed_and_only_some_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "audit"
    log = AuditLog(audit_file(path))
    for number in range(2000):
        log.write(file_line("x" * 100, size=number))
    log.close()
    assert log.lost == 0
    assert sorted(os.listdir(tmp_path)) == ["audit", "audit.1", "audit.2"]
    found = [lines(tmp_path / name) for name in ("audit.2", "audit.1", "audit")]
    numbers = [line["bytes"] for part in found for line in part]
    assert numbers == list(range(numbers[0], 2000))  # the newest, without a hole
    assert all(p.stat().st_size <= SMALL for p in tmp_path.iterdir())


@pytest.mark.parametrize("how", ["renamed", "removed"])
def test_a_file_that_somebody_else_rotated_is_made_anew(tmp_path: Path, how: str) -> None:
    path = tmp_path / "audit"
    file = audit_file(path)
    file.write(b"1\n")
    if how == "renamed":
        path.rename(tmp_path / "old")
    else:
        path.unlink()
    file.write(b"2\n")
    file.close()
    assert path.read_bytes() == b"2\n"


def test_a_file_that_was_emptied_goes_on_at_its_beginning(tmp_path: Path) -> None:
    path = tmp_path / "audit"
    file = audit_file(path)
    file.write(b"1\n")
    os.truncate(path, 0)
    file.write(b"2\n")
    file.close()
    assert path.read_bytes() == b"2\n"


@pytest.mark.parametrize("what", ["folder", "link", "dangling", "fifo", "missing", "system"])
def test_what_can_be_no_audit_log_is_refused_by_its_name(tmp_path: Path, what: str) -> None:
    path = tmp_path / "audit"
    if what == "folder":
        path.mkdir()
    elif what == "link":
        (tmp_path / "other").write_text("precious")
        path.symlink_to(tmp_path / "other")
    elif what == "dangling":
        path.symlink_to(tmp_path / "nothing")
    elif what == "fifo":
        os.mkfifo(path)
    elif what == "missing":
        path = tmp_path / "no" / "audit"
    else:
        path = Path("/proc/self/audit")  # not even root can write there
    with pytest.raises(AuditUnusable, match=f"--audit-log: cannot write {path}: ") as caught:
        audit_file(path)
    assert caught.value.path == str(path)
    assert not (tmp_path / "nothing").exists()


def test_a_link_that_takes_the_place_of_the_file_is_not_followed(tmp_path: Path) -> None:
    path, other = tmp_path / "audit", tmp_path / "other"
    other.write_text("precious")
    file = audit_file(path)
    path.unlink()
    path.symlink_to(other)
    with pytest.raises(OSError, match="symbolic links"):
        file.write(b"1\n")
    path.unlink()
    file.write(b"2\n")
    file.close()
    assert (other.read_text(), path.read_text()) == ("precious", "2\n")


def test_a_full_disk_is_told_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    log = AuditLog(audit_file("/dev/full"))
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            log.write(file_line("/srv/app"))
        log.close()
    assert log.lost == 3
    assert "audit lines could not be written lost_since_start=3" in caplog.messages[-1]
    assert "No space left on device" in caplog.messages[-1]


def test_the_rest_of_a_torn_line_does_not_spoil_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = audit_file(tmp_path / "audit")
    real = os.write
    monkeypatch.setattr(
        os, "write", lambda fd, data: real(fd, data[:5]) if len(data) > 5 else _full()
    )
    with pytest.raises(PartlyWritten) as caught:
        file.write(b"one\ntwo\n")
    assert (caught.value.lines, caught.value.torn) == (1, True)
    monkeypatch.undo()
    file.write(b"three\n")
    file.close()
    assert (tmp_path / "audit").read_bytes() == b"one\nt\nthree\n"


def _full() -> int:
    raise OSError(28, "No space left on device")


def test_a_folder_that_takes_no_other_name_lets_the_file_grow(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "audit"
    (tmp_path / "audit.1" / "x").mkdir(parents=True)  # a file cannot replace it
    file = audit_file(path, kept=1)
    for _ in range(3):
        file.write(b"x" * (SMALL - 1) + b"\n")
    file.close()
    assert path.stat().st_size == 3 * SMALL
    assert "the audit log cannot be rotated" in caplog.text


def test_a_file_that_could_not_be_rotated_is_found_again_and_rotated_later(tmp_path: Path) -> None:
    path, old = tmp_path / "audit", tmp_path / "audit.1"
    (old / "x").mkdir(parents=True)  # a file cannot replace it
    file = audit_file(path, kept=1)
    full = b"x" * (SMALL - 1) + b"\n"
    file.write(full)
    file.write(full)
    path.rename(tmp_path / "renamed")
    file.write(b"1\n")
    assert path.read_bytes() == b"1\n"
    (old / "x").rmdir()
    old.rmdir()
    file.write(full)
    file.close()
    assert (old.read_bytes(), path.read_bytes()) == (b"1\n", full)


def test_any_number_of_old_files_may_be_kept(tmp_path: Path) -> None:
    path = tmp_path / "audit"
    file = audit_file(path, kept=10**11)
    for _ in range(4):
        file.write(b"x" * (SMALL - 1) + b"\n")
    file.close()
    assert sorted(os.listdir(tmp_path)) == ["audit", "audit.1", "audit.2", "audit.3"]


def test_a_line_that_an_earlier_server_tore_does_not_spoil_the_next(tmp_path: Path) -> None:
    path = tmp_path / "audit"
    path.write_bytes(b"one\ntw")
    file = audit_file(path)
    file.write(b"three\n")
    file.close()
    assert path.read_bytes() == b"one\ntw\nthree\n"


def test_huge_commands_are_cut() -> None:
    assert bounded(["make", "test"]) == (["make", "test"], 8, None)
    shown, size, count = bounded(["sh", "-c", "x" * 5000])
    assert (shown[:2], len(shown[2]), size, count) == (["sh", "-c"], 1024, 1028, 3)
    shown, size, count = bounded(["x"] * 100_000)
    assert (len(shown), count) == (64, 100_000)
    shown, size, count = bounded(["x" * 2000] * 64)
    assert sum(map(len, shown)) == size <= 16 << 10


async def test_what_ends_with_its_server_is_recorded_in_order(tmp_path: Path) -> None:
    path = tmp_path / "audit"
    audit = AuditLog(audit_file(path))
    async with Server(audit=audit) as server:
        url = await server.listen("ws://127.0.0.1:0")
        async with await ExecServerClient.connect(url) as client:
            for name in ("a", "b"):
                await client.start(program("/bin/sleep", "60", process_id=name))
    audit.close()
    written = lines(path)
    events = [(line["event"], line.get("process") or line["state"]) for line in written]
    assert events[:3] == [("session", "opened"), ("command", "a"), ("command", "b")]
    assert events[3] == ("session", "ended")
    assert sorted(events[4:]) == [("exit", "a"), ("exit", "b")]
    assert [line["time"] for line in written] == sorted(line["time"] for line in written)


def test_the_last_lines_are_written_although_the_event_loop_ends(tmp_path: Path) -> None:
    """The log itself may stay open for long, and its program may be killed."""
    path = tmp_path / "audit"
    audit = AuditLog(audit_file(path))

    async def serve() -> None:
        async with Server(audit=audit) as server:
            url = await server.listen(f"unix://{tmp_path}/socket")
            async with await ExecServerClient.connect(url) as client:
                await client.start(program("/bin/sleep", "60"))

    asyncio.run(serve())
    until = time.monotonic() + 5
    while len(lines(path)) < 4 and time.monotonic() < until:
        time.sleep(0.01)
    events = [line["event"] for line in lines(path)]
    assert events == ["session", "command", "session", "exit"]
    audit.close()


def test_a_flood_of_refused_clients_does_not_push_other_lines_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "audit"
    log = AuditLog(audit_file(path))
    log.write(file_line("/of/a/client"))

    def refuse(count: int) -> None:
        for _ in range(count):
            log.write_refusal(RefusalRecord(address="10.0.0.9:1", status=401, reason="no"))

    refuse(20_000)
    now = time.monotonic()
    monkeypatch.setattr("holdfast.server.operate.audit.time.monotonic", lambda: now + 61)
    refuse(1)
    log.close()
    first, *refused = lines(path)
    assert first["path"] == "/of/a/client"
    assert len(refused) == 101
    assert [one["skipped"] for one in refused if "skipped" in one] == [19_900]
    assert not path.with_name("audit.1").exists()
