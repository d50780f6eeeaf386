"""
Shell snapshots: a profile is sourced once, later commands start from its result.

A login shell may spend a second in its profile before it runs a command of a
millisecond. A start that asks for it (`shellSnapshot`, [snapshot.*]) runs
`SHELL -lc` once to see what the profile leaves behind, and from then on `SHELL -c`
with that state put back. This module only makes and reads the texts for it;
whoever uses it runs the capture, with the folder, environment and sandbox of the
command, stdin and stderr on `/dev/null` and the limits below.

What the real server 0.166.0 does, and we do too:

- A bad scope is refused whatever the command is; a shell it cannot handle only
  if `argv` is `[shell.path, "-lc", SCRIPT, ...]`. Both after the check of the cwd.
- The first command runs from the snapshot as well. The output of the profile is lost.
- The profile of the login shell counts, and then what an interactive one would
  read: `~/.bashrc` (unless `BASH_ENV` is set), `.zshrc`, the file named by `ENV`.
- Restored are functions, exported variables, aliases and options, but not `-e`.
  Not restored are other variables, traps, the umask, the folder, `PWD`, `OLDPWD`.
  A dash cannot list its functions, so they are lost.
- Variables given with a start, or set by its policy, win over the captured ones;
  inherited ones do not. One that the profile unset stays set.
- A capture is not repeated when the profile changes, nor when it failed: then
  all commands with that key run as they are.
- The key is the request, the folder, the policy and the sandbox; not `env`, not `tty`.
  With our extension `unset`, those names too: a profile may depend on them.
  16 entries per session; the one that was not used for longest goes first.

Where we differ on purpose: variables that the first command was given do not
reach the next ones, `SHLVL` counts as without a snapshot, aliases work in zsh, the
state travels in environment variables instead of a descriptor (it would be
closed at the start), and messages are off by one line instead of two.
"""

from __future__ import annotations

import re
import shlex
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Generic, NamedTuple, TypeVar

import msgspec

from holdfast.errors import InvalidParams
from holdfast.protocol.process import ShellSnapshotParams, ShellSnapshotShell, StartParams

__all__ = [
    "CAPTURE_LIMIT",
    "CAPTURE_TIMEOUT",
    "MAX_SNAPSHOTS",
    "Snapshot",
    "SnapshotCache",
    "SnapshotKey",
    "applies",
    "capture_command",
    "check_scope",
    "parse_capture",
    "snapshot_key",
    "wrap",
]

CAPTURE_TIMEOUT: Final = 10.0
"""Seconds for a profile; a slower one is not worth waiting for at a first command."""

CAPTURE_LIMIT: Final = 512 * 1024
"""Bytes of output; a snapshot must fit into the environment of a process with ease."""

MAX_SNAPSHOTS: Final = 16
"""Per session."""

# Bytes.
_MAX_SCOPE: Final = 256

V = TypeVar("V")


# When.


def check_scope(request: ShellSnapshotParams) -> None:
    """
    Refuse a scope that cannot be a key, whatever the command.

    Raises:
        InvalidParams: It is empty or too long.
    """
    if not 0 < len(request.scope_id.encode("utf-8", "surrogatepass")) <= _MAX_SCOPE:
        raise InvalidParams("shell snapshot scope must be non-empty and at most 256 bytes")


def applies(argv: Sequence[str], request: ShellSnapshotParams) -> bool:
    """
    Tell whether a command is one that a snapshot can replace the profile of.

    Raises:
        InvalidParams: It is, but its shell is one we cannot ask for its state.
    """
    shell = request.shell
    if len(argv) < 3 or argv[0] != shell.path or argv[1] != "-lc":
        return False
    if shell.name not in _CAPTURES:
        raise InvalidParams(f"shell snapshots are unsupported for shell `{shell.name}`")
    return True


class SnapshotKey(NamedTuple):
    """What two commands must have in common to share a snapshot."""

    scope_id: str
    shell_name: str
    shell_path: str
    cwd: str
    env_policy: bytes
    sandbox: bytes
    unset: frozenset[str] = frozenset()


