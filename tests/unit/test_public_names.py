"""Every module says what it offers, and offers what it says."""

import ast
import importlib
import pkgutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import ModuleType

import pytest

import holdfast
import holdfast.agent.approvals

NAMES = sorted(
    info.name
    for info in pkgutil.walk_packages(holdfast.__path__, "holdfast.")
    if not info.name.endswith("__main__")
)


@pytest.fixture(scope="module")
def modules() -> dict[str, ModuleType]:
    """Every module by its name, but for those that need an extra which is not installed."""
    found = {}
    for name in NAMES:
        with suppress(ImportError):
            found[name] = importlib.import_module(name)
    return found


def test_all_modules_can_be_imported_where_every_extra_is_installed(
    modules: dict[str, ModuleType],
) -> None:
    assert set(NAMES) == set(modules)


def test_a_module_lists_its_public_names_once_and_has_them_all(
    modules: dict[str, ModuleType],
) -> None:
    for name, module in modules.items():
        names = getattr(module, "__all__", None)
        if names is None:
            assert hasattr(module, "__path__"), f"{name} has no __all__"
            continue
        assert len(set(names)) == len(names), name
        assert [public for public in names if not hasattr(module, public)] == [], name
        hidden = [one for one in names if one.startswith("_") and one != "__version__"]
        assert hidden == [], name


def test_public_names_are_sorted(modules: dict[str, ModuleType]) -> None:
    """Constants, then classes, then the rest; each kind by the alphabet."""

    def kind(public: str) -> int:
        if public.isupper():
            return 0
        return 1 if public[0].isupper() else 2

    for name, module in modules.items():
        names = list(getattr(module, "__all__", ()))
        assert names == sorted(names, key=lambda public: (kind(public), public)), name


def test_a_module_says_what_it_is(modules: dict[str, ModuleType]) -> None:
    assert [name for name, module in modules.items() if not (module.__doc__ or "").strip()] == []


def test_what_the_package_offers_is_there() -> None:
    assert [name for name in holdfast.__all__ if not hasattr(holdfast, name)] == []


def test_what_type_checkers_see_is_what_the_package_loads() -> None:
    tree = ast.parse(Path(holdfast.__file__).read_text())
    (checked,) = [node for node in tree.body if isinstance(node, ast.If)]
    imports = [node for node in checked.body if isinstance(node, ast.ImportFrom)]
    homes = {alias.name: node.module for node in imports for alias in node.names}
    assert homes.pop("sync") == "holdfast.front"  # a module, which is loaded by its name
    loaded = {name: home for home, names in holdfast._HOMES.items() for name in names}
    assert homes == loaded
    assert {*homes, "sync", "__version__"} == set(holdfast.__all__)


def test_what_approvals_offer_is_there() -> None:
    assert [
        name
        for name in holdfast.agent.approvals.__all__
        if not hasattr(holdfast.agent.approvals, name)
    ] == []


def test_importing_the_package_costs_no_heavy_module() -> None:
    heavy = ("opentelemetry", "jwt", "picows", "shtab")
    assert loaded_by("import holdfast", heavy) == "[]"


def test_the_tools_are_loaded_when_they_are_first_used_and_patterns_later() -> None:
    tools = ("holdfast.agent.unified_exec", "re2")
    assert loaded_by("import holdfast; from holdfast import sync; holdfast.connect", tools) == "[]"
    for code in ("from holdfast import UnifiedExec", "from holdfast import sync; sync.UnifiedExec"):
        assert loaded_by(code, tools) == "['holdfast.agent.unified_exec']"


@pytest.mark.requirement("approvals.imports")
def test_approvals_and_their_extras_are_loaded_when_they_are_used() -> None:
    names = ("holdfast.agent.approvals.approval_options", "tree_sitter", "starlark")
    assert loaded_by("from holdfast import UnifiedExec", names) == "[]"
    used = "from holdfast.agent.approvals import Approvals, judge; Approvals()"
    assert loaded_by(used, names) == "['holdfast.agent.approvals.approval_options']"


def loaded_by(code: str, names: tuple[str, ...]) -> str:
    """Return those of the modules that are loaded after some code has run, as a list."""
    code = f"{code}; import sys; print([name for name in {names!r} if name in sys.modules])"
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=10, check=True
    )
    return found.stdout.strip()
