"""Rules files: what they may contain, their errors, and that nothing in one takes long."""

import os
from pathlib import Path

import pytest

from holdfast.agent.approvals import starlark
from holdfast.agent.approvals.evaluator import split_words
from holdfast.agent.approvals.rules import BrokenFile, NetworkRule, PrefixRule, RuleSet, Ruling
from holdfast.agent.approvals.shell_words import join_words
from holdfast.agent.approvals.starlark import RulesFile, load_files

WRONG_ELEMENT = "pattern element must be a string or list of strings"

ERRORS = {
    "prefix_rule(pattern=[])": "invalid pattern element: pattern cannot be empty",
    "prefix_rule(['a', []])": "invalid pattern element: pattern alternatives cannot be empty",
    "prefix_rule(['a', 3])": f"invalid pattern element: {WRONG_ELEMENT} (got int)",
    "prefix_rule(['a', ('b',)])": f"invalid pattern element: {WRONG_ELEMENT} (got tuple)",
    "prefix_rule(['a', [['b']]])": (
        "invalid pattern element: pattern alternative must be a string (got list)"
    ),
    "prefix_rule(('a',))": (
        'Type of parameter `pattern` doesn\'t match, expected `list`, actual `tuple (repr: ("a",))`'
    ),
    "prefix_rule(['a'] , 'deny')": "invalid decision: deny",
    "prefix_rule(['a'], justification=' ')": "invalid rule: justification cannot be empty",
    "prefix_rule()": "Missing parameter `pattern` for call to `prefix_rule`",
    "prefix_rule(['a'], a=1, b=2)": (
        "Found `a` `b` extra named parameter(s) for call to prefix_rule"
    ),
    "prefix_rule(['a'], 'allow', [], [], 'x', 1)": (
        "Found 1 extra positional argument(s) for call to prefix_rule"
    ),
    "prefix_rule(['a'], pattern=['a'])": "Argument `pattern` occurs more than once",
    "prefix_rule(['a'], match=[3])": (
        "invalid example: example must be a string or list of strings (got int)"
    ),
    "prefix_rule(['a'], match=[[3]])": (
        "invalid example: example tokens must be strings (got int)"
    ),
    "prefix_rule(['a'], match=[' # x'])": "invalid example: example cannot be an empty string",
    "prefix_rule(['a'], match=[[]])": "invalid example: example cannot be an empty list",
    "prefix_rule(['a'], match=['\"'])": (
        "invalid example: example string has invalid shell syntax"
    ),
    "prefix_rule(['a'], sandbox='off')": ('invalid sandbox: off (expected "default" or "none")'),
    "prefix_rule(['a'], 'prompt', sandbox='none')": (
        'invalid rule: sandbox="none" is for decision="allow", not prompt'
    ),
    "host_executable('', [])": "invalid rule: host_executable name cannot be empty",
    "host_executable('a/b', [])": (
        "invalid rule: host_executable name must be a bare executable name (got a/b)"
    ),
    "host_executable('git', ['git'])": (
        "invalid rule: host_executable paths must be absolute (got git)"
    ),
    "host_executable('git', ['/bin/ls'])": (
        "invalid rule: host_executable path `/bin/ls` must have basename `git`"
    ),
    "host_executable('git', [1])": "invalid rule: host_executable paths must be strings (got int)",
    "network_rule('*.com', 'http', 'allow')": (
        "invalid rule: network_rule host must be a specific host; wildcards are not allowed"
    ),
    "network_rule('http://a', 'http', 'allow')": (
        "invalid rule: network_rule host must be a hostname or IP literal (without scheme or path)"
    ),
    "network_rule('a', 'tcp', 'allow')": (
        "invalid rule: network_rule protocol must be one of http, https, socks5_tcp, "
        "socks5_udp (got tcp)"
    ),
    "network_rule('[::1', 'http', 'allow')": (
        "invalid rule: network_rule host has an invalid bracketed IPv6 literal"
    ),
    "network_rule('[::1]x', 'http', 'allow')": (
        "invalid rule: network_rule host contains an unsupported suffix: [::1]x"
    ),
    "network_rule('a b', 'http', 'allow')": (
        "invalid rule: network_rule host cannot contain whitespace"
    ),
    "network_rule(' . ', 'http', 'allow')": "invalid rule: network_rule host cannot be empty",
    "load('other.rules', 'x')": (
        "No imports are available, you tried `other.rules` (no call to `Evaluator.set_loader`)"
    ),
    "open('/etc/passwd')": "Variable `open` not found",
}

