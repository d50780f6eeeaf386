"""Choice of the version of a plugin."""

import pytest

from holdfast.codex.discovery.versions import active_version, is_marketplace_name, is_plugin_name


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ([], None),
        (["a b", "é", ".."], None),
        (["1.9.0", "1.10.0"], "1.10.0"),
        (["1.10.0-beta", "1.10.0"], "1.10.0"),
        (["1.0.0-alpha.2", "1.0.0-alpha.10"], "1.0.0-alpha.10"),
        (["1.0.0-alpha", "1.0.0-1"], "1.0.0-alpha"),
        (["1.0.0+7", "1.0.0+8"], "1.0.0+8"),
        (["9.0.0", "local"], "local"),
        (["abc", "abd"], "abd"),
        (["1.10.0", "abc"], "abc"),
        (["1.0", "2"], "2"),
    ],
)
def test_the_newest_version_is_in_use(names: list[str], expected: str | None) -> None:
    assert active_version(names) == expected
    assert active_version(reversed(names)) == expected


def test_names_of_plugins_may_have_dots_and_those_of_marketplaces_may_not() -> None:
    assert is_plugin_name("a.b_c-D9")
    assert not is_plugin_name("..")
    assert not is_plugin_name("a b")
    assert is_marketplace_name("a_b-C9")
    assert not is_marketplace_name("a.b")
