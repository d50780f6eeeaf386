"""
Reads rules files, which are programs in Starlark.

Files are evaluated in a short-lived child process (`evaluator`). Nothing else limits memory and
time of a single operation such as `[0] * 1000000000`. Only the child imports the interpreter,
`starlark-pyo3` from the extra `approvals`.
"""

import importlib.util
import json
import os
import select
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from holdfast.agent.approvals import evaluator
from holdfast.agent.approvals.rules import (
    BrokenFile,
    NetworkRule,
    PrefixRule,
    RuleMatch,
    RuleSet,
    RulesLayer,
    Ruling,
)
from holdfast.agent.approvals.shell_words import join_words
from holdfast.base.dialect import debug_text
from holdfast.base.system_text import system_text
from holdfast.base.version import install_command

__all__ = [
    "MAX_FILE_BYTES",
    "MAX_MEMORY",
    "MAX_PROCESSOR_SECONDS",
    "MAX_RULES",
    "MAX_STEPS",
    "MAX_WALL_SECONDS",
    "TOTAL_WALL_SECONDS",
    "RulesFile",
    "UnusableFile",
    "load_files",
    "read_rules_text",
    "rules_available",
]

MAX_FILE_BYTES: Final = 1 << 20
"""Most bytes in a rules file."""

MAX_RULES: Final = 10_000
"""Most rules in a file; each alternative for the first word counts as a rule."""

MAX_STEPS: Final = 5_000_000
"""Most steps of evaluation (calls and loop iterations) per file: about half a second."""

MAX_MEMORY: Final = 512 << 20
"""Most bytes of address space for the child. The interpreters alone need a tenth."""

MAX_PROCESSOR_SECONDS: Final = 2
"""Most seconds of CPU time for one file, an integer as the kernel requires."""

MAX_WALL_SECONDS: Final = 10.0
"""Most seconds for one file on a busy machine."""

TOTAL_WALL_SECONDS: Final = 30.0
"""Most seconds for all files of one call; later files count as broken."""

# Most bytes in the answer for one file.
_MAX_ANSWER: Final = 64 << 20

_EVALUATOR: Final = evaluator.__file__

_MISSING: Final = f"rules files need the extra approvals: {install_command('approvals')}"


@dataclass(frozen=True, slots=True)
class RulesFile:
    """A file to load, with its layer."""

    path: str
    """The path as the user gave it, for errors."""
    layer: RulesLayer = RulesLayer.EXPLICIT
    within: str | None = None
    """The real path of the directory that must contain the file; None for any."""


class _PrefixCall(msgspec.Struct, tag_field="call", tag="prefix_rule", frozen=True):
    pattern: list[list[str]]
    decision: str
    justification: str | None
    match: list[list[str]]
    not_match: list[list[str]]
    outside_sandbox: bool


class _HostCall(msgspec.Struct, tag_field="call", tag="host_executable", frozen=True):
    name: str
    paths: list[str]


class _NetworkCall(msgspec.Struct, tag_field="call", tag="network_rule", frozen=True):
    host: str
    protocol: str
    decision: str
    justification: str | None


class _EvaluatorAnswer(msgspec.Struct, frozen=True):
    calls: list[_PrefixCall | _HostCall | _NetworkCall] = []
    error: str | None = None


class UnusableFile(Exception):
    """A file cannot be used; the text says why."""

    def __init__(self, error: str, *, unread: bool = False) -> None:
        super().__init__(error)
        self.unread = unread


def rules_available() -> bool:
    """Return True if the interpreter of rules files is installed."""
    return importlib.util.find_spec("starlark") is not None


def load_files(files: Sequence[RulesFile]) -> list[RuleSet | BrokenFile]:
    """
    Read and evaluate rules files, from the lowest to the highest precedence.

    The call blocks for up to `TOTAL_WALL_SECONDS`: use a thread where that matters.

    Returns:
        One entry per file, in the same order: its rules, or its error.
    """
    texts = [read_rules_text(file.path, within=file.within) for file in files]
    readable = [
        (file.path, text)
        for file, text in zip(files, texts, strict=True)
        if not isinstance(text, UnusableFile)
    ]
    # Exhaust the generator, which would otherwise leave its child to the garbage collector.
    answers = iter(list(_evaluate(readable)))
    loaded: list[RuleSet | BrokenFile] = []
    # Examples in a file see the `host_executable` calls of earlier files.
    hosts: dict[str, tuple[str, ...]] = {}
    for file, text in zip(files, texts, strict=True):
        try:
            if isinstance(text, UnusableFile):
                raise text
            rules = _rule_set(file, next(answers), hosts)
        except UnusableFile as unusable:
            loaded.append(
                BrokenFile(
                    path=file.path,
                    error=str(unusable),
                    layer=file.layer,
                    unread=unusable.unread,
                )
            )
        else:
            hosts.update(rules.host_executables)
            loaded.append(rules)
    return loaded


