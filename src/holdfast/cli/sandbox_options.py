"""The limits of `holdfast run`, from options; and verdicts of limits and sandboxes, as messages."""

import argparse

from holdfast.cli.exit_status import FAILED, Ended
from holdfast.environments.limits import Limits
from holdfast.errors import InvalidParams
from holdfast.events import Denial, DenialKind, LimitKind, Reason, Verdict

__all__ = ["given_limits", "limits_of", "told"]


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
        for name, option in _BY_NAME.items():
            # Errors of `Limits` use Python names; the user knows the option.
            text = text.replace(f"limit {name}", option)
        raise Ended(FAILED, text) from error
    return limits


def given_limits(options: argparse.Namespace) -> Limits:
    """Return the limits of the options."""
    return Limits(
        memory=options.limit_memory,
        processes=options.limit_processes,
        open_files=options.limit_files,
        total_memory=options.limit_total_memory,
        cpu_time=options.limit_cpu,
        output=options.limit_output,
        wall_time=options.limit_time,
    )


def told(verdict: Verdict) -> str | None:
    """Return a line that explains a failure caused by the sandbox or a limit, or None."""
    if verdict.reason is Reason.LIMIT:
        option = _OPTIONS.get(verdict.limit) if verdict.limit is not None else None
        by = "a limit" if option is None else option
        return f"ended by {by}: it {verdict.detail or 'does not say why'}"
    if verdict.denial is not None:
        return f"denied by the sandbox: {_denied(verdict.denial)}"
    if verdict.exit_code and verdict.network_attempts:
        return f"there is no network in the sandbox: {verdict.network_attempts[0]}"
    return None


# Limits with a minimum, by the names that errors use.
_BY_NAME = {"open_files": "--limit-files", "total_memory": "--limit-total-memory"}

# The option behind each limit, which the user recognizes.
_OPTIONS = {
    LimitKind.ADDRESS_SPACE: "--limit-memory",
    LimitKind.PROCESSES: "--limit-processes",
    LimitKind.OPEN_FILES: "--limit-files",
    LimitKind.MEMORY: "--limit-total-memory",
    LimitKind.CPU_TIME: "--limit-cpu",
    LimitKind.OUTPUT: "--limit-output",
    LimitKind.WALL_TIME: "--limit-time",
}

_WRITES = (DenialKind.READ_ONLY_FILE_SYSTEM, DenialKind.FAILED_TO_WRITE_FILE)


def _denied(denial: Denial) -> str:
    if denial.network:
        return "the network"
    if denial.path is not None:
        return f"{'write' if denial.kind in _WRITES else 'access'} to {denial.path}"
    if denial.kind is DenialKind.SYSTEM_CALL:
        return "a system call"
    return denial.snippet or "it does not say what"
