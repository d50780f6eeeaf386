"""
Random shell scripts, most of which run `rm -f x` or another command in a roundabout way.

A script is written by a grammar: each part chooses among the ways in which a shell can be made
to run a command, to skip a text, or to read the next lines otherwise. Then a few characters are
inserted, dropped or doubled, where scripts go wrong and shells begin to differ.

No way is used that rules are known not to see (`docs/security.md#what-cannot-be-seen`): no
variable gets a value, no name is a pattern, no file is run.
"""

import random
import tomllib
from collections.abc import Callable
from pathlib import Path

__all__ = ["SHELLS", "ScriptGenerator"]

SHELLS = ("bash", "sh", "zsh")

_TARGETS = (("rm", "-f", "x"), ("rm", "-f", "x"), ("hostname",), ("git", "push"))
_VOCABULARY: dict[str, list[str]] = tomllib.loads(
    Path(__file__).with_name("script_vocabulary.toml").read_text()
)


class ScriptGenerator:
    """Writes scripts; the same seed writes the same ones."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._ways: dict[Callable[[int], str], int] = {
            self._spelled: 14,
            self._default: 7,
            self._grouped: 5,
            self._substituted: 5,
            self._behind_quotes: 5,
            self._behind_arithmetic: 5,
            self._around_document: 6,
            self._redirected: 6,
            self._wrapped: 5,
            self._script_argument: 4,
            self._printed: 4,
            self._document_for_shell: 3,
            self._controlled: 5,
            self._in_sequence: 4,
            self._aliased: 2,
            self._behind_comment: 2,
            self._expanded_later: 6,
            self._argument: 5,
            self._of_zsh: 4,
        }

    def script(self) -> tuple[str, str]:
        """Return the name of a shell, and a script for it."""
        text = self._run(0)
        if self._one_in(3):
            text = self._in_sequence_of(text)
        for _ in range(self._chance.choice((0, 0, 1, 1, 1, 2, 2, 3, 4))):
            text = self._edited(text)
        return self._chance.choice(SHELLS), text

    # -- choosing

    def _one_in(self, number: int) -> bool:
        return self._chance.randrange(number) == 0

    def _any(self, *options: str) -> str:
        return self._chance.choice(options)

    def _pick(self, table: str) -> str:
        return self._chance.choice(_VOCABULARY[table])

    def _fill(self, table: str, text: str) -> str:
        return self._pick(table).replace("{}", text)

    def _edited(self, text: str) -> str:
        """Return a text with one change, where scripts go wrong."""
        at = self._chance.randint(0, len(text))
        match self._chance.randrange(8):
            case 0:
                return text[:at] + text[at + self._chance.choice((1, 1, 2, 4)) :]
            case 1:
                return text[: at + self._chance.choice((1, 3, 8))] + text[at:]
            case 2:
                blanks = [number for number, char in enumerate(text) if char in " \t\n"]
                if not blanks:
                    return text
                at = self._chance.choice(blanks)
                return text[:at] + self._pick("blanks") + text[at + 1 :]
            case 3:
                return text[:at] + "\\\n" + text[at:]
            case _:
                return text[:at] + self._pick("noise") + text[at:]

    # -- running the command

    def _run(self, depth: int) -> str:
        """Return a text that runs the command, if the shell gets that far."""
        if depth > 3:
            return self._spelled(depth)
        way = self._chance.choices([*self._ways], [*self._ways.values()])[0]
        return way(depth + 1)

    def _words(self) -> list[str]:
        return list(self._chance.choice(_TARGETS))

    def _spelled(self, _: int) -> str:
        words = self._words()
        if self._one_in(2):
            return " ".join(words)
        if self._one_in(6):
            return "{" + ",".join(words) + "}"
        return self._pick("blanks").join(self._word(word) for word in words)

    def _word(self, word: str) -> str:
        if self._one_in(3):
            return word
        middle = self._chance.randint(0, len(word))
        head, tail = word[:middle], word[middle:]
        return self._any(
            f"'{word}'",
            f'"{word}"',
            f"{head}'{tail}'",
            f'{head}""{tail}',
            f"\\{word}",
            f"{head}\\\n{tail}",
            f"$'{word}'",
            f"{head}${{Y}}{tail}",
            f"{head}$Y''{tail}",
            "${Y:-" + word + "}",
            '"${Y-' + word + '}"',
        )

    def _text(self, depth: int) -> str:
        """Return a text that a shell splits or reads later."""
        if self._one_in(3):
            return self._run(depth + 1)
        return self._pick("blanks").join(self._words())

    def _default(self, depth: int) -> str:
        """Return an expansion that stands for the command, or for its name."""
        operator, parameter = self._pick("operators"), self._pick("parameters")
        if self._one_in(2):
            operator, parameter = ":-", "Y"
        if self._one_in(3):
            name, *rest = self._words()
            text = " ".join(["${" + parameter + operator + self._word(name) + "}", *rest])
        else:
            text = "${" + parameter + operator + self._text(depth) + "}"
        if self._one_in(4):
            at = text.index("{") + self._chance.randint(0, 5)
            text = text[:at] + self._any("\\\n", "\t", "\n", " ", "'", '"') + text[at:]
        return f'"{text}"' if self._one_in(6) else text

    def _grouped(self, depth: int) -> str:
        return self._fill("groups", self._run(depth))

    def _substituted(self, depth: int) -> str:
        return self._fill("substitutions", self._run(depth))

    def _controlled(self, depth: int) -> str:
        return self._fill("controls", self._run(depth))

    def _redirected(self, depth: int) -> str:
        """Return the command with redirections between, before and after its words."""
        words = self._run(depth).split(" ")
        for _ in range(self._chance.choice((1, 1, 2))):
            words.insert(self._chance.randint(0, len(words)), self._pick("redirections"))
        return self._any("", "", ": ", "true ", "echo a") + " ".join(words)

    def _wrapped(self, depth: int) -> str:
        return self._pick("wrappers") + self._any(" ", " ", " ", "\n", "\t") + self._run(depth)

    def _script_argument(self, depth: int) -> str:
        inner = self._run(depth)
        quoted = f'"{inner}"'
        if set(inner) & set('"\\$`') or not self._one_in(4):
            quoted = _quoted(inner)
        if self._one_in(12):
            return f"trap {quoted}" + self._any("", " EXIT", " 0")
        return f"{self._pick('shell_calls')} {quoted}"

    def _printed(self, depth: int) -> str:
        """Return a command that prints the text, and one that runs what it reads."""
        text = _quoted(self._text(depth))
        if self._one_in(3):
            text = " ".join(self._words())
        elif self._one_in(4):
            text = "'" + self._any("a\\n", ":\\n", "\\n", ":;", "\\t", ": #\\n") + text[1:]
        said, reader = f"{self._pick('printers')} {text}", self._pick("readers")
        if self._one_in(4):
            said = self._fill("print_forms", text)
        elif self._one_in(6):
            said = "printf " + self._any("'%s\\0' ", "'%b\\0' ") + text
            if self._one_in(2):
                said = "printf '" + self._any("\\0", "\\x00", "\\000").join(self._words()) + "'"
            reader = self._pick("readers_of_items")
        if self._one_in(5):
            return self._any(f"eval $({said})", f'sh -c "$({said})"', f"eval `{said}`")
        return self._any(
            f"{said} | {reader}",
            f"{reader} < <({said})",
            f"{said} |& {reader}",
            f"{said}|{reader}",
            f"{reader} <<< {text}",
            f"{{ {said}; }} | {reader}",
            f"({said}) | {reader}",
            f". <({said})",
        )

    def _expanded_later(self, depth: int) -> str:
        """Return a quoted text that the shell expands once more: an index, a prompt."""
        run = self._run(depth)
        substitution = f"`{run}`" if self._one_in(8) and "`" not in run else f"$({run})"
        if self._one_in(4):
            return self._fill("prompts", self._protected(substitution))
        index = self._any(
            f"a[{substitution}]",
            f"a[{substitution}]",
            f"a[b[1]+{substitution}]",
            f"a[b[\\{substitution}]]",
            f"1+a[${{Y:-{substitution}}}]",
        )
        text = self._protected(index)
        if self._one_in(6):
            text = index[0] + self._protected(index[1:])
        return self._fill("indices", text)

    def _protected(self, text: str) -> str:
        """Return a word in which nothing of the text is expanded."""
        match self._chance.randrange(8):
            case 0:
                return '"' + "".join("\\" + c if c in '"\\$`' else c for c in text) + '"'
            case 1:
                return "".join(c if c.isalnum() else "\n" if c == "\n" else "\\" + c for c in text)
            case 2:
                return "$'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
            case 3:
                return "$'" + "".join(c if c.isalnum() else f"\\x{ord(c):02x}" for c in text) + "'"
            case 4:
                return f"${{Y:-{_quoted(text)}}}"
            case _:
                return _quoted(text)

    def _argument(self, depth: int) -> str:
        """Return a script that runs one of its arguments."""
        text = self._protected(self._run(depth))
        if self._one_in(3):
            text = " ".join(self._words())
        return self._fill("argument_scripts", text)

    def _of_zsh(self, depth: int) -> str:
        run = self._run(depth)
        return self._pick("zsh").replace("{}", self._protected(run)).replace("{raw}", run)

    def _document(self, body: str, *, ends: bool) -> tuple[str, str]:
        """Return a sign with its delimiter, and the lines of a here-document."""
        delimiter = self._pick("delimiters")
        end = delimiter
        for sign in ("'", '"', "\\\n", "\\"):
            end = end.replace(sign, "")
        last = self._any(end, end, end, end, "\t" + end, end + " ", "", end + "\\", end + ")")
        lines = body + ("\n" + last if ends else "") + self._any("\n", "\n", "\n", "")
        return "<<" + self._any("", "", "", "-", " ", "- ") + delimiter, lines

    def _document_for_shell(self, depth: int) -> str:
        sign, lines = self._document(self._run(depth), ends=not self._one_in(4))
        reader, end = self._pick("readers"), self._any("", "", ";", " &", " || :")
        return self._any(
            f"{reader} {sign}{end}\n{lines}",
            f"cat {sign} | {reader}{end}\n{lines}",
            f"{{ {reader}; }} {sign}{end}\n{lines}",
            f"({reader}) {sign}{end}\n{lines}",
            f"while {reader}; do break; done {sign}{end}\n{lines}",
            f"{sign} {reader}{end}\n{lines}",
        )

    def _around_document(self, depth: int) -> str:
        """Return a here-document with the command in it, behind it or on its line."""
        run, body = self._run(depth), self._pick("document_bodies")
        sign, lines = self._document(body, ends=not self._one_in(6))
        command = self._pick("document_commands")
        closers = {'"': ')"', "$": ")", "`": "`", "(": ")", "{": "; }"}
        closer = next((closers[char] for char in closers if char in command), "")
        # The parenthesis is closed on the line, or behind the document.
        early, late = (closer, "") if self._one_in(2) else ("", closer + "\n")
        first = f"{command} {sign}{early}"
        return self._any(
            f"{first}\n{lines}{late}{run}",
            f"{first}; {run}\n{lines}{late}",
            f"{first} && {run}\n{lines}{late}",
            f"{first}\n{lines}{late}{run}\n{lines}",
            f"{first}\n{lines}{late}{run}\n{body}",
        )

    def _behind_arithmetic(self, depth: int) -> str:
        """Return an expression that may be none, and the command in the lines behind it."""
        if self._one_in(2):
            # A shift, or a here-document that ends behind the command.
            delimiter = self._any("1", "2", "x", "E")
            tokens = self._pick("arithmetic"), self._any("", "1", "x"), "<< " + delimiter
            expression = self._any("(( {} ))", "(({}))", ": $(({}))").replace("{}", "".join(tokens))
            return f"{expression}\n{self._run(depth)}\n{delimiter}\n" + self._any("", "", ")", "))")
        parts = [self._pick("arithmetic") for _ in range(self._chance.randint(1, 5))]
        expression = self._fill("expressions", self._any(" ", "").join(parts))
        between = self._any("\n", "\n", ";", " && ", " || ")
        return expression + between + self._run(depth) + self._pick("expression_ends")

    def _behind_quotes(self, depth: int) -> str:
        """Return the command behind quotes and brackets that shells may see differently."""
        noise = "".join([self._pick("noise") for _ in range(self._chance.randint(1, 4))])
        joint = self._any("\n", ";", "; ", " ", "\n\n", "&& ")
        end = self._pick("quotation_ends")
        return self._fill("quotations", noise) + joint + self._run(depth) + end

    def _in_sequence(self, depth: int) -> str:
        return self._in_sequence_of(self._run(depth))

    def _in_sequence_of(self, text: str) -> str:
        other = self._pick("others")
        return other + self._pick("ends") + text + self._any("", "", self._pick("ends") + other)

    def _aliased(self, depth: int) -> str:
        head = self._any("shopt -s expand_aliases\n", "", "setopt aliases\n")
        name = self._any("q", "q", "if", "echo", "-g q", "-s q", "q r")
        use = self._any("q", "eval q", "q a", "\nq", "echo a", "a.q")
        return f"{head}alias {name}={_quoted(self._text(depth))}\n{use}"

    def _behind_comment(self, depth: int) -> str:
        before = self._any(":", "echo a", "") + self._any(" ", "", ";", "\t")
        return before + self._pick("comments") + "\n" + self._run(depth)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
