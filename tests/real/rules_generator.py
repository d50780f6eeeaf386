"""Random rules files, some of them broken, and commands that their rules may match."""

import random
from dataclasses import dataclass
from typing import TypeAlias

Pattern: TypeAlias = list[str | list[str]]

WORDS = ["git", "ls", "cargo", "status", "-v", "--all", "test", "a b", "", "é", "it's", '"q"', "$x"]
WORDS += [
    "\\",
    "^",
    "!",
    "x^y",
    "`",
    "#",
    "a=b",
    "~",
    "*",
    "\n",
    "\t",
    "😀",
    "]",
    "a'b$c",
    "\u0301",
]
PROGRAMS = ["git", "ls", "cargo", "/usr/bin/git", "./git", "rm", "~/git", "bin/ls", "//bin/ls", "."]
DECISIONS = ["allow", "prompt", "forbidden"]
WRONG = ["3", "None", "True", "1.5", "{}", '("a", "b")', "len", "[[1]]", "range(3)", '"text"', "[]"]
WRONG += [
    '[""]',
    "-7",
    '{"a": [1, ("b",)]}',
    '("long text " * 9,)',
    '[("x",)]',
    "[None]",
    "lambda: 1",
]
HOSTS = ["a.com", " A.com. ", "*.com", "http://a", "", "a b", "a:80", "[::1]", "[::1]:80", "[::1"]
HOSTS += ["[]", "[::1]x", ".", "a..", "1.2.3.4", "a/b", "::1", "a:x", "[a b]", "* a", "é.com", "a?"]
PROTOCOLS = [
    "http",
    "https",
    "https_connect",
    "http-connect",
    "socks5_tcp",
    "socks5_udp",
    "HTTP",
    "",
]
PATHS = ["/usr/bin/git", "/bin/ls", "git", "/opt/x/../git", "/", "/bin/git/", "/bin/./ls", "~/git"]
SYNTAX = [
    "def f(:\n",
    "prefix_rule(",
    "foo()",
    "1 / 0",
    "fail('no')",
    "prefix_rul([])",
    "x = y",
    "\t1",
]
SYNTAX += [
    "\t1",
    "load('a', 'b')",
    "return 1",
    "while True: pass",
    "import os",
    "'unclosed",
    "print(1)",
    "@",
]


@dataclass(frozen=True)
class Case:
    """Rules files by their text, and the words behind the options of a check."""

    files: tuple[str, ...]
    options: tuple[str, ...]
    command: tuple[str, ...]


def literal(chance: random.Random, text: str) -> str:
    """Return a string of Starlark, written in one of several ways."""
    escaped = text.replace("\\", "\\\\").replace("\n", "\\n").replace("\t", "\\t")
    kind = chance.randrange(4)
    if kind == 0:
        return "'" + escaped.replace("'", "\\'") + "'"
    if kind == 1 and not {"{", "}"} & set(text):
        return 'f"' + escaped.replace('"', '\\"') + '"'
    return '"' + escaped.replace('"', '\\"') + '"'


