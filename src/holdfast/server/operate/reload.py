"""Settings that can change while a server runs, and the result of reading them again."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from holdfast.server.principals import PrincipalLimits

__all__ = ["LiveSettings", "Reload", "Reread", "changes"]


class LiveSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the config file that apply without a restart."""

    log_level: str
    limits: PrincipalLimits


class Reread(NamedTuple):
    """The config file, read again."""

    settings: LiveSettings
    restart: Sequence[str]
    """Options that differ from those of the start, and need a restart."""


class Reload(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a reload."""

    settings: LiveSettings | None = None
    """None if there is no config file, or it cannot be used."""
    changed: Sequence[str] = ()
    """Sentences about settings that differ from those before."""
    restart: Sequence[str] = ()
    problems: Sequence[str] = ()


def changes(old: LiveSettings, new: LiveSettings) -> Iterator[str]:
    """Yield a sentence for each setting that differs."""
    if new.log_level != old.log_level:
        yield f"log-level is {new.log_level} now, it was {old.log_level}"
    for name in PrincipalLimits.__struct_fields__:
        was, now = getattr(old.limits, name), getattr(new.limits, name)
        if was != now:
            yield f"max-{name.replace('_', '-')} is {_number(now)} now, it was {_number(was)}"


def _number(limit: int | None) -> str:
    return "unlimited" if limit is None else str(limit)
