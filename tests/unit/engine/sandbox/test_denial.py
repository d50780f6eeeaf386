"""The rule for denials, and what is made of the line."""

import pytest

from holdfast.engine.sandbox.policy.denial import find_denial
from holdfast.events import Denial, DenialKind
from holdfast.wire.protocol.process import OutputChunk, OutputStream


def chunks(*written: tuple[OutputStream, str]) -> list[OutputChunk]:
    return [
        OutputChunk(seq=seq, stream=stream, chunk=text.encode())
        for seq, (stream, text) in enumerate(written, 1)
    ]


def on_stderr(text: str, exit_code: int = 1) -> Denial | None:
    return find_denial(exit_code, chunks(("stderr", text)))


@pytest.mark.requirement("sandbox.denied")
@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("x: Operation not permitted", DenialKind.OPERATION_NOT_PERMITTED),
        ("x: PERMISSION DENIED", DenialKind.PERMISSION_DENIED),
        ("x: Read-only file system", DenialKind.READ_ONLY_FILE_SYSTEM),
        ("blocked by seccomp", DenialKind.POLICY_DENIED),
        ("ls: /my-sandboxes: not found", DenialKind.POLICY_DENIED),
        ("Landlock says no", DenialKind.POLICY_DENIED),
        ("failed to write file x", DenialKind.FAILED_TO_WRITE_FILE),
    ],
)
def test_each_keyword_is_a_denial_in_any_case_of_letters(text: str, kind: DenialKind) -> None:
    found = on_stderr(text)

    assert found is not None
    assert found.kind is kind


@pytest.mark.parametrize("exit_code", [2, 126, 127, 255])
def test_keywords_count_whatever_the_code(exit_code: int) -> None:
    assert on_stderr("x: Permission denied", exit_code) is not None


def test_success_is_never_a_denial() -> None:
    assert on_stderr("Permission denied", 0) is None


@pytest.mark.parametrize("exit_code", [1, 2, 126, 127, 137])
def test_a_failure_without_a_keyword_is_none(exit_code: int) -> None:
    assert on_stderr("No such file or directory", exit_code) is None


@pytest.mark.requirement("sandbox.denied")
def test_a_process_killed_for_a_call_was_denied_one() -> None:
    assert find_denial(159, []) == Denial(kind=DenialKind.SYSTEM_CALL)


def test_a_keyword_may_be_cut_by_a_read() -> None:
    assert find_denial(1, chunks(("stdout", "permis"), ("stdout", "sion denied"))) is not None


def test_a_keyword_may_be_cut_by_the_other_stream() -> None:
    written = chunks(("stdout", "permission"), ("stderr", "x"), ("stdout", " denied"))

    assert find_denial(1, written) is not None


def test_a_keyword_may_be_made_up_of_both_streams() -> None:
    assert find_denial(1, chunks(("stdout", "permission "), ("stderr", "denied"))) is not None


def test_a_keyword_is_on_one_line() -> None:
    assert on_stderr("permission\ndenied") is None


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("cat: /etc/shadow: Permission denied", "/etc/shadow"),
        ("touch: cannot touch '/etc/x y': Read-only file system", "/etc/x y"),
        ("sh: 1: cannot create /etc/x: Read-only file system", "/etc/x"),
        ("/bin/sh: 1: cannot create ../x: Permission denied", "../x"),
        ("/bin/bash: line 1: f: Read-only file system", "f"),
        ("/bin/bash: line 12: /etc/x: Permission denied", "/etc/x"),
        ("/bin/bash: line 1: cd: sub: Permission denied", "sub"),
        ("/bin/bash: line 1: kill: (1) - Operation not permitted", None),
        ("/bin/sh: 1: cannot create x: Permission denied", "x"),
        ("PermissionError: [Errno 13] Permission denied: '/root/x'", "/root/x"),
        ("open /etc/x: permission denied", "/etc/x"),
        ("/etc/x: Permission denied", "/etc/x"),
        ("something: Permission denied", None),
    ],
)
def test_the_path_is_taken_from_the_line(text: str, path: str | None) -> None:
    found = on_stderr(f"before\n{text}\nafter\n")

    assert found is not None
    assert found.path == path
    assert found.snippet == text
    assert not found.network


@pytest.mark.parametrize(
    "text",
    ["socket: Operation not permitted", "ping: connect: Operation not permitted"],
)
def test_the_network_is_told_from_files(text: str) -> None:
    found = on_stderr(text)

    assert found is not None
    assert found.network
    assert found.path is None


def test_a_long_line_is_shortened() -> None:
    found = on_stderr("x" * 2000 + ": permission denied")

    assert found is not None
    assert len(found.snippet) == 512


def test_what_is_not_text_is_no_obstacle() -> None:
    written = [OutputChunk(seq=1, stream="pty", chunk=b"\xff\xfe: permission denied\r\n")]

    assert find_denial(1, written) is not None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("sh: 1: cannot create .venv/x: Read-only file system", "of the server"),
        ("touch: cannot touch '/ws/.venv': Read-only file system", "of the server"),
        ("touch: cannot touch '../ws/.venv/y': Read-only file system", "of the server"),
        ("touch: cannot touch '/ws/.venvs/y': Read-only file system", None),
        ("touch: cannot touch '/etc/x': Read-only file system", None),
        ("socket: Operation not permitted", None),
    ],
)
def test_the_reason_of_a_protected_path_is_part_of_the_denial(
    text: str, reason: str | None
) -> None:
    reasons = {"/ws/.venv": "of the server"}
    found = find_denial(1, chunks(("stderr", text)), reasons, "/ws")
    assert found is not None
    assert found.reason == reason
    assert ("(of the server)" in str(found)) is (reason is not None)


@pytest.mark.requirement("sandbox.write-option")
@pytest.mark.parametrize(
    ("line", "hinted"),
    [
        ("fatal: Unable to create '/ws/.git/index.lock': Read-only file system", True),
        ("error: could not lock config file .git/config: Read-only file system", True),
        ("touch: cannot touch '.git': Read-only file system", True),
        ("touch: cannot touch '/ws/.gitignore': Read-only file system", False),
        ("touch: cannot touch '/ws/x.git/y': Read-only file system", False),
        ("cat: /ws/.git/x: Permission denied", False),
    ],
)
def test_a_denied_write_to_a_repository_has_a_hint(line: str, hinted: bool) -> None:
    found = find_denial(1, [OutputChunk(seq=1, stream="stderr", chunk=line.encode())])
    assert found is not None
    assert (found.hint is not None) is hinted