class Generator:
    """Makes one case from one seed."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.patterns: list[Pattern] = []
        # Most files are right: a broken one hides what is behind the error.
        self.faults = 0.12 if self.chance.random() < 0.35 else 0.0

    def case(self) -> Case:
        count = self.chance.choice([1, 1, 1, 2, 3])
        files = tuple(self.file() for _ in range(count))
        options = [o for o in ("--resolve-host-executables", "--pretty") if self.one_in(2)]
        return Case(files, tuple(options), tuple(self.command()))

    def one_in(self, number: int) -> bool:
        return self.chance.randrange(number) == 0

    def faulty(self) -> bool:
        return self.chance.random() < self.faults

    def file(self) -> str:
        lines: list[str] = []
        for _ in range(self.chance.randrange(6)):
            kind = self.chance.randrange(10)
            if kind < 7:
                lines.append(self.in_context(self.prefix_rule()))
            elif kind < 8:
                lines.append(self.host_executable())
            elif kind < 9:
                lines.append(self.network_rule())
            else:
                lines.append(self.chance.choice(["# a comment", "", "x = 3", "def g(): pass"]))
            if self.faulty() and self.one_in(2):
                lines.append(self.chance.choice(SYNTAX))
        newline = "\r\n" if self.one_in(8) else "\n"
        text = newline.join("\n".join(lines).split("\n"))
        if not self.one_in(4):
            text += newline
        return "\ufeff" + text if self.faulty() and self.one_in(8) else text

    def in_context(self, call: str) -> str:
        kind = self.chance.randrange(12)
        if "\n" in call or kind > 3:
            return call
        if kind == 0:
            return f"for _ in range(2):\n    {call}"
        if kind == 1:
            return f"def rule():\n    {call}\nrule()"
        if kind == 2:
            return f"[{call} for _ in [1]]"
        return f"if True:\n  {call}"

    def pattern(self) -> Pattern:
        first: str | list[str] = self.chance.choice(PROGRAMS)
        if self.one_in(5):
            first = [self.chance.choice(PROGRAMS) for _ in range(self.chance.randrange(1, 4))]
        pattern: Pattern = [first]
        for _ in range(self.chance.choice([0, 0, 1, 1, 2, 3])):
            if self.one_in(3):
                count = self.chance.randrange(1, 4)
                pattern.append([self.chance.choice(WORDS) for _ in range(count)])
            else:
                pattern.append(self.chance.choice(WORDS))
        self.patterns.append(pattern)
        return pattern

    def written(self, value: str | list[str] | Pattern) -> str:
        if self.faulty():
            return self.chance.choice(WRONG)
        if isinstance(value, str):
            return literal(self.chance, value)
        separator = ",\n  " if self.one_in(12) else ", "
        return "[" + separator.join(self.written(item) for item in value) + "]"

    def prefix_rule(self) -> str:
        pattern = self.pattern()
        arguments = {"pattern": self.written(pattern)}
        if not self.one_in(3):
            decision = "deny" if self.faulty() else self.chance.choice(DECISIONS)
            arguments["decision"] = self.written(decision)
        if self.one_in(3):
            text = self.chance.choice(["", " "]) if self.faulty() else "why: " + self.word()
            arguments["justification"] = self.written(text)
        if self.one_in(3):
            arguments["match"] = self.examples(lambda: self.matching(pattern))
        if self.one_in(3):
            arguments["not_match"] = self.examples(lambda: ["other", self.word()])
        return self.call("prefix_rule", arguments)

    def word(self) -> str:
        return self.chance.choice(WORDS)

    def matching(self, pattern: Pattern) -> list[str]:
        words = [w if isinstance(w, str) else self.chance.choice(w) for w in pattern]
        return words + [self.word() for _ in range(self.chance.randrange(3))]

    def examples(self, make: "object") -> str:
        assert callable(make)
        shown = []
        for _ in range(self.chance.randrange(3)):
            words = self.command() if self.one_in(12) else make()
            if self.one_in(2):
                shown.append(self.written(words))
            else:
                shown.append(self.written(" ".join(self.quoted(word) for word in words)))
        return "[" + ", ".join(shown) + "]"

    def quoted(self, word: str) -> str:
        kind = self.chance.randrange(4)
        if kind == 0:
            return word  # the shell may read something else, or find a quote unclosed
        if kind == 1 and "'" not in word:
            return f"'{word}'"
        return '"' + "".join("\\" + c if c in '$`"\\' else c for c in word) + '"'

    def host_executable(self) -> str:
        name = self.chance.choice(["git", "ls"])
        paths = [
            f"/{folder}/{name}" for folder in ("bin", "usr/bin", "opt/../bin") if self.one_in(2)
        ]
        if self.faulty():
            name = self.chance.choice(["", "a/b", "..", "git"])
        if self.faulty():
            paths.append(self.chance.choice(PATHS))
        return self.call(
            "host_executable", {"name": self.written(name), "paths": self.written(paths)}
        )

    def network_rule(self) -> str:
        host = self.chance.choice(HOSTS) if self.faults else "a.com"
        protocol = self.chance.choice(PROTOCOLS) if self.faulty() else "https"
        decision = self.chance.choice([*DECISIONS, "deny"])
        if self.faulty():
            decision = "Deny"
        arguments = {
            "host": self.written(host),
            "protocol": self.written(protocol),
            "decision": self.written(decision),
        }
        if self.one_in(3):
            arguments["justification"] = self.written(" " if self.faulty() else "why")
        return self.call("network_rule", arguments)

    def call(self, name: str, arguments: dict[str, str]) -> str:
        if self.faulty():
            arguments = {k: v for k, v in arguments.items() if not self.one_in(3)}
        if self.faulty():
            arguments["unknown"] = "3"
        items = list(arguments.items())
        if self.one_in(3):
            self.chance.shuffle(items)
        positional = self.one_in(6) and name != "prefix_rule"
        shown = [value if positional else f"{key}={value}" for key, value in items]
        separator = ",\n    " if self.one_in(4) else ", "
        return f"{name}({separator.join(shown)})"

    def command(self) -> list[str]:
        if self.patterns and not self.one_in(5):
            words = self.matching(self.chance.choice(self.patterns))
            if self.one_in(4):
                words[self.chance.randrange(len(words))] = self.word()
            if self.one_in(4):
                words[0] = self.chance.choice(["/bin/", "/usr/bin/", "./", "/x/../bin/"]) + words[0]
        else:
            words = [self.chance.choice(PROGRAMS), self.word(), self.word()]
        # An empty first word, or one with a dash, is a matter of how options are parsed.
        return words if words[0] and not words[0].startswith("-") else ["git", *words]
