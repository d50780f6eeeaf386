"""
Shell snapshots: a profile is sourced once, later commands start from its result.

A login shell may spend a second in its profile before it runs a command of a millisecond. A
start that asks for it (`shellSnapshot`, [snapshot.*]) runs `SHELL -lc` once and captures the
state that the profile leaves behind. Later commands run by `SHELL -c` with that state restored.

This module only writes and reads the scripts. Its caller runs the capture, with the cwd,
environment and sandbox of the command, stdin and stderr on `/dev/null`, and the limits below.

Behaviour that clients rely on:

- A bad scope is refused whatever the command is; a shell it cannot handle only
  if `argv` is `[shell.path, "-lc", SCRIPT, ...]`. Both after the check of the cwd.
- The first command also runs from the snapshot. The output of the profile is lost.
- The profile of the login shell counts, and then what an interactive one would
  read: `~/.bashrc` (unless `BASH_ENV` is set), `.zshrc`, the file named by `ENV`.
- Restored are functions, exported variables, aliases and options, but not `-e`. Not restored are
  other variables, traps, the umask, the directory, `PWD`, `OLDPWD`. A dash cannot list its
  functions, so they are lost.
- Variables given with a start, or set by its policy, win over the captured ones;
  inherited ones do not. One that the profile unset stays set.
- A capture is not repeated when the profile changes, nor when it failed: then
  all commands with that key run as they are.
- The key is the request, the directory, the policy and the sandbox; not `env`, not `tty`. With our
  extension `unset`, those names too: a profile may depend on them. 16 entries per session; the one
  that was not used for longest goes first.

Our own behaviour, where clients see no difference or the result is better:

- Variables that the first command was given do not reach the next ones.
- `SHLVL` counts as without a snapshot, and aliases work in zsh.
- The state is passed in environment variables. A descriptor would be closed at the start.
- Line numbers in messages are off by one instead of two.
"""

from __future__ import annotations

import re
import shlex
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from typing import Final, Generic, NamedTuple, TypeVar

import msgspec

from holdfast.base.dialect import limits, texts
from holdfast.base.errors import InvalidParams
from holdfast.wire.protocol.process import ShellSnapshotParams, ShellSnapshotShell, StartParams

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

# Seconds for a profile; a first command should not wait longer.
CAPTURE_TIMEOUT: Final = 10.0

# Bytes of output; a snapshot has to fit into the environment of a process, with room to spare.
CAPTURE_LIMIT: Final = 512 * 1024

# Snapshots per session.
MAX_SNAPSHOTS: Final = 16

V = TypeVar("V")


# When.


def check_scope(request: ShellSnapshotParams) -> None:
    """
    Refuse an invalid scope, whatever the command.

    Raises:
        InvalidParams: The scope is empty or too long.
    """
    if not 0 < len(request.scope_id.encode("utf-8", "surrogatepass")) <= limits.SNAPSHOT_SCOPE:
        raise InvalidParams(texts.snapshot_scope(limits.SNAPSHOT_SCOPE))


def applies(argv: Sequence[str], request: ShellSnapshotParams) -> bool:
    """
    Return True if a snapshot can replace the profile of a command.

    Raises:
        InvalidParams: The command is a login shell whose state cannot be captured.
    """
    shell = request.shell
    if len(argv) < 3 or argv[0] != shell.path or argv[1] != "-lc":
        return False
    if shell.name not in _CAPTURES:
        raise InvalidParams(texts.snapshot_shell(shell.name))
    return True


class SnapshotKey(NamedTuple):
    """Key of a snapshot: two commands with equal keys share it."""

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
    # The caller has called `applies` with it.
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
    LRU cache of one session's snapshots.

    Values of any type: a running capture, its result, or its failure.
    """

    def __init__(self, limit: int = MAX_SNAPSHOTS) -> None:
        self._limit = limit
        # The most recently used entry is last.
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

# Markers around the captured state, whose parts are separated by a NUL: neither functions nor
# variables can contain one.
_BEGIN: Final = b"\0holdfast-snapshot\0"
_END: Final = b"\0holdfast-snapshot-end\0"

# A backslash keeps aliases out, `builtin` and `command` keep functions out: a profile may have
# redefined anything. Traps are removed, since they would print between the parts. The options
# are printed first; then those that could end the shell are cleared. `env` is the only program
# that is needed. It is called by its full path, because the profile may have changed `PATH`.
# The end marker is printed only if the shell can parse its own listing of functions: zsh 5.9
# quotes them wrongly with `rcquotes`.

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
    Return the command that prints the state after the profile on its stdout.

    Its exit status means nothing: `parse_capture` finds out whether it worked.
    """
    return [shell.path, "-lc", _CAPTURES[shell.name]]


