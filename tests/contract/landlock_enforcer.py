"""
A second `Enforcer`: Landlock alone, without namespaces and mounts.

The command is started by a short Python program that restricts itself and then executes it. What
Landlock cannot express is refused: a path with less access below one with more, and no network.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from functools import partial

import msgspec

from holdfast.base.errors import CannotEnforce
from holdfast.engine.process.child import Child
from holdfast.engine.process.executable_lookup import Launch, pipe_launch
from holdfast.engine.process.io.log import OutputLog
from holdfast.engine.process.limits.rlimits import start_limited
from holdfast.engine.process.start_threads import call_in_daemon
from holdfast.engine.sandbox.bubblewrap.landlock import landlock_abi
from holdfast.engine.sandbox.enforcer import Enforcer, IsolationLevel, SandboxSupport
from holdfast.engine.sandbox.policy.denial import find_denial
from holdfast.engine.sandbox.policy.policy import Policy, Rule
from holdfast.events import Verdict
from holdfast.wire.protocol.process import Enforcement, ProcessLimits

__all__ = ["LandlockEnforcer"]

# All rights of the first version of Landlock; of these, execute, read a file, list a directory;
# and those that a rule for a file may have.
EVERYTHING = (1 << 13) - 1
READ = 0b1101
OF_A_FILE = 0b0111

RESTRICT_AND_EXECUTE = """
import ctypes, os, struct, sys

kernel = ctypes.CDLL(None, use_errno=True).syscall
PRCTL = {"x86_64": 157, "aarch64": 167}[os.uname().machine]

def call(*arguments):
    result = kernel(*(ctypes.c_long(one) if isinstance(one, int) else one for one in arguments))
    if result < 0:
        sys.exit(f"landlock: {os.strerror(ctypes.get_errno())}")
    return result

everything, count, *words = sys.argv[1:]
ruleset = call(444, struct.pack("=Q", int(everything)), 8, 0)
for rule in words[:int(count)]:
    access, path = rule.split(" ", 1)
    beneath = os.open(path, os.O_PATH | os.O_CLOEXEC)
    call(445, ruleset, 1, struct.pack("=Qi", int(access), beneath), 0)
call(PRCTL, 38, 1, 0, 0, 0)
call(446, ruleset, 0)
program, *argv = words[int(count):]
try:
    os.execv(program, argv)
except OSError as error:
    sys.exit(f"{program}: {error.strerror}")
"""


class LandlockEnforcer(Enforcer):
    """Lets commands read and write what a policy names, and nothing else."""

    def probe(self) -> SandboxSupport:
        abi = landlock_abi()
        if not abi:
            problem = "this kernel has no Landlock"
            return SandboxSupport(isolation=IsolationLevel.NONE, problem=problem)
        return SandboxSupport(isolation=IsolationLevel.FULL, enforced_by=f"Landlock {abi}")

    def open(self, policy: Policy, *, gaps: tuple[str, ...] = ()) -> "LandlockSandbox":
        if policy.network == "restricted":
            raise CannotEnforce("Landlock cannot keep a command from the network")
        granted = [rule for rule in policy.rules.values() if rule.access != "deny" and rule.kind]
        for rule in policy.rules.values():
            above = policy.governing(os.path.dirname(rule.path))
            if above is not None and _rank(above) > _rank(rule):
                raise CannotEnforce(f"Landlock cannot except {rule.path} from {above.path}")
        return LandlockSandbox(granted, gaps)


def _rank(rule: Rule) -> int:
    return ("deny", "read", "write").index(rule.access)


class LandlockSandbox:
    """A ruleset, for any number of commands."""

    def __init__(self, granted: Sequence[Rule], gaps: tuple[str, ...]) -> None:
        self.enforcement = Enforcement(isolation=IsolationLevel.FULL, gaps=gaps)
        self._rules = [f"{_rights(rule)} {rule.path}" for rule in granted]

    async def start(
        self,
        launch: Launch,
        env: Mapping[str, str],
        *,
        terminal: tuple[int, int] | None = None,
        pipe_stdin: bool = False,
        pipe_stderr: bool = True,
        limits: ProcessLimits | None = None,
    ) -> Child:
        name, *arguments = launch.argv
        found = pipe_launch([launch.program, *arguments], name, launch.cwd, env)
        command = [sys.executable, "-ISc", RESTRICT_AND_EXECUTE, str(EVERYTHING)]
        command += [str(len(self._rules)), *self._rules, found.program, *found.argv]

        def spawn(launch: Launch, pass_fds: Sequence[int]) -> Child:
            if terminal is not None:
                rows, cols = terminal
                return LandlockChild.on_terminal(
                    launch, env, rows=rows, cols=cols, pass_fds=pass_fds
                )
            return LandlockChild.on_pipes(
                launch, env, pipe_stdin=pipe_stdin, pipe_stderr=pipe_stderr, pass_fds=pass_fds
            )

        # In a thread: the limits are set by the child, which is waited for.
        restricted = Launch(sys.executable, command, launch.cwd)
        start = partial(start_limited, spawn, restricted, limits or ProcessLimits())
        return await call_in_daemon(start)

    def close(self) -> None:
        """Nothing is left on the disk."""


def _rights(rule: Rule) -> int:
    rights = EVERYTHING if rule.access == "write" else READ
    return rights if rule.kind == "directory" else rights & OF_A_FILE


class LandlockChild(Child):
    """A command whose failures may be denials."""

    __slots__ = ()

    def complete_verdict(self, verdict: Verdict, log: OutputLog) -> Verdict:
        if not verdict.exit_code:
            return verdict
        denial = find_denial(verdict.exit_code, log.retained())
        return msgspec.structs.replace(verdict, denial=denial)
