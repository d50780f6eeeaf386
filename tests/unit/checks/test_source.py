"""The check of the source finds doubled names, long functions, questions and late imports."""

import ast

import pytest

from scripts.checks.source import LONGEST_FUNCTION, doubled_classes, late_imports, problems


def wrong(text: str) -> list[str]:
    return list(problems("a.py", ast.parse(text)))


def test_a_long_function_is_found() -> None:
    fits = "def f():\n" + "    pass\n" * (LONGEST_FUNCTION - 1)
    assert wrong(fits) == []
    assert wrong(fits + "    pass\n") == ["a.py:1: f has 61 lines: divide it"]


@pytest.mark.parametrize("word", ["What", "Whether", "How", "Those"])
def test_a_question_is_found(word: str) -> None:
    found = f"a.py:1: a docstring begins with a question: {word!r}"
    assert wrong(f'"""{word} it is."""') == [found]
    assert wrong(f'async def f():\n    """\n    {word} it is.\n    """') == [found]
    assert wrong(f'class A:\n    """{word}ever is a noun."""') == []


def test_a_name_of_two_classes_is_found() -> None:
    trees = {"a.py": ast.parse("class A: pass"), "b.py": ast.parse("class _A: pass\nclass B: pass")}
    assert list(doubled_classes(trees)) == ["A is the name of several classes: a.py:1, b.py:1"]


def test_an_import_in_a_function_has_its_reason_above_it() -> None:
    fine = "def f():\n    # Slow.\n    import a\n    import b\n\n    from c import d\n"
    assert list(late_imports("a.py", fine, ast.parse(fine))) == []
    bare = "def f():\n    import a\n"
    (found,) = late_imports("a.py", bare, ast.parse(bare))
    assert found.startswith("a.py:2: ")
