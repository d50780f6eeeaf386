"""
Questions about commands and patches, and the decisions about them.

The JSON forms are those of the app-server's `item/commandExecution/requestApproval` and the
corresponding methods for files and permissions.
"""

import enum
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from holdfast.agent.approvals.permissions import NO_PERMISSIONS, AddedPermissions
from holdfast.agent.approvals.shell_words import shown_command
from holdfast.base.errors import InvalidParams

__all__ = [
    "ONCE_ONLY",
    "REJECTED",
    "Decision",
    "DecisionKind",
    "DeniedRun",
    "GrantScope",
    "PatchedFile",
    "Question",
    "QuestionKind",
]

REJECTED = "rejected by user"
"""Text for the model about a declined command."""

ONCE_ONLY = "Managed command policy requires a one-time human approval."
"""Text for an answer to a `humanCommand` that would apply more than once."""

GrantScope = Literal["turn", "session"]
"""Duration of permissions requested in advance."""

_NETWORK_ACTIONS = ("allow", "deny")


class QuestionKind(enum.StrEnum):
    """The subject of a question, by its name on the wire."""

    COMMAND = "command"
    HUMAN_COMMAND = "humanCommand"
    """A command that, by managed requirements, a person must allow each time."""
    FILE_CHANGE = "fileChange"
    WRITE_STDIN = "writeStdin"
    PERMISSIONS = "permissions"


# Kinds with more decisions than accepting, declining or cancelling once.
_WITH_CHOICES = (QuestionKind.COMMAND, QuestionKind.WRITE_STDIN, QuestionKind.PERMISSIONS)


