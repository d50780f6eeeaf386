"""Runs the tests of the real Codex with every version that is here."""

import pytest

from tests.real.versions import VERSIONS


@pytest.fixture(scope="module", autouse=True)
def codex_version(request: pytest.FixtureRequest) -> str | None:
    """The version of a test, which what is made for the whole module depends on."""
    version: str | None = getattr(request, "param", None)
    return version


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    mine = metafunc.definition.iter_markers("parametrize")
    if any(mark.args[0] == "codex_version" for mark in mine):
        return  # the test says by itself which versions it is about
    if len(VERSIONS) > 1 and metafunc.definition.get_closest_marker("real") is not None:
        metafunc.parametrize("codex_version", VERSIONS, indirect=True, scope="module")