def read_rules_text(path: str, *, within: str | None = None) -> str | UnusableFile:
    """
    Return the text of a file without blocking: FIFOs and devices are refused.

    Args:
        path: The file.
        within: The real path of the directory that must contain it. Otherwise a command that may
            not read a file could create a link to it, and errors would quote the file.
    """
    try:
        # O_NONBLOCK, so that opening a FIFO does not wait for a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        return UnusableFile(system_text(error), unread=True)
    except ValueError:
        return UnusableFile("the path contains a NUL character", unread=True)
    try:
        # The path of the open file, since a link may change later.
        real = os.readlink(f"/proc/self/fd/{descriptor}")
        if within is not None and not real.startswith(f"{within.rstrip('/')}/"):
            return UnusableFile("it is a link out of the project", unread=True)
        mode = os.fstat(descriptor).st_mode
        # Reading a directory gives the kernel's error.
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            return UnusableFile("not a regular file", unread=True)
        data = b""
        while len(data) <= MAX_FILE_BYTES and (more := os.read(descriptor, 1 << 20)):
            data += more
    except OSError as error:
        return UnusableFile(system_text(error), unread=True)
    finally:
        os.close(descriptor)
    if len(data) > MAX_FILE_BYTES:
        return UnusableFile(f"the file is larger than {MAX_FILE_BYTES} bytes", unread=True)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return UnusableFile("stream did not contain valid UTF-8", unread=True)


def _evaluate(files: Sequence[tuple[str, str]]) -> Iterator[_EvaluatorAnswer]:
    """Yield one answer per file. A file that kills the child does not affect the others."""
    if not files:
        return
    spec = importlib.util.find_spec("starlark")
    if spec is None or spec.origin is None:
        yield from (_EvaluatorAnswer(error=_MISSING) for _ in files)
        return
    # The child runs without site-packages, except for this directory.
    packages = os.path.dirname(os.path.dirname(spec.origin))
    deadline = time.monotonic() + TOTAL_WALL_SECONDS
    done = 0
    while done < len(files):
        if time.monotonic() > deadline:
            late = f"not evaluated: all rules files together took {TOTAL_WALL_SECONDS:g} s"
            yield from (_EvaluatorAnswer(error=late) for _ in files[done:])
            return
        # One child for all files; if a file kills it, another child continues.
        with _EvaluatorProcess(packages, files[done:]) as child:
            while done < len(files):
                answer = child.answer(min(deadline, time.monotonic() + MAX_WALL_SECONDS))
                done += 1
                yield answer
                if child.ended:
                    break