class DecisionKind(enum.StrEnum):
    """The decisions, by their names on the wire."""

    ACCEPT = "accept"
    """Accept this time."""
    ACCEPT_FOR_SESSION = "acceptForSession"
    """Also accept the same command later in the session."""
    ACCEPT_WITH_AMENDMENT = "acceptWithExecpolicyAmendment"
    """Accept this time, and store a rule."""
    NETWORK_AMENDMENT = "applyNetworkPolicyAmendment"
    """Store a network rule; a rule that denies is a rejection."""
    DECLINE = "decline"
    """The command does not run; the model continues."""
    CANCEL = "cancel"
    """The command does not run; the call is interrupted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeniedRun:
    """The first run of a command to which its sandbox has probably denied something."""

    what: str
    """The denied operation, if known."""
    output: str
    """The output of the command, or its exit code."""
    exit_code: int | None
    network_attempts: tuple[str, ...] = ()
    """Refused network calls, each in a few words."""

    def to_json(self) -> dict[str, object]:
        """Return the form for questions."""
        return {
            "what": self.what,
            "output": self.output,
            "exitCode": self.exit_code,
            "networkAttempts": list(self.network_attempts),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchedFile:
    """A patch's change of a file. Paths are absolute."""

    kind: Literal["add", "update", "delete"]
    path: str
    move_to: str | None = None
    leads_to: str | None = None
    """The target if the path is a link."""
    replaces: bool = False
    """True if another file is replaced: at the path of an added file, or at a move's new path."""
    outside: bool = False
    """True if the sandbox does not allow the change."""
    hunks: str = ""
    """The lines of the patch for this file, with their marks; empty for a removal."""
    cut: int = 0
    """Characters omitted from its hunks; always 0 for a change outside the sandbox."""

    def to_json(self) -> dict[str, object]:
        """Return the form for questions."""
        kind: dict[str, object] = {"type": self.kind}
        if self.move_to is not None:
            kind["move_path"] = self.move_to
        shown: dict[str, object] = {
            "path": self.path,
            "kind": kind,
            "leadsTo": self.leads_to,
            "replaces": self.replaces or None,
            "outside": self.outside,
            "hunks": self.hunks or None,
            "cut": self.cut or None,
        }
        return _present(shown)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """
    A question about exactly one command, patch, input or set of permissions.

    `digest` identifies what will run. A decision only applies to this question.
    """

    kind: QuestionKind
    call_id: str
    """The id of the model's call."""
    environment_id: str
    command: tuple[str, ...]
    """The argv to run, as in `ExecResult`; empty for permissions and patches."""
    cwd: str
    digest: str
    """The SHA-256 of everything that the decision is about."""
    reason: str | None = None
    cause: str | None = None
    """The reason for a question about a command: a value of `Cause`."""
    explanation: str | None = None
    """The reason in one sentence; for a command, as `holdfast policy explain` prints it."""
    script: str | None = None
    """The script as the model wrote it; None for a patch, see `files`."""
    tty: bool = False
    proposed_amendment: tuple[str, ...] | None = None
    """The prefix that a stored rule would allow."""
    leaves_sandbox: bool = False
    """True if the command would run outside its sandbox."""
    amendment_leaves_sandbox: bool = False
    """True if the stored rule would permit commands to run outside their sandbox."""
    permissions: AddedPermissions = NO_PERMISSIONS
    """Permissions that the command, or later ones, would get beyond the sandbox."""
    network_context: tuple[str, str] | None = None
    """Host and protocol of the connection in question."""
    denied: DeniedRun | None = None
    """The previous run, if the question is about running again."""
    files: tuple[PatchedFile, ...] = ()
    """The changes of a patch, those outside the sandbox first."""
    thread_id: str | None = None
    turn_id: str | None = None
    id: str = field(default_factory=lambda: str(uuid.uuid4()))
    """Unique for each question."""
    started_at_ms: int = field(default_factory=lambda: int(time.time() * 1000))

    @property
    def command_line(self) -> str:
        """The command as a line for a shell, for display."""
        return shown_command(self.command)

    @property
    def is_rememberable(self) -> bool:
        """True if an answer may also apply later; False for unknown kinds."""
        known = self.kind in (QuestionKind.COMMAND, QuestionKind.FILE_CHANGE)
        return known and self.denied is None

    @property
    def is_amendable(self) -> bool:
        """True if an answer may store a rule for the proposed prefix."""
        # A rule could not grant the permissions of this command later.
        proposed = self.proposed_amendment is not None and not self.permissions
        return proposed and self.kind is QuestionKind.COMMAND

    @property
    def available_decisions(self) -> tuple["Decision", ...]:
        """The offered decisions; `decline` is always accepted, too."""
        accept, cancel = Decision(DecisionKind.ACCEPT), Decision(DecisionKind.CANCEL)
        decline = Decision(DecisionKind.DECLINE)
        if self.kind is QuestionKind.FILE_CHANGE:
            return (accept, Decision(DecisionKind.ACCEPT_FOR_SESSION), decline, cancel)
        if self.kind not in _WITH_CHOICES:
            return (accept, decline, cancel)
        if self.network_context is not None:
            host, _ = self.network_context
            network = Decision(
                DecisionKind.NETWORK_AMENDMENT, network_host=host, network_action="allow"
            )
            return (accept, Decision(DecisionKind.ACCEPT_FOR_SESSION), network, cancel)
        if not self.is_amendable:
            return (accept, cancel)
        amend = Decision(DecisionKind.ACCEPT_WITH_AMENDMENT, amendment=self.proposed_amendment)
        return (accept, amend, cancel)

    def to_json(self) -> dict[str, object]:
        """Return the parameters of the app-server's request, without absent members."""
        if self.kind is QuestionKind.PERMISSIONS:
            return self._permissions_json()
        if self.kind is QuestionKind.FILE_CHANGE:
            return self._file_change_json()
        amendment = self.proposed_amendment
        members: dict[str, object] = {
            **self._common(),
            "command": self.command_line,
            "cwd": self.cwd,
            "commandActions": self._actions(),
            "proposedExecpolicyAmendment": None if amendment is None else list(amendment),
            "availableDecisions": [one.to_json() for one in self.available_decisions],
        }
        if self.kind is QuestionKind.WRITE_STDIN:
            members["approvalId"] = self.call_id
        if self.kind is QuestionKind.HUMAN_COMMAND:
            members["approvalId"] = self.id
        if self.permissions:
            members["additionalPermissions"] = self.permissions.to_json()
        if self.network_context is not None:
            host, protocol = self.network_context
            members["networkApprovalContext"] = {"host": host, "protocol": protocol}
            members["proposedNetworkPolicyAmendments"] = [{"host": host, "action": "allow"}]
        if self.denied is not None:
            members["denied"] = self.denied.to_json()
        return _present(members)

    def _common(self) -> dict[str, object]:
        """Return the first members of questions about commands and about files."""
        return {
            "threadId": self.thread_id,
            "turnId": self.turn_id,
            "itemId": self.call_id,
            "startedAtMs": self.started_at_ms,
            "kind": str(self.kind),
            "environmentId": self.environment_id,
            "reason": self.reason,
            "explanation": self.explanation,
        }

    def _permissions_json(self) -> dict[str, object]:
        """Return the parameters of `item/permissions/requestApproval`."""
        members: dict[str, object] = {
            "threadId": self.thread_id,
            "turnId": self.turn_id,
            "itemId": self.call_id,
            "environmentId": self.environment_id,
            "cwd": self.cwd,
            "reason": self.reason,
            "explanation": self.explanation,
            "permissions": self.permissions.to_json(),
            "startedAtMs": self.started_at_ms,
        }
        return _present(members)

    def _file_change_json(self) -> dict[str, object]:
        """Return the parameters of `item/fileChange/requestApproval`, and the files."""
        files = [file.to_json() for file in self.files]
        return _present({**self._common(), "files": files})

    def _actions(self) -> list[dict[str, object]] | None:
        # A client expects a guess of the command's purpose; no decision depends on it.
        if self.kind not in (QuestionKind.COMMAND, QuestionKind.HUMAN_COMMAND):
            return None
        # A hook may have replaced the command of the model.
        shown = self.script if self.script in self.command else self.command_line
        return [{"type": "unknown", "command": shown}]


