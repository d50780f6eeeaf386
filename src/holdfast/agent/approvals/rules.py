"""
Rules about commands, and the index to find matching ones.

A rule decides about every command that starts with certain words. The module does no I/O:
`starlark` reads rules files, `layers` finds them, `decide` applies them.
"""

import enum
import posixpath
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

__all__ = [
    "BrokenFile",
    "NetworkRule",
    "PrefixRule",
    "RuleMatch",
    "RuleSet",
    "RulesLayer",
    "Ruling",
    "strictest",
]


class Ruling(enum.IntEnum):
    """The decision of a rule, by strictness: the greatest one wins."""

    ALLOW = 0
    PROMPT = 1
    PROMPT_USER = 2
    """A person must allow it each time; only possible in managed requirements."""
    FORBIDDEN = 3

    @property
    def word(self) -> str:
        """The name in rules and JSON: allow, prompt, prompt-user or forbidden."""
        return self.name.lower().replace("_", "-")


class RulesLayer(enum.IntEnum):
    """The origin of a rules file, from the lowest to the highest precedence."""

    BUILT_IN = 0
    HOME = 1
    PROJECT = 2
    EXPLICIT = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixRule:
    """A rule about all commands that start with certain words."""

    pattern: tuple[tuple[str, ...], ...]
    """The permitted words at each position. The first position has exactly one."""
    ruling: Ruling = Ruling.ALLOW
    justification: str | None = None
    """The reason given in the file; shown in questions and refusals."""
    outside_sandbox: bool = False
    """True for `sandbox="none"`: an allowed command runs without a sandbox."""
    canonical_matching: bool = False
    """A member of managed requirements that is only displayed."""
    source: str | None = None
    """The file that contains the rule; None for rules created by the program."""

    def prefix_of(self, words: Sequence[str]) -> tuple[str, ...] | None:
        """Return the words that the rule matched, or None if it does not match."""
        pattern = self.pattern
        prefix = tuple(words[: len(pattern)])
        if len(prefix) < len(pattern):
            return None
        for index, word in enumerate(prefix):
            if word not in pattern[index]:
                return None
        return prefix


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkRule:
    """A rule about connections to a host."""

    host: str
    """The normalized name or address: lower case, without port and trailing dot."""
    protocol: str
    """One of `http`, `https`, `socks5_tcp` and `socks5_udp`."""
    ruling: Ruling
    justification: str | None = None
    source: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenFile:
    """A rules file that could not be used; all its rules are ignored."""

    path: str
    error: str
    """The reason, without the path: possibly several lines, with the position in the file."""
    layer: RulesLayer = RulesLayer.EXPLICIT
    unread: bool = False
    """True if the file could not be read at all."""

    @property
    def summary(self) -> str:
        """The path and the problem in one line."""
        lines = self.error.removeprefix("starlark error: ").splitlines() or [""]
        marked = (line for line in lines if line.startswith("error: "))
        return f"{self.path}: {next(marked, lines[0]).removeprefix('error: ')}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleMatch:
    """A rule that matches a command."""

    rule: PrefixRule
    matched_prefix: tuple[str, ...]
    """The matched words; with the base name of the program if its path was resolved."""
    resolved_program: str | None = None
    """The absolute path of the program, if the rule only has its base name."""

    @property
    def ruling(self) -> Ruling:
        """The decision of the rule."""
        return self.rule.ruling

    @property
    def justification(self) -> str | None:
        """The reason given in the rule."""
        return self.rule.justification


def strictest(matches: Iterable[RuleMatch]) -> Ruling | None:
    """Return the strictest decision of the matches, or None without matches."""
    return max((match.ruling for match in matches), default=None)


