"""Every error has two forms: the one of `write_stdin` and the one of `exec_command`."""

import pytest

from holdfast.agent.unified_exec.tool_errors import (
    CreateProcess,
    ProcessFailed,
    SessionStdinClosed,
    UnifiedExecError,
    UnknownProcessId,
    WriteToStdin,
    exec_failure_text,
    rejected_text,
    write_failure_text,
)
from holdfast.base.dialect import texts


@pytest.mark.requirement("unified-exec.errors.texts")
@pytest.mark.parametrize(
    ("error", "shown", "debug"),
    [
        (
            CreateProcess('a "b"'),
            'Failed to create unified exec process: a "b"',
            'CreateProcess { message: "a \\"b\\"" }',
        ),
        (
            ProcessFailed("lost\n"),
            "Unified exec process failed: lost\n",
            'ProcessFailed { message: "lost\\n" }',
        ),
        (UnknownProcessId(-5), "Unknown process id -5", "UnknownProcessId { process_id: -5 }"),
        (WriteToStdin(), "failed to write to stdin", "WriteToStdin"),
        (
            SessionStdinClosed(),
            "stdin is closed for this session; rerun exec_command with tty=true to keep stdin open",
            "StdinClosed",
        ),
    ],
)
def test_both_forms(error: UnifiedExecError, shown: str, debug: str) -> None:
    assert write_failure_text(error) == f"write_stdin failed: {shown}"
    assert exec_failure_text(error) == f"exec_command failed: {debug}"


@pytest.mark.requirement("unified-exec.errors.rejected")
def test_a_refusal_is_a_debug_text_inside_of_another() -> None:
    reason = str(CreateProcess("No such file or directory (os error 2)"))
    assert exec_failure_text(CreateProcess(rejected_text(reason))) == (
        'exec_command failed: CreateProcess { message: "Rejected(\\"Failed to create unified'
        ' exec process: No such file or directory (os error 2)\\")" }'
    )


def test_the_text_of_an_unknown_environment() -> None:
    assert texts.unknown_environment("zz") == "unknown turn environment id `zz`"
