"""
Parser for the front matter of a `SKILL.md` and for the `agents/openai.yaml` next to it.

Both are YAML written by people, and parsed as by the real server: scalars are literal text, and
duplicate keys are errors. Front matter that is invalid because of an unquoted `: ` or bracket is
parsed again with quotes around such values.
"""

import json
import re
from typing import NamedTuple

import yaml  # type: ignore[import-untyped]  # its types are in a separate package

from holdfast.wire.protocol.discovery import SkillDependencies, SkillPolicy, SkillTool

__all__ = ["SkillHead", "SkillTextError", "read_head", "read_metadata"]

# Most characters of names and kinds, and of all other strings.
_MAX_SHORT = 64
_MAX_LONG = 1024

_PRODUCTS = {"codex": "codex", "chatgpt": "chatgpt", "atlas": "atlas"}
_PRODUCTS |= {name.upper(): name for name in _PRODUCTS}

_BOOLEANS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False}
_BOOLEANS["FALSE"] = False
_NULLS = frozenset({"", "~", "null", "Null", "NULL"})

_MEMBER = re.compile(r"(?P<key> *[\w-]+:[ \t]+)(?P<value>\S.*)")


class SkillTextError(Exception):
    """A file cannot be used."""


class SkillHead(NamedTuple):
    """The front matter of a skill, each member on one line."""

    name: str
    description: str
    short_description: str | None


def read_head(text: str, directory_name: str) -> SkillHead:
    """
    Parse the front matter of a skill.

    Args:
        text: The content of its `SKILL.md`.
        directory_name: The default name.

    Raises:
        SkillTextError: The front matter is missing or incomplete.
    """
    lines = _head_lines(text)
    try:
        return _read_head(lines, directory_name)
    except SkillTextError:
        return _read_head(_with_quotes(lines), directory_name)


def read_metadata(text: str) -> tuple[SkillDependencies | None, SkillPolicy | None]:
    """Return the dependencies and the policy of a skill; both None if anything is invalid."""
    try:
        document = _document(text)
        members = {} if document is None else _members(document)
        # Only checked, since a malformed interface makes the whole file invalid.
        _optional_members(members.get("interface"))
        dependencies = _dependencies(members.get("dependencies"))
        return dependencies, _policy(members.get("policy"))
    except SkillTextError:
        return None, None


def _read_head(lines: list[str], directory_name: str) -> SkillHead:
    document = _document("\n".join(lines))
    if document is None:
        raise SkillTextError("it is empty")
    members = _members(document)
    metadata = members.get("metadata")
    more = {} if metadata is None or _is_nothing(metadata) else _members(metadata)
    name = _text(members.get("name")) or _one_line(directory_name) or "skill"
    description = _text(members.get("description"))
    short = _text(more.get("short-description"))
    if description is None or len(name) > _MAX_SHORT:
        raise SkillTextError("there is no description, or the name is too long")
    return SkillHead(name, description, short)


def _head_lines(text: str) -> list[str]:
    """Return the lines between the first line and the next that both are three dashes."""
    lines = text.split("\n")
    # A byte order mark also hides the front matter from the real server.
    if lines[0].strip() != "---" or lines[0].startswith("\ufeff"):
        raise SkillTextError("it does not start with front matter")
    for at, line in enumerate(lines[1:], 1):
        if line.strip() == "---":
            return [line.removesuffix("\r") for line in lines[1:at]]
    raise SkillTextError("the front matter does not end")


def _with_quotes(lines: list[str]) -> list[str]:
    """Quote values that people often forget to quote, except in block scalars."""
    quoted: list[str] = []
    block: int | None = None
    for line in lines:
        indent = len(line) - len(line.lstrip(" "))
        if block is not None and (indent > block or not line.strip()):
            quoted.append(line)
            continue
        block = None
        found = _MEMBER.fullmatch(line)
        if found is not None:
            key, value = found["key"].rstrip(), found["value"].partition(" #")[0].rstrip()
            # The lines of a block scalar are literal text.
            if value[0] in "|>":
                block = indent
            elif _lacks_quotes(value):
                value = json.dumps(value, ensure_ascii=False)
            # A single space, because our YAML parser does not accept a tab there.
            line = f"{key} {value}"
        quoted.append(line)
    return quoted


