"""Splitting: segments as the contract has them, within bounds whatever comes."""

import random
import subprocess
import threading
from pathlib import Path

import pytest

from holdfast.agent.approvals.split import UNKNOWN, split_command
from holdfast.agent.approvals.split.budget import MAX_TEXT, Budget
from holdfast.agent.approvals.split.plain import plain_commands, simple_commands
from tests.depth import times


def _bash(script: str) -> list[str]:
    return ["/bin/bash", "-lc", script]


# Seen on the real binary, by what it proposes to allow under the policy `untrusted`.
_PLAIN: dict[str, tuple[tuple[str, ...], ...]] = {
    "ls -la": (("ls", "-la"),),
    "ls\npwd": (("ls",), ("pwd",)),
    "ls;": (("ls",),),
    "ls && pwd || true; a | b": (("ls",), ("pwd",), ("true",), ("a",), ("b",)),
    r'echo "a\nb"': (("echo", r"a\nb"),),
    "echo ''": (("echo", ""),),
    'echo ""': (("echo", ""),),
    """echo -g"*.py" 'x'y""": (("echo", "-g*.py", "xy"),),
    "echo a=b a==b": (("echo", "a=b", "a==b"),),
    "echo @ % + , : . /": (("echo", "@", "%", "+", ",", ":", ".", "/"),),
    "echo 12 3.4 -1 0x1f 1a": (("echo", "12", "3.4", "-1", "0x1f", "1a"),),
    "time ls": (("time", "ls"),),
    "coproc ls": (("coproc", "ls"),),
    "ls\\\n -la": (("ls", "-la"),),
    "test -f x": (("test", "-f", "x"),),
    "echo !x a!b": (("echo", "!x", "a!b"),),
    'echo "é"': (("echo", "é"),),
    " ls\t-a ": (("ls", "-a"),),
    "\nls\n\n": (("ls",),),
    "echo if": (("echo", "if"),),
    "let a=1": (("let", "a=1"),),
    'git commit -m "a (b)"': (("git", "commit", "-m", "a (b)"),),
    "git log --format='%H'": (("git", "log", "--format=%H"),),
    "/bin/ls ./a": (("/bin/ls", "./a"),),
    """echo "a"b"c" ""a a''""": (("echo", "abc", "a", "a"),),
    """echo 'it'"'"'s'""": (("echo", "it's"),),
    "echo 'a\nb'": (("echo", "a\nb"),),
}

_NOT_PLAIN = [
    '"ls" -la', "'ls' -la", "l's' -la", "ls &", "ls |& cat", "ls # c", r'echo "a\"b"', r"echo a\ b",
    "A=b echo", "echo =b", "echo ~", "echo a{b}", "echo {}", "echo a^b", "echo a#b", "echo $",
    'echo "$"', 'echo "$X"', 'echo "a$"', "export A=b", "unset A", "! ls", "", "   ", "# only",
    "echo $'a'", 'echo $"a"', 'echo "`ls`"', "[ -f x ]", "ls > f", "if", "echo 1>2", "echo a]b",
    "declare x", "local x", "readonly x", "typeset x", "ls && ", "&& ls", "ls;;pwd", "123 a", "1 a",
    r'echo "\$X"', r'echo "\`"', r'echo "\\"', 'echo "a\\\nb"', "ls }", "ls a;  ; pwd", "echo *",
    'ls "$(pwd)"', "ls $(pwd)", "(ls)", "{ ls; }", "echo ?", "echo [a]", "for i in a; do ls; done",
    # Stricter than the real binary, which takes them for l s, ls, then and done.
    "l\\\ns", "ls\r\n", "then", "done",
]  # fmt: skip


@pytest.mark.requirement("approvals.split.plain")
@pytest.mark.parametrize("script", _PLAIN)
def test_a_plain_script_is_split_into_its_commands(script: str) -> None:
    split = split_command(_bash(script))
    assert split.plain
    assert split.segments == _PLAIN[script]
    assert set(split.segments) <= set(split.literals)
    assert split.unseen is None


@pytest.mark.requirement("approvals.split.whole")
@pytest.mark.parametrize("script", _NOT_PLAIN)
def test_another_script_is_one_segment(script: str) -> None:
    split = split_command(_bash(script))
    assert not split.plain
    assert split.segments == (tuple(_bash(script)),)


