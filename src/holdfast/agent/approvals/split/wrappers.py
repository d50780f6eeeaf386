"""
Finds the commands that programs and builtins run, in their arguments.

A wrapper's own options are skipped. For an unknown option both readings count: with the next word
as its value, and without.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from holdfast.agent.approvals.split.budget import AmbiguousError, UnreadableError
from holdfast.agent.approvals.split.read_input import reads_input
from holdfast.agent.approvals.split.shell_arguments import (
    FOREIGN_SHELLS,
    POSIX_SHELLS,
    SHELLS,
    base_name,
    is_long_option,
    read_shell_arguments,
)
from holdfast.agent.approvals.split.subscripts import MEMBER
from holdfast.agent.approvals.split.words import UNKNOWN, decode_ansi_c

__all__ = [
    "Inner",
    "inner_commands",
]

_MAX_OPTIONS = 64
_MAX_SHIFTS = 8
# Escapes without a number, and backslashes that print of zsh drops.
_DROPPED = re.compile(r"\\(?:[xuU](?![0-9A-Fa-f])|[^abcefnrtvxuUE0-7\\])")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\[[^]]*\])?\+?=")


@dataclass(frozen=True, slots=True)
class Inner:
    """The command or shell script that another command runs."""

    words: tuple[str, ...] = ()
    script: str | None = None
    posix: bool = False
    """The script may be read by a shell that has no `[[` and no `((`."""
    guess: bool = False
    """This may not be a script, so a failure to read it is ignored."""
    expanded: str | None = None
    """This is not a script but a text that is only expanded, which runs its substitutions."""
    aliases: frozenset[str] = frozenset()
    """Aliases whose value this is, which are not replaced a second time."""
    arguments: tuple[str, ...] = ()
    """Words for `$0`, `$1` and so on in the script; empty if unknown."""


@dataclass(frozen=True, slots=True)
class _Wrapper:
    """Rules for finding the inner command in the arguments of one wrapper."""

    # Short options that take a value.
    values: str = ""

    # Long options that take the next word as a value.
    long_values: frozenset[str] = frozenset()

    # Long options without a value, or only with one after `=`. Others are read both ways.
    flags: frozenset[str] = frozenset()

    # Words before the command.
    operands: int = 0

    # Words with `=` before the command set variables.
    assignments: bool = False

    # Short options with which no command is run.
    prints: str = ""

    # Optional words before the command.
    optional: int = 0

    # A reserved word of the shell: what looks like an option may be the command.
    keyword: bool = False


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_SUDO = _Wrapper(
    "ughpCrtTDRUa",
    _words("user group host prompt close-from role type command-timeout chdir chroot other-user"),
    _words(
        "askpass background preserve-env edit set-home login reset-timestamp non-interactive stdin"
    ),
    assignments=True,
)
_PLAIN = _Wrapper()

_WRAPPERS: dict[str, _Wrapper] = {
    # Builtins and reserved words.
    "command": _Wrapper(prints="vV"),
    "builtin": _PLAIN,
    "exec": _Wrapper("a"),
    "time": _Wrapper(
        "fo",
        _words("format output"),
        _words("append portability quiet verbose"),
        assignments=True,
        keyword=True,
    ),
    "coproc": _Wrapper(assignments=True, keyword=True),
    "jobs": _PLAIN,
    "noglob": _Wrapper(assignments=True),
    "nocorrect": _Wrapper(assignments=True),
    "-": _PLAIN,
    "repeat": _Wrapper(operands=1),
    # Other users and other roots.
    "sudo": _SUDO,
    "doas": _Wrapper("aCu"),
    "pkexec": _Wrapper("u", _words("user")),
    "setuidgid": _Wrapper(operands=1),
    "chroot": _Wrapper("", _words("userspec groups"), operands=1),
    "fakeroot": _Wrapper("lsib", _words("lib faked")),
    "setpriv": _PLAIN,
    "gosu": _Wrapper(operands=1),
    "su-exec": _Wrapper(operands=1),
    # Environment, time, priority, input and output.
    "env": _Wrapper(
        "uCSa",
        _words("unset chdir argv0"),
        _words("ignore-environment null debug block-signal default-signal ignore-signal"),
        assignments=True,
    ),
    "nohup": _PLAIN,
    "nice": _Wrapper("n", _words("adjustment")),
    "ionice": _Wrapper("cnpPu", _words("class classdata pid pgid uid"), _words("ignore")),
    "chrt": _Wrapper(
        "TPDp",
        _words("sched-runtime sched-period sched-deadline pid"),
        _words("all-tasks batch fifo idle other rr deadline reset-on-fork verbose"),
        operands=1,
    ),
    "taskset": _Wrapper("p", _words("pid"), _words("all-tasks cpu-list"), operands=1),
    "timeout": _Wrapper(
        "ks",
        _words("kill-after signal"),
        _words("foreground preserve-status verbose"),
        operands=1,
    ),
    "stdbuf": _Wrapper("ioe", _words("input output error")),
    "setsid": _Wrapper("", frozenset(), _words("ctty fork wait")),
    # The architecture is optional, so a word that looks like one is read both ways.
    "setarch": _Wrapper(optional=1),
    "linux32": _PLAIN,
    "linux64": _PLAIN,
    "i386": _PLAIN,
    "x86_64": _PLAIN,
    "uname26": _PLAIN,
    "choom": _Wrapper("np", _words("adjust pid")),
    "numactl": _Wrapper("iNmCp"),
    "eatmydata": _PLAIN,
    "faketime": _Wrapper("fp", operands=1),
    "cpulimit": _Wrapper("lpeP"),
    "tini": _Wrapper("pe"),
    "dumb-init": _Wrapper("r"),
    "catchsegv": _PLAIN,
    "bwrap": _PLAIN,
    "proot": _PLAIN,
    "firejail": _PLAIN,
    "torsocks": _PLAIN,
    "proxychains": _Wrapper("f"),
    "rlwrap": _PLAIN,
    "coreutils": _PLAIN,
    "prlimit": _Wrapper("p", _words("pid output")),
    "unshare": _Wrapper("SGRw", _words("setuid setgid root wd")),
    "nsenter": _Wrapper("tSGN", _words("target setuid setgid")),
    "systemd-run": _Wrapper("putEMHr", _words("property unit setenv machine host uid gid slice")),
    "systemd-inhibit": _Wrapper("", _words("what who why mode")),
    "dbus-run-session": _PLAIN,
    "unbuffer": _PLAIN,
    "xvfb-run": _Wrapper("efnpsw"),
    "chronic": _PLAIN,
    "ts": _PLAIN,
    "caffeinate": _Wrapper("tw"),
    "arch": _PLAIN,
    # Tracing.
    "strace": _Wrapper("oepsabEIOPSuX"),
    "ltrace": _Wrapper("oepsabAlnuwx"),
    "valgrind": _PLAIN,
    # Many commands from one.
    "xargs": _Wrapper(
        "aEdILnPs",
        _words("arg-file delimiter max-args max-procs max-chars process-slot-var"),
        _words("null eof replace max-lines interactive no-run-if-empty verbose exit open-tty"),
    ),
    "busybox": _PLAIN,
    "toybox": _PLAIN,
}


# The dynamic loader runs the program in its arguments.
_LOADER_NAME = re.compile(r"ld(-linux.*|-musl.*|64|\.so.*|-2\.\d+)?\.so(\.\d+)*$|ld\.so$")
_LOADER = _Wrapper("", _words("library-path inhibit-rpath audit preload argv0 glibc-hwcaps-mask"))

# Builtins that expand the name of an array's member, even in quotes.
_EXPANDING = _words(
    "[ break compgen complete continue declare exit export float getopts integer let local mapfile"
    " print printf private read readarray readonly return set shift test typeset unset vared wait"
    " zparseopts"
)


def inner_commands(words: Sequence[str]) -> Iterator[Inner]:
    """Yield the commands that a command runs, one level deep."""
    name = base_name(words[0])
    if name in SHELLS and name != "busybox":
        yield from _shell(words)
        return
    special = _SPECIAL.get(name)
    if special is not None:
        yield from special(words)
    if name in _EXPANDING:
        yield from _expanding(words)
    wrapper = _LOADER if _LOADER_NAME.match(name) else _WRAPPERS.get(name)
    if wrapper is not None:
        for start in _starts(words, wrapper):
            yield Inner(tuple(words[start:]))


def _starts(words: Sequence[str], wrapper: _Wrapper) -> Iterator[int]:
    """
    Yield the position of a wrapper's command; several positions if it is ambiguous.

    Raises:
        UnreadableError: There are too many options.
    """
    pending = [1]
    seen: set[int] = set()
    while pending:
        at = pending.pop()
        if at in seen or at >= len(words):
            continue
        if len(seen) == _MAX_OPTIONS:
            raise UnreadableError("a command has too many options")
        seen.add(at)
        word = words[at]
        if wrapper.keyword and word.startswith("-"):
            yield at
        if word == "--":
            yield from _operands(words, at + 1, wrapper)
        elif word.startswith("--"):
            name, equals, _ = word[2:].partition("=")
            if equals or name in wrapper.flags:
                pending.append(at + 1)
            elif name in wrapper.long_values:
                pending.append(at + 2)
            else:
                pending += [at + 1, at + 2]
        elif word.startswith("-") and len(word) > 1 and word != "-":
            if not any(letter in wrapper.prints for letter in word[1:]):
                pending.append(at + 1 + _takes_next(word, wrapper.values))
        elif wrapper.assignments and "=" in word:
            # sudo and env can set any name, the shell only names of variables.
            if _VARIABLE.match(word) is None:
                yield at
            pending.append(at + 1)
        elif word == "-":
            # env - and su -: as an option; for others it is the command.
            pending.append(at + 1)
        else:
            yield from _operands(words, at, wrapper)


def _operands(words: Sequence[str], at: int, wrapper: _Wrapper) -> Iterator[int]:
    first = at + wrapper.operands
    for at in range(first, first + wrapper.optional + 1):
        while wrapper.assignments and at < len(words) and "=" in words[at]:
            at += 1
        if at < len(words):
            yield at


def _takes_next(word: str, values: str) -> bool:
    """Return True if the last letter of a group of short options takes the next word."""
    for number, letter in enumerate(word[1:], 1):
        if letter in values:
            return number == len(word) - 1
    return False


# Shells


def _shell(words: Sequence[str]) -> Iterator[Inner]:
    name = base_name(words[0])
    called = read_shell_arguments(words)
    if name == "fish":
        yield from _first_scripts(words)
    if called.script is None:
        if reads_input(words):
            # For `"$@"` in its input.
            for start in range(min(len(called.operands), _MAX_SHIFTS)):
                yield Inner(called.operands[start:])
        return
    posix = name in POSIX_SHELLS or name in FOREIGN_SHELLS
    yield Inner(script=called.script, posix=posix)
    # The further words are $0, $1 and so on: a script such as "$@" runs them, maybe after a
    # `shift` or two.
    if "$" in called.script:
        for start in range(min(len(called.operands), _MAX_SHIFTS)):
            yield Inner(called.operands[start:])
            if start == 0 or "shift" in called.script:
                given = (*called.operands[:1], *called.operands[1 + start :])
                yield Inner(script=called.script, posix=posix, arguments=given)


def _first_scripts(words: Sequence[str]) -> Iterator[Inner]:
    """Yield the script that `fish -C SCRIPT` runs first."""
    for number, word in enumerate(words[1:], 1):
        name, equals, value = word.partition("=")
        if name == "--init-command" and equals:
            yield Inner(script=value, posix=True)
        elif name == "--init-command" or (word[:1] == "-" and word[1:2] != "-" and "C" in word):
            attached = "" if name == "--init-command" else word.partition("C")[2]
            yield Inner(script=attached or " ".join(words[number + 1 : number + 2]), posix=True)


# Commands with a script or a command at a special position


def _eval(words: Sequence[str]) -> Iterator[Inner]:
    rest = words[2:] if len(words) > 1 and words[1] == "--" else words[1:]
    if rest:
        yield Inner(script=" ".join(rest), posix=True)


def _trap(words: Sequence[str]) -> Iterator[Inner]:
    for word in words[1:]:
        if word == "--" or (word.startswith("-") and word[1:] in ("l", "p", "P", "lp")):
            continue
        yield Inner(script=word, posix=True)
        return


_CHANGES_READING = re.compile(r"[#<]|\\$")


def _alias(words: Sequence[str]) -> Iterator[Inner]:
    for word in words[1:]:
        _, equals, value = word.partition("=")
        if not equals:
            continue
        if _CHANGES_READING.search(value) is not None:
            # Its lines would start with a comment or a here-document, and be read differently.
            raise AmbiguousError("an alias changes how lines are read")
        yield Inner(script=value, posix=True)


def _env(words: Sequence[str]) -> Iterator[Inner]:
    """Yield the command of `env -S`, which splits it much like a shell."""
    for number, word in enumerate(words[1:], 1):
        name, equals, value = word.partition("=")
        if is_long_option(name, "split-string"):
            value = value if equals else ""
        elif word.startswith("-") and not word.startswith("--") and "S" in word:
            value = word.partition("S")[2]
        else:
            continue
        text = " ".join([value, *words[number + 1 :]])
        # It treats a line end as a blank, but not in quotes.
        script = _ENV_SPACE.sub(" ", text)
        yield Inner(script=script)
        if script != text:
            with suppress(ValueError):
                yield Inner(tuple(shlex.split(text)))
        if "\\" in script:
            # Its own escapes include some for blanks.
            yield Inner(script=_ENV_BLANK.sub(" ", script), guess=True)
        return


_ENV_SPACE = re.compile(r"[\t\n\v\f\r]")
_ENV_BLANK = re.compile(r"\\[_tnrfv]")


def _script_option(words: Sequence[str]) -> Iterator[Inner]:
    """Yield the script of `-c SCRIPT`, `--command SCRIPT`: su, runuser, script, flock."""
    for number, word in enumerate(words[1:], 1):
        name, equals, value = word.partition("=")
        if is_long_option(name, "command", "session-command"):
            script = value if equals else " ".join(words[number + 1 : number + 2])
        elif word.startswith("-") and not word.startswith("--") and "c" in word:
            attached = word.partition("c")[2]
            script = attached or " ".join(words[number + 1 : number + 2])
        else:
            continue
        yield Inner(script=script, posix=True)
        return


def _flock(words: Sequence[str]) -> Iterator[Inner]:
    yield from _script_option(words)
    wrapper = _Wrapper("wE", _words("timeout wait conflict-exit-code"), operands=1)
    for start in _starts(words, wrapper):
        yield Inner(tuple(words[start:]))


def _script_program(words: Sequence[str]) -> Iterator[Inner]:
    """Yield the command of `script`: `-c SCRIPT`, or the words after `--`."""
    yield from _script_option(words)
    if "--" in words:
        yield Inner(tuple(words[words.index("--") + 1 :]))


def _sg(words: Sequence[str]) -> Iterator[Inner]:
    """Yield the script of `sg GROUP SCRIPT` and `sg GROUP -c SCRIPT`."""
    yield from _script_option(words)
    for word in words[2:]:
        if not word.startswith("-"):
            yield Inner(script=word, posix=True)
            return


def _filter(words: Sequence[str]) -> Iterator[Inner]:
    """Yield the script of `split --filter=SCRIPT`."""
    for number, word in enumerate(words[1:], 1):
        name, equals, value = word.partition("=")
        if is_long_option(name, "filter"):
            script = value if equals else " ".join(words[number + 1 : number + 2])
            yield Inner(script=script, posix=True)


def _completion(words: Sequence[str]) -> Iterator[Inner]:
    """Yield the command of `compgen -C SCRIPT`, which runs immediately."""
    for number, word in enumerate(words[1:], 1):
        if word.startswith("-") and "C" in word:
            attached = word.partition("C")[2]
            yield Inner(script=attached or " ".join(words[number + 1 : number + 2]))


def _expanding(words: Sequence[str]) -> Iterator[Inner]:
    """Yield the words that a builtin expands although the shell saw them quoted."""
    lists = base_name(words[0]) in ("compgen", "complete")
    for word in words[1:]:
        if lists or MEMBER.search(word) is not None:
            yield Inner(expanded=word)


def _runuser(words: Sequence[str]) -> Iterator[Inner]:
    yield from _script_option(words)
    wrapper = _Wrapper("ugGsTw", _words("user group supp-group shell whitelist-environment"))
    for start in _starts(words, wrapper):
        yield Inner(tuple(words[start:]))


def _joined(words: Sequence[str]) -> Iterator[Inner]:
    """Yield the script that `watch` and `parallel` pass to a shell: their words, joined."""
    values = "nq" if base_name(words[0]) == "watch" else "jNnLIadPS"
    for start in _starts(words, _Wrapper(values)):
        rest = words[start:]
        if ":::" in rest:
            rest = rest[: list(rest).index(":::")]
        yield Inner(tuple(rest))
        yield Inner(script=" ".join(rest), posix=True)


def _find(words: Sequence[str]) -> Iterator[Inner]:
    """Yield the commands of `find -exec` and similar options."""
    start = None
    for number, word in enumerate(words):
        if start is None and word in ("-exec", "-execdir", "-ok", "-okdir"):
            start = number + 1
        elif start is not None and word in (";", "+"):
            yield Inner(tuple(words[start:number]))
            start = None
    if start is not None:
        yield Inner(tuple(words[start:]))


def _mapfile(words: Sequence[str]) -> Iterator[Inner]:
    for number, word in enumerate(words[1:], 1):
        if word.startswith("-") and "C" in word:
            attached = word.partition("C")[2]
            yield Inner(script=attached or " ".join(words[number + 1 : number + 2]))


def _zargs(words: Sequence[str]) -> Iterator[Inner]:
    """Yield the command of `zargs ARGUMENT … -- COMMAND`, without and with the arguments."""
    # An option can replace the mark `--`, so each word may be the mark.
    before: dict[str, int] = {}
    for number, word in enumerate(words[1:_MAX_OPTIONS], 1):
        if word.startswith(("-i", "-I", "--replace")):
            raise AmbiguousError("zargs replaces a word of its command")
        command, start = words[number + 1 :], max(before.get(word, 0), before.get("--", 0)) + 1
        yield Inner(tuple(command))
        yield Inner((*command, *words[start:number]))
        before[word] = number


def _zstyle(words: Sequence[str]) -> Iterator[Inner]:
    """Yield the value of `zstyle -e PATTERN STYLE VALUE`, which is evaluated at each look-up."""
    for number, word in enumerate(words[1:4], 1):
        if (word.startswith("-") and "e" in word) or UNKNOWN in word:
            for start in (number + 2, number + 3):
                yield Inner(script=" ".join(words[start:]), posix=True, guess=start == number + 2)
            return


def _print(words: Sequence[str]) -> Iterator[Inner]:
    """Yield the words of `print -P`, which are expanded as a prompt, after their escapes."""
    if any(word.startswith("-") and "P" in word for word in words[1:]):
        for word in words[1:]:
            if _DROPPED.search(word) is not None:
                raise AmbiguousError("only zsh knows what an escape stands for")
            yield Inner(expanded=word)
            if "\\" in word:
                yield Inner(expanded=decode_ansi_c(word, printed=True))


def _later(words: Sequence[str]) -> Iterator[Inner]:
    """Yield the command of `sched TIME COMMAND` and `zpty NAME COMMAND`, after options."""
    for start in (2, 3, 4):
        yield Inner(script=" ".join(words[start:]), posix=True, guess=start > 2)


_SPECIAL = {
    "eval": _eval,
    "trap": _trap,
    "alias": _alias,
    "env": _env,
    "emulate": _script_option,
    "su": _script_option,
    "runuser": _runuser,
    "script": _script_program,
    "sg": _sg,
    "split": _filter,
    "compgen": _completion,
    "complete": _completion,
    "flock": _flock,
    "watch": _joined,
    "parallel": _joined,
    "find": _find,
    "mapfile": _mapfile,
    "readarray": _mapfile,
    "zargs": _zargs,
    "zstyle": _zstyle,
    "print": _print,
    "sched": _later,
    "zpty": _later,
}
