"""Pages of the site that are made from other files."""

import pytest

import holdfast
from scripts.api_page import SECTIONS, api_page
from scripts.checks.documents import ROOT, problems
from scripts.pages import changelog, example


def test_every_public_name_is_on_the_page() -> None:
    listed = [name for names in SECTIONS.values() for name in names]
    assert sorted(listed) == sorted(set(holdfast.__all__) - {"__version__", "sync"})


def test_the_page_has_signatures_docstrings_and_attributes() -> None:
    page = api_page(ROOT / "src")
    assert "### connect\n\n```python\ndef connect(" in page
    assert "#### Environment.run\n\n```python\nasync def run(" in page
    assert "- `SpawnFailed`: " in page
    assert "- `exit_code` (" in page


def test_an_example_is_its_text_and_its_program() -> None:
    made = example("hello", "# Hello\n\nSee [it](../../docs/a.md).\n", "print(1)\n")
    assert made.startswith("## Hello\n\nSee [it](a.md).\n")
    assert "`examples/hello/main.py`:\n\n```python\nprint(1)\n```" in made


def test_links_of_the_changelog_lead_to_pages() -> None:
    made = changelog("See [it](docs/a.md#one).")
    assert list(problems("docs/changelog.md", made, {"docs/a.md": {"one"}})) == []


@pytest.mark.parametrize("word", ["ssh", "Docker", "Sandbox"])
def test_the_search_finds_a_guide_before_a_section_of_the_reference(word: str) -> None:
    # It ranks by the place of a word in the title, and in the names of the navigation.
    name = word.lower()
    assert (ROOT / "docs" / "how-to" / f"{name}.md").read_text().startswith(f"# {word}")
    assert f'{{ "{word}" = "how-to/{name}.md" }}' in (ROOT / "zensical.toml").read_text()