@pytest.mark.requirement("approvals.split.plain")
@pytest.mark.parametrize("shell", ["bash", "/bin/sh", "/usr/bin/zsh"])
@pytest.mark.parametrize("flag", ["-c", "-lc"])
def test_shells_are_known_by_their_file_name(shell: str, flag: str) -> None:
    assert split_command([shell, flag, "ls"]).segments == (("ls",),)


@pytest.mark.requirement("approvals.split.whole")
@pytest.mark.parametrize(
    "argv",
    [
        ["bash", "-c"],
        ["bash", "-c", "ls", "name"],
        ["bash", "-ec", "ls"],
        ["bash", "-l", "-c", "ls"],
        ["dash", "-c", "ls"],
        ["ls", "-c", "a"],
        ["git", "status"],
    ],
)
def test_other_argument_lists_are_one_segment(argv: list[str]) -> None:
    split = split_command(argv)
    assert not split.plain
    assert split.segments == (tuple(argv),)


@pytest.mark.requirement("approvals.split.shell")
def test_an_unknown_shell_is_a_segment_of_its_own() -> None:
    argv = ("/tmp/bash", "-c", "ls")
    assert split_command(argv).segments == (argv, ("ls",))
    assert split_command(argv, shell="/tmp/bash").segments == (("ls",),)
    assert split_command(argv, shell="/bin/bash").segments == (argv, ("ls",))


def test_unknown_words_keep_their_places() -> None:
    literals = split_command(_bash('git push "$X" a$Y')).literals
    assert ("git", "push", UNKNOWN, f"a{UNKNOWN}") in literals
    assert ("git", "push", "", "a") in literals


@pytest.mark.parametrize(
    "script",
    ["echo rm -f x", "echo 'rm -f x'", "cat <<'E'\nrm -f x\nE", "for i in rm; do ls; done",
     "case rm in rm) ;; esac", "A='rm -f x'", "a=(rm -f x)", "command -v rm", "# rm -f x",
     "ls > rm", "[[ rm == rm ]]", "echo $((rm))"],
)  # fmt: skip
def test_a_name_that_is_no_command_is_no_literal(script: str) -> None:
    assert "rm" not in {words[0] for words in split_command(_bash(script)).literals}


@pytest.mark.requirement("approvals.split.bounded")
@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("a" * 1_000_000, "it is too long"),
        ("a;" * 100_000, "it has more than 2000 commands"),
        ("(" * 5000 + "ls" + ")" * 5000, "it is nested too deeply"),
        ("$(" * 5000 + "ls" + ")" * 5000, "it is nested too deeply"),
        ("$((" * 5000, "it is nested too deeply"),
        ('"$(' * 5000, "it is nested too deeply"),
        ("nohup " * 5000 + "ls", "it is nested too deeply"),
        ("eval " * 200, "it is nested too deeply"),
        ("echo 'a", "`'` is never closed"),
        ('echo "a', '`"` is never closed'),
        ("echo $'a", "`'` is never closed"),
        ("echo `a", "the backtick is never closed"),
        ("echo ${a", "`{` is never closed"),
        ("(ls", "`(` is never closed"),
        ("ls)", "`)` closes nothing"),
        ("[[ a", "`[[` is never closed"),
        ("case a in b) ls", "`case` is never closed"),
        ("ls \0 a", "it contains a NUL character"),
        ("ls \udcff", "it contains bytes that are no text"),
        ("pwd \ud800", "it contains bytes that are no text"),
        ("{r,}{,}{,}{,}{,}{,}{,}m x", "the braces of a name make too many words"),
        ("echo" + " }" * 9, "a command has too many braces"),
        ("ls <<$A\n$A", "the delimiter of a here-document has an expansion"),
        ("a[ <<E\nE\n ]=1", "shells disagree about an index with blanks"),
        ("echo $\\\n(ls)", "a line is joined in the middle of a sign or an expansion"),
    ],
    ids=range(25),
)  # fmt: skip
def test_what_cannot_be_read_says_why(script: str, reason: str) -> None:
    split = split_command(_bash(script))
    assert split.unseen == reason
    assert not split.plain
    assert split.segments == (tuple(_bash(script)),)


def test_what_comes_before_a_mistake_is_seen() -> None:
    split = split_command(_bash("hostname\necho 'a"))
    assert ("hostname",) in split.literals
    assert split.unseen == "`'` is never closed"


