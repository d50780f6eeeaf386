"""Options that make no sense are refused where they are made."""

import pytest

from holdfast.errors import InvalidParams
from holdfast.unified_exec import Options


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"background": "kill"}, "background"),
        ({"longest_poll": -1.0}, "longest_poll"),
        ({"longest_poll": float("nan")}, "longest_poll"),
        ({"thread_id": "me"}, "thread_id"),
        ({"unset": ["A=B"]}, "unset"),
        ({"sandbox": "nope"}, "unknown sandbox profile `nope`"),
        ({"sandbox": "./no-such-file.toml"}, "no-such-file.toml"),
    ],
)
def test_a_value_that_makes_no_sense_is_named(given: dict[str, object], named: str) -> None:
    with pytest.raises(InvalidParams, match=named):
        Options(**given)  # type: ignore[arg-type]  # that is the point


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"limits": 3}, "limits is 3, it must be Limits or None"),
        ({"model_policy": 10_000}, "model_policy is 10000, it must be TruncationPolicy"),
        ({"extras": "yes"}, "extras is 'yes', it must be bool"),
        ({"allow_login_shell": None}, "allow_login_shell is None, it must be bool"),
    ],
)
def test_a_value_of_a_wrong_type_is_named(given: dict[str, object], said: str) -> None:
    with pytest.raises(TypeError, match=said):
        Options(**given)  # type: ignore[arg-type]  # that is the point


def test_a_text_is_no_list_of_names() -> None:
    with pytest.raises(TypeError, match="unset"):
        Options(unset="PATH")
