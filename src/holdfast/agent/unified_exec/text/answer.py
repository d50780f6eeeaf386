"""
Result texts for a model.

A result is a header of a few lines followed by the output. Code mode gets an object instead. The
texts of failed calls are in `tool_errors`.
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
    """Return the approximate number of tokens in a call's output, including bytes not kept."""
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
    Return the text for the model.

    Args:
        output: The bytes of this call.
        chunk_id: See `texts.answer_header`.
        wall_time: Seconds that the call waited.
        exit_code: Set if the command has ended.
        session_id: Set while the command runs.
        max_output_tokens: The budget requested by the call.
        model: The budget of the model.
        notes: Lines before the header; none by default.
        original_tokens: Tokens of the whole output, if `output` is only a part of it.
        show_tokens: False to leave out the line about tokens, as for a patch.
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
    # For a tiny budget, truncate the complete answer again, including the header.
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
    Return the result for code written by the model; output is only truncated on request.

    For the arguments see `answer_text`.
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
    """Return the text of a sandbox denial: the output, or how the command ended."""
    if not output.size:
        return f"{texts.ANSWER_EXITED}{-1 if exit_code is None else exit_code}"
    return format_output(output, TruncationPolicy("tokens", DENIAL_TOKENS))


def aborted_exec_text(wall_time: float) -> str:
    """Return the text of an interrupted `exec_command`."""
    return texts.aborted_start(wall_time)


def aborted_write_text(wall_time: float) -> str:
    """Return the text of an interrupted `write_stdin`."""
    return texts.aborted_input(wall_time)
