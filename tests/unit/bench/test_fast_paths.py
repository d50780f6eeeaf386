"""Fast paths: each can be switched off, and its code says how."""

import importlib
import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.fast_paths import FAST_PATHS, FastPath
from bench.measures import ALL
from bench.switched_off.general_paths import GENERAL_PATHS

_ROOT = Path(__file__).parents[3]

_CASES = [pytest.param(name, path, id=name) for name, path in FAST_PATHS.items()]


@pytest.mark.parametrize(("name", "path"), _CASES)
def test_a_fast_path_has_a_benchmark_and_is_named_where_it_is(name: str, path: FastPath) -> None:
    assert path.benchmark in {benchmark.name for benchmark in ALL}
    sources = ""
    for part in path.parts:
        assert part in GENERAL_PATHS
        module, _, attribute = part.partition(":")
        owner: object = importlib.import_module(module)
        for step in attribute.split("."):
            owner = getattr(owner, step)
        sources += inspect.getsource(importlib.import_module(module))
        if inspect.isroutine(owner) or inspect.isclass(owner):
            sources += inspect.getsource(importlib.import_module(owner.__module__))
    assert f"`scripts/bench --without {name}`" in " ".join(sources.split()).replace(" # ", " ")


def test_no_general_path_is_left_over() -> None:
    assert set(GENERAL_PATHS) == {part for path in FAST_PATHS.values() for part in path.parts}


def test_a_part_is_replaced_in_a_process_that_inherits_the_switch() -> None:
    shown = subprocess.run(
        [
            sys.executable,
            "-c",
            "from holdfast.engine.files.local_files import cached_metadata as f; print(f('/'))",
        ],
        env={
            **os.environ,
            "PYTHONPATH": f"{_ROOT / 'bench' / 'switched_off'}{os.pathsep}{_ROOT}",
            "HOLDFAST_BENCH_WITHOUT": "holdfast.engine.files.local_files:cached_metadata",
        },
        capture_output=True,
        check=True,
        text=True,
    )
    assert shown.stdout == "None\n"
