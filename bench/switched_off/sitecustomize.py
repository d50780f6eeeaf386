"""
Replaces parts of fast paths when their modules are imported; see `bench/fast_paths.py`.

Python imports this module at its start if its directory is in `PYTHONPATH`. A part that has no
general path in `general_paths`, or does not exist, ends the process: a run would measure nothing.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Sequence
from types import ModuleType

_parts: dict[str, list[str]] = {}
for _part in os.environ.get("HOLDFAST_BENCH_WITHOUT", "").split():
    _module, _, _name = _part.partition(":")
    _parts.setdefault(_module, []).append(_name)


class _SwitchingLoader(importlib.abc.Loader):
    def __init__(self, loader: importlib.abc.Loader) -> None:
        self._loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        from bench.switched_off.general_paths import GENERAL_PATHS

        self._loader.exec_module(module)
        for name in _parts[module.__name__]:
            owner_name, _, attribute = name.rpartition(".")
            owner = getattr(module, owner_name) if owner_name else module
            general = GENERAL_PATHS[f"{module.__name__}:{name}"]
            setattr(owner, attribute, general(getattr(owner, attribute)))


class _SwitchingFinder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in _parts:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _SwitchingLoader(spec.loader)
        return spec


if _parts:
    sys.meta_path.insert(0, _SwitchingFinder())
