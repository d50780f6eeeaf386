"""Environment variables of a child: inherited by policy, given, and from metadata [env.*]."""

import os
import pwd
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache

from holdfast.base.dialect import names
from holdfast.base.errors import InvalidParams
from holdfast.wire.protocol.process import EnvPolicy, StartMetadata
from holdfast.wire.protocol.secret_variables import COMMAND_SECRETS, SECRET_PATTERNS, TOKEN_VARIABLE

__all__ = ["child_environment", "login_shell", "without_tokens"]

# Inherited by the policy `core`.
_CORE = frozenset(
    [
        "PATH",
        "SHELL",
        "TMPDIR",
        "TEMP",
        "TMP",
        "HOME",
        "LANG",
        "LC_ALL",
        "LC_CTYPE",
        "LOGNAME",
        "USER",
    ]
)

# Patterns of one list, and their characters together.
_PATTERNS = 256
_PATTERN_CHARACTERS = 8 << 10

# Characters of a name that is matched.
_NAME_CHARACTERS = 1_024

_THREAD_ID = names.THREAD_ID
_TOOL_CALL_ID = names.TOOL_CALL_ID

# Removed as well, but only if written in exactly this case [env.reserved].
_RESERVED_AS_WRITTEN = frozenset({names.EXIT_WITH_STDIN, _TOOL_CALL_ID})


def child_environment(
    env: Mapping[str, str],
    policy: EnvPolicy | None,
    metadata: StartMetadata | None,
    inherited: Mapping[str, str],
) -> dict[str, str]:
    """
    Return all environment variables of a child.

    Args:
        env: Variables given with the start; a policy never filters them.
        policy: Rules of inheritance; without them the child gets only `env`.
        metadata: Thread and tool call of the start, passed to the child as two variables.
        inherited: The server's own variables.

    Raises:
        InvalidParams: The policy has too many patterns to be matched in time.
    """
    variables = {} if policy is None else _inherit(policy, inherited)
    variables.update(env)
    for name in [n for n in variables if n in _RESERVED_AS_WRITTEN or n.upper() in COMMAND_SECRETS]:
        del variables[name]
    if metadata is not None:
        # Metadata without a thread id means that there is none [env.thread-id].
        variables.pop(_THREAD_ID, None)
        if metadata.thread_id is not None:
            variables[_THREAD_ID] = metadata.thread_id
        if metadata.tool_call_id is not None:
            variables[_TOOL_CALL_ID] = metadata.tool_call_id
    return variables


def without_tokens(variables: Mapping[str, str]) -> Mapping[str, str]:
    """Return the variables without the token of a Holdfast server."""
    if TOKEN_VARIABLE in variables:
        return {n: v for n, v in variables.items() if n != TOKEN_VARIABLE}
    return variables


def _check_size(patterns: Sequence[str], names: Iterable[str], what: str) -> None:
    """
    Check that patterns can be matched in a few milliseconds, as the event loop waits for that.

    Raises:
        InvalidParams: There are too many, or they are too long, or a name is.
    """
    characters = sum(map(len, patterns))
    if len(patterns) > _PATTERNS or characters > _PATTERN_CHARACTERS:
        raise InvalidParams(
            f"envPolicy.{what} has {len(patterns):,} patterns of {characters:,} characters,"
            f" {_PATTERNS} of {_PATTERN_CHARACTERS:,} are allowed"
        )
    longest = max(map(len, names), default=0)
    if longest > _NAME_CHARACTERS and patterns:
        raise InvalidParams(
            f"envPolicy.set has a name of {longest:,} characters, {_NAME_CHARACTERS:,} are allowed"
            f" with {what}"
        )


def _inherit(policy: EnvPolicy, inherited: Mapping[str, str]) -> dict[str, str]:
    _check_size(policy.exclude, (), "exclude")
    _check_size(policy.include_only or (), policy.set, "includeOnly")
    variables: dict[str, str] = {}
    inherited = without_tokens(inherited)
    if policy.inherit == "all":
        variables.update(inherited)
    elif policy.inherit == "core":
        variables.update((n, v) for n, v in inherited.items() if n.upper() in _CORE)
    excludes = list(policy.exclude)
    if not policy.ignore_default_excludes:
        excludes += SECRET_PATTERNS
    if excludes:
        variables = _without(variables, tuple(excludes))
    # `set` after the excludes and before `include_only`: a variable
    # that the policy sets is never excluded, but has to be included.
    variables.update(policy.set)
    if policy.include_only:
        included = _matcher(tuple(policy.include_only))
        variables = {n: v for n, v in variables.items() if included(n)}
    return variables


@lru_cache(maxsize=64)
def _matcher(patterns: tuple[str, ...]) -> Callable[[str], object]:
    """Return a test whether a name matches one of the patterns, without regard to case."""
    # As an expression, the empty pattern would match the empty name. It must match nothing.
    parts = [_translate(pattern) for pattern in patterns if pattern]
    if not parts:
        return lambda name: None
    return re.compile("|".join(parts), re.IGNORECASE | re.DOTALL).fullmatch


@lru_cache(maxsize=64)
def _plain_names(patterns: tuple[str, ...]) -> frozenset[str] | None:
    """Return the patterns in upper case if they are plain ASCII names, else None."""
    if any("*" in one or "?" in one or not one.isascii() for one in patterns):
        return None
    return frozenset(one.upper() for one in patterns)


def _without(variables: dict[str, str], patterns: tuple[str, ...]) -> dict[str, str]:
    """Return the variables whose names match none of the patterns."""
    names = _plain_names(patterns)
    # Fast path: most starts exclude a few names that are not set, found here without a loop.
    # Not for names beyond ASCII: some of their letters fold to ASCII ones (U+212A to `k`),
    # which only the expression knows.
    if (
        names is not None
        and names.isdisjoint(map(str.upper, variables))
        and all(map(str.isascii, variables))
    ):
        return variables
    excluded = _matcher(patterns)
    return {n: v for n, v in variables.items() if not excluded(n)}


def _translate(pattern: str) -> str:
    """
    Return the regular expression for a pattern with `*` and `?`.

    A string between two stars matches at its first occurrence, in an atomic group. With
    backtracking, a pattern of many stars would take exponential time.
    """
    texts = [
        "".join("." if char == "?" else re.escape(char) for char in text)
        for text in pattern.split("*")
    ]
    if len(texts) == 1:
        return texts[0]
    between = "".join(f"(?>.*?{text})" for text in texts[1:-1] if text)
    return f"{texts[0]}{between}.*{texts[-1]}"


def login_shell() -> str:
    """Return the user's shell from the user database; `/bin/sh` if there is none."""
    try:
        return pwd.getpwuid(os.getuid()).pw_shell or "/bin/sh"
    except KeyError:
        return "/bin/sh"