UNMATCHED = (
    "expected every example to match at least one rule. rules: "
    '["PrefixRule { pattern: PrefixPattern { canonical_matching: false, first: \\"git\\", '
    'rest: [Alts([\\"a\\", \\"b\\"]), Single(\\"c\\")] }, '
    'decision: Prompt, justification: Some(\\"why\\") }"]; '
    "unmatched examples: [\"ls 'a b'\"]"
)
MATCHED = (
    'expected example to not match rule `PrefixRuleMatch { matched_prefix: ["git"], '
    "decision: Allow, resolved_program: None, justification: None }`: git 'it s'"
)


def load(folder: Path, *texts: str | bytes) -> list[RuleSet | BrokenFile]:
    files = []
    for index, text in enumerate(texts):
        path = folder / f"{index}.rules"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        files.append(RulesFile(str(path)))
    return load_files(files)


def good(loaded: RuleSet | BrokenFile) -> RuleSet:
    assert isinstance(loaded, RuleSet), loaded
    return loaded


def error(loaded: RuleSet | BrokenFile) -> str:
    assert isinstance(loaded, BrokenFile), loaded
    return loaded.summary.removeprefix(f"{loaded.path}: ")


@pytest.mark.requirement("rules.errors")
def test_every_error_has_the_words_of_the_original(tmp_path: Path) -> None:
    loaded = load(tmp_path, *ERRORS)
    assert dict(zip(ERRORS, map(error, loaded), strict=True)) == {
        **ERRORS,
        "open('/etc/passwd')": error(loaded[-1]),
    }
    assert error(loaded[-1]).startswith("Variable `open` not found")


@pytest.mark.requirement("rules.errors")
def test_an_error_shows_where_it_is(tmp_path: Path) -> None:
    (broken,) = load(tmp_path, "def f(x):\n  prefix_rule([x,\n    len])\n\nf('a')")
    assert isinstance(broken, BrokenFile)
    path = broken.path
    assert broken.error == (
        "starlark error: Traceback (most recent call last):\n"
        f"  * {path}:5, in <module>\n"
        "      f('a')\n"
        f"  * {path}:2, in f\n"
        "      prefix_rule([x,\n"
        f"error: invalid pattern element: {WRONG_ELEMENT} (got function)\n"
        f" --> {path}:2:3\n"
        "  |\n"
        "2 |     prefix_rule([x,\n"
        "  |  ___^\n"
        "3 | |     len])\n"
        "  | |_________^\n"
        "  |\n"
    )


@pytest.mark.requirement("rules.errors")
def test_examples_are_checked_against_the_rules_of_their_call(tmp_path: Path) -> None:
    texts = [
        "prefix_rule(['git', ['a', 'b'], 'c'], 'prompt', match=['git a c', 'ls \"a b\"'], "
        "justification='why')\nprefix_rule(['ls'])",
        "prefix_rule(['git'], match=['no'], not_match=['ls', ['git', 'it s']])",
        "prefix_rule(['git'], match=['/bin/git x'], not_match=['/opt/git'])\n"
        "host_executable('git', ['/bin/git'])",
        "prefix_rule(['git'], not_match=['/bin/git'])",  # sees the file before
        "prefix_rule(['git'], match=[['x\\0']])",
    ]
    unmatched, matched, resolved, after, nul = load(tmp_path, *texts)
    assert error(unmatched) == UNMATCHED
    assert error(matched) == MATCHED
    assert good(resolved).host_executables == {"git": ("/bin/git",)}
    assert "resolved_program: Some(AbsolutePathBuf(" in error(after)
    assert error(nul).endswith('unmatched examples: ["unable to render example"]')


def test_a_file_makes_rules_with_all_that_starlark_has(tmp_path: Path) -> None:
    text = (
        "kinds = ['a', 'b']\n"
        "def allow(word):\n    prefix_rule(['git', f'{word}-x'], sandbox='none')\n"
        "for kind in kinds:\n    allow(kind)\n"
        "prefix_rule([['ls', 'dir'], kinds], 'forbidden', justification='no')\n"
        "network_rule(' A.com.:443 ', 'https_connect', 'deny', 'why')\n"
        "network_rule('A.com.', 'http', 'prompt')\nnetwork_rule('[::1]:80', 'http', 'allow')"
    )
    rules = good(load(tmp_path, text)[0])
    source = str(tmp_path / "0.rules")
    first = PrefixRule(pattern=(("git",), ("a-x",)), outside_sandbox=True, source=source)
    assert rules.prefix_rules[0] == first
    assert [one.pattern[0] for one in rules.prefix_rules[2:]] == [("ls",), ("dir",)]
    assert rules.prefix_rules[3].ruling is Ruling.FORBIDDEN
    assert rules.network_rules[1:] == (
        NetworkRule(host="a.com", protocol="http", ruling=Ruling.PROMPT, source=source),
        NetworkRule(host="::1", protocol="http", ruling=Ruling.ALLOW, source=source),
    )
    assert rules.network_rules[0].ruling is Ruling.FORBIDDEN
    assert rules.network_rules[0].protocol == "https"


