"""Amounts as people write them: `10K` bytes, `1m 30s`."""

import re

__all__ = ["parse_seconds", "parse_size"]

# Powers of 1024, also for `KB` and `MB`: limits of memory are meant that way.
_SIZES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SIZE = re.compile(r"(\d+)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)

_TIMES = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_TIME = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*(ms|s|min|m|h|d)?", re.IGNORECASE)


def parse_size(text: str) -> int:
    """
    Return the bytes of a size such as `512M`, `10k` or `2GiB`; units are powers of 1024.

    Raises:
        ValueError: It is not a size.
    """
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"expected a size such as 10K or 512M, not {text!r}")
    return int(found[1]) * _SIZES[found[2].lower()]


def parse_seconds(text: str) -> float:
    """
    Return the seconds of a time such as `90`, `0.5`, `500ms`, `1m` or `1h30m`.

    Raises:
        ValueError: It is not a time.
    """
    rest, total, parts = text.strip(), 0.0, 0
    while rest:
        found = _TIME.match(rest)
        # Only the first number may lack a unit: `90`, but not `1m30`.
        if found is None or (parts and not found[2]):
            break
        total += float(found[1]) * _TIMES[(found[2] or "").lower()]
        rest, parts = rest[found.end() :].lstrip(), parts + 1
    if rest or not parts:
        raise ValueError(f"expected seconds, or a time such as 500ms, 1m or 2h, not {text!r}")
    return total