class Snapshot(NamedTuple):
    """The state of a shell after its profile."""

    kind: str
    """`bash`, `zsh` or `sh`: the shell that really ran, whatever the file is called."""

    script: str
    """A script that restores functions, aliases and options."""

    exports: Mapping[str, str]
    """Variables that the profile exported or changed."""


_ANSWERED: Final = frozenset({"bash", "sh", "zsh"})
_OPTION: Final = re.compile(r"set [+-]o (\w[\w-]*)|shopt -[su] (\w+)")
_ZSH_OPTION: Final = re.compile(r"\w+")
# A line of a plain `alias`, which may have line feeds inside its quotes.
_ALIAS: Final = re.compile(r"""([^\s='"\\-][^\s='"\\]*)=((?:'[^']*'|"[^"]*"|\\.|[^\s'"\\])*)\n""")

_NOT_RESTORED: Final = frozenset(
    {
        # They would end the command early, or keep it from starting.
        *("errexit", "noexec", "onecmd", "exec", "singlecommand"),
        # Facts about a running shell, not settings.
        *("login_shell", "restricted_shell", "login", "restricted", "privileged"),
        *("interactive", "monitor", "zle", "shinstdin", "stdin", "rcs"),
        *("emacs", "vi", "history", "histexpand", "ignoreeof", "notify"),
    }
)
_NOT_EXPORTED: Final = frozenset({"PWD", "OLDPWD", "SHLVL", "_"})
_OURS: Final = "__HOLDFAST_SNAPSHOT_"


def parse_capture(output: bytes, environ: Mapping[str, str]) -> Snapshot | None:
    """
    Parse the output of a capture; return None if it is not complete.

    Args:
        output: Its stdout, up to `CAPTURE_LIMIT`.
        environ: The environment it was started with.
    """
    # The last marker: the profile itself may print one before.
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
        # zsh has built-in aliases, which the profile may have removed. The later command starts
        # with `-f`, which turns `rcs` off: nested shells must not see that.
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
    # The order matters: functions may need their `shopt` options to be parsed. Aliases would
    # change the meaning of functions, and options the parsing of all of it.
    script = f"{before}{functions}\n{alias_commands}\n{after}"
    return Snapshot(kind=kind, script=script, exports=exports)


def _options(kind: str, listing: str) -> str | None:
    """Return the option commands of a listing that a new shell should run; None if malformed."""
    commands = []
    for line in listing.splitlines():
        match = (_ZSH_OPTION if kind == "zsh" else _OPTION).fullmatch(line)
        if match is None:
            # Another program printed between the parts.
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

# Bytes of one variable. Linux allows 131,072 (MAX_ARG_STRLEN) for a whole `NAME=VALUE`.
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

    `$0` and the arguments do not change. The snapshot is passed in the environment, so `ps` of
    other users does not show it.

    Args:
        argv: A command for which `applies` returned True.
        snapshot: The state to restore.
        env: All variables of the child, without the snapshot.
        given: Names that the snapshot must not set: those that the start or its policy sets,
            and those that the start unsets.

    Returns:
        The argv and the environment to start instead.
    """
    program, _, script, *arguments = argv
    restored = {name: value for name, value in snapshot.exports.items() if name not in given}
    variables = {**env, **restored}
    state = f"{snapshot.script}\n"
    if snapshot.kind == "bash" and (file := variables.pop("BASH_ENV", None)) is not None:
        # Its effects are in the snapshot, so this shell must not read it. Nested shells do.
        state += f"export BASH_ENV={shlex.quote(file)}\n"

    chunks = _split(state)
    names = [f"{_OURS}{index}" for index in range(len(chunks))]
    variables.update(zip(names, chunks, strict=True))
    variables[names[0]] = f"unset {' '.join(names)}\n{chunks[0]}"
    runner = "command" if snapshot.kind == "sh" else "builtin"
    joined = "".join([f"${{{name}}}" for name in names])
    # On a separate line: a shell reads the next line only after it has run this one, so the script
    # is parsed with aliases and options restored. `:` resets `$?`.
    prelude = f'{{ \\{runner} eval "{joined}"; :; }} >/dev/null 2>&1\n'
    if snapshot.kind == "zsh":
        # zsh parses all of its argument before it runs any of it, hence `eval`.
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