_FAULTS = {
    "echo a; echo )": "line 1, column 14: `)` closes nothing",
    "pwd\necho 'it": "line 2, column 6: `'` is never closed",
    'echo "a $(ls)': 'line 1, column 6: `"` is never closed',
    "ls | (a; (b)": "line 1, column 6: `(` is never closed",
    "a\n\tb $(ls\n": "line 2, column 5: `(` is never closed",
    "echo ${HOME": "line 1, column 7: `{` is never closed",
    "echo `ls": "line 1, column 6: the backtick is never closed",
    "case a in b) ls": "line 1, column 1: `case` is never closed",
    "é 'a": "line 1, column 3: `'` is never closed",
}


@pytest.mark.requirement("approvals.split.fault")
@pytest.mark.parametrize("script", _FAULTS)
def test_a_syntax_error_has_a_position_and_the_shell_finds_it_too(script: str) -> None:
    for shell in ("bash", "sh"):
        split = split_command([shell, "-c", script])
        assert split.fault == _FAULTS[script]
        assert split.unseen is not None
        run = subprocess.run([shell, "-n", "-c", script], check=False, capture_output=True)
        assert run.returncode == 2


@pytest.mark.requirement("approvals.split.fault")
@pytest.mark.parametrize(
    "argv",
    [
        # The shell may have ended before it comes to the quote.
        ("bash", "-c", "exit\n'"),
        ("bash", "-c", "if a; then exec b; fi\necho )"),
        # Only that part fails: the others run.
        ("bash", "-c", "bash -c 'echo )'; ls"),
        ("bash", "-c", "cat <<E\n$(a\nE\nls"),
        # The grammar is bash's.
        ("zsh", "-c", "echo )"),
        # Not a mistake, but not understood either.
        ("bash", "-c", "echo ${ ls; }"),
        ("bash", "-c", "a" * 1_000_000 + "'"),
        # Shells accept these, and run nothing of the first two.
        ("bash", "-c", "[[ ]]\n'"),
        ("bash", "-c", "[[ \n ]]\n'"),
        ("sh", "-c", "cat <<E`\n"),
    ],
    ids=range(10),
)
def test_what_a_shell_may_run_is_no_syntax_error(argv: tuple[str, ...]) -> None:
    split = split_command(argv)
    assert split.unseen is not None
    assert split.fault is None


@pytest.mark.requirement("approvals.split.bounded")
@pytest.mark.parametrize("argv", [[], [""], ["", "a"]])
def test_nothing_is_no_command(argv: list[str]) -> None:
    assert split_command(argv).unseen == "it names no program"


@pytest.mark.slow
@pytest.mark.requirement("approvals.split.bounded")
@pytest.mark.parametrize("unit", [">", "){", "<<a ", "${", "{a,b}", "if ", "f()", "env -S ", "'\""])
def test_hostile_scripts_are_given_up_in_time(unit: str) -> None:
    # That it ends at all is the point: the grammar alone takes minutes for some of these.
    split = split_command(_bash((unit * MAX_TEXT)[: MAX_TEXT - 1]))
    assert not split.plain
    assert split.segments[0][0] == "/bin/bash"


@pytest.mark.slow
@pytest.mark.requirement("approvals.split.bounded")
@pytest.mark.parametrize("unit", ["`", "$(", "'", "\\\n"])
def test_hostile_documents_are_given_up_in_time(unit: str) -> None:
    script = "cat <<E\n" + unit * MAX_TEXT
    assert not split_command(["/bin/sh", "-c", script[: MAX_TEXT - 1]]).plain


