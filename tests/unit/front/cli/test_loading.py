"""The table of late imports: every entry leads to a function or class that exists."""

import ast
from importlib.util import find_spec
from pathlib import Path

import pytest

from holdfast.front.cli import loading


@pytest.mark.parametrize("name", sorted(loading._MODULES))
def test_an_entry_names_something_that_is_there(name: str) -> None:
    module = loading._MODULES[name]
    spec = find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    if module.startswith("holdfast."):
        # Not imported: all workers together would take seconds.
        tree = ast.parse(Path(spec.origin).read_text())
        defined = {node.name for node in tree.body if isinstance(node, _DEFINITIONS)}
        assert loading._RENAMED.get(name, name) in defined


def test_a_function_is_loaded_from_its_module() -> None:
    assert loading.load("parse_toml")("a = 1") == {"a": 1}


_DEFINITIONS = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
