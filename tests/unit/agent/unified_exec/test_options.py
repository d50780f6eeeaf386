"""Options that make no sense are refused where they are made."""

import pytest

from holdfast.agent.unified_exec import Options, TruncationPolicy, UnifiedExec
from holdfast.base.errors import InvalidParams
from holdfast.testing import FakeEnvironment


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"background": "kill"}, "background"),
        ({"longest_poll": -1.0}, "longest_poll"),
        ({"longest_poll": float("nan")}, "longest_poll"),
        ({"thread_id": "me"}, "thread_id"),
        ({"unset": ["A=B"]}, "unset"),
        ({"model_policy": TruncationPolicy("words", 3)}, "model_policy"),  # type: ignore[arg-type]
        ({"model_policy": TruncationPolicy("tokens", -3)}, "model_policy"),
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
        ({"longest_poll": "5"}, "longest_poll is '5', it must be int or float"),
        ({"thread_id": 5}, "thread_id is 5, it must be str or None"),
    ],
)
def test_a_value_of_a_wrong_type_is_named(given: dict[str, object], said: str) -> None:
    with pytest.raises(TypeError, match=said):
        Options(**given)  # type: ignore[arg-type]  # that is the point


def test_a_text_is_no_list_of_names() -> None:
    with pytest.raises(TypeError, match="unset"):
        Options(unset="PATH")


async def test_options_and_hooks_of_a_wrong_type_are_named() -> None:
    environment = FakeEnvironment()
    with pytest.raises(TypeError, match=r"options is {'extras': True}, it must be Options"):
        UnifiedExec(environment, options={"extras": True})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"hooks is 5, it must be Hooks"):
        UnifiedExec(environment, hooks=5)  # type: ignore[arg-type]