def test_threads_split_at_the_same_time() -> None:
    script = "echo 'a b' && ls -l"
    results: list[object] = []
    threads = [
        threading.Thread(
            target=lambda: results.extend(split_command(_bash(script)) for _ in range(50))
        )
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [split_command(_bash(script))] * 200


@pytest.mark.requirement("security.rules.two-readers")
def test_simple_commands_are_those_of_the_grammar() -> None:
    chance = random.Random(13)
    words = ["ls", "a-b", "./x", "1", "-f", "a=b", "A=b", "if", "time", "test", "unset", "_x",
             "a:b", "x,y", "+x", "%1", "@a", ".", "git", "in", "-", "--", "0x1",
             "e+", "function"]  # fmt: skip
    simple = 0
    for _ in range(1000):
        parts = [" ".join(chance.choices(words, k=chance.randint(1, 3))) for _ in range(3)]
        script = (
            "".join(part + chance.choice([" && ", "||", "; ", " | "]) for part in parts[:-1])
            + parts[-1]
        )
        commands = simple_commands(script)
        if commands is not None:
            simple += 1
            assert commands == plain_commands(script, Budget()), script
    assert simple > 30


_WORDS = ["a", "b c", "$X", "~", "*.c", "a\\ b", "it's", '"', "#", "-f", "--x=y", "é", "",
          "a\nb", "!", "{a,b}", "$(c)", "`d`", "a;b", "a|b", "&", ">", "=x", "a\\", "1",
          "\t", "%s\\n"]  # fmt: skip


def _random_script(chance: random.Random) -> tuple[str, list[str]]:
    """Return a script and the signs between its commands."""
    signs = [chance.choice(["&&", "||", ";", "|", "\n"]) for _ in range(chance.randint(0, 3))]
    script = ""
    for sign in [*signs, ""]:
        words = [chance.choice(["one", "two-3", "x.y"])]
        for _ in range(chance.randint(0, 3)):
            parts = []
            for _ in range(chance.randint(1, 3)):
                text = chance.choice(_WORDS)
                quoted = [f"'{text}'", f'"{text}"', text]
                parts.append(chance.choice(quoted))
            words.append("".join(parts))
        blank = chance.choice([" ", "  ", "\t", "\\\n "])
        script += blank.join(words) + chance.choice(["", " "]) + sign + chance.choice(["", " "])
    return script, signs


def _run_by_bash(segments: tuple[tuple[str, ...], ...], signs: list[str]) -> list[tuple[str, ...]]:
    """Return the segments that run if every command succeeds."""
    skipped = False
    ran = [segments[0]]
    for sign, segment in zip(signs, segments[1:], strict=True):
        # After ||, a pipeline is left out as a whole.
        skipped = sign == "||" or (skipped and sign == "|")
        if not skipped:
            ran.append(segment)
    return ran


_SHELL_SIGNS = "$' $( $(( (( [[ ${a:- ${a# ${a $[ <( >( f() a[ ]] )) ;; && |& &> >f <<< {a,b}"
_SHELL_WORDS = 'if then fi for do done time case in esac a) a=( echo eval trap ${IFS "${a:- ${'
_FRAGMENTS = [
    *"'\"`#\\!()[]{}|;&*~=$ \t\r\n",
    *_SHELL_SIGNS.split(),
    *_SHELL_WORDS.split(),
    *("<<E\n", "<<'E'\n", "\nE\n", "\\\n", "case a in ", "alias a=b ", "env -S ", "${a:-\\"),
    *("rm -f x", "$[ ", "é"),
]  # fmt: skip


@pytest.mark.requirement("approvals.split.bounded")
def test_whatever_comes_is_read_or_given_up() -> None:
    chosen = random.Random(166)
    for _ in range(times(300)):
        script = "".join(chosen.choices(_FRAGMENTS, k=chosen.randint(1, 8)))
        split = split_command([chosen.choice(["bash", "sh", "zsh"]), "-c", script])
        assert split.segments, script
        assert not split.plain or set(split.segments) <= set(split.literals), script


@pytest.mark.slow
@pytest.mark.requirement("approvals.split.bash")
def test_bash_runs_the_segments_of_a_plain_script(tmp_path: Path) -> None:
    chance = random.Random(8)
    cases: list[tuple[str, list[tuple[str, ...]]]] = []
    while len(cases) < times(100):
        script, signs = _random_script(chance)
        split = split_command(["bash", "-c", script])
        if split.plain and len(split.segments) == len(signs) + 1:
            cases.append((script, _run_by_bash(split.segments, signs)))
    driver = """
    command_not_found_handle() {
        # One write for each call, so one line: commands of a pipeline note theirs at once.
        printf -v call '%s\\1' "$@"
        printf '%s\\2' "${call//$'\\n'/$'\\3'}" >> "$LOG"
    }
    PATH=/nonexistent
    while IFS= read -r -d '' script; do
        number=$((number + 1))
        (LOG=$PWD/$number; eval "$script") > /dev/null 2>&1 < /dev/null
    done
    """
    given = "".join(script + "\0" for script, _ in cases)
    subprocess.run(["bash", "-c", driver], input=given.encode(), cwd=tmp_path, check=True)
    for number, (script, segments) in enumerate(cases, 1):
        log = (tmp_path / str(number)).read_text().replace("\3", "\n")
        calls = [tuple(call.split("\1")[:-1]) for call in log.split("\2")[:-1]]
        # Commands of a pipeline run side by side, in any order.
        assert sorted(calls) == sorted(segments), script
