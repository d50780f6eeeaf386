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
    ],
)
def test_a_value_that_makes_no_sense_is_named(given: dict[str, object], named: str) -> None:
    with pytest.raises(InvalidParams, match=named):
        Options(**given)  # type: ignore[arg-type]  # that is the point


def test_a_text_is_no_list_of_names() -> None:
    with pytest.raises(TypeError, match="unset"):
        Options(unset="PATH")
