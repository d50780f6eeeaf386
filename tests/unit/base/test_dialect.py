"""The way to the data of `codex/`: it offers what is there, and loads it late."""

import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from holdfast.base import dialect
from holdfast.codex import limits, names, texts, toml_text, versions

SOURCE = Path(dialect.__file__).parents[1]


def test_the_data_is_that_of_the_room() -> None:
    assert dialect.limits is limits
    assert dialect.names is names
    assert dialect.texts.NOT_INITIALIZED is texts.NOT_INITIALIZED
    assert dialect.versions is versions
    assert dialect.spell_value is toml_text.spell_value


def test_nothing_is_loaded_before_it_is_used() -> None:
    program = "import sys, holdfast.base.dialect; print([m for m in sys.modules if 'codex' in m])"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=5, check=True
    )
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("data", [limits, names, texts], ids=lambda data: data.__name__)
def test_everything_in_the_data_is_asked_for(data: ModuleType) -> None:
    room = Path(str(data.__file__))
    own = room.read_text()
    others = "\n".join(path.read_text() for path in SOURCE.rglob("*.py") if path != room)
    asked = set(re.findall(rf"\b{room.stem}\.(\w+)", others))
    # A name may also be a part of another one: its definition, its entry in `__all__`, its use.
    parts = {name for name in data.__all__ if len(re.findall(rf"\b{name}\b", own)) > 2}
    assert set(data.__all__) - asked - parts == set()
