"""
The commands that are played under every policy, on the real Codex and on the library.

Each of them shows where it ran: what lies in `../outside` cannot be written in the sandbox.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

RULES = """\
prefix_rule(pattern=["hostname"], decision="forbidden", justification="the name is private")
prefix_rule(pattern=["uname", ["-a", "-r"]], decision="forbidden")
prefix_rule(pattern=["touch"], decision="allow")
prefix_rule(pattern=["mkdir", "asked"], decision="prompt", justification="folders matter")
prefix_rule(pattern=["ln"], decision="prompt")
prefix_rule(pattern=["touch", "never"], decision="forbidden", justification="not that one")
prefix_rule(pattern=["stty"], decision="allow")
prefix_rule(pattern=["cat"], decision="allow")
prefix_rule(pattern=["who"], decision="forbidden")
host_executable(name="who", paths=["/usr/bin/who"])
"""

REQUIREMENTS = """\
[rules]
prefix_rules = [
  {pattern = [{token = "basename"}], decision = "prompt-user", justification = "names matter"},
  {pattern = [{token = "dirname"}], decision = "prompt-user"},
  {pattern = [{token = "mkfifo"}], decision = "prompt-user", canonical_matching = true},
  {pattern = [{token = "rmdir"}], decision = "prompt", justification = "folders matter"},
  {pattern = [{token = "rmdir"}, {any_of = ["mine", "yours"]}], decision = "prompt-user"},
  {pattern = [{token = "expr"}], decision = "forbidden", justification = "no sums"},
]
"""
"""Managed requirements of the machine: about commands that no other case has."""

POLICIES: dict[str, str | dict[str, Any]] = {
    "on-request": "on-request",
    "never": "never",
    "untrusted": "untrusted",
    **{
        f"granular-{name}": {
            "granular": {
                "sandbox_approval": sandbox,
                "rules": rules,
                "mcp_elicitations": False,
                "skill_approval": False,
                "request_permissions": False,
            }
        }
        for name, sandbox, rules in (
            ("all", True, True),
            ("sandbox", True, False),
            ("rules", False, True),
            ("none", False, False),
        )
    },
}

ACCEPT, SESSION, DECLINE, CANCEL = "accept", "acceptForSession", "decline", "cancel"
AMEND = "amend"
"""Accept, and store the rule that the question proposes."""
STORE = "store"
"""Accept, and store a rule although the question proposes none."""


@dataclass(frozen=True)
class Step:
    """One call. `$session` in its arguments is the session that the first call began."""

    tool: str
    arguments: Mapping[str, Any]
    answers: tuple[str, ...] = (ACCEPT,)
    """Answers to the questions of the call, in turn; the last one for all others."""


@dataclass(frozen=True)
class Case:
    name: str
    steps: tuple[Step, ...]
    sandbox: str = "workspace-write"
    files: Mapping[str, str] = field(default_factory=dict)
    denied: bool = False
    """True if the sandbox denies it something at once: Codex may notice that or not."""
    reaches_person: bool = True
    """False for a client without the capability `requiredHumanApproval`."""


def run(cmd: str, *answers: str, **options: Any) -> Step:
    return Step("exec_command", {"cmd": cmd, "login": False, **options}, answers or (ACCEPT,))


def up(cmd: str, *answers: str, **options: Any) -> Step:
    """Run a command that asks to leave the sandbox."""
    asks = {"sandbox_permissions": "require_escalated", "justification": "may I?"}
    return run(cmd, *answers, **{**asks, **options})


def case(name: str, *steps: Step, **options: Any) -> Case:
    return Case(name, steps, **options)


VICTIM = {"victim/f": "x\n"}
NETWORK = {"network": {"enabled": True}}
TERMINAL = {"tty": True, "yield_time_ms": 600}


def type_in(chars: str, *answers: str) -> Step:
    arguments = {"session_id": "$session", "chars": chars, "yield_time_ms": 300}
    return Step("write_stdin", arguments, answers or (ACCEPT,))


_LIST = [
    case("plain", run("echo hi")),
    case("plain-pipe", run("echo hi | wc -c")),
    case("plain-two", run("true && echo hi")),
    case("plain-full", run("echo hi > ../outside/f"), sandbox="danger-full-access"),
    case("plain-not-found", run("no_such_command_here")),
    case("script", run("for i in 1 2; do echo $i; done")),
    case("script-declined", run("for i in 1 2; do echo $i; done", DECLINE)),
    case("two-lines", run("echo a\necho b")),
    case("syntax-error", run("echo 'abc")),
    case("denied", run("echo hi > ../outside/f"), denied=True),
    case("denied-plain", run("mkdir ../outside/d"), denied=True),
    case("denied-declined", run("mkdir ../outside/d", DECLINE), denied=True),
    case("denied-cancelled", run("mkdir ../outside/d", CANCEL), run("ls ../outside"), denied=True),
    case("denied-then-declined", run("mkdir ../outside/d", ACCEPT, DECLINE), denied=True),
    case("denied-late", run("sleep 0.7; mkdir ../outside/d")),
    case("denied-code-2", run("echo sandbox; exit 2"), denied=True),
    case("dangerous", run("rm -rf victim"), run("ls"), files=VICTIM),
    case("dangerous-declined", run("rm -rf victim", DECLINE), run("ls"), files=VICTIM),
    case("dangerous-full", run("rm -rf victim"), sandbox="danger-full-access", files=VICTIM),
    case("dangerous-subshell", run("(rm -f victim/f)"), files=VICTIM),
    case("dangerous-nested", run("bash -c 'rm -f victim/f'"), files=VICTIM),
    case("dangerous-env", run("env A=1 rm -f victim/f"), files=VICTIM),
    case("dangerous-trap", run("trap 'rm -f victim/f' EXIT"), files=VICTIM),
    case("dangerous-second", run("echo a && rm -f victim/f"), files=VICTIM),
    case("dangerous-up", up("rm -rf ../outside/x")),
    case("dangerous-hidden", run("command rm -f victim/f"), files=VICTIM),
    case("dangerous-quoted", run("\\rm -f victim/f"), files=VICTIM),
    case("nine-wrappers", run("env " * 9 + "true")),
    case("nine-wrappers-removal", run("env " * 9 + "rm -f victim/f", DECLINE), files=VICTIM),
    case("eight-wrappers", run("env " * 8 + "true")),
    case("option-cut-short", run("rm --forc victim/f", DECLINE), files=VICTIM),
    case("not-dangerous", run("rm victim/f"), files=VICTIM),
    case("not-dangerous-words", run("echo rm -rf victim"), files=VICTIM),
    case("up", up("echo hi > ../outside/f")),
    case("up-plain", up("mkdir ../outside/d")),
    case("up-unjustified", up("mkdir ../outside/d", justification=None)),
    case("up-declined", up("mkdir ../outside/d", DECLINE)),
    case("up-cancelled", up("mkdir ../outside/d", CANCEL), run("ls ../outside")),
    case("up-full", up("mkdir ../outside/d"), sandbox="danger-full-access"),
    case("up-prefix", up("mkdir ../outside/d", prefix_rule=["mkdir"])),
    case("up-prefix-banned", up("bash -c true", prefix_rule=["bash", "-c"])),
    *(
        case(f"up-ban-{name}", up(f"{prefix} x y", DECLINE, prefix_rule=prefix.split()))
        for name, prefix in {
            "pypy3": "pypy3",
            "py-3": "py -3",
            "encoded": "pwsh -EncodedCommand",
            "not-module": "python3 -m",
            "path": "/usr/bin/env",
        }.items()
    ),
    case("up-prefix-other", up("mkdir ../outside/d", prefix_rule=["rmdir"])),
    case("up-prefix-empty", up("mkdir ../outside/d", prefix_rule=[])),
    case("up-prefix-part", up("mkdir ../outside/d && true", prefix_rule=["mkdir"])),
    case("up-session", up("mkdir -p ../outside/d", SESSION), up("mkdir  -p '../outside/d'")),
    case(
        "up-session-script",
        up("echo a > ../outside/f", SESSION),
        up("echo a > ../outside/f", justification="again"),
        up("echo a  > ../outside/f", DECLINE),
    ),
    case("up-session-shell", up("echo s1", SESSION), up("echo s1", DECLINE, shell="sh")),
    case("up-session-folder", up("echo s2", SESSION), up("echo s2", DECLINE, workdir="..")),
    case(
        "up-amended",
        up("mkdir ../outside/d", AMEND),
        up("mkdir ../outside/d"),
        run("mkdir ../outside/d"),
        run("mkdir ../outside/d && true", DECLINE),
    ),
    case(
        "up-amended-prefix",
        up("chmod 700 ../outside/x", AMEND, prefix_rule=["chmod"]),
        run("chmod 600 ../outside/x"),
    ),
    case("justified-alone", run("echo hi", justification="because")),
    case("more-off", run("echo hi", sandbox_permissions="with_additional_permissions")),
    case(
        "more-off-given",
        run(
            "echo hi",
            sandbox_permissions="with_additional_permissions",
            additional_permissions=NETWORK,
        ),
    ),
    case("more-off-alone", run("echo hi", additional_permissions=NETWORK)),
    case("more-off-default", run("echo hi", sandbox_permissions="use_default", justification="x")),
    case("forbidden", run("hostname")),
    case("forbidden-prefix", run("uname -a -s")),
    case("forbidden-not", run("uname -s")),
    case("forbidden-second", run("echo a; hostname")),
    case("forbidden-up", up("hostname")),
    case("forbidden-full", run("hostname"), sandbox="danger-full-access"),
    case("forbidden-subshell", run("(hostname) | wc -l")),
    case("forbidden-variable", run("hostname $X | wc -l")),
    case("forbidden-redirected", run("hostname > /dev/null")),
    case("host-listed", run("/usr/bin/who")),
    case("host-unlisted", run("/bin/who", DECLINE)),
    case("forbidden-absolute", run("/bin/hostname")),
    case("prompt", run("mkdir asked")),
    case("prompt-declined", run("mkdir asked", DECLINE)),
    case("prompt-reasonless", run("ln -s a b")),
    case("prompt-session", run("mkdir -p asked; ln -s a b", SESSION), run("ln -s a b", DECLINE)),
    case("prompt-up", up("ln -s a ../outside/l")),
    case("prompt-denied", run("ln -s a ../outside/l"), denied=True),
    case("prompt-dangerous", run("ln -s a b && rm -f victim/f"), files=VICTIM),
    case("prompt-full", run("mkdir asked"), sandbox="danger-full-access"),
    case("allow", run("touch ../outside/f")),
    case("allow-joined", run("touch ../outside/f && true"), denied=True),
    case("allow-both", run("touch ../outside/f && touch ../outside/g")),
    case("allow-redirected", run("touch ../outside/f > log"), denied=True),
    case("allow-up", up("touch ../outside/f")),
    case("allow-up-joined", up("touch ../outside/f && true")),
    case("allow-strictest", run("touch never")),
    case("typed-inside", run("stty -echo; head -n 1", **TERMINAL), type_in("hi\n")),
    case("typed-outside", up("stty -echo; head -n 1", **TERMINAL), type_in("hi\n")),
    case("typed-declined", up("stty -echo; head -n 1", **TERMINAL), type_in("hi\n", DECLINE)),
    case("typed-by-rule", run("stty -echo; cat", **TERMINAL), type_in("\x04")),
    case(
        "typed-full",
        up("stty -echo; head -n 1", **TERMINAL),
        type_in("hi\n"),
        sandbox="danger-full-access",
    ),
    case("human", run("basename a/b"), run("basename a/b"), run("basename a/b", DECLINE)),
    case("human-session", run("basename a/b", SESSION), run("basename a/b", DECLINE)),
    case("human-amended", run("dirname a/b", STORE), run("dirname a/b", DECLINE)),
    case("human-cancelled", run("dirname a/b", CANCEL), run("echo hi")),
    case("human-reasonless", run("dirname a/b")),
    case("human-second", run("echo a; basename a/b")),
    case("human-absolute", run("/usr/bin/basename a/b")),
    case("human-strictest", run("rmdir mine"), run("rmdir other", DECLINE)),
    case("human-and-forbidden", run("basename a/b; expr 1 + 1")),
    case("human-up", up("basename a/b")),
    case("human-full", run("basename a/b"), sandbox="danger-full-access"),
    case("human-without", run("basename a/b"), run("rmdir other"), reaches_person=False),
    case("human-denied", run("mkfifo ../outside/p"), denied=True),
    case("human-hidden", run("(basename a/b)")),
]

CASES = {case.name: case for case in _LIST}
