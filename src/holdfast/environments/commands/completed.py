"""Results of completed commands."""

from dataclasses import dataclass, field
from shlex import join

from holdfast.backends import ExecProcess
from holdfast.base.errors import CommandFailed
from holdfast.environments.collect.head_tail import Captured
from holdfast.environments.notes import Note, NoteKind, verdict_notes
from holdfast.events import Denial, Reason, Verdict
from holdfast.wire.protocol.process import Enforcement, NetworkAttempt

__all__ = ["Completed"]

# Characters of the command in `str()`.
_SHOWN_COMMAND = 80

# Characters of each stream in `str()`, from the end, where errors are.
_SHOWN_OUTPUT = 2000

_NOTHING = Captured()


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Completed:
    """The result of a command: verdict and output."""

    command: str | tuple[str, ...]
    """As it was given: a command line for the shell, or an argument list."""
    verdict: Verdict
    """Reason, exit code and signal."""
    captured_stdout: Captured = _NOTHING
    """Beginning and end, and the number of bytes missing between them; `stdout` is its text."""
    captured_stderr: Captured = _NOTHING
    background: bool = False
    """
    True if a process it started still holds its output open.

    That process runs until the environment is closed; `process.read(after_seq=last_seq)` returns
    its output.
    """
    duration: float = 0.0
    """Seconds from its start to its end, measured by the caller."""
    last_seq: int = 0
    """`seq` of the last event that was received."""
    process: ExecProcess = field(compare=False)
    """The process itself; its `read` returns up to 1 MiB of its last output."""

    @property
    def exit_code(self) -> int | None:
        """Its exit status, or 128 plus the signal that killed it; None if unknown."""
        return self.verdict.exit_code

    @property
    def reason(self) -> Reason:
        """Reason of its end, such as `TIMED_OUT` or `LIMIT`."""
        return self.verdict.reason

    @property
    def ok(self) -> bool:
        """True if it exited by itself with status 0."""
        return self.verdict.ok

    @property
    def denied(self) -> bool:
        """True if it failed, probably because of its sandbox."""
        return self.verdict.denial is not None

    @property
    def denial(self) -> Denial | None:
        """The probable cause of a denial, guessed from the output."""
        return self.verdict.denial

    @property
    def network_attempts(self) -> tuple[NetworkAttempt, ...]:
        """Network calls refused by its sandbox; they are not necessarily why it failed."""
        return self.verdict.network_attempts

    @property
    def enforcement(self) -> Enforcement | None:
        """The enforced sandbox layers and their known gaps; None without a sandbox."""
        return self.process.enforcement

    @property
    def stdout(self) -> str:
        """Its stdout as text; bytes that are not UTF-8 become `\\ufffd`."""
        return self.captured_stdout.text

    @property
    def stderr(self) -> str:
        """Its stderr as text."""
        return self.captured_stderr.text

    @property
    def stdout_bytes(self) -> bytes:
        """Its stdout as bytes."""
        return bytes(self.captured_stdout)

    @property
    def stderr_bytes(self) -> bytes:
        """Its stderr as bytes."""
        return bytes(self.captured_stderr)

    @property
    def omitted(self) -> int:
        """Number of bytes of output that were dropped because of the cap."""
        return self.captured_stdout.omitted + self.captured_stderr.omitted

    @property
    def truncated(self) -> bool:
        """True if bytes were omitted; a line in the text marks the place."""
        return self.omitted > 0

    @property
    def notes(self) -> tuple[Note, ...]:
        """Notes on what happened and what to do about it; often empty."""
        found = verdict_notes(self.verdict)
        if not self.truncated:
            return found
        cut = f"{self.omitted} bytes of the output were not kept; a larger `cap` keeps more."
        return (*found, Note(NoteKind.CUT, cut))

    def check(self) -> "Completed":
        """
        Return the object itself if the command succeeded (`ok`).

        Raises:
            CommandFailed: It failed.
        """
        if not self.ok:
            raise CommandFailed(str(self), self)
        return self

    def __repr__(self) -> str:
        return (
            f"<Completed {self._headline()} after {self.duration:.2f} s,"
            f" {self.captured_stdout.size} bytes of stdout,"
            f" {self.captured_stderr.size} of stderr>"
        )

    def __str__(self) -> str:
        """Return the command, its verdict and the end of its output, as readable text."""
        parts = [self._headline()]
        for name, text in (("stdout", self.stdout), ("stderr", self.stderr)):
            if text.strip():
                shown = text.rstrip()
                if len(shown) > _SHOWN_OUTPUT:
                    shown = f"[...] {shown[-_SHOWN_OUTPUT:]}"
                parts.append(f"--- {name}\n{shown}")
        return "\n".join(parts)

    def _headline(self) -> str:
        text = self.command if isinstance(self.command, str) else join(self.command)
        if len(text) > _SHOWN_COMMAND:
            text = f"{text[: _SHOWN_COMMAND - 4]} ..."
        # Mentioned because that process keeps running.
        holds = ", and something it started still holds its output" if self.background else ""
        return f"`{text}` {self.verdict}{holds}"
