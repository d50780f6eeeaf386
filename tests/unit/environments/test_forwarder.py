"""The backends of a client that connects on first use pass on what they are given."""

import inspect
from typing import Any

import pytest

from holdfast.backends import ExecBackend, FileSystem, HttpClient
from holdfast.client.client import ExecServerClient
from holdfast.client.target import MemoryTarget
from holdfast.environments.lazy_client import SharedClient

METHODS = [
    (seam, name)
    for seam in (ExecBackend, FileSystem, HttpClient)
    for name in vars(seam)
    if not name.startswith("_")
]

MEMBERS = {"ExecBackend": "backend", "FileSystem": "files", "HttpClient": "http"}


class Recorded:
    """In place of a client and of its members: remembers how it was called."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[object, ...], dict[str, object]]] = []
        self.result = object()
        self.files = self.http = self

    def __getattr__(self, name: str) -> Any:
        async def method(*args: object, **options: object) -> object:
            self.calls.append((name, args, options))
            return self.result

        return method


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Recorded:
    recorded = Recorded()

    async def connect(*args: object, **options: object) -> Recorded:
        return recorded

    monkeypatch.setattr(ExecServerClient, "connect", connect)
    return recorded


@pytest.fixture
async def shared() -> SharedClient:
    def serve(transport: object) -> Any:
        raise AssertionError("nothing is connected here")

    return SharedClient("box", MemoryTarget(serve), client_name="test", initialize_timeout=1.0)


@pytest.mark.parametrize(("seam", "name"), METHODS)
async def test_every_argument_is_passed_on(
    seam: type, name: str, recorded: Recorded, shared: SharedClient
) -> None:
    backend = getattr(shared, MEMBERS[seam.__name__])
    parameters = list(inspect.signature(getattr(seam, name)).parameters.values())[1:]
    positional = tuple(object() for p in parameters if p.kind is not p.KEYWORD_ONLY)
    options = {p.name: object() for p in parameters if p.kind is p.KEYWORD_ONLY}
    result = await getattr(backend, name)(*positional, **options)
    assert recorded.calls == [(name, positional, options)]
    assert result is recorded.result


@pytest.mark.parametrize("name", ["recall_file", "_call_back", "environment"])
async def test_names_outside_of_the_seam_are_not_passed_on(name: str, shared: SharedClient) -> None:
    with pytest.raises(AttributeError, match=f"FileSystem has no `{name}`"):
        getattr(shared.files, name)


@pytest.mark.parametrize("seam", [ExecBackend, FileSystem, HttpClient])
def test_all_methods_of_a_seam_are_asynchronous(seam: type) -> None:
    """`SharedClient` passes on calls of such methods only."""
    members = [vars(seam)[name] for name in vars(seam) if not name.startswith("_")]
    assert all(inspect.iscoroutinefunction(member) for member in members)
