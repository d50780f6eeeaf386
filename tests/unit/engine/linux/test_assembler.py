"""Lists of system calls, as programs that are really run."""

import errno
import os
import platform
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from holdfast.engine.linux.assembler import (
    ANY,
    ARGUMENTS,
    ENVIRONMENT,
    RESULT,
    At,
    CallProgram,
    Label,
)
from holdfast.engine.linux.syscall_numbers import MACHINES

HERE = platform.machine()
EMULATORS = {"x86_64": "qemu-x86_64", "aarch64": "qemu-aarch64"}


@pytest.fixture(params=sorted(MACHINES))
def machine(request: pytest.FixtureRequest) -> str:
    """Each processor: this one, and others where there is an emulator."""
    name: str = request.param
    if name != HERE and shutil.which(EMULATORS[name]) is None:
        pytest.skip(f"{EMULATORS[name]} is not installed")
    return name


def run(
    made: CallProgram, folder: Path, *arguments: str, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    return run_image(made.image(), folder, *arguments, env=env)


def run_image(
    image: bytes, folder: Path, *arguments: str, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    file = folder / "program"
    file.write_bytes(image)
    file.chmod(0o700)
    # The processor it is for is written in its head.
    (number,) = struct.unpack_from("<H", image, 18)
    machine = {62: "x86_64", 183: "aarch64"}[number]
    through = [] if machine == HERE else [EMULATORS[machine]]
    argv = [*through, str(file), *arguments]
    return subprocess.run(argv, capture_output=True, timeout=10, check=False, env=env or {})


def say(made: CallProgram, text: str) -> None:
    data = text.encode()
    made.call("write", 1, made.data(data), len(data))


def test_calls_are_made_one_after_the_other(machine: str, tmp_path: Path) -> None:
    made = CallProgram(machine)
    say(made, "one ")
    say(made, "two")
    made.call("exit_group", 7)

    done = run(made, tmp_path)

    assert (done.stdout, done.returncode) == (b"one two", 7)


def test_a_call_that_fails_is_followed_by_the_next(machine: str, tmp_path: Path) -> None:
    made = CallProgram(machine)
    made.call("close", 99)
    say(made, "on")
    made.call("exit_group", 0)

    assert run(made, tmp_path).stdout == b"on"


@pytest.mark.parametrize(
    ("path", "expected"),
    [("/no-such-place", b"missing"), ("/etc/passwd/x", b"otherwise"), ("/", b"opened")],
)
def test_it_goes_on_where_it_is_told_for_an_error(
    machine: str, tmp_path: Path, path: str, expected: bytes
) -> None:
    made = CallProgram(machine)
    missing, otherwise = Label(), Label()
    made.call(
        *("openat", 0, made.text(path), os.O_RDONLY, 0),
        failed={errno.ENOENT: missing, ANY: otherwise},
    )
    say(made, "opened")
    made.call("exit_group", 0)
    made.bind(missing)
    say(made, "missing")
    made.call("exit_group", 0)
    made.bind(otherwise)
    say(made, "otherwise")
    made.call("exit_group", 0)

    assert run(made, tmp_path).stdout == expected


def test_a_result_can_be_read_by_what_follows(machine: str, tmp_path: Path) -> None:
    made = CallProgram(machine)
    made.call("close", 99)
    made.call("write", 1, RESULT, 8)
    made.call("exit_group", 0)

    assert struct.unpack("=ii", run(made, tmp_path).stdout) == (-errno.EBADF, 1)


def test_a_result_can_go_anywhere_in_its_memory(machine: str, tmp_path: Path) -> None:
    made = CallProgram(machine)
    address = made.data(b"\xff" * 8)
    made.call("write", 1, made.text("abc"), 3, result=address)
    made.call("write", 1, address, 8)
    made.call("exit_group", 0)

    assert run(made, tmp_path).stdout == b"abc\x03\0\0\0\xff\xff\xff\xff"


def test_a_result_can_be_an_argument_of_what_follows(machine: str, tmp_path: Path) -> None:
    made = CallProgram(machine)
    opened, got, room = made.data(bytes(8)), made.data(bytes(8)), made.data(bytes(64))
    made.call("openat", 0, made.text("/proc/self/comm"), os.O_RDONLY, 0, result=opened)
    made.call("read", At(opened), room, 64, result=got)
    made.call("write", 1, room, At(got))
    made.call("exit_group", At(got))

    done = run(made, tmp_path)

    assert done.stdout.endswith(b"\n")
    assert done.returncode == len(done.stdout)


def test_it_can_go_on_elsewhere(machine: str, tmp_path: Path) -> None:
    made = CallProgram(machine)
    last, middle = Label(), Label()
    made.go_to(middle)
    made.bind(last)
    say(made, "last")
    made.call("exit_group", 0)
    made.bind(middle)
    say(made, "middle ")
    made.go_to(last)

    assert run(made, tmp_path).stdout == b"middle last"


def test_a_template_serves_many_programs(machine: str, tmp_path: Path) -> None:
    made = CallProgram(machine)
    # Two `struct iovec`, with one blank in both of them.
    parts = made.blank("text")
    made.blank("size")
    made.blank("text")
    made.data(struct.pack("<Q", 1))
    made.call("writev", 1, parts, 2)
    made.call("exit_group", At(made.blank("size")))
    template = made.template()
    for text in (b"one", b"another"):
        done = run_image(template.image({"text": template.end, "size": len(text)}, text), tmp_path)

        assert (done.stdout, done.returncode) == (text + text[:1], len(text))


def test_a_program_that_it_becomes_has_the_environment(machine: str, tmp_path: Path) -> None:
    made = CallProgram(machine)
    words = [made.text(word) for word in ("sh", "-c", "echo $VARIABLE $0 $1", "zero", "one")]
    argv = made.data(struct.pack(f"<{len(words) + 1}Q", *words, 0))
    made.call("execve", made.text("/bin/sh"), argv, ENVIRONMENT)
    made.call("exit_group", 1)

    done = run(made, tmp_path, "an", "argument", "more", env={"VARIABLE": "value"})

    assert (done.stdout, done.returncode) == (b"value zero one\n", 0)


def test_texts_are_as_the_system_takes_them(machine: str, tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9 \xc3\xa9")
    made = CallProgram(machine)
    made.call("write", 1, made.text(name), len(os.fsencode(name)) + 1)
    made.call("exit_group", 0)

    assert run(made, tmp_path).stdout == os.fsencode(name) + b"\0"


def test_data_is_where_the_kernel_wants_it(machine: str) -> None:
    made = CallProgram(machine)

    addresses = [made.data(b"x" * size) for size in (1, 8, 9, 0, 3)]

    assert all(address % 8 == 0 for address in addresses)
    assert len(set(addresses)) == len(addresses) - 1  # what is empty takes no room


def test_an_unknown_processor_is_told() -> None:
    with pytest.raises(KeyError):
        CallProgram("vax")


def test_its_arguments_are_those_of_what_it_becomes(machine: str, tmp_path: Path) -> None:
    made = CallProgram(machine)
    made.call("execve", made.text("/bin/echo"), ARGUMENTS, ENVIRONMENT)
    made.call("exit_group", 1)

    assert run(made, tmp_path, "one", "two").stdout == b"one two\n"


def test_it_goes_on_with_a_list_that_it_reads_when_it_runs(machine: str, tmp_path: Path) -> None:
    box, size = 0x600000, 1 << 16
    later = CallProgram(machine, at=box)
    told = Label()
    later.call("close", 99, failed={errno.EBADF: told})
    later.call("exit_group", 1)
    later.bind(told)
    say(later, "later")
    later.call("exit_group", 5)
    (tmp_path / "list").write_bytes(later.continuation())

    made = CallProgram(machine)
    fd = At(made.data(bytes(8)))
    made.call("openat", 0, made.text(str(tmp_path / "list")), os.O_RDONLY, result=fd.address)
    made.call("read", fd, box, size)
    made.leave_to(box)
    file = tmp_path / "program"
    file.write_bytes(made.image(memory_end=box + size))
    file.chmod(0o700)
    through = [] if machine == HERE else [EMULATORS[machine]]
    done = subprocess.run([*through, str(file)], capture_output=True, timeout=10, check=False)

    assert (done.stdout, done.returncode) == (b"later", 5)