@dataclass(frozen=True, slots=True)
class Decision:
    """
    An answer to one question.

    Raises:
        InvalidParams: A member that its kind requires is missing.
    """

    kind: DecisionKind
    amendment: tuple[str, ...] | None = None
    """The prefix to store a rule for."""
    network_host: str | None = None
    network_action: str | None = None
    rejection: str | None = None
    """Text for the model in place of `rejected by user`."""
    granted: AddedPermissions | None = None
    """The granted permissions; None for all requested ones."""
    scope: GrantScope = "turn"
    """Duration of the granted permissions."""
    question_id: str | None = None
    """The question it answers; a decision for another question is ignored."""

    def __post_init__(self) -> None:
        # Names are accepted, too. An unknown one must not count as an acceptance later.
        object.__setattr__(self, "kind", _kind(self.kind))
        if self.amendment is not None:
            object.__setattr__(self, "amendment", _prefix(self.amendment))
        if self.granted is not None and not isinstance(self.granted, AddedPermissions):
            raise InvalidParams(f"granted is {self.granted!r}, it must be AddedPermissions")
        if self.kind is DecisionKind.ACCEPT_WITH_AMENDMENT and not self.amendment:
            raise InvalidParams(f"`{self.kind}` needs a prefix that is not empty")
        if self.kind is DecisionKind.NETWORK_AMENDMENT:
            if not self.network_host:
                raise InvalidParams(f"`{self.kind}` needs a host")
            if self.network_action not in _NETWORK_ACTIONS:
                raise InvalidParams(f"`{self.kind}` needs an action, `allow` or `deny`")
        if self.scope not in ("turn", "session"):
            raise InvalidParams(f"scope is {self.scope!r}, it must be `turn` or `session`")

    @property
    def accepts(self) -> bool:
        """True if the command may run."""
        if self.kind is DecisionKind.NETWORK_AMENDMENT:
            return self.network_action == "allow"
        return self.kind in (
            DecisionKind.ACCEPT,
            DecisionKind.ACCEPT_FOR_SESSION,
            DecisionKind.ACCEPT_WITH_AMENDMENT,
        )

    def to_json(self) -> str | dict[str, object]:
        """Return the decision in its form on the wire."""
        if self.kind is DecisionKind.ACCEPT_WITH_AMENDMENT:
            assert self.amendment is not None
            return {self.kind.value: {"execpolicy_amendment": list(self.amendment)}}
        if self.kind is DecisionKind.NETWORK_AMENDMENT:
            amendment = {"host": self.network_host, "action": self.network_action}
            return {self.kind.value: {"network_policy_amendment": amendment}}
        return self.kind.value

    @classmethod
    def parse(cls, value: object, *, question_id: str | None = None) -> "Decision":
        """
        Return the decision sent by a client.

        Args:
            value: The value of `decision`: a name, or an object with one member.
            question_id: The question that it answers.

        Raises:
            InvalidParams: It is not a valid decision; the text says why.
        """
        if isinstance(value, str):
            return cls(_kind(value), question_id=question_id)
        if not isinstance(value, Mapping) or len(value) != 1:
            raise InvalidParams("a decision is a name, or an object with one member")
        ((name, body),) = value.items()
        kind = _kind(name)
        if kind is DecisionKind.ACCEPT_WITH_AMENDMENT:
            prefix = _prefix(_member(body, kind, "execpolicy_amendment"))
            return cls(kind, amendment=prefix, question_id=question_id)
        if kind is DecisionKind.NETWORK_AMENDMENT:
            amendment = _member(body, kind, "network_policy_amendment")
            host = _member(amendment, kind, "host")
            action = _member(amendment, kind, "action")
            if not isinstance(host, str) or not isinstance(action, str):
                raise InvalidParams("`network_policy_amendment` needs texts")
            return cls(kind, network_host=host, network_action=action, question_id=question_id)
        raise InvalidParams(f"`{kind}` is a name, not an object")


def _present(members: Mapping[str, object]) -> dict[str, object]:
    """Return the members that have a value."""
    return {name: member for name, member in members.items() if member is not None}


def _kind(name: object) -> DecisionKind:
    try:
        return DecisionKind(str(name))
    except ValueError:
        known = ", ".join(f"`{kind}`" for kind in DecisionKind)
        raise InvalidParams(f"unknown decision `{name}`, expected one of {known}") from None


def _prefix(words: object) -> tuple[str, ...]:
    if not isinstance(words, Sequence) or isinstance(words, str | bytes):
        raise InvalidParams("`execpolicy_amendment` must be a list of words")
    if not all(isinstance(word, str) for word in words):
        raise InvalidParams("`execpolicy_amendment` must be a list of words")
    return tuple(words)


def _member(body: object, kind: DecisionKind, name: str) -> object:
    if not isinstance(body, Mapping) or name not in body:
        raise InvalidParams(f"`{kind}` needs `{name}`")
    return body[name]
