"""Breaking out by a patch that a person accepts: files that the question only counts."""

from pathlib import Path

import pytest

from holdfast.agent.approvals import Approvals, Decision, Question
from holdfast.agent.approvals.question_text import question_text
from holdfast.agent.unified_exec import Options, UnifiedExec
from holdfast.environments.local_environment import LocalEnvironment
from holdfast.environments.sandbox import SandboxProfile

pytestmark = [pytest.mark.timeout(60), pytest.mark.both_loops]


class Person:
    """Accepts every question, and keeps what it showed; the agent acts while it is open."""

    def __init__(self) -> None:
        self.shown: list[list[str]] = []

    def meanwhile(self) -> None:
        """Do what an agent does while a question is open."""

    async def ask(self, question: Question) -> Decision:
        self.shown.append(question_text(question)[1])
        self.meanwhile()
        return Decision.parse("accept")


class Place:
    """A workspace, and a directory outside it with a file that a patch may change if asked."""

    def __init__(self, base: Path) -> None:
        self.workspace = base / "ws"
        self.outside = base / "outside"
        for folder in (self.workspace, self.outside):
            folder.mkdir()
        self.note = self.outside / "note"
        self.note.write_text("a\n")

    async def patch(self, person: Person, *parts: str) -> str:
        """Apply a patch that changes the file outside, and more."""
        change = f"*** Update File: {self.note}\n@@\n-a\n+b"
        body = "\n".join(("*** Begin Patch", change, *parts, "*** End Patch"))
        profile = SandboxProfile("read-only", write=["."])
        options = Options(sandbox=profile, approvals=Approvals(approver=person))
        async with LocalEnvironment() as environment:
            environment.cwd = self.workspace
            async with UnifiedExec(environment, options=options) as tools:
                found = await tools.call("exec_command", {"cmd": f"apply_patch <<'E'\n{body}\nE\n"})
        # The person sees one file outside, and that there is another one inside.
        assert person.shown[0][0] == f"update {self.note}"
        assert "and 1 more inside" in person.shown[0]
        return found.text()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.mark.requirement("approvals.patch.inside")
async def test_a_hook_is_not_written_along_with_a_file_outside(place: Place) -> None:
    # The repository of a `.git` file is protected, wherever it is in the workspace.
    hooks = place.workspace / "repository" / "hooks"
    hooks.mkdir(parents=True)
    (place.workspace / ".git").write_text("gitdir: repository\n")
    text = await place.patch(Person(), "*** Add File: repository/hooks/pre-commit\n+evil")
    assert f"Failed to write file {hooks}/pre-commit" in text
    assert list(hooks.iterdir()) == []
    # All of a patch, or nothing.
    assert place.note.read_text() == "a\n"


@pytest.mark.requirement("approvals.patch.inside")
async def test_a_link_is_not_removed_from_a_directory_that_was_put_in_its_place(
    place: Place,
) -> None:
    kept = place.outside / "kept"
    kept.write_text("kept\n")
    folder = place.workspace / "d"
    folder.mkdir()
    (folder / "kept").symlink_to(place.note)

    class Agent(Person):
        def meanwhile(self) -> None:
            folder.rename(place.workspace / "old")
            folder.symlink_to(place.outside)

    text = await place.patch(Agent(), "*** Delete File: d/kept")
    assert f"Failed to delete file {folder}/kept" in text
    assert kept.read_text() == "kept\n"
    assert place.note.read_text() == "a\n"