def snapshot_key(start: StartParams) -> SnapshotKey:
    """Return the key of a start that has a `shell_snapshot`."""
    request = start.shell_snapshot
    # The caller asked `applies` with it.
    assert request is not None
    return SnapshotKey(
        scope_id=request.scope_id,
        shell_name=request.shell.name,
        shell_path=request.shell.path,
        cwd=str(start.cwd),
        env_policy=msgspec.json.encode(start.env_policy),
        sandbox=msgspec.json.encode(start.sandbox, enc_hook=str),
        unset=frozenset(start.unset or ()),
    )


class SnapshotCache(Generic[V]):
    """
    The snapshots of one session, the least recently used one dropped first.

    It does not look at the values: a task that captures, its result or the fact
    that it failed are all worth keeping.
    """

    def __init__(self, limit: int = MAX_SNAPSHOTS) -> None:
        self._limit = limit
        # The most recently used one is last.
        self._entries: OrderedDict[SnapshotKey, V] = OrderedDict()

    def get(self, key: SnapshotKey) -> V | None:
        """Return the value of a key and count that as a use."""
        if key not in self._entries:
            return None
        self._entries.move_to_end(key)
        return self._entries[key]

    def put(self, key: SnapshotKey, value: V) -> None:
        """Keep a value, in place of an older one of that key."""
        self._entries[key] = value
        self._entries.move_to_end(key)
        while len(self._entries) > self._limit:
            self._entries.popitem(last=False)

    def __len__(self) -> int:
        return len(self._entries)


# Capture.

_BEGIN: Final = b"\0holdfast-snapshot\0"
# Around what we print ourselves.
#
# Neither functions nor variables can contain a NUL, so it also separates the parts.
_END: Final = b"\0holdfast-snapshot-end\0"

# A backslash keeps aliases out, `builtin` and `command` keep functions out: a
# profile may have redefined anything. Traps would print between the parts. The
# options are printed first, and then those that could end the shell are cleared.
# `env` is the one program needed, by the path that every script relies on,
# because `PATH` may lead anywhere by now. The end is only printed if the shell
# understands its own functions: zsh 5.9 misspells those with `rcquotes`.

_BASH_PARTS: Final = r"""
\builtin trap - DEBUG ERR RETURN EXIT
\builtin printf '\0holdfast-snapshot\0bash\0'
\builtin set +o
\builtin set +eu
\builtin printf '\0'
\builtin shopt -p
\builtin printf '\0'
\builtin declare -f
\builtin declare -Fx
\builtin printf '\0'
\builtin alias -p
\builtin printf '\0'
/usr/bin/env -0
if (\builtin eval "$(\builtin declare -f)") >/dev/null 2>&1; then
  \builtin printf '\0holdfast-snapshot-end\0'
fi
"""

_BASH: Final = rf"""
[ -n "${{BASH_VERSION-}}" ] || exit 1
if [ -z "${{BASH_ENV-}}" ] && [ -n "${{HOME-}}" ] && [ -r "$HOME/.bashrc" ]; then
  . "$HOME/.bashrc"
fi
{_BASH_PARTS}
"""

_ZSH: Final = r"""
[ -n "${ZSH_VERSION-}" ] || exit 1
if [ -r "${ZDOTDIR:-${HOME-}}/.zshrc" ]; then
  . "${ZDOTDIR:-${HOME-}}/.zshrc"
fi
\builtin trap - DEBUG ZERR EXIT
\builtin printf '\0holdfast-snapshot\0zsh\0'
\builtin setopt
\builtin setopt noerrexit unset norcquotes
\builtin printf '\0\0'
\builtin functions
\builtin printf '\0'
\builtin alias -L
\builtin alias -sL
\builtin printf '\0'
/usr/bin/env -0
__holdfast_functions=$(\builtin functions)
if (
  \builtin emulate -R zsh
  \builtin unalias -m '*'
  \builtin unalias -sm '*'
  \builtin eval "$__holdfast_functions"
) >/dev/null 2>&1; then
  \builtin printf '\0holdfast-snapshot-end\0'
fi
"""

