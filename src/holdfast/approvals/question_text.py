"""Questions in words, for a person who reads them on a terminal or in a form."""

from holdfast.approvals.question import Question, QuestionKind

__all__ = ["question_text", "visible"]

_SHOWN_FILES = 20
# Files, and lines of a patch, that a person is shown.
_SHOWN_LINES = 60

# Characters of the output that a question after a denial shows: the last ones.
_SHOWN_OUTPUT = 2_000


def question_text(question: Question, *, keep: str = "") -> tuple[str, list[str]]:
    """
    Return what is asked in one sentence, and what a person should know about it.

    Args:
        question: What is asked.
        keep: Characters that are shown as they are although they cannot be printed.
    """

    def shown(text: str) -> str:
        return visible(text, keep=keep)

    where = " outside of its sandbox" if question.leaves_sandbox else ""
    heading = f"Run this command{where} in {shown(question.cwd)}?"
    if question.kind is QuestionKind.WRITE_STDIN:
        heading = "Send this input to a program outside of the sandbox?"
    elif question.kind is QuestionKind.PERMISSIONS:
        heading = "Give the following commands more permissions?"
    details = []
    if question.kind is QuestionKind.FILE_CHANGE:
        heading = f"Change these files{where}?"
        details += _files(question)
    elif question.command:
        details.append(shown(question.command))
    if question.permissions:
        details.append(f"With: {shown(str(question.permissions.to_json()))}")
    if question.cause == "dangerous":
        details.append("It deletes by force, or is hidden by many wrappers.")
    if question.reason:
        details.append(f"Reason: {shown(question.reason)}")
    if question.denied is not None:
        details.append(f"Denied: {shown(question.denied.what)}")
        details += [f"Network: {shown(one)}" for one in question.denied.network_attempts]
        details.append(f"Output: {shown(question.denied.output[-_SHOWN_OUTPUT:])}")
    return heading, details


def _files(question: Question) -> list[str]:
    """Return a line for each file of a patch, then the patch, both bounded."""
    lines = []
    for file in question.files[:_SHOWN_FILES]:
        goes = "" if file.move_to is None else f" to {file.move_to}"
        leads = "" if file.leads_to is None else f" (a link to {file.leads_to})"
        lines.append(f"{file.kind} {visible(file.path + goes + leads)}")
    if len(question.files) > _SHOWN_FILES:
        lines.append(f"and {len(question.files) - _SHOWN_FILES} more")
    patch = (question.script or "").split("\n")
    lines += [f"| {visible(line)}" for line in patch[:_SHOWN_LINES]]
    if len(patch) > _SHOWN_LINES:
        lines.append("| …")
    return lines


def visible(text: str, *, keep: str = "") -> str:
    """Return a text without characters that could change or hide what is shown of it."""
    return "".join(
        letter
        if letter.isprintable() or letter in keep
        else letter.encode("unicode_escape").decode()
        for letter in text
    )