class _EvaluatorProcess:
    """The process that evaluates files, killed and reaped at the end of the context."""

    def __init__(self, packages: str, files: Sequence[tuple[str, str]]) -> None:
        self.ended = False
        self._received = bytearray()
        self._to_send = json.dumps(
            {
                "limits": {
                    "memory": MAX_MEMORY,
                    "rules": MAX_RULES,
                    "seconds": MAX_PROCESSOR_SECONDS,
                    "steps": MAX_STEPS,
                },
                "files": [{"name": path, "text": text} for path, text in files],
            }
        ).encode()
        # Without variables: the child does not need them, and backtraces cost time.
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", _EVALUATOR, packages],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={},
            cwd="/",
            start_new_session=True,
            bufsize=0,
        )

    def __enter__(self) -> "_EvaluatorProcess":
        assert self._process.stdin is not None
        # One `select` serves both pipes: a child that does not read must not block this process.
        os.set_blocking(self._process.stdin.fileno(), False)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        self._process.wait()

    def answer(self, deadline: float) -> _EvaluatorAnswer:
        """Return the answer for the next file; sets `ended` after the last one."""
        line = self._line(deadline)
        if line is None:
            self.ended = True
            return _EvaluatorAnswer(error=self._reason_of_end())
        try:
            answer = msgspec.json.decode(line, type=_EvaluatorAnswer)
        except msgspec.MsgspecError as error:
            self.ended = True
            return _EvaluatorAnswer(error=f"evaluation failed: {error}")
        # After a panic the child exits, since its memory may be inconsistent.
        self.ended = (answer.error or "").startswith("evaluation failed: ")
        return answer

    def _line(self, deadline: float) -> bytes | None:
        """Return the next line, or None if the child has ended or the time is over."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        while (end := self._received.find(b"\n")) < 0:
            left = deadline - time.monotonic()
            # A child with too much output is treated like one that takes too long.
            if left <= 0 or len(self._received) > _MAX_ANSWER:
                self._process.kill()
                return None
            writers = [] if stdin.closed else [stdin]
            readable, writable, _ = select.select([stdout], writers, [], left)
            if writable:
                self._send(stdin.fileno())
                # The end of input signals that all files were sent.
                if not self._to_send:
                    stdin.close()
            if readable:
                data = os.read(stdout.fileno(), 1 << 16)
                if not data:
                    return None
                self._received += data
        line = bytes(self._received[:end])
        del self._received[: end + 1]
        return line

    def _send(self, descriptor: int) -> None:
        try:
            self._to_send = self._to_send[os.write(descriptor, self._to_send[: 1 << 16]) :]
        except BlockingIOError:
            return
        except OSError:
            # The child has ended, which its output also shows.
            self._to_send = b""

    def _reason_of_end(self) -> str:
        try:
            status = self._process.wait(timeout=1)
        except subprocess.TimeoutExpired:
            self._process.kill()
            status = self._process.wait()
        if status == -signal.SIGKILL:
            return f"evaluation took longer than {MAX_WALL_SECONDS:g} s"
        if status == -signal.SIGXCPU:
            return f"evaluation needs more than {MAX_PROCESSOR_SECONDS} s of processor time"
        if status in (-signal.SIGABRT, 1):
            return f"evaluation needs more than {MAX_MEMORY >> 20} MiB of memory"
        if status < 0:
            return f"evaluation was ended by {signal.Signals(-status).name}"
        return f"evaluation ended with status {status}"


def _rule_set(
    file: RulesFile, answer: _EvaluatorAnswer, hosts_before: Mapping[str, tuple[str, ...]]
) -> RuleSet:
    if answer.error is not None:
        raise UnusableFile(answer.error)
    hosts = {
        call.name: tuple(dict.fromkeys(call.paths))
        for call in answer.calls
        if isinstance(call, _HostCall)
    }
    prefix_rules: list[PrefixRule] = []
    network_rules: list[NetworkRule] = []
    for call in answer.calls:
        if isinstance(call, _PrefixCall):
            rules = _prefix_rules(call, file.path)
            _check_examples(call, RuleSet(rules, host_executables={**hosts_before, **hosts}))
            prefix_rules += rules
        elif isinstance(call, _NetworkCall):
            network_rules.append(
                NetworkRule(
                    host=call.host,
                    protocol=call.protocol,
                    ruling=Ruling[call.decision.upper()],
                    justification=call.justification,
                    source=file.path,
                )
            )
    return RuleSet(prefix_rules, host_executables=hosts, network_rules=network_rules)


def _prefix_rules(call: _PrefixCall, source: str) -> list[PrefixRule]:
    """Return one rule per alternative of the first word."""
    first, *rest = (tuple(alternatives) for alternatives in call.pattern)
    return [
        PrefixRule(
            pattern=((word,), *rest),
            ruling=Ruling[call.decision.upper()],
            justification=call.justification,
            outside_sandbox=call.outside_sandbox,
            source=source,
        )
        for word in first
    ]


def _check_examples(call: _PrefixCall, rules: RuleSet) -> None:
    """Check the examples of a call only against the rules of that call."""
    cwd, home = os.getcwd(), os.path.expanduser("~")
    for example in call.not_match:
        for match in rules.match(example, cwd=cwd, home=home)[:1]:
            raise UnusableFile(
                f"expected example to not match rule `{_debug_match(match)}`: {_shown(example)}"
            )
    unmatched = [
        _shown(example) for example in call.match if not rules.match(example, cwd=cwd, home=home)
    ]
    if unmatched:
        shown = _debug_list(_debug_rule(rule) for rule in rules.prefix_rules)
        raise UnusableFile(
            f"expected every example to match at least one rule. rules: {shown}; "
            f"unmatched examples: {_debug_list(unmatched)}"
        )


def _shown(example: Sequence[str]) -> str:
    return join_words(example) or "unable to render example"


def _debug_rule(rule: PrefixRule) -> str:
    ((first,), *rest) = rule.pattern
    tokens = ", ".join(
        f"Single({debug_text(words[0])})" if len(words) == 1 else f"Alts({_debug_list(words)})"
        for words in rest
    )
    canonical = str(rule.canonical_matching).lower()
    return (
        f"PrefixRule {{ pattern: PrefixPattern {{ canonical_matching: {canonical}, "
        f"first: {debug_text(first)}, rest: [{tokens}] }}, "
        f"decision: {rule.ruling.word.title()}, justification: {_some(rule.justification)} }}"
    )


def _debug_match(match: RuleMatch) -> str:
    program = match.resolved_program
    resolved = "None" if program is None else f"Some(AbsolutePathBuf({debug_text(program)}))"
    return (
        f"PrefixRuleMatch {{ matched_prefix: {_debug_list(match.matched_prefix)}, "
        f"decision: {match.ruling.word.title()}, resolved_program: {resolved}, "
        f"justification: {_some(match.justification)} }}"
    )


def _some(text: str | None) -> str:
    return "None" if text is None else f"Some({debug_text(text)})"


def _debug_list(texts: Iterable[str]) -> str:
    return f"[{', '.join(map(debug_text, texts))}]"
