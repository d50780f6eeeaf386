"""
Commands of a model that may be a patch: what is taken over, what is asked, what is answered.

`<WS>` in a command is the absolute path of the workspace, and `<OUT>` that of a folder next to it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["CALLS", "CallCase", "Step"]

FULL, WRITE, READ = "danger-full-access", "workspace-write", "read-only"


@dataclass(frozen=True, kw_only=True)
class Step:
    """One call of `exec_command`, and how its questions are answered."""

    cmd: str
    more: Mapping[str, object] = field(default_factory=dict)
    """Further arguments."""
    answer: str = "accept"


@dataclass(frozen=True, kw_only=True)
class CallCase:
    """Some calls in one conversation."""

    name: str
    steps: tuple[Step, ...]
    before: Mapping[str, str]
    sandbox: str = FULL
    policy: str = "never"


CALLS: dict[str, CallCase] = {}

BEFORE = {"f": "a\nb\nc\n", "d/g": "x\n"}


def calls(
    name: str,
    *steps: Step | str,
    sandbox: str = FULL,
    policy: str = "never",
    before: Mapping[str, str] = BEFORE,
) -> None:
    assert name not in CALLS, name
    taken = tuple(Step(cmd=one) if isinstance(one, str) else one for one in steps)
    CALLS[name] = CallCase(name=name, steps=taken, sandbox=sandbox, policy=policy, before=before)


def whole(*lines: str) -> str:
    return "\n".join(["*** Begin Patch", *lines, "*** End Patch"])


def here(patch: str, *, word: str = "apply_patch", mark: str = "'EOF'") -> str:
    """Return a command that feeds a patch by a here document."""
    return f"{word} <<{mark}\n{patch}\n{mark.strip(chr(39) + chr(34))}\n"


ADD = whole("*** Add File: n", "+x")
TWICE = whole("*** Add File: n", "+x", "*** Update File: f", "@@", "-b", "+B")


def adds(path: str) -> str:
    return here(whole(f"*** Add File: {path}", "+x"))


def updates(path: str, old: str = "b", new: str = "B") -> str:
    return here(whole(f"*** Update File: {path}", "@@", f"-{old}", f"+{new}"))


# -- which commands are taken over
calls("form.heredoc", here(ADD))
calls("form.heredoc-unquoted", here(ADD, mark="EOF"))
calls("form.heredoc-double", here(ADD, mark='"EOF"'))
calls("form.heredoc-other-word", here(ADD, mark="'PATCH'"))
calls("form.heredoc-dash", f"apply_patch <<-'EOF'\n{ADD}\nEOF\n")
calls("form.heredoc-blank", f"apply_patch << 'EOF'\n{ADD}\nEOF\n")
calls("form.heredoc-fd", f"apply_patch 0<<'EOF'\n{ADD}\nEOF\n")
calls("form.heredoc-before", f"<<'EOF' apply_patch\n{ADD}\nEOF\n")
calls("form.heredoc-unended", f"apply_patch <<'EOF'\n{ADD}\n")
calls("form.heredoc-no-newline", f"apply_patch <<'EOF'\n{ADD}\nEOF")
calls("form.heredoc-dollar", here(whole("*** Add File: n", "+$HOME `id`")))
calls("form.heredoc-dollar-unquoted", here(whole("*** Add File: n", "+$HOME"), mark="EOF"))
calls("form.herestring", f"apply_patch <<< '{ADD}'")
calls("form.applypatch", here(ADD, word="applypatch"))
calls("form.path", here(ADD, word="/usr/bin/apply_patch"))
calls("form.dot-path", here(ADD, word="./apply_patch"))
calls("form.quoted-word", here(ADD, word="'apply_patch'"))
calls("form.argument-single", f"apply_patch '{ADD}'")
calls("form.argument-double", f'apply_patch "{ADD}"')
calls("form.argument-ansi", "apply_patch $'*** Begin Patch\\n*** Add File: n\\n+x\\n*** End Patch'")
calls("form.argument-two", f"apply_patch '{ADD}' more")
calls("form.argument-command", f"apply_patch \"$(cat <<'EOF'\n{ADD}\nEOF\n)\"")
calls("form.no-argument", "apply_patch")
calls("form.help", "apply_patch --help")
calls("form.nested-bash", f"bash -lc \"apply_patch <<'EOF'\n{ADD}\nEOF\n\"")
calls("form.nested-bash-single", f"bash -lc 'apply_patch <<EOF\n{ADD}\nEOF\n'")
calls("form.cd", f"cd d && {here(ADD)}")
calls("form.cd-quoted", f"cd 'd' && {here(ADD)}")
calls("form.cd-double", f'cd "d" && {here(ADD)}')
calls("form.cd-absolute", f"cd <WS>/d && {here(ADD)}")
calls("form.cd-dot-dot", f"cd d/.. && {here(ADD)}")
calls("form.cd-missing", f"cd nowhere && {here(ADD)}")
calls("form.cd-variable", f"cd $HOME && {here(ADD)}")
calls("form.cd-tilde", f"cd ~ && {here(ADD)}")
calls("form.cd-semicolon", f"cd d; {here(ADD)}")
calls("form.cd-or", f"cd d || {here(ADD)}")
calls("form.cd-two", f"cd d && cd .. && {here(ADD)}")
calls("form.cd-flag", f"cd -P d && {here(ADD)}")
calls("form.cd-argument", f"cd d && apply_patch '{ADD}'")
calls("form.cd-applypatch", f"cd d && {here(ADD, word='applypatch')}")
calls("form.cd-newline", f"cd d\n{here(ADD)}")
calls("form.then-more", f"apply_patch <<'EOF' && echo done\n{ADD}\nEOF\n")
calls("form.then-line", f"{here(ADD)}echo done >&2\n")
calls("form.before-more", f"echo hi && {here(ADD)}")
calls("form.pipe-in", f"cat <<'EOF' | apply_patch\n{ADD}\nEOF\n")
calls("form.pipe-out", f"apply_patch <<'EOF' | cat\n{ADD}\nEOF\n")
calls("form.redirect", f"apply_patch <<'EOF' > out\n{ADD}\nEOF\n")
calls("form.redirect-file", "apply_patch < f")
calls("form.variable", f"A=1 apply_patch <<'EOF'\n{ADD}\nEOF\n")
calls("form.comment", f"# change it\n{here(ADD)}")
calls("form.blank-lines", f"\n\n  {here(ADD)}\n\n")
calls("form.subshell", f"(apply_patch <<'EOF'\n{ADD}\nEOF\n)")
calls("form.braces", f"{{ apply_patch <<'EOF'\n{ADD}\nEOF\n}}")
calls("form.background", f"apply_patch <<'EOF' &\n{ADD}\nEOF\n")
calls("form.set-e", f"set -e\n{here(ADD)}")
calls("form.env", here(ADD, word="env apply_patch"))
calls("form.bare-patch", ADD)
calls("form.sh", Step(cmd=here(ADD), more={"shell": "sh"}))
calls("form.no-login", Step(cmd=here(ADD), more={"login": False}))
calls("form.tty", Step(cmd=here(ADD), more={"tty": True}))
calls("form.workdir", Step(cmd=here(ADD), more={"workdir": "d"}))
calls("form.workdir-missing", Step(cmd=here(ADD), more={"workdir": "nowhere"}))
calls("form.workdir-cd", Step(cmd=f"cd .. && {here(ADD)}", more={"workdir": "d"}))
calls("form.max-tokens", Step(cmd=here(ADD), more={"max_output_tokens": 2}))
calls("form.not-a-patch", here("hello"))
calls("form.not-a-patch-argument", "apply_patch hello")
calls("form.empty-heredoc", "apply_patch <<'EOF'\nEOF\n")
calls("form.malformed", here(whole("*** Change File: f", "+x")))
calls("form.malformed-argument", "apply_patch '*** Begin Patch\n*** Oops\n*** End Patch'")
calls("form.empty-patch", here(whole()))
calls("form.heredoc-in-heredoc", here("<<'PATCH'\n" + ADD + "\nPATCH"))
calls("form.escalated", Step(cmd=here(ADD), more={"sandbox_permissions": "require_escalated"}))
calls(
    "form.justified",
    Step(cmd=here(ADD), more={"sandbox_permissions": "require_escalated", "justification": "why"}),
)

# -- sandbox and questions
OUT = "<OUT>/n"
for policy in ("never", "on-request"):
    for answer in ("accept", "decline") if policy == "on-request" else ("accept",):
        tail = f".{answer}" if policy == "on-request" else ""

        def ask(name: str, cmd: str, *, sandbox: str) -> None:
            calls(
                f"{policy}.{name}{tail}",  # noqa: B023 - called in this turn of the loop only
                Step(cmd=cmd, answer=answer),  # noqa: B023
                sandbox=sandbox,
                policy=policy,  # noqa: B023
            )

        ask("inside", here(TWICE), sandbox=WRITE)
        ask("outside", adds(OUT), sandbox=WRITE)
        ask("outside-dots", adds("../out/n"), sandbox=WRITE)
        ask("outside-update", updates("<OUT>/o", "old", "new"), sandbox=WRITE)
        ask("outside-delete", here(whole("*** Delete File: <OUT>/o")), sandbox=WRITE)
        ask(
            "outside-move",
            here(whole("*** Update File: f", "*** Move to: <OUT>/m", "@@", "-b", "+B")),
            sandbox=WRITE,
        )
        ask(
            "both",
            here(whole("*** Add File: n", "+x", "*** Add File: <OUT>/n", "+x")),
            sandbox=WRITE,
        )
        ask("protected", adds(".git/hooks/n"), sandbox=WRITE)
        ask("protected-codex", adds(".codex/n"), sandbox=WRITE)
        ask("link-out", adds("link/n"), sandbox=WRITE)
        ask("link-file-out", updates("filelink", "old", "new"), sandbox=WRITE)
        ask("read-only", here(TWICE), sandbox=READ)
        ask("full", adds(OUT), sandbox=FULL)

calls("cancel.outside", Step(cmd=adds(OUT), answer="cancel"), sandbox=WRITE, policy="on-request")
calls("fails.asked", Step(cmd=updates("<OUT>/o", "no", "x")), sandbox=WRITE, policy="on-request")
calls(
    "session.same",
    Step(cmd=adds(OUT), answer="acceptForSession"),
    Step(cmd=updates(OUT, "x", "y")),
    Step(cmd=adds("<OUT>/other"), answer="decline"),
    sandbox=WRITE,
    policy="on-request",
)
calls(
    "session.two",
    Step(
        cmd=here(whole("*** Add File: <OUT>/a", "+x", "*** Add File: <OUT>/b", "+x")),
        answer="acceptForSession",
    ),
    Step(cmd=updates("<OUT>/a", "x", "y"), answer="decline"),
    Step(
        cmd=here(whole("*** Add File: <OUT>/a", "+1", "*** Add File: <OUT>/c", "+x")),
        answer="decline",
    ),
    sandbox=WRITE,
    policy="on-request",
)
calls(
    "session.move",
    Step(
        cmd=here(whole("*** Update File: f", "*** Move to: <OUT>/m", "@@", "-b", "+B")),
        answer="acceptForSession",
    ),
    Step(cmd=updates("<OUT>/m", "a", "A"), answer="decline"),
    sandbox=WRITE,
    policy="on-request",
)
calls(
    "accept.once-only",
    Step(cmd=adds(OUT)),
    Step(cmd=adds(OUT), answer="decline"),
    sandbox=WRITE,
    policy="on-request",
)
calls("untrusted.inside", Step(cmd=here(TWICE)), sandbox=WRITE, policy="untrusted")
calls(
    "untrusted.inside-declined",
    Step(cmd=here(TWICE), answer="decline"),
    sandbox=WRITE,
    policy="untrusted",
)
calls("untrusted.full", Step(cmd=here(TWICE)), sandbox=FULL, policy="untrusted")
