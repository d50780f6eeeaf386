"""Every module says what it offers, and offers what it says."""

import importlib
import pkgutil
import subprocess
import sys
from types import ModuleType

import pytest

import holdfast
import holdfast.approvals

MODULES = sorted(
    info.name
    for info in pkgutil.walk_packages(holdfast.__path__, "holdfast.")
    if not info.name.endswith("__main__")
)


def load(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as missing:
        pytest.skip(f"{name} needs an extra: {missing}")


def is_package(module: ModuleType) -> bool:
    return hasattr(module, "__path__")


@pytest.mark.parametrize("name", MODULES)
def test_a_module_lists_its_public_names_once_and_has_them_all(name: str) -> None:
    module = load(name)
    names = getattr(module, "__all__", None)
    if names is None:
        assert is_package(module), f"{name} has no __all__"
        return
    assert len(set(names)) == len(names)
    missing = [public for public in names if not hasattr(module, public)]
    assert missing == []
    assert [public for public in names if public.startswith("_") and public != "__version__"] == []


@pytest.mark.parametrize("name", MODULES)
def test_public_names_are_sorted(name: str) -> None:
    """Constants, then classes, then the rest; each kind by the alphabet."""
    names = list(getattr(load(name), "__all__", ()))

    def kind(public: str) -> int:
        if public.isupper():
            return 0
        return 1 if public[0].isupper() else 2

    assert names == sorted(names, key=lambda public: (kind(public), public))


@pytest.mark.parametrize("name", MODULES)
def test_a_module_says_what_it_is(name: str) -> None:
    assert (load(name).__doc__ or "").strip()


@pytest.mark.parametrize("name", [*holdfast.__all__])
def test_what_the_package_offers_is_there(name: str) -> None:
    assert hasattr(holdfast, name)


@pytest.mark.parametrize("name", [*holdfast.approvals.__all__])
def test_what_approvals_offer_is_there(name: str) -> None:
    assert hasattr(holdfast.approvals, name)


def test_importing_the_package_costs_no_heavy_module() -> None:
    heavy = ("opentelemetry", "jwt", "picows", "shtab")
    assert loaded_by("import holdfast", heavy) == "[]"


def test_the_tools_are_loaded_when_they_are_first_used_and_patterns_later() -> None:
    tools = ("holdfast.unified_exec", "re2")
    assert loaded_by("import holdfast; from holdfast import sync; holdfast.connect", tools) == "[]"
    for code in ("from holdfast import UnifiedExec", "from holdfast import sync; sync.UnifiedExec"):
        assert loaded_by(code, tools) == "['holdfast.unified_exec']"


@pytest.mark.requirement("approvals.imports")
def test_approvals_and_their_extras_are_loaded_when_they_are_used() -> None:
    names = ("holdfast.approvals.options", "tree_sitter", "starlark")
    assert loaded_by("from holdfast import UnifiedExec", names) == "[]"
    used = "from holdfast.approvals import Approvals, judge; Approvals()"
    assert loaded_by(used, names) == "['holdfast.approvals.options']"


def loaded_by(code: str, names: tuple[str, ...]) -> str:
    """Return those of the modules that are loaded after some code has run, as a list."""
    code = f"{code}; import sys; print([name for name in {names!r} if name in sys.modules])"
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=10, check=True
    )
    return found.stdout.strip()
