"""
Builds the answers for command lines that run without a sandbox of this server.

They run in another environment, or a rule permits their program outside the sandbox.
"""

import os
import sys
from typing import TYPE_CHECKING

from holdfast.engine.process.variables import without_tokens
from holdfast.front.drop_in import tables
from holdfast.front.drop_in.caller import Caller
from holdfast.front.drop_in.settings import ShellSettings
from holdfast.wire.protocol.limits import LIMITS

# Only users with a policy need it.
if TYPE_CHECKING:
    from holdfast.agent.approvals.real_program import RealProgram

__all__ = ["elsewhere", "environment_of", "outside"]


def environment_of(caller: Caller, settings: ShellSettings) -> dict[str, str]:
    """Return the caller's environment with the real shell in `SHELL`, and without tokens."""
    env = dict(without_tokens(caller.environ))
    if os.path.basename(env.get("SHELL", "")) == "holdfast-sh":
        env["SHELL"] = settings.shell
    # bash reads `.bashrc` if its stdin is a network socket and SHLVL is missing or 0. It checks
    # that by `getpeername`, which a sandbox without network refuses.
    level = env.get("SHLVL", "")
    if not level.isdecimal() or int(level) < 1:
        env["SHLVL"] = "1"
    return env


def outside(caller: Caller, settings: ShellSettings, program: "RealProgram") -> bytes:
    """Return a table that executes a program that a rule permits outside the sandbox."""
    path, *arguments = program.argv
    env = {**environment_of(caller, settings), **program.env}
    return tables.run_instead(path, [program.arg0 or path, *arguments], env)


def elsewhere(caller: Caller, settings: ShellSettings) -> bytes:
    """Return a table that runs the command line in another environment by `holdfast run`."""
    words = [sys.executable, "-EP", "-m", "holdfast.front.cli", "run", "--on", settings.environment]
    if caller.terminal is not None:
        words.append("--tty")
    if settings.sandbox != "none":
        words += ["--sandbox", settings.sandbox]
        for path in settings.sandbox_write:
            words += ["--sandbox-write", path]
    for limit in LIMITS:
        value = getattr(settings.limits, limit.name)
        if value is not None:
            words += [limit.option, str(value)]
    words += ["--", settings.shell, *caller.argv[1:]]
    return tables.run_instead(sys.executable, words)
