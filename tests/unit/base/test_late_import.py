"""A late module is imported by its first use, and by nothing else."""

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from holdfast.base import late_import
from holdfast.base.late_import import (
    distrust,
    drop_script_entry,
    late_module,
    late_names,
    load,
)


def test_the_first_name_that_is_read_imports_the_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    late = late_module("colorsys")
    assert "colorsys" not in sys.modules
    assert late.rgb_to_hsv(0, 0, 1) == (2 / 3, 1, 1)  # type: ignore[attr-defined]
    assert "colorsys" in sys.modules


def test_a_module_that_is_not_there_is_told_at_its_first_use() -> None:
    late = late_module("holdfast.no_such_module")
    with pytest.raises(ImportError, match="no_such_module"):
        _ = late.anything  # type: ignore[attr-defined]


def test_a_module_that_is_taken_away_is_missed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    late = late_module("colorsys")
    _ = late.rgb_to_hsv  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "colorsys", None)
    with pytest.raises(ImportError, match="colorsys"):
        _ = late.rgb_to_hsv  # type: ignore[attr-defined]


def test_one_name_of_a_module_is_loaded_by_its_path() -> None:
    assert load("colorsys:rgb_to_hsv")(0, 0, 1) == (2 / 3, 1, 1)
    with pytest.raises(ImportError, match="no_such_module"):
        load("holdfast.no_such_module:name")


def test_a_package_loads_its_names_when_they_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    package: dict[str, object] = {"__name__": "a_package"}
    get = late_names(package, {"whole": "colorsys", "part": "colorsys:rgb_to_hsv"})
    assert "colorsys" not in sys.modules
    assert get("part") is package["part"] is sys.modules["colorsys"].rgb_to_hsv
    assert get("whole") is package["whole"] is sys.modules["colorsys"]
    with pytest.raises(AttributeError, match="module 'a_package' has no attribute 'lost'"):
        get("lost")


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A distrusted directory, first on `sys.path`, with modules that somebody wrote."""
    for name in ("colorsys", "an_extra"):
        (tmp_path / f"{name}.py").write_text("planted = True")
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(sys, "path", [f"{tmp_path}/", *sys.path])
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(late_import, "_finder", None)
    distrust([str(tmp_path)])
    yield tmp_path
    for name in ("colorsys", "an_extra"):
        sys.modules.pop(name, None)


@pytest.mark.requirement("security.own.imports")
@pytest.mark.usefixtures("planted")
def test_a_trusted_directory_comes_before_one_that_commands_may_write() -> None:
    assert not hasattr(import_module("colorsys"), "planted")
    # A program may still have modules of its own there.
    assert import_module("an_extra").planted


@pytest.mark.requirement("security.own.imports")
@pytest.mark.usefixtures("planted")
def test_holdfast_itself_imports_nothing_that_commands_may_write(planted: Path) -> None:
    late = late_module("an_extra")
    with pytest.raises(ModuleNotFoundError, match="an_extra"):
        _ = late.planted  # type: ignore[attr-defined]
    # Nor what such a module imports in turn, in a trusted place.
    trusted = planted / "trusted"
    trusted.mkdir()
    (trusted / "outer.py").write_text("import an_extra")
    sys.path.append(str(trusted))
    with pytest.raises(ModuleNotFoundError, match="an_extra"):
        _ = late_module("outer").an_extra  # type: ignore[attr-defined]
    assert import_module("an_extra").planted


def test_packages_in_parts_are_imported_all_the_same(planted: Path) -> None:
    trusted = planted / "trusted"
    for number, base in enumerate((planted, trusted)):
        (base / "parts").mkdir(parents=True)
        (base / "parts" / f"part{number}.py").touch()
    sys.path.append(str(trusted))
    try:
        for number in range(2):
            import_module(f"parts.part{number}")
    finally:
        for name in ("parts", "parts.part0", "parts.part1"):
            sys.modules.pop(name, None)


@pytest.mark.requirement("security.own.imports")
def test_the_directory_of_a_script_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/opt/bin/holdfast"])
    for first in ("", "/opt/bin", str(Path.cwd())):
        monkeypatch.setattr(sys, "path", [first, "/usr/lib"])
        drop_script_entry()
        assert sys.path == ["/usr/lib"]


def test_other_first_directories_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    own = str(Path(late_import.__file__).parents[2])
    monkeypatch.chdir(own)  # a checkout that is run from where it is
    for first in (own, "/opt/packages"):
        monkeypatch.setattr(sys, "path", [first, "/usr/lib"])
        drop_script_entry()
        assert sys.path == [first, "/usr/lib"]