class RuleSet:
    """
    An immutable set of rules, indexed by their first two words.

    The time to match a command does not depend on the number of rules about other commands.
    """

    __slots__ = (
        "_by_program",
        "ask_person",
        "broken",
        "host_executables",
        "leave_sandbox",
        "network_rules",
        "prefix_rules",
    )

    def __init__(
        self,
        prefix_rules: Iterable[PrefixRule] = (),
        *,
        host_executables: Mapping[str, tuple[str, ...]] | None = None,
        network_rules: Iterable[NetworkRule] = (),
        broken: Iterable[BrokenFile] = (),
    ) -> None:
        self.prefix_rules: tuple[PrefixRule, ...] = tuple(prefix_rules)
        self.host_executables: Mapping[str, tuple[str, ...]] = MappingProxyType(
            dict(host_executables or {})
        )
        self.network_rules: tuple[NetworkRule, ...] = tuple(network_rules)
        self.broken: tuple[BrokenFile, ...] = tuple(broken)
        self.leave_sandbox: bool = any(rule.outside_sandbox for rule in self.prefix_rules)
        """True if a rule has `sandbox="none"`."""
        self.ask_person: bool = any(rule.ruling is Ruling.PROMPT_USER for rule in self.prefix_rules)
        """True if a rule has the decision `prompt-user`."""
        self._by_program: dict[str, _ProgramRules] = {}
        for order, rule in enumerate(self.prefix_rules):
            # The index relies on a pattern having exactly one first word.
            (program,) = rule.pattern[0]
            self._by_program.setdefault(program, _ProgramRules()).add(order, rule)

    def __repr__(self) -> str:
        return f"RuleSet({len(self.prefix_rules)} rules, {len(self.broken)} broken files)"

    def match(
        self,
        words: Sequence[str],
        *,
        resolve_hosts: bool = True,
        cwd: str | None = None,
        home: str | None = None,
        any_path: bool = False,
    ) -> tuple[RuleMatch, ...]:
        """
        Return all rules that match a command, in the order of the files.

        Args:
            words: The command, a segment of a script.
            resolve_hosts: True to look up a program's path by its base name if no rule matches the
                path. `host_executables` may restrict that to certain paths.
            cwd: The absolute directory for relative paths of programs such as `./git`. Without
                it, only absolute paths are looked up by base name.
            home: The directory that replaces a leading `~`; None to keep it. Only a shell finds
                such programs, but rules match them anyway.
            any_path: True to accept paths that a `host_executable` does not list.
        """
        if not words:
            return ()
        found = self._find(words)
        # A rule about the exact path takes precedence over one about the base name.
        if found or not resolve_hosts:
            return tuple(RuleMatch(rule=rule, matched_prefix=prefix) for rule, prefix in found)
        path = _absolute(words[0], cwd, home)
        if path is None:
            return ()
        name = posixpath.basename(path)
        listed = self.host_executables.get(name)
        if not name or (listed is not None and path not in listed and not any_path):
            return ()
        found = self._find((name, *words[1:]))
        return tuple(
            RuleMatch(rule=rule, matched_prefix=prefix, resolved_program=path)
            for rule, prefix in found
        )

    def with_rule(self, rule: PrefixRule) -> "RuleSet":
        """Return a set with one more rule at the end; the same set if it contains the rule."""
        if rule in self.prefix_rules:
            return self
        return RuleSet(
            (*self.prefix_rules, rule),
            host_executables=self.host_executables,
            network_rules=self.network_rules,
            broken=self.broken,
        )

    def joined(self, higher: "RuleSet") -> "RuleSet":
        """Return the rules of this set followed by those of a layer with higher precedence."""
        return RuleSet.join((self, higher))

    @staticmethod
    def join(layers: Sequence["RuleSet"]) -> "RuleSet":
        """
        Return the rules of several layers, from the lowest to the highest precedence.

        All prefix rules count; the strictest decides. A `host_executable` of a higher layer
        replaces one of the same name, as a later one in the same file does.
        """
        if len(layers) == 1:
            return layers[0]
        hosts: dict[str, tuple[str, ...]] = {}
        for layer in layers:
            hosts.update(layer.host_executables)
        return RuleSet(
            (rule for layer in layers for rule in layer.prefix_rules),
            host_executables=hosts,
            network_rules=(rule for layer in layers for rule in layer.network_rules),
            broken=(file for layer in layers for file in layer.broken),
        )

    def _find(self, words: Sequence[str]) -> list[tuple[PrefixRule, tuple[str, ...]]]:
        rules = self._by_program.get(words[0])
        if rules is None:
            return []
        found = []
        for rule in rules.candidates(words):
            prefix = rule.prefix_of(words)
            if prefix is not None:
                found.append((rule, prefix))
        return found


class _ProgramRules:
    """The rules of one program, by their second word."""

    __slots__ = ("_any", "_by_word")

    def __init__(self) -> None:
        self._any: list[tuple[int, PrefixRule]] = []
        self._by_word: dict[str, list[tuple[int, PrefixRule]]] = {}

    def add(self, order: int, rule: PrefixRule) -> None:
        if len(rule.pattern) == 1:
            self._any.append((order, rule))
            return
        for word in dict.fromkeys(rule.pattern[1]):
            self._by_word.setdefault(word, []).append((order, rule))

    def candidates(self, words: Sequence[str]) -> list[PrefixRule]:
        """Return the rules that can match, in the order in which they were added."""
        by_word = self._by_word.get(words[1]) if len(words) > 1 else None
        entries = self._any
        if by_word:
            # Merge in the order of addition: callers show matches in the order of the files.
            entries = sorted(entries + by_word, key=_order) if entries else by_word
        return [rule for _, rule in entries]


def _order(entry: tuple[int, PrefixRule]) -> int:
    return entry[0]


def _absolute(program: str, cwd: str | None, home: str | None) -> str | None:
    """Return the normalized absolute path of a program, or None if it is unknown."""
    if home is not None and (program == "~" or program.startswith("~/")):
        program = home + program[1:]
    if not program.startswith("/"):
        if cwd is None or not program:
            return None
        program = f"{cwd}/{program}"
    # Linux treats two slashes at the start as one, but `normpath` does not.
    return posixpath.normpath("/" + program.lstrip("/"))
