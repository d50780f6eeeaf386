"""
Describes a policy in rows for people to read.

The rows state what the rules require. They do not state whether this machine can enforce them; the
caller adds that (`sandbox.bubblewrap.support`).
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from holdfast.engine.sandbox.policy.policy import OWN_REASONS, Policy, Rule

__all__ = ["Row", "Topic", "explain"]

Topic = Literal["readable", "writable", "protected", "hidden", "network", "isolation"]


class Row(NamedTuple):
    """One line of the description."""

    topic: Topic
    what: str
    """Path or pattern; for `network` and `isolation`, their state."""
    why: str = ""


_WHY: Final = {
    "entry": "an entry of the profile",
    "platform": "part of `minimal`",
    "protected": "a protected name in a writable directory",
    "gitdir": "where a `.git` file points to",
    **OWN_REASONS,
    "cover": "something below it has to stay missing",
    "pin": "keeps its name because of what is in it",
    "glob": "matches a denied pattern",
    "socket": "an engine that would run anything outside",
    "server": "a Holdfast server, which would run anything outside",
}


def explain(policy: Policy) -> tuple[Row, ...]:
    """Return rows of what can be read, written and reached, by topic and then by path."""
    # Pins only keep a name in place: they change no access.
    rows = [_row(rule) for _, rule in sorted(policy.rules.items()) if rule.why != "pin"]
    if policy.full_write:
        narrowed = "all but what follows" if rows else "nothing narrows it"
        rows.insert(0, Row("writable", "/", narrowed))
    else:
        if "/" not in policy.rules:
            rows.append(Row("hidden", "everything else", "no entry covers it"))
        rows += (
            Row("hidden", glob.pattern, "files that match it when the command starts")
            for glob in policy.globs
        )
        # A stable sort, so that paths stay in order within a topic.
        rows.sort(key=lambda row: _ORDER.index(row.topic))
    if policy.network == "enabled":
        rows.append(Row("network", "enabled", "as on the host, sockets on disk included"))
    else:
        rows.append(Row("network", "none", "not even the host's loopback"))
    if policy.isolates:
        rows.append(Row("isolation", "own namespaces", "processes, mounts, IPC, no privileges"))
    else:
        rows.append(Row("isolation", "none", "the profile asks for nothing"))
    return tuple(rows)


# Topics in order of interest: first what can be changed.
_ORDER: Final[tuple[Topic, ...]] = ("writable", "protected", "readable", "hidden")


def _row(rule: Rule) -> Row:
    why = _WHY[rule.why]
    # A missing path that is not writable is covered by a mount, which people should know.
    if rule.kind is None:
        why += ", missing: cannot be made" if rule.access != "write" else ""
    if rule.access == "deny":
        return Row("hidden", rule.path, why)
    if rule.access == "write":
        return Row("writable", rule.path, why)
    plain = rule.why in {"entry", "platform"} and rule.kind is not None
    return Row("readable" if plain else "protected", rule.path, why)
