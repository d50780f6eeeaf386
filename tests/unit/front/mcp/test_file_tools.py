"""Pages of a file: lines as editors count them, and a bound."""

import pytest

from holdfast.front.mcp.file_tools import PAGE, ReadFileArguments, _page


def page(text: str, offset: int = 1, limit: int | None = None) -> dict[str, object]:
    return _page(text, ReadFileArguments(path="a", offset=offset, limit=limit))


@pytest.mark.parametrize("text", ["", "a", "a\n", "a\nb", "\n", "\n\n", "a\x0c\u2028b\r\nc\n"])
def test_all_of_a_file_is_what_it_has(text: str) -> None:
    found = page(text)
    assert found["content"] == text
    assert found["total_lines"] == text.count("\n") + (not text.endswith("\n") and text != "")
    assert "next_line" not in found


def test_a_part_says_where_to_go_on() -> None:
    text = "a\nb\nc"
    assert page(text, 2, 1) == {"content": "b\n", "total_lines": 3, "next_line": 3}
    assert page(text, 3, 1) == {"content": "c", "total_lines": 3}
    assert page(text, 4) == {"content": "", "total_lines": 3}


def test_an_answer_is_bounded() -> None:
    text = "".join(f"{number:099}\n" for number in range(2_000))
    found = page(text)
    assert found["next_line"] == 1_001
    assert found["content"] == text[:PAGE]
    long = "x" * (PAGE + 1) + "\nb\n"
    assert page(long) == {
        "content": "x" * PAGE,
        "total_lines": 2,
        "line_cut": True,
        "next_line": 2,
    }
