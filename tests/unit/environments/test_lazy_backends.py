"""The seams pass on what they are given, all of it and unchanged."""

import inspect
from typing import Any, cast

import pytest

from holdfast.backends import FileSystem
from holdfast.environments.lazy_backends import SharedFileSystem
from holdfast.environments.lazy_client import SharedClient

METHODS = [name for name in vars(FileSystem) if not name.startswith("_")]


class Recorded:
    """In place of a client and of its files: remembers how it was called."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, object]]] = []
        self.result = object()

    @property
    def files(self) -> "Recorded":
        return self

    async def get(self) -> "Recorded":
        return self

    def __getattr__(self, name: str) -> Any:
        signature = inspect.signature(getattr(FileSystem, name))

        async def method(*args: object, **options: object) -> object:
            bound = signature.bind(self, *args, **options)
            bound.apply_defaults()
            del bound.arguments["self"]
            self.calls.append((name, dict(bound.arguments)))
            return self.result

        return method


@pytest.fixture
def recorded() -> Recorded:
    return Recorded()


@pytest.fixture
def files(recorded: Recorded) -> SharedFileSystem:
    return SharedFileSystem(cast(SharedClient, recorded))


@pytest.mark.parametrize("name", METHODS)
async def test_every_argument_is_passed_on(
    name: str, recorded: Recorded, files: SharedFileSystem
) -> None:
    parameters = list(inspect.signature(getattr(FileSystem, name)).parameters.values())[1:]
    given = {parameter.name: object() for parameter in parameters}
    positional = [given[p.name] for p in parameters if p.kind is not p.KEYWORD_ONLY]
    options = {p.name: given[p.name] for p in parameters if p.kind is p.KEYWORD_ONLY}
    result = await getattr(files, name)(*positional, **options)
    assert recorded.calls == [(name, given)]
    if str(inspect.signature(getattr(FileSystem, name)).return_annotation) != "None":
        assert result is recorded.result


@pytest.mark.parametrize("name", METHODS)
def test_what_is_not_given_is_what_the_seam_says(name: str) -> None:
    ours = inspect.signature(getattr(SharedFileSystem, name))
    theirs = inspect.signature(getattr(FileSystem, name))
    assert [(p.name, p.kind, p.default) for p in ours.parameters.values()] == [
        (p.name, p.kind, p.default) for p in theirs.parameters.values()
    ]
