"""
Second rounds of 2026-07-28: a question ends the request of a call, and the next one answers.

The state between the two is sealed by the SDK's codec with a key of this process. It has the
waiting call, the client, the arguments, and a digest of the question. An answer is only used for
that question.
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
"""Seconds until an open question counts as declined."""

ANSWER_KEY: Final = "approval"
"""Name of the input request and its response."""

_REFUSED: Final = (
    "the answer was not used: its requestState was not made by this server for this client and"
    " tool, or it is too old; nothing was run"
)


class BadState(HoldfastError):
    """A second round is invalid; the message is for the model."""


# The client keeps the sealed state between rounds, so the server need not.
@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """Content of a sealed state, verified to be from this server and for this client."""

    call_id: str
    question_id: str
    digest: str
    """Digest of the question."""
    same_arguments: bool
    """False if the arguments of this request differ from those in the question."""


class Rounds:
    """Seals and opens the states of all clients of a server."""

    def __init__(self, *, limit: float = ANSWER_LIMIT) -> None:
        """
        Args:
            limit: Seconds that a state is valid.
        """
        self._codec = AESGCMRequestStateCodec([os.urandom(32)])
        self._limit = limit

    def required(
        self, principal: str, params: CallToolRequestParams, call: ToolCall, question: Question
    ) -> InputRequiredResult:
        """Return the result of a request whose call asks a question."""
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
            # Requests within a result cannot have a `_meta`.
            _meta={APPROVAL_META: question.to_json()},
        )

    def open(self, principal: str, params: CallToolRequestParams) -> Round | None:
        """
        Return the content of a request's state; None for a first round, which has none.

        Raises:
            BadState: It is not from this server, for another client or tool, or too old.
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
    """Return the answer in a second round, if any."""
    found = (params.input_responses or {}).get(ANSWER_KEY)
    return found if isinstance(found, ElicitResult) else None


def _digest(arguments: Mapping[str, Any] | None) -> str:
    """Return a digest of arguments that does not depend on the order of members."""
    text = json.dumps(arguments or {}, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
