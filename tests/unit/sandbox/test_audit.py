"""The log of what Landlock refuses: its records, and the real one."""

import socket

import pytest

from holdfast.sandbox.bubblewrap.audit import LandlockLog, can_read_log, read_fields
from tests.unit.sandbox.auditing import auditing

ACCESS = (
    b'audit(1794802723.307:59): domain=1f6b616a4 blockers=fs.write_file path="/srv/a b" '
    b'dev="vda" ino=16091026'
)
DOMAIN = (
    b"audit(1794802723.307:59): domain=1f6b616a4 status=allocated mode=enforcing pid=4566 uid=0 "
    b'exe=2F6465762F2E686F6C6466617374 comm=".holdfast"\0'
)


def test_a_record_tells_what_was_refused() -> None:
    fields = read_fields(ACCESS)

    assert fields["domain"] == "1f6b616a4"
    assert fields["path"] == "/srv/a b"


def test_a_record_tells_who_made_the_rules() -> None:
    fields = read_fields(DOMAIN)

    assert (fields["domain"], fields["pid"]) == ("1f6b616a4", "4566")
    assert "path" not in fields


@pytest.mark.parametrize(
    ("digits", "path"),
    [(b"2F746D702F22", '/tmp/"'), (b"2F746D702FC3A9", "/tmp/é"), (b"(null)", "(null)")],
)
def test_a_path_that_is_no_plain_text_is_in_digits(digits: bytes, path: str) -> None:
    assert read_fields(b"domain=1 path=" + digits + b" dev=x")["path"] == path


def talking(log: LandlockLog, *records: bytes) -> LandlockLog:
    """A log that has these to read, in the place of the kernel's."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    log._socket.close()
    log._socket = ours
    ours.setblocking(False)
    for record in records:
        theirs.send(bytes(16) + record)
    theirs.close()
    return log


@pytest.fixture
def log() -> LandlockLog:
    made = LandlockLog.__new__(LandlockLog)
    made.pid = 4566
    made._socket = socket.socket()
    return made


def test_only_what_is_refused_to_a_process_of_ours_counts(log: LandlockLog) -> None:
    other = ACCESS.replace(b"1f6b616a4", b"999").replace(b"/srv/a b", b"/other")
    later = ACCESS.replace(b"/srv/a b", b"/later")
    talking(log, other, ACCESS, DOMAIN, later)
    try:
        assert log.paths() == ("/srv/a b", "/later")
        assert log.paths() == ()
    finally:
        log.close()


def test_who_did_not_make_the_rules_was_refused_nothing(log: LandlockLog) -> None:
    talking(log, ACCESS, DOMAIN)
    log.pid = 1
    try:
        assert log.paths() == ()
    finally:
        log.close()


def test_the_log_can_be_read_where_auditing_is_on() -> None:
    with auditing():
        assert can_read_log()
        log = LandlockLog()
        assert log.paths() == ()
        log.close()