_SH: Final = rf"""
case "${{ENV-}}" in
  /*) __holdfast_rc=$ENV ;;
  '~/'* | '$HOME/'* | '${{HOME}}/'*) __holdfast_rc="${{HOME-}}/${{ENV#*/}}" ;;
  *) __holdfast_rc= ;;
esac
if [ -n "$__holdfast_rc" ] && [ -f "$__holdfast_rc" ] && [ -r "$__holdfast_rc" ]; then
  . "$__holdfast_rc"
fi
if [ -n "${{BASH_VERSION-}}" ]; then
  {_BASH_PARTS}
  exit 0
fi
# These could list their functions, but each in its own way.
if [ -n "${{ZSH_VERSION-}}${{KSH_VERSION-}}" ]; then exit 1; fi
\command trap - EXIT
\command printf '\0holdfast-snapshot\0sh\0'
\command set +o
\command set +eu
\command printf '\0\0\0'
\command alias
\command printf '\0'
/usr/bin/env -0
\command printf '\0holdfast-snapshot-end\0'
"""

_CAPTURES: Final = {"bash": _BASH, "sh": _SH, "zsh": _ZSH}


def capture_command(shell: ShellSnapshotShell) -> list[str]:
    """
    Return the command that shows on its stdout what the profile leaves behind.

    Its exit status means nothing: `parse_capture` tells whether it worked.
    """
    return [shell.path, "-lc", _CAPTURES[shell.name]]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a profile leaves behind."""

    kind: str
    """`bash`, `zsh` or `sh`: the shell that answered, whatever it is called."""

    script: str
    """Puts functions, aliases and options back."""

    exports: Mapping[str, str]
    """Variables that the profile exported or changed."""


_ANSWERED: Final = frozenset({"bash", "sh", "zsh"})
_OPTION: Final = re.compile(r"set [+-]o (\w[\w-]*)|shopt -[su] (\w+)")
_ZSH_OPTION: Final = re.compile(r"\w+")
# A line of a plain `alias`, which may hold line ends inside its quotes.
_ALIAS: Final = re.compile(r"""([^\s='"\\-][^\s='"\\]*)=((?:'[^']*'|"[^"]*"|\\.|[^\s'"\\])*)\n""")

_NOT_RESTORED: Final = frozenset(
    {
        # They would end the command early, or keep it from starting.
        *("errexit", "noexec", "onecmd", "exec", "singlecommand"),
        # Facts about a shell rather than wishes for it.
        *("login_shell", "restricted_shell", "login", "restricted", "privileged"),
        *("interactive", "monitor", "zle", "shinstdin", "stdin", "rcs"),
        *("emacs", "vi", "history", "histexpand", "ignoreeof", "notify"),
    }
)
_NOT_EXPORTED: Final = frozenset({"PWD", "OLDPWD", "SHLVL", "_"})
_OURS: Final = "__HOLDFAST_SNAPSHOT_"


def parse_capture(output: bytes, environ: Mapping[str, str]) -> Snapshot | None:
    """
    Read what a capture printed, `None` if it is not complete.

    Args:
        output: All of its stdout, up to `CAPTURE_LIMIT`.
        environ: The environment it was started with.
    """
    begin = output.rfind(_BEGIN)
    end = output.find(_END, begin + 1)
    if begin < 0 or end < 0:
        return None
    body = output[begin + len(_BEGIN) : end].decode("utf-8", "surrogateescape")
    parts = body.split("\0")
    if len(parts) < 6 or parts[0] not in _ANSWERED:
        return None
    kind, options, shopts, functions, aliases, *variables = parts
    before = _options(kind, shopts)
    after = _options(kind, options)
    alias_commands = aliases if kind != "sh" else _alias_commands(aliases)
    if before is None or after is None or alias_commands is None:
        return None
    if kind == "zsh":
        # It comes with aliases of its own, which the profile may have removed.
        # It was started without its profile, which must not be seen later on.
        before += "unalias -m '*'\nsetopt rcs\n"
    exports = {}
    for variable in variables:
        name, equals, value = variable.partition("=")
        if (
            equals
            and name not in _NOT_EXPORTED
            and not name.upper().startswith("__HOLDFAST_")
            and environ.get(name) != value
        ):
            exports[name] = value
    # Functions may need their `shopt` options to be understood. Aliases would
    # change what functions mean, and options how all of it is read.
    script = f"{before}{functions}\n{alias_commands}\n{after}"
    return Snapshot(kind=kind, script=script, exports=exports)


def _options(kind: str, listing: str) -> str | None:
    """Return the commands of a listing without those that are not for a new shell."""
    commands = []
    for line in listing.splitlines():
        match = (_ZSH_OPTION if kind == "zsh" else _OPTION).fullmatch(line)
        if match is None:
            # Something else was printed in between.
            return None
        if kind == "zsh":
            name, command = line.removeprefix("no"), f"setopt {line}"
        else:
            name, command = match[1] or match[2], line
        if name not in _NOT_RESTORED:
            commands.append(f"{command}\n")
    return "".join(commands)


def _alias_commands(listing: str) -> str | None:
    commands = []
    position = 0
    while position < len(listing):
        match = _ALIAS.match(listing, position)
        if match is None:
            return None
        commands.append(f"alias {match[0]}")
        position = match.end()
    return "".join(commands)


# Use.

# Bytes of one variable; Linux allows 131,072 for a name, its value and what joins them.
_CHUNK: Final = 100_000


def wrap(
    argv: Sequence[str],
    snapshot: Snapshot,
    *,
    env: Mapping[str, str],
    given: Collection[str],
) -> tuple[list[str], dict[str, str]]:
    """
    Turn `SHELL -lc SCRIPT` into a command that starts from a snapshot.

    `$0` and the arguments stay what they are. Functions and variables that the
    snapshot carries are hidden from `ps`, like the rest of an environment.

    Args:
        argv: A command that `applies` said yes to.
        snapshot: What to start from.
        env: All variables of the child, without the snapshot.
        given: Names that the snapshot leaves alone: those that the start or its policy
            set, and those that the start wants unset.

    Returns:
        The argv and the environment to start instead.
    """
    program, _, script, *arguments = argv
    restored = {name: value for name, value in snapshot.exports.items() if name not in given}
    variables = {**env, **restored}
    state = f"{snapshot.script}\n"
    if snapshot.kind == "bash" and (file := variables.pop("BASH_ENV", None)) is not None:
        # What it sets up is in the snapshot; shells further down still read it.
        state += f"export BASH_ENV={shlex.quote(file)}\n"

    chunks = _split(state)
    names = [f"{_OURS}{index}" for index in range(len(chunks))]
    variables.update(zip(names, chunks, strict=True))
    variables[names[0]] = f"unset {' '.join(names)}\n{chunks[0]}"
    runner = "command" if snapshot.kind == "sh" else "builtin"
    joined = "".join([f"${{{name}}}" for name in names])
    # A line of its own: what follows is only read once aliases and options are
    # back. The status is reset for a command that looks at it first.
    prelude = f'{{ \\{runner} eval "{joined}"; :; }} >/dev/null 2>&1\n'
    if snapshot.kind == "zsh":
        # This shell reads all of its argument before it runs any of it.
        return [
            program,
            "-fc",
            f"{prelude}\\builtin eval {shlex.quote(script)}",
            *arguments,
        ], variables
    return [program, "-c", prelude + script, *arguments], variables


def _split(text: str) -> list[str]:
    raw = text.encode("utf-8", "surrogateescape")
    pieces = [raw[start : start + _CHUNK] for start in range(0, len(raw), _CHUNK)]
    return [piece.decode("utf-8", "surrogateescape") for piece in pieces]
