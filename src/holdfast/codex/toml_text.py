"""Writes values from `tomllib` as TOML in the style of the real server's library."""

import datetime
import math
import re
from decimal import Decimal
from typing import Final

__all__ = ["Table", "spell_toml", "spell_value"]

Table = dict[str, object]


def spell_toml(table: Table) -> str:
    """Return a document that parses to the same table."""
    sections: list[str] = []
    _spell_section(sections, (), table, repeated=False)
    return "\n".join(sections)


def _spell_section(
    sections: list[str], path: tuple[str, ...], table: Table, *, repeated: bool
) -> None:
    inner = {key: tables for key, value in table.items() if (tables := _tables_in(value))}
    lines = [
        f"{_spell_key(key)} = {spell_value(value)}"
        for key, value in table.items()
        if key not in inner
    ]
    # A table that only contains tables needs no header.
    if path and (repeated or lines or not inner):
        name = ".".join(map(_spell_key, path))
        lines.insert(0, f"[[{name}]]" if repeated else f"[{name}]")
    if lines:
        sections.append("\n".join(lines) + "\n")
    for key, tables in inner.items():
        for element in tables:
            _spell_section(sections, (*path, key), element, repeated=tables is table[key])


def _tables_in(value: object) -> list[Table]:
    """Return the tables that a value is written as: none, one, or those of a list."""
    if isinstance(value, dict):
        return [value]
    if isinstance(value, list) and all(isinstance(element, dict) for element in value):
        return value
    return []


def spell_value(value: object) -> str:
    """Return a value as TOML, on one line unless it is a multi-line string."""
    if isinstance(value, str):
        return _spell_text(value)
    # Before numbers, since a bool is an int in Python.
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return _spell_float(value)
    if isinstance(value, (datetime.datetime, datetime.time)):
        return _spell_time(value)
    if isinstance(value, list):
        return f"[{', '.join(map(spell_value, value))}]"
    if isinstance(value, dict):
        members = [f"{_spell_key(key)} = {spell_value(member)}" for key, member in value.items()]
        return f"{{ {', '.join(members)} }}" if members else "{}"
    # Integers and dates, which Python formats like TOML.
    return str(value)


def _spell_float(value: float) -> str:
    if not math.isfinite(value):
        # The same in Python and TOML: `nan`, `inf`, `-inf`.
        return str(value)
    # The shortest digits that parse to the same number, but never an exponent.
    text = format(Decimal(repr(value)), "f")
    return text if "." in text else f"{text}.0"


def _spell_time(value: datetime.datetime | datetime.time) -> str:
    local = value.replace(tzinfo=None).isoformat()
    zone = value.isoformat().removeprefix(local)
    # Python writes six fractional digits, the real server's library only those needed.
    if value.microsecond:
        local = local.rstrip("0")
    return local + ("Z" if zone == "+00:00" else zone)


_BARE_KEY: Final = re.compile(r"[A-Za-z0-9_-]+")
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
_SHORT_ESCAPES: Final = {
    "\b": "\\b",
    "\t": "\\t",
    "\n": "\\n",
    "\f": "\\f",
    "\r": "\\r",
    '"': '\\"',
    '"""': '""\\"',
    "\\": "\\\\",
}


def _spell_key(key: str) -> str:
    if _BARE_KEY.fullmatch(key):
        return key
    if "'" not in key and re.search(r'["\\]', key) and not _CONTROL.search(key) and "\n" not in key:
        return f"'{key}'"
    return f'"{_escape(key, _NOT_BASIC)}"'


_NOT_BASIC: Final = re.compile(r'[\x00-\x1f\x7f"\\]')
_NOT_BASIC_LINES: Final = re.compile(r'[\x00-\x09\x0b-\x1f\x7f\\]|"""')


def _escape(text: str, characters: re.Pattern[str]) -> str:
    return characters.sub(
        lambda match: _SHORT_ESCAPES.get(match[0]) or f"\\u{ord(match[0]):04X}", text
    )


def _spell_text(text: str) -> str:
    """Return a string in the simplest of TOML's four forms that can represent it."""
    control = _CONTROL.search(text) is not None
    lines = "\n" in text
    backslash = "\\" in text
    if not (control or lines or backslash or '"' in text):
        return f'"{_escape(text, _NOT_BASIC)}"'
    if not (control or lines or "'" in text):
        return f"'{text}'"
    start = "\n" if lines else ""
    if not (control or backslash or '"""' in text):
        return f'"""{start}{_escape(text, _NOT_BASIC_LINES)}"""'
    if not (control or "'''" in text):
        return f"'''{start}{text}'''"
    if lines:
        return f'"""{start}{_escape(text, _NOT_BASIC_LINES)}"""'
    return f'"{_escape(text, _NOT_BASIC)}"'
