"""Limits of `holdfast run` from its options, and messages about limits and sandboxes."""

import argparse

from holdfast.base.errors import InvalidParams
from holdfast.environments.limits import Limits
from holdfast.events import Denial, DenialKind, LimitKind, Reason, Verdict
from holdfast.front.cli.exit_status import FAILED, Ended
from holdfast.front.cli.sandbox_options_parser import limit_attribute
from holdfast.wire.protocol.limits import LIMITS, limit_of

__all__ = ["explain_failure", "given_limits", "limits_of"]


def limits_of(options: argparse.Namespace) -> Limits:
    """
    Return the limits of the options.

    Raises:
        Ended: One of them is invalid.
    """
    limits = given_limits(options)
    try:
        limits.on_wire()
    except InvalidParams as error:
        text = str(error)
        for limit in LIMITS:
            # Errors of `Limits` have Python names; show the option instead.
            text = text.replace(f"limit {limit.name}", limit.option)
        raise Ended(FAILED, text) from error
    return limits


def given_limits(options: argparse.Namespace) -> Limits:
    """Return the limits of the options."""
    given = {limit.name: getattr(options, limit_attribute(limit)) for limit in LIMITS}
    return Limits(**given)


def explain_failure(verdict: Verdict) -> str | None:
    """Return a line that explains a failure caused by the sandbox or a limit, or None."""
    if verdict.reason is Reason.LIMIT:
        limit = verdict.limit
        by = "a limit" if limit in (None, LimitKind.OTHER) else limit_of(limit).option
        return f"ended by {by}: it {verdict.detail or 'does not say why'}"
    if verdict.denial is not None:
        hint = f" ({verdict.denial.hint})" if verdict.denial.hint else ""
        return f"denied by {_denier(verdict.denial)}: {_denied(verdict.denial)}{hint}"
    if verdict.exit_code and verdict.network_attempts:
        return f"the sandbox has no network: {verdict.network_attempts[0]}"
    return None


_WRITES = (DenialKind.READ_ONLY_FILE_SYSTEM, DenialKind.FAILED_TO_WRITE_FILE)


# Errors that the kernel also returns without a sandbox, for files of other users.
_AMBIGUOUS = (DenialKind.PERMISSION_DENIED, DenialKind.OPERATION_NOT_PERMITTED)


def _denier(denial: Denial) -> str:
    if denial.kind in _AMBIGUOUS and denial.path is not None:
        return "the sandbox, or by the owner and mode of the file"
    return "the sandbox"


def _denied(denial: Denial) -> str:
    if denial.network:
        return "the network"
    if denial.path is not None:
        what = f"{'write' if denial.kind in _WRITES else 'access'} to {denial.path}"
        return f"{what}: {denial.reason}" if denial.reason else what
    if denial.kind is DenialKind.SYSTEM_CALL:
        return "a system call"
    return denial.snippet or "it does not say what"
