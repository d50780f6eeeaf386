"""The head of a `SKILL.md` and the metadata beside it, as the real server was seen to read them."""

import pytest

from holdfast.codex.discovery.skill_text import SkillTextError, read_head, read_metadata
from holdfast.wire.protocol.discovery import SkillDependencies, SkillPolicy, SkillTool


def head(*lines: str) -> str:
    return "\n".join(["---", *lines, "---", "body"])


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["name: s", "description: d"], ("s", "d", None)),
        (["description: d"], ("folder name", "d", None)),
        (["name: ''", "description: d"], ("folder name", "d", None)),
        (["name: 123", "description: 4.50"], ("123", "4.50", None)),
        (["name: yes", "description: true"], ("yes", "true", None)),
        (["name: '  a   b '", 'description: "d \\n e"'], ("a b", "d e", None)),
        (["name: s", "description: |", "  one", "  two"], ("s", "one two", None)),
        (["name: s", "description: >-", "  a: b", "x: c: d"], ("s", "a: b", None)),
        (["name: s", "description: a # b"], ("s", "a", None)),
        (["name:\ts", "description: d"], ("s", "d", None)),
        (["name: s", "description: d", "more: {a: [1]}"], ("s", "d", None)),
        (["name: s", "description: d", "metadata:"], ("s", "d", None)),
        (
            ["name: s", "description: d", "metadata:", "  short-description: a  b"],
            ("s", "d", "a b"),
        ),
        (["name: s", "description: d", "short-description: top"], ("s", "d", None)),
        (["name: s", "description: !x 5"], ("s", "5", None)),
        (["name: s\r", "description: d\r"], ("s", "d", None)),
        # Forgotten quotes.
        (["name: s", "description: Use when: a: b"], ("s", "Use when: a: b", None)),
        (["name: s", "description: a: b # c"], ("s", "a: b", None)),
        (["name: a: b", "description: d"], ("a: b", "d", None)),
        (["name: s", "description: ["], ("s", "[", None)),
        (["name: s", "description: {a: 1}"], ("s", "{a: 1}", None)),
        (["name: s", "description: @x"], ("s", "@x", None)),
        (["name: s", "description: `x` y"], ("s", "`x` y", None)),
        (["name: s", "description: d", "other: ["], ("s", "d", None)),
        (
            ["name: s", "description: |", "  k: v: w", "", "  [", "o: a: b"],
            ("s", "k: v: w [", None),
        ),
    ],
)
def test_a_head_is_read(lines: list[str], expected: tuple[str, str, str | None]) -> None:
    assert read_head(head(*lines), "folder  name") == expected


def test_a_folder_without_a_name_gives_a_plain_one() -> None:
    assert read_head(head("description: d"), " ").name == "skill"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no head",
        "---\nname: s\ndescription: d\n",
        "\n---\nname: s\ndescription: d\n---\n",
        "\ufeff---\nname: s\ndescription: d\n---\n",
        "---\n---\n",
        head("name: s"),
        head("name: s", "description: ''"),
        head("name: s", "description: ~"),
        head("name: s", "description: [a, b]"),
        head("name: s", "name: t", "description: d"),
        head("name: s", "description: d", "metadata: 3"),
        head("name: s", "description: d", "metadata: ~"),
        head(f"name: {'n' * 65}", "description: d"),
        head("name: s", "description: *x"),
        head("name: s", "description: %x"),
        head("name: s", "description: 'a' b"),
        head("name: s", 'description: "a: b" c: d'),
        head("name: s", "description: d", "  more: words"),
        head("- a"),
        head("[a]: b", "description: d"),
    ],
)
def test_a_head_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(SkillTextError):
        read_head(text, "folder")


def test_an_endless_reference_is_no_trouble() -> None:
    bombs = [f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 9)}]" for n in range(1, 30)]
    text = head("l0: &l0 [x]", *bombs, "name: s", "description: d")
    assert read_head(text, "folder").description == "d"


TOOL = SkillTool(type="mcp", value="v")


@pytest.mark.parametrize(
    ("text", "dependencies", "policy"),
    [
        ("", None, None),
        ("interface:\n  display_name: x\n", None, None),
        ("policy: {}\ndependencies: {}\n", None, SkillPolicy()),
        (
            "policy:\n  allow_implicit_invocation: False\n",
            None,
            SkillPolicy(allow_implicit_invocation=False),
        ),
        (
            "policy:\n  allow_implicit_invocation: null\n  products: [codex, CHATGPT]\n",
            None,
            SkillPolicy(products=("codex", "chatgpt")),
        ),
        (
            "dependencies:\n  tools:\n    - {type: mcp, value: v}\n    - {type: mcp}\n",
            SkillDependencies(tools=[TOOL]),
            None,
        ),
        (
            "dependencies:\n  tools:\n    - type: ' a  b '\n      value: v\n      transport: 3\n"
            f"      command: {'c' * 1025}\n      description: ''\n",
            SkillDependencies(tools=[SkillTool(type="a b", value="v", transport="3")]),
            None,
        ),
        (f"dependencies:\n  tools:\n    - {{type: mcp, value: {'v' * 1025}}}\n", None, None),
    ],
)
def test_metadata_is_read(
    text: str, dependencies: SkillDependencies | None, policy: SkillPolicy | None
) -> None:
    assert read_metadata(text) == (dependencies, policy)


@pytest.mark.parametrize(
    "wrong",
    [
        "not: [valid",
        "- a",
        "dependencies: 5",
        "dependencies: {tools: 5}",
        "dependencies: {tools: [a]}",
        "interface: 5",
        "policy: {allow_implicit_invocation: yes}",
        "policy: {allow_implicit_invocation: 'false'}",
        "policy: {products: [nonsense]}",
        "policy: {products: codex}",
        "policy: {allow_implicit_invocation: true, allow_implicit_invocation: true}",
    ],
)
def test_one_fault_in_the_metadata_spoils_all_of_it(wrong: str) -> None:
    good = "policy: {allow_implicit_invocation: true}\n"
    text = wrong + "\n" + ("" if wrong.startswith(("policy", "-", "not")) else good)
    assert read_metadata(text) == (None, None)
