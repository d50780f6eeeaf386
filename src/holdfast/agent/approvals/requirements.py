"""
Reads managed requirements: rules of the machine's administrator, which can only restrict.

    [rules]
    prefix_rules = [
      {pattern = [{token = "git"}, {any_of = ["push", "pull"]}], decision = "prompt-user"},
    ]

The file may contain tables other than `rules`, for other programs.
"""

import os
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal

import msgspec

from holdfast.agent.approvals.rules import PrefixRule, RuleSet, Ruling
from holdfast.agent.approvals.starlark import MAX_RULES, UnusableFile, read_rules_text
from holdfast.base.errors import InvalidConfig
from holdfast.base.system_text import system_text

__all__ = ["REQUIREMENTS_FILE", "load_requirements"]

REQUIREMENTS_FILE: Final = Path("/etc/holdfast/requirements.toml")
"""The file that Holdfast's commands read if it exists."""

_RULINGS: Final = {
    "prompt": Ruling.PROMPT,
    "prompt-user": Ruling.PROMPT_USER,
    "forbidden": Ruling.FORBIDDEN,
}


class _TokenTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    token: str | None = None
    any_of: list[str] | None = None


class _RuleTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pattern: list[_TokenTable]
    decision: Literal["allow", "prompt", "prompt-user", "forbidden"]
    justification: str | None = None
    canonical_matching: bool = False


class _RulesTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    prefix_rules: list[_RuleTable]


class _Requirements(msgspec.Struct, frozen=True):
    rules: _RulesTable | None = None


def load_requirements(path: Path) -> RuleSet:
    """
    Return the rules of a file of managed requirements; none if it does not exist.

    Raises:
        InvalidConfig: The file cannot be read or is invalid; the text names it and the problem.
    """
    try:
        # Not `exists`: a dangling link or an inaccessible directory is an error.
        os.lstat(path)
    except FileNotFoundError:
        return RuleSet()
    except OSError as error:
        raise InvalidConfig(f"cannot read {path}: {system_text(error)}") from error
    text = read_rules_text(str(path))
    if isinstance(text, UnusableFile):
        raise InvalidConfig(f"cannot read {path}: {text}")
    try:
        found = msgspec.convert(tomllib.loads(text), _Requirements)
        if found.rules is None:
            return RuleSet()
        rules = [rule for each in _numbered(found.rules) for rule in _prefix_rules(*each, path)]
        if len(rules) > MAX_RULES:
            raise ValueError(f"it has more than {MAX_RULES} rules")
    # The libraries' errors are ValueErrors; `tomllib` recurses for nested values.
    except (ValueError, RecursionError) as error:
        raise InvalidConfig(f"{path}: {error}") from error
    return RuleSet(rules)


def _numbered(rules: _RulesTable) -> Iterator[tuple[str, _RuleTable]]:
    if not rules.prefix_rules:
        raise ValueError("rules.prefix_rules is empty")
    for index, rule in enumerate(rules.prefix_rules):
        yield f"rules.prefix_rules[{index}]", rule


def _prefix_rules(name: str, rule: _RuleTable, path: Path) -> list[PrefixRule]:
    """Return one rule per alternative of the first word."""
    if rule.decision == "allow":
        raise ValueError(
            f"{name}: the decision is `allow`, but requirements only restrict; expected one of"
            " `prompt`, `prompt-user`, `forbidden`"
        )
    if rule.justification is not None and not rule.justification.strip():
        raise ValueError(f"{name}: the justification is empty")
    if not rule.pattern:
        raise ValueError(f"{name}: the pattern is empty")
    first, *rest = (
        _words(f"{name}.pattern[{index}]", token) for index, token in enumerate(rule.pattern)
    )
    return [
        PrefixRule(
            pattern=((word,), *rest),
            ruling=_RULINGS[rule.decision],
            justification=rule.justification,
            canonical_matching=rule.canonical_matching,
            source=str(path),
        )
        for word in first
    ]


def _words(name: str, token: _TokenTable) -> tuple[str, ...]:
    if (token.token is None) == (token.any_of is None):
        raise ValueError(f"{name}: it needs either `token` or `any_of`")
    words = (token.token,) if token.token is not None else tuple(token.any_of or ())
    if not words or not all(word.strip() for word in words):
        raise ValueError(f"{name}: a word is empty")
    return words