def _lacks_quotes(value: str) -> bool:
    if value[0] in "\"'":
        return False
    unclosed = value[0] in "[{" and value[-1] not in "]}"
    return ": " in value or unclosed or value[0] in "@`"


# -- openai.yaml


def _dependencies(node: yaml.Node | None) -> SkillDependencies | None:
    tools: list[SkillTool] = []
    for item in _items(_optional_members(node).get("tools")):
        members = _members(item)
        kind, value = _text(members.get("type")), _text(members.get("value"))
        description = _short(_text(members.get("description")), _MAX_LONG)
        transport = _short(_text(members.get("transport")), _MAX_SHORT)
        command = _short(_text(members.get("command")), _MAX_LONG)
        url = _short(_text(members.get("url")), _MAX_LONG)
        if _short(kind, _MAX_SHORT) is None or _short(value, _MAX_LONG) is None:
            continue
        # `_short` only returns None for None.
        assert kind is not None
        assert value is not None
        tools.append(
            SkillTool(
                type=kind,
                value=value,
                description=description,
                transport=transport,
                command=command,
                url=url,
            )
        )
    return SkillDependencies(tools=tools) if tools else None


def _policy(node: yaml.Node | None) -> SkillPolicy | None:
    if node is None or _is_null(node):
        return None
    members = _members(node)
    implicit = members.get("allow_implicit_invocation")
    allowed: bool | None = None
    if implicit is not None and not _is_null(implicit):
        if not _is_plain(implicit) or implicit.value not in _BOOLEANS:
            raise SkillTextError("neither true nor false")
        allowed = _BOOLEANS[implicit.value]
    products: list[str] = []
    for item in _items(members.get("products")):
        product = _PRODUCTS.get(_text(item) or "")
        if product is None:
            raise SkillTextError("an unknown product")
        products.append(product)
    return SkillPolicy(allow_implicit_invocation=allowed, products=tuple(products))


def _short(text: str | None, limit: int) -> str | None:
    return None if text is None or len(text) > limit else text


# -- YAML nodes; only the needed ones are converted, so that a small file cannot become huge


def _document(text: str) -> yaml.Node | None:
    try:
        # `compose` does not expand aliases, so a small file cannot become a huge value.
        return yaml.compose(text, Loader=yaml.BaseLoader)
    except (yaml.YAMLError, RecursionError) as error:
        raise SkillTextError("it is not valid YAML") from error


def _members(node: yaml.Node) -> dict[str, yaml.Node]:
    if not isinstance(node, yaml.MappingNode):
        raise SkillTextError("not a mapping")
    members: dict[str, yaml.Node] = {}
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode) or key.value in members:
            raise SkillTextError("a key is not a string, or occurs twice")
        members[key.value] = value
    return members


def _optional_members(node: yaml.Node | None) -> dict[str, yaml.Node]:
    return {} if node is None or _is_null(node) else _members(node)


def _items(node: yaml.Node | None) -> list[yaml.Node]:
    if node is None or _is_null(node):
        return []
    if not isinstance(node, yaml.SequenceNode):
        raise SkillTextError("not a list")
    items: list[yaml.Node] = node.value
    return items


def _text(node: yaml.Node | None) -> str | None:
    """Return a string on one line, or None if it is empty."""
    if node is None or _is_null(node):
        return None
    if not isinstance(node, yaml.ScalarNode):
        raise SkillTextError("not a text")
    return _one_line(node.value) or None


def _is_plain(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.style is None


def _is_null(node: yaml.Node) -> bool:
    return _is_plain(node) and node.value in _NULLS


def _is_nothing(node: yaml.Node) -> bool:
    """Return True for `metadata:` without a value; unlike elsewhere, `~` is not accepted."""
    return _is_plain(node) and not node.value


def _one_line(text: str) -> str:
    return " ".join(text.split())
