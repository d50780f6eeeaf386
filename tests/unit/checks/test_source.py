"""The check of the source finds what makes it hard to read, and nothing else."""

import ast

import pytest

from scripts.checks.source import (
    CODEX_OUTSIDE,
    LONGEST_FUNCTION,
    LONGEST_MODULE,
    broken_names,
    codex_outside,
    codex_versions,
    doubled_classes,
    engines_in_the_server,
    late_imports,
    long_modules,
    problems,
    too_few_comments,
    unused_modules,
)


def wrong(text: str) -> list[str]:
    return list(problems("a.py", ast.parse(text)))


def test_a_long_function_is_found() -> None:
    fits = "def f():\n" + "    pass\n" * (LONGEST_FUNCTION - 1)
    assert wrong(fits) == []
    assert wrong(fits + "    pass\n") == ["a.py:1: f has 61 lines: divide it"]


@pytest.mark.parametrize("word", ["What", "Whether", "How", "Those"])
def test_a_question_is_found(word: str) -> None:
    found = f"a docstring begins with a question: {word!r}"
    assert wrong(f'"""{word} it is."""') == [f"a.py:1: {found}"]
    assert wrong(f'async def f():\n    """\n    {word} it is.\n    """') == [f"a.py:2: {found}"]
    assert wrong(f'LIMIT = 3\n"""{word} it is."""') == [f"a.py:2: {found}"]
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


def test_a_long_module_is_found() -> None:
    texts = {"a.py": "x\n" * LONGEST_MODULE, "b.py": "x\n" * (LONGEST_MODULE + 1)}
    assert list(long_modules(texts)) == ["b.py: 621 lines: look for the second idea inside"]


def test_a_module_that_nothing_imports_is_found() -> None:
    sources = {
        "src/holdfast/__init__.py": "",
        "src/holdfast/__main__.py": "import holdfast.a",
        "src/holdfast/a.py": "from holdfast import b\nfrom holdfast.c.d import e",
        "src/holdfast/b.py": "",
        "src/holdfast/c/__init__.py": "",
        "src/holdfast/c/d.py": "",
        "src/holdfast/c/alone.py": "",
    }
    trees = {path: ast.parse(text) for path, text in sources.items()}
    assert list(unused_modules(trees)) == ["src/holdfast/c/alone.py: nothing imports it"]


def test_too_few_comments_are_found_in_all_and_by_folder() -> None:
    code, why = "x = 1\n", "# Why.\n"
    texts = {
        "src/holdfast/engine/process/a.py": code * 92 + "\n" * 50 + why * 8,
        "src/holdfast/engine/sandbox/a.py": code * 93 + why * 7,
        "src/holdfast/client/a.py": code * 90
        + why * 7
        + "# -- a heading\n" * 2
        + "x = 2  # this\n",
        "src/holdfast/base/errors.py": code * 20,
    }
    assert list(too_few_comments(texts)) == [
        "src/holdfast/engine/sandbox: 7.00 % comments, fewer than 7.5 %: say why",
        "src/holdfast/client: 7.00 % comments, fewer than 7.5 %: say why",
    ]
    texts["src/holdfast/base/errors.py"] = code * 300
    assert next(too_few_comments(texts)).startswith(
        "src/holdfast/: 3.67 % comments, fewer than 5 %"
    )


def test_a_name_that_does_not_exist_is_found() -> None:
    texts = {
        "src/holdfast/a/__init__.py": "from holdfast.b import made\n",
        "src/holdfast/b.py": "def made(): ...\nKEPT = 1\nfirst: int = 2\n",
        "src/holdfast/c.py": "x = ['holdfast.a:made', 'holdfast.b:KEPT', 'holdfast.b:first']\n"
        "y = 'holdfast.b:lost'\nz = 'holdfast.d:made'\n",
    }
    trees = {path: ast.parse(text) for path, text in texts.items()}
    assert list(broken_names(trees)) == [
        "src/holdfast/c.py:2: holdfast.b:lost does not exist",
        "src/holdfast/c.py:3: holdfast.d:made does not exist",
    ]


def test_an_engine_of_this_machine_is_found_in_the_server() -> None:
    text = "from x import LocalFileSystem\nLocalFileSystems = 1\n"
    paths = ("server/app.py", "server/local_engines.py", "client/a.py")
    found = engines_in_the_server({f"src/holdfast/{path}": text for path in paths})
    assert [each.partition(": ")[0] for each in found] == ["src/holdfast/server/app.py:1"]


def test_modules_that_mention_codex_outside_its_room_are_counted() -> None:
    few = {f"src/holdfast/wire/{n}.py": "# As Codex does.\n" for n in range(CODEX_OUTSIDE)}
    inside = {"src/holdfast/codex/a.py": "# As Codex does.\n"}
    other = {"src/holdfast/wire/b.py": 'NAME = "CODEX_HOME"\n# An original file.\n'}
    assert list(codex_outside({**few, **inside, **other})) == []
    for mention in ("# The real server.", "# As in the original.", 'HOME = ".codex"'):
        more = {"src/holdfast/wire/c.py": f"\n{mention}\n"}
        first, *places = codex_outside({**few, **inside, **other, **more})
        assert first.startswith("11 modules outside codex/ mention Codex, more than 10: ")
        assert places[-1] == "src/holdfast/wire/c.py:2: mentions Codex"


def test_a_version_of_codex_is_in_one_module() -> None:
    version = 'FOLLOWED = "0.169.0"\n'
    assert list(codex_versions({"src/holdfast/codex/versions.py": version})) == []
    for path in ("src/holdfast/codex/limits.py", "src/holdfast/wire/a.py"):
        (found,) = codex_versions({path: "\n" + version})
        assert found == f"{path}:2: a version of Codex; it is in codex/versions.py"
