"""
The texts that a model reads as the result of a call.

A header of a few lines, then the output. Code mode gets an object instead. What a failed
call says is in `errors`.
"""

from holdfast.agent.unified_exec.text.truncate import (
    DEFAULT_MODEL_POLICY,
    DENIAL_TOKENS,
    TruncationPolicy,
    cut_text,
    decode,
    fit_output,
    format_output,
    token_count,
    used_policy,
)
from holdfast.base.dialect import texts
from holdfast.environments.collect.head_tail import Captured

__all__ = [
    "aborted_exec_text",
    "aborted_write_text",
    "answer_object",
    "answer_text",
    "denial_message",
    "original_token_count",
]


def original_token_count(output: Captured) -> int:
    """Return about how many tokens a call's output had, with what was not kept."""
    return token_count(output.size)


def answer_text(
    output: Captured,
    *,
    chunk_id: str,
    wall_time: float,
    exit_code: int | None = None,
    session_id: int | None = None,
    max_output_tokens: int | None = None,
    model: TruncationPolicy = DEFAULT_MODEL_POLICY,
    notes: tuple[str, ...] = (),
    original_tokens: int | None = None,
    show_tokens: bool = True,
) -> str:
    """
    Return what the model reads.

    Args:
        output: The bytes of this call.
        chunk_id: See `texts.answer_header`, as are the three after it.
        wall_time: Seconds.
        exit_code: Set if the command has ended.
        session_id: Set while the command runs.
        max_output_tokens: What the call asked for.
        model: What the model allows.
        notes: Lines before the header; none by default.
        original_tokens: Of the whole output, if `output` is only a part of it.
        show_tokens: False to leave out the line about them, as for a patch.
    """
    if original_tokens is None:
        original_tokens = original_token_count(output)
    header = texts.answer_header(
        chunk_id=chunk_id,
        wall_time=wall_time,
        exit_code=exit_code,
        session_id=session_id,
        original_tokens=original_tokens if show_tokens else None,
    )
    if notes:
        header = "\n".join((*notes, header))
    shown = fit_output(output, used_policy(max_output_tokens, model), model=model, header=header)
    # A model with a tiny budget: whatever it is given, the header too, is cut once more.
    whole = TruncationPolicy("tokens", token_count(model.with_allowance().budget))
    return cut_text(f"{header}\n{shown}", whole)


def answer_object(
    output: Captured,
    *,
    chunk_id: str,
    wall_time: float,
    exit_code: int | None = None,
    session_id: int | None = None,
    max_output_tokens: int | None = None,
    model: TruncationPolicy = DEFAULT_MODEL_POLICY,
    original_tokens: int | None = None,
) -> dict[str, object]:
    """
    Return what a program of the model reads; the output is cut only if the call said so.

    The arguments are those of `answer_text`.
    """
    found: dict[str, object] = {"chunk_id": chunk_id} if chunk_id else {}
    found["wall_time_seconds"] = wall_time
    if exit_code is not None:
        found["exit_code"] = exit_code
    if session_id is not None:
        found["session_id"] = session_id
    found["original_token_count"] = (
        original_token_count(output) if original_tokens is None else original_tokens
    )
    if max_output_tokens is None:
        found["output"] = decode(output)
    else:
        found["output"] = format_output(output, used_policy(max_output_tokens, model))
    return found


def denial_message(output: Captured, exit_code: int | None) -> str:
    """Return what a sandbox denial says: the output, or how the command ended."""
    if not output.size:
        return f"{texts.ANSWER_EXITED}{-1 if exit_code is None else exit_code}"
    return format_output(output, TruncationPolicy("tokens", DENIAL_TOKENS))


def aborted_exec_text(wall_time: float) -> str:
    """Return what an `exec_command` says that was interrupted."""
    return texts.aborted_start(wall_time)


def aborted_write_text(wall_time: float) -> str:
    """Return what a `write_stdin` says that was interrupted."""
    return texts.aborted_input(wall_time)