def test_files_of_other_systems_and_empty_ones_load(tmp_path: Path) -> None:
    crlf = b"prefix_rule(\r\n  ['a'])\r\nprefix_rule(['b'])"
    texts = [crlf, b"", b"  \n\n", b"# only a comment", b"\xef\xbb\xbfprefix_rule(['a'])", b"\xff"]
    windows, *empty, marked, binary = load(tmp_path, *texts)
    assert len(good(windows).prefix_rules) == 2
    assert [len(good(one).prefix_rules) for one in empty] == [0, 0, 0]
    assert error(marked).startswith("Parse error: invalid input")
    assert error(binary) == "stream did not contain valid UTF-8"


def test_what_is_no_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "dir.rules").mkdir()
    os.mkfifo(tmp_path / "fifo.rules")
    (tmp_path / "loop.rules").symlink_to("loop.rules")
    (tmp_path / "large.rules").write_bytes(b"#" * (starlark.MAX_FILE_BYTES + 1))
    names = ["dir", "fifo", "loop", "large", "missing"]
    loaded = load_files([RulesFile(str(tmp_path / f"{name}.rules")) for name in names])
    assert [error(one) for one in loaded] == [
        "Is a directory (os error 21)",
        "not a regular file",
        "Symbolic link loop (os error 40)",
        f"the file is larger than {starlark.MAX_FILE_BYTES} bytes",
        "No such file or directory (os error 2)",
    ]
    assert all(isinstance(one, BrokenFile) and one.unread for one in loaded)
    assert error(load_files([RulesFile("a\0b")])[0]) == "the path contains a NUL character"


@pytest.mark.slow
@pytest.mark.requirement("rules.bounded")
def test_a_file_that_would_never_end_costs_only_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(starlark, "MAX_STEPS", 200_000)
    monkeypatch.setattr(starlark, "MAX_PROCESSOR_SECONDS", 1)
    monkeypatch.setattr(starlark, "MAX_RULES", 100)
    fine = "prefix_rule(['a'])"
    endless = "for i in range(1 << 30):\n  for j in range(1 << 30): pass"
    doubling = "def f(n):\n  if n:\n    f(n - 1)\n    f(n - 1)\nf(40)"
    texts = {
        fine: "",
        endless: "needs more than 200000 steps",
        doubling: "needs more than 200000 steps",
        "x = [0] * (1 << 30)": "of memory",
        "x = list(range(1000000000))": "evaluation failed: ",
        "x = 'a' * 100000000\ny = [x.count('ab') for i in range(10000)]": "s of processor time",
        "x = " + "[" * 200_000 + "]" * 200_000: "evaluation was ended by SIGSEGV",
        "def f(): f()\nf()": "call stack overflow",
        "[prefix_rule([str(i)]) for i in range(200)]": "100 rules at most",
        "prefix_rule(['a'] * 10000 + [3])": "(got int)",
        fine + "\n": "",
    }
    for (text, wanted), loaded in zip(texts.items(), load(tmp_path, *texts), strict=True):
        if wanted:
            assert wanted in error(loaded), text[:40]
        else:
            assert len(good(loaded).prefix_rules) == 1


@pytest.mark.requirement("rules.bounded")
def test_files_behind_the_time_for_all_are_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(starlark, "TOTAL_WALL_SECONDS", -1.0)
    assert "not evaluated" in error(load(tmp_path, "prefix_rule(['a'])")[0])


def test_without_the_extra_every_file_is_broken_and_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "pip install 'holdfast-exec[approvals]'" in error(
        load(tmp_path, "prefix_rule(['a'])")[0]
    )
    assert not starlark.rules_available()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a  b\tc\n", ["a", "b", "c"]),
        ("a#b #c\nd", ["a#b", "d"]),
        (r"a\ b 'x\y' \\", ["a b", r"x\y", "\\"]),
        ('"a\\"b\\$\\x\\\nc" ""', ['a"b$\\xc', ""]),
        ("a\\\nb", ["ab"]),
        ("'a", None),
        ('"a\\', None),
        ("a\\", None),
    ],
)
def test_examples_are_split_like_words_of_a_shell(text: str, words: list[str] | None) -> None:
    assert split_words(text) == words


@pytest.mark.parametrize(
    ("word", "quoted"),
    [
        ("", "''"),
        ("a/b-c_d]", "a/b-c_d]"),
        ("a b", "'a b'"),
        ("it's", '"it\'s"'),
        ("it's $x", "\"it's \"'$x'"),
        ("\\", '"\\\\"'),
        ("^a", "'^a'"),
        ("é", "'é'"),
    ],
)
def test_words_are_quoted_as_the_original_does(word: str, quoted: str) -> None:
    assert join_words([word]) == quoted


def test_a_nul_cannot_be_quoted() -> None:
    assert join_words(["a\0"]) is None
