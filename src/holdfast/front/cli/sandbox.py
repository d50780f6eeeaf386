"""`holdfast sandbox explain`: shows the effect of a profile here, and how it is enforced."""

import argparse
import json
import os
import sys

from holdfast.base.errors import InvalidParams
from holdfast.base.local_servers import reachable
from holdfast.engine.linux.mounts import mount_table
from holdfast.engine.sandbox.bubblewrap.gaps import policy_gaps
from holdfast.engine.sandbox.bubblewrap.landlock import OLDEST_ABI
from holdfast.engine.sandbox.bubblewrap.support import BubblewrapSupport, probe_support
from holdfast.engine.sandbox.enforcer import IsolationLevel
from holdfast.engine.sandbox.policy.build import PolicyInputs, resolve
from holdfast.engine.sandbox.policy.explain import Row
from holdfast.engine.sandbox.policy.explain import explain as rows_of
from holdfast.engine.sandbox.policy.own_paths import own_paths
from holdfast.engine.sandbox.policy.policy import Policy
from holdfast.environments.sandbox import (
    ProfileContext,
    also_writing,
    home_here,
    resolve_sandbox,
)
from holdfast.front.cli.table import aligned
from holdfast.wire.protocol.paths import PathUri

__all__ = ["explain"]


def explain(options: argparse.Namespace) -> int:
    """Print the rules and the enforcement of a profile; return the exit status."""
    try:
        cwd = os.getcwd() if options.cwd is None else os.path.realpath(options.cwd, strict=True)
        policy = _policy(options, cwd)
    except OSError as error:
        return _failed(f"cannot access {options.cwd or '.'}: {error.strerror}")
    except InvalidParams as error:
        return _failed(str(error))
    # Probing takes a moment; a profile without isolation does not need it.
    support = probe_support() if policy.isolates else None
    rows = rows_of(policy)
    enforceable = support is None or support.isolation is not IsolationLevel.NONE
    if options.json:
        facts = {
            "profile": options.profile,
            "cwd": cwd,
            "rules": [row._asdict() for row in rows],
            "enforceable": enforceable,
            **_enforcement(support, policy),
        }
        print(json.dumps(facts, indent=2))
    else:
        table = [list(row) for row in [*rows, *_enforcement_rows(support, policy)]]
        print("\n".join(aligned(["TOPIC", "WHAT", "WHY"], table)))
    return 0 if enforceable else 1


def _failed(text: str) -> int:
    print(f"holdfast: {text}", file=sys.stderr)
    return 1


def _policy(options: argparse.Namespace, cwd: str) -> Policy:
    """
    Return the rules of a profile for a command in a directory.

    Raises:
        InvalidParams: The profile does not exist or is invalid.
    """
    name: str = options.profile
    place = ProfileContext(folder=PathUri.from_path(cwd), home=home_here())
    context = resolve_sandbox(also_writing(name, options.sandbox_write), place)
    if context is None:
        return Policy()
    facts = PolicyInputs(
        cwd=cwd,
        tmpdir=os.environ.get("TMPDIR"),
        home=os.path.expanduser("~"),
        uid=os.getuid(),
        reachable=reachable(os.environ),
        own=own_paths(os.environ).paths,
        mounts=mount_table(),
    )
    return resolve(context, facts)


def _gaps(support: BubblewrapSupport, policy: Policy) -> list[str]:
    """Return the known gaps of the sandbox; empty if no sandbox is possible."""
    if support.isolation is IsolationLevel.NONE:
        return []
    return [*policy_gaps(policy, support.landlock_abi), *support.gaps]


def _enforcement(support: BubblewrapSupport | None, policy: Policy) -> dict[str, object]:
    if support is None:
        return {"isolation": None, "launcher": None, "problem": None, "gaps": []}
    launcher = support.launcher
    return {
        "isolation": support.isolation.value,
        "launcher": launcher and {"path": launcher.path, "version": launcher.version},
        "problem": support.problem,
        "gaps": _gaps(support, policy),
    }


def _enforcement_rows(
    support: BubblewrapSupport | None, policy: Policy
) -> list[tuple[str, str, str] | Row]:
    if support is None:
        return []
    by = "nothing"
    if support.launcher is not None and support.isolation is not IsolationLevel.NONE:
        by = f"bubblewrap {support.launcher.version}, {support.launcher.path}"
    landlock = ", Landlock" if support.landlock_abi >= OLDEST_ABI else ""
    why = support.problem or f"namespaces, mounts{landlock} and a filter on system calls"
    rows: list[tuple[str, str, str] | Row] = [
        ("enforced by", by, f"isolation {support.isolation}: {why}")
    ]
    rows += (("not stopped", "", gap) for gap in _gaps(support, policy))
    return rows
