"""
Log messages with named fields that no client can forge.

Ids, paths and programs may contain line feeds and terminal escape sequences. These are shown as
escapes, so that each message stays on one line. `LogEvent` is an ordinary message for `logging`.
"""

import re
import time
from functools import lru_cache

from holdfast.wire.protocol.paths import PathUri

__all__ = ["LogEvent", "Sampled", "clip", "path_text", "printable"]

# Most characters of a field that a client chose: enough for a program, an id or a path.
MAX_FIELD = 256

# Most characters of a path.
MAX_PATH = 1024

_NUMBERS = frozenset({int, float})

_CUT = "\N{HORIZONTAL ELLIPSIS}"

# Matches a value that needs no quotes: nothing in it could end it or be an escape.
_is_plain = re.compile(r"[A-Za-z0-9_./:@%+,\[\]-]+").fullmatch


# Refused clients per period, in seconds, that get a line each. They have shown no token, and more
# of them would push the lines of others out of the log files that are kept.
_MOST_SAMPLED = 100
_PERIOD = 60.0


class LogEvent:
    """A message: constant words, and named fields."""

    __slots__ = ("fields", "text")

    def __init__(self, text: str, **fields: str | int | float | None) -> None:
        """Fields that are None are left out. Pass strings from clients through `clip` first."""
        self.text = text
        self.fields = fields

    def __str__(self) -> str:
        # A number that never recurs would only push strings out of the cache of `_shown`.
        text = self.text
        for name, value in self.fields.items():
            if value is not None:
                text += f" {name}={value if type(value) in _NUMBERS else _shown(value)}"
        return text


class Sampled:
    """Selects the first events of each minute, for those that a client can cause at will."""

    def __init__(self) -> None:
        self._period_ends = 0.0
        self._count = 0
        self._skipped = 0

    def skipped(self) -> int | None:
        """Return the number of events left out since the last line; None to leave out this one."""
        now = time.monotonic()
        if now >= self._period_ends:
            self._period_ends = now + _PERIOD
            self._count = 0
        self._count += 1
        if self._count > _MOST_SAMPLED:
            self._skipped += 1
            return None
        skipped, self._skipped = self._skipped, 0
        return skipped


def clip(text: str, limit: int = MAX_FIELD) -> str:
    """Return a text of at most `limit` characters; an ellipsis shows that it was cut."""
    return text if len(text) <= limit else text[: limit - 1] + _CUT


def path_text(uri: PathUri) -> str:
    """Return a path as this machine spells it, of bounded length; a foreign one as its URI."""
    return clip(uri.shown, MAX_PATH)


def printable(text: str) -> str:
    r"""Return a text with escapes such as `\n` and `\x1b` for all that is not printable."""
    if text.isprintable():
        return text
    return "".join(
        [
            letter if letter.isprintable() else letter.encode("unicode_escape").decode()
            for letter in text
        ]
    )


# Most strings recur from earlier lines: a session, a principal, a program, a directory.
@lru_cache(maxsize=256)
def _shown(value: str | int | float) -> str:
    if isinstance(value, str) and _is_plain(value):
        return value
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, str):
        return str(value)
    # The quoting character itself has to be escaped before anything else.
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{printable(escaped)}"'
