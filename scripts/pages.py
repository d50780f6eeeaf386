"""
Makes the pages of the documentation site that come from other files: `python -m scripts.pages`.

The examples and the changelog are written once, in their usual places, and the Python API in the
docstrings. For the site they become pages in docs, with adapted links; git ignores these.
"""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["GENERATED", "changelog", "example", "main"]

ROOT = Path(__file__).parents[1]

GENERATED = ("docs/changelog.md", "docs/examples.md", "docs/reference/api.md")
"""The generated pages, as paths from the project's root."""


def changelog(text: str) -> str:
    """Return the changelog as a page: links into docs become relative to docs."""
    return re.sub(r"\]\((?:docs/)([^)]*)\)", r"](\1)", text)


def example(name: str, about: str, program: str) -> str:
    """Return one example as a section of a page: its text, then its program."""
    text = re.sub(r"^# ", "## ", about.strip())
    text = text.replace("](../../docs/", "](")
    return f"{text}\n\n`examples/{name}/main.py`:\n\n```python\n{program.strip()}\n```\n"


def main() -> None:
    """Write the pages."""
    from scripts.api_page import api_page  # only here: a check of links needs no parser

    sections = [
        example(path.parent.name, (path.parent / "README.md").read_text(), path.read_text())
        for path in sorted(ROOT.glob("examples/*/main.py"))
    ]
    head = "# Examples\n\nEach program shows one thing, asserts it, and is run by the tests.\n"
    pages = [
        changelog((ROOT / "CHANGELOG.md").read_text()),
        "\n".join([head, *sections]),
        api_page(ROOT / "src"),
    ]
    for name, text in zip(GENERATED, pages, strict=True):
        (ROOT / name).write_text(text)


if __name__ == "__main__":
    main()
