"""Lines that are written by a thread: bounded, in order, and counted where they are lost."""

import asyncio
import errno
import os
import threading
import time

import pytest

from holdfast.server.operate.line_writer import CHUNK, GATHER, LineWriter, PartlyWritten, write_all

LIMIT = 5.0


class Target:
    """A file that can be stuck, full or half full."""

    def __init__(self) -> None:
        self.written = b""
        self.faults: list[Exception] = []
        self.largest = 0
        self.free = threading.Event()
        self.free.set()
        self.entered = threading.Event()
        self.warnings: list[tuple[int, str]] = []

    def write(self, data: bytes) -> None:
        self.entered.set()
        assert self.free.wait(LIMIT)
        if self.faults:
            fault = self.faults.pop(0)
            if isinstance(fault, PartlyWritten):
                self.written += b"".join(data.splitlines(keepends=True)[: fault.lines])
            raise fault
        self.largest = max(self.largest, len(data))
        self.written += data

    def writer(self, **options: int) -> LineWriter[str]:
        return LineWriter(
            "test",
            encode=lambda text: text.encode() + b"\n",
            write=self.write,
            gap=lambda count, reason: f"lost {count}: {reason}\n".encode(),
            warn=lambda count, reason: self.warnings.append((count, reason)),
            **options,
        )

    @property
    def lines(self) -> list[str]:
        return self.written.decode().splitlines()


def test_lines_are_written_in_order_and_together() -> None:
    target = Target()
    writer = target.writer()
    lines = [f"line {number}" for number in range(20_000)]
    for line in lines:
        writer.put(line, len(line))
    writer.close()
    assert target.lines == lines
    assert target.largest <= CHUNK
    assert (writer.lost, target.warnings) == (0, [])


async def test_in_an_event_loop_they_are_collected_for_a_moment() -> None:
    target = Target()
    writer = target.writer()
    loop = asyncio.get_running_loop()
    begun = loop.time()
    for text in ("a", "b"):
        writer.put(text, 10)
    assert await asyncio.to_thread(target.entered.wait, LIMIT)
    assert loop.time() >= begun + GATHER
    writer.put("c", 10)
    writer.close()
    assert target.lines == ["a", "b", "c"]


async def test_the_end_of_a_short_program_writes_what_was_collected() -> None:
    target = Target()
    writer = target.writer()
    writer.put("a", 10)
    assert writer.close()
    assert (target.lines, writer.lost) == (["a"], 0)


async def test_a_flood_is_not_collected_until_it_is_lost() -> None:
    target = Target()
    writer = target.writer(max_waiting=1000)
    for number in range(6):
        writer.put(f"{number}", 100)
    assert target.entered.wait(LIMIT)  # the event loop has had no turn
    writer.close()
    assert writer.lost == 0


def test_after_the_end_of_its_event_loop_the_next_line_wakes_the_thread() -> None:
    target = Target()
    writer = target.writer()

    async def put(text: str) -> None:
        writer.put(text, 10)

    asyncio.run(put("a"))
    assert not target.entered.is_set()
    # As if nobody had written anything for some time.
    writer._woken_by = time.monotonic()
    writer.put("b", 10)
    assert target.entered.wait(LIMIT)
    writer.close()
    assert target.lines == ["a", "b"]


def test_a_stuck_file_holds_up_nobody_and_what_waits_is_bounded() -> None:
    target = Target()
    writer = target.writer(max_waiting=1000)
    target.free.clear()
    writer.put("first", 100)
    assert target.entered.wait(LIMIT)
    for number in range(50):
        writer.put(f"later {number}", 100)
    assert writer.lost == 40
    assert target.warnings == [(1, "they arrived faster than they could be written")]
    target.free.set()
    writer.close()
    assert target.lines[0] == "first"
    assert target.lines[1] == "lost 40: they arrived faster than they could be written"
    assert target.lines[2:] == [f"later {number}" for number in range(10)]
    assert target.warnings[-1][0] == 40


def test_the_end_waits_a_bounded_time_and_counts_what_is_left() -> None:
    target = Target()
    writer = target.writer()
    target.free.clear()
    writer.put("first", 100)
    assert target.entered.wait(LIMIT)
    writer.put("second", 100)
    writer.close(limit=0.01)
    assert writer.lost == 2  # the one that is stuck, and the one behind it
    assert target.warnings[-1][0] == 2
    writer.put("too late", 100)
    assert writer.lost == 3
    target.free.set()


def test_what_a_full_disk_refused_is_counted_told_and_marked() -> None:
    target = Target()
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    target.faults = [full, PartlyWritten(1, "No space left on device", torn=True)]
    writer = target.writer()
    for text in ("a", "b"):
        target.entered.clear()
        writer.put(text, 10)
        assert target.entered.wait(LIMIT)
    writer.put("c", 10)
    writer.close()
    # "a" is gone; of the second try the line about it was written, and "b" is gone.
    assert target.lines == [
        "lost 1: No space left on device",
        "lost 1: No space left on device",
        "c",
    ]
    assert writer.lost == 2
    assert target.warnings == [(1, "No space left on device"), (2, "No space left on device")]


def test_the_end_marks_what_was_lost_before() -> None:
    target = Target()
    target.faults = [OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))]
    writer = target.writer()
    writer.put("a", 10)
    assert target.entered.wait(LIMIT)
    assert writer.close()
    assert target.lines == ["lost 1: No space left on device"]


def test_a_system_without_room_for_a_thread_is_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    target = Target()
    writer = target.writer()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        writer.put("first", 10)
    writer.put("second", 10)
    writer.close()
    assert target.lines == ["first", "second"]


def test_a_descriptor_that_takes_a_part_is_written_to_the_end() -> None:
    reader, sender = os.pipe()
    os.set_blocking(sender, False)
    received: list[bytes] = []
    data = b"0123456\n" * 40_000  # more than a pipe holds

    def read() -> None:
        while part := os.read(reader, 65536):
            received.append(part)

    thread = threading.Thread(target=read)
    thread.start()
    write_all(sender, data)
    os.close(sender)
    thread.join(LIMIT)
    os.close(reader)
    assert b"".join(received) == data


def test_a_device_without_room_says_so() -> None:
    with open("/dev/full", "wb", buffering=0) as full, pytest.raises(OSError, match="No space"):
        write_all(full.fileno(), b"x\n")


def test_a_record_that_cannot_be_formatted_is_lost_alone() -> None:
    target = Target()
    writer = target.writer()
    for line in ("one", "a lone \udcff", "two"):
        writer.put(line, 10)
    assert writer.close()
    assert target.lines == [
        "one",
        "two",
        "lost 1: one could not be formatted: UnicodeEncodeError",
    ]
    assert writer.lost == 1
    assert target.warnings == [(1, "one could not be formatted: UnicodeEncodeError")]
