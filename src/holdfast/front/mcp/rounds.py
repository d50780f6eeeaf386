"""
Second rounds of 2026-07-28: a call that asks ends its request, and the next one answers.

What travels between the two is sealed by the SDK's codec under a key of this process. It names
the call that waits here, the client, the arguments, and the digest of exactly what was asked.
An answer is used for that question or not at all.
"""

import hashlib
import hmac
import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from mcp.server.request_state import AESGCMRequestStateCodec, InvalidRequestState
from mcp_types import CallToolRequestParams, ElicitResult, InputRequiredResult

from holdfast.agent.approvals.question import Question
from holdfast.base.errors import HoldfastError
from holdfast.front.mcp.questions import APPROVAL_META, elicitation
from holdfast.front.mcp.tool_calls import ToolCall

__all__ = ["ANSWER_KEY", "ANSWER_LIMIT", "BadState", "Round", "Rounds", "answer_of"]

ANSWER_LIMIT: Final = 600.0
"""Seconds that a question may be open; then it counts as declined."""

ANSWER_KEY: Final = "approval"
"""The name of the one input request, and of its response."""

_REFUSED: Final = (
    "the answer was not used: its requestState was not made by this server for this client and"
    " tool, or it is too old; nothing was run"
)


class BadState(HoldfastError):
    """A second round cannot be served; the model reads the text."""


# A client keeps the sealed state between two rounds, so the server need not.
@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """Content of a sealed state that was verified to be ours and this client's."""

    call_id: str
    question_id: str
    digest: str
    """Of exactly what was asked."""
    same_arguments: bool
    """False if the arguments of this request are not those that were asked about."""


class Rounds:
    """Seals and opens the states of all clients of one server."""

    def __init__(self, *, limit: float = ANSWER_LIMIT) -> None:
        """
        Args:
            limit: Seconds that a state can be used.
        """
        self._codec = AESGCMRequestStateCodec([os.urandom(32)])
        self._limit = limit

    def required(
        self, principal: str, params: CallToolRequestParams, call: ToolCall, question: Question
    ) -> InputRequiredResult:
        """Return the result of a request whose call asks something."""
        claims = {
            "exp": time.time() + self._limit,
            "principal": principal,
            "tool": params.name,
            "arguments": _digest(params.arguments),
            "call": call.id,
            "question": question.id,
            "digest": question.digest,
        }
        return InputRequiredResult(
            input_requests={ANSWER_KEY: elicitation(question)},
            request_state=self._codec.seal(json.dumps(claims).encode()),
            # Requests inside of a result have no `_meta` of their own.
            _meta={APPROVAL_META: question.to_json()},
        )

    def open(self, principal: str, params: CallToolRequestParams) -> Round | None:
        """
        Return what the state of a request says; None if it has none, and so is a first round.

        Raises:
            BadState: It is not one of ours, not of this client or tool, or too old.
        """
        if params.request_state is None:
            return None
        try:
            claims: dict[str, Any] = json.loads(self._codec.unseal(params.request_state))
        except (InvalidRequestState, ValueError) as error:
            raise BadState(_REFUSED) from error
        if not time.time() < claims["exp"]:
            raise BadState(_REFUSED)
        if claims["principal"] != principal or claims["tool"] != params.name:
            raise BadState(_REFUSED)
        return Round(
            call_id=claims["call"],
            question_id=claims["question"],
            digest=claims["digest"],
            same_arguments=hmac.compare_digest(claims["arguments"], _digest(params.arguments)),
        )


def answer_of(params: CallToolRequestParams) -> ElicitResult | None:
    """Return the answer in a second round, if there is one."""
    found = (params.input_responses or {}).get(ANSWER_KEY)
    return found if isinstance(found, ElicitResult) else None


def _digest(arguments: Mapping[str, Any] | None) -> str:
    """Return a digest of arguments, in which the order of members does not count."""
    text = json.dumps(arguments or {}, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
