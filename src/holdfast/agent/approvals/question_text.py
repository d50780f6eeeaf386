"""Renders questions for a person, on a terminal or in a form."""

from collections.abc import Iterable

from holdfast.agent.approvals.question import PatchedFile, Question, QuestionKind
from holdfast.agent.approvals.shell_words import shown_command
from holdfast.agent.approvals.shown_text import (
    SHOWN_CHARACTERS,
    fits,
    marked,
    shortened,
    shown_lines,
    visible,
)

__all__ = ["file_lines", "prefix_text", "question_text"]

# Most characters of a path, of a reason, and of the output after a denial.
_PATH = 4_096
_REASON = 2_000
_OUTPUT = 2_000

# Most refused network calls.
_ATTEMPTS = 20

# Most characters of the prefix that a rule would allow.
_PREFIX = 200

_GIVES_EVERYTHING = (
    "That lets the agent do anything, if the program takes settings or code from the directory that"
    " it works in, as git, make, npm and cargo do."
)

_HEADINGS = {
    QuestionKind.WRITE_STDIN: "Send this input to a program outside the sandbox?",
    QuestionKind.PERMISSIONS: "Give the following commands more permissions?",
}


def question_text(question: Question) -> tuple[str, list[str]]:
    """Return the question in one sentence, and lines with details for the person."""
    where = " outside its sandbox" if question.leaves_sandbox else ""
    if question.kind is QuestionKind.FILE_CHANGE:
        heading = f"Change these files{where}?"
        details = _files(question.files)
    else:
        run = f"Run this command{where} in {shortened(question.cwd, _PATH)}?"
        heading = _HEADINGS.get(question.kind, run)
        details = shown_lines(question.command_line) if question.command else []
    if question.kind is QuestionKind.HUMAN_COMMAND:
        details.append("Only a person may allow it, and only this once.")
    if question.permissions:
        wanted = str(question.permissions.to_json())
        details += _labelled("With", wanted, most=SHOWN_CHARACTERS)
    if question.explanation is not None:
        details += _labelled("Asked because", question.explanation)
    if question.reason:
        details += _labelled("Reason", question.reason, prose=True)
    if question.denied is not None:
        details += _labelled("Denied", question.denied.what)
        attempts = question.denied.network_attempts
        for attempt in attempts[:_ATTEMPTS]:
            details += _labelled("Network", attempt)
        if len(attempts) > _ATTEMPTS:
            details.append(f"and {len(attempts) - _ATTEMPTS} more calls of the network")
        output = question.denied.output
        label = "Output" if len(output) <= _OUTPUT else f"Last {_OUTPUT} characters of its output"
        details += _labelled(label, output[-_OUTPUT:], prose=True)
    if question.is_amendable:
        details += _lasting(question)
    return heading, details


def _lasting(question: Question) -> list[str]:
    """Return the lines about the rule that the person may store."""
    where = " outside its sandbox" if question.amendment_leaves_sandbox else ""
    lines = [
        f"If always: every command that begins with `{prefix_text(question)}` runs{where} without a"
        " question from now on."
    ]
    if question.amendment_leaves_sandbox:
        lines.append(_GIVES_EVERYTHING)
    return lines


def prefix_text(question: Question) -> str:
    """Return the prefix that a question proposes to allow, for display."""
    return shortened(shown_command(question.proposed_amendment or ()), _PREFIX)


def file_lines(file: PatchedFile) -> list[str]:
    """Return the lines about a file of a patch: its path and all its hunks."""
    goes = "" if file.move_to is None else f" to {visible(file.move_to)}"
    leads = "" if file.leads_to is None else f" (a link to {visible(file.leads_to)})"
    lost = ", in place of another file" if file.replaces else ""
    lines = [f"{file.kind} {visible(file.path)}{goes}{leads}{lost}"]
    return lines + marked(file.hunks) if file.hunks else lines


def _files(files: Iterable[PatchedFile]) -> list[str]:
    """Return the lines about all files outside the sandbox, or as many others as fit."""
    outside = [file for file in files if file.outside]
    inside = [file for file in files if not file.outside]
    # A patch whose files outside do not fit was refused before.
    lines = [line for file in outside for line in file_lines(file)]
    # If the patch was cut, then within these files.
    while inside and not outside and (inside[0].hunks or not inside[0].cut):
        file, more = inside[0], file_lines(inside[0])
        if lines and not fits(lines + more):
            break
        # The first file is always shown, as far as it fits.
        lines += more if fits(more) else [*more[:1], *shown_lines(file.hunks, prose=True)]
        if file.cut:
            lines.append(f"… {file.cut} characters are not shown")
        del inside[0]
    return [*lines, f"and {len(inside)} more inside"] if inside else lines


def _labelled(label: str, text: str, *, most: int = _REASON, prose: bool = False) -> list[str]:
    lines = shown_lines(text, most=most, prose=prose)
    return [f"{label}: {lines[0]}"] if len(lines) == 1 else [f"{label}:", *lines]
