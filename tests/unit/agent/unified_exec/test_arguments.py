"""Arguments are decoded with the order and the columns of the original's decoder."""

import json
import re
import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.agent.unified_exec.arguments.requested_permissions import (
    RequestedFiles,
    RequestedPermissions,
)
from holdfast.agent.unified_exec.arguments.tool_arguments import (
    ArgumentError,
    Arguments,
    ExecArguments,
    ReadArguments,
    WaitForArguments,
    WriteArguments,
)
from holdfast.base.errors import InvalidParams

RECORDED: list[tuple[str, str, str | None]] = [
    (tool, text, answer)
    for tool, text, answer in json.loads(
        Path(__file__).with_name("recorded_arguments.json").read_text()
    )
]
"""Tool, text of the model, and what the real binary said against it, if anything."""

PREFIX = "failed to parse function arguments: "


def answer(tool: str, text: str) -> str | None:
    """Return the objection of a manager without sessions to these arguments."""
    arguments = Arguments(text)
    try:
        if tool == "exec_command":
            environment = arguments.environment_id()
            if environment not in (None, "local"):
                return f"unknown turn environment id `{environment}`"
            arguments.workdir()
            arguments.exec_command()
            return None
        session = arguments.session_id()
        if tool == "write_stdin":
            return f"write_stdin failed: Unknown process id {session}"
        arguments.write_stdin()
    except ArgumentError as error:
        return str(error)
    return None


def is_json(text: str) -> bool:
    """Return True for a text whose faults, if there are any, are no faults of the syntax."""
    try:
        value = json.loads(text, parse_constant=lambda name: json.loads(name.lower()))
        json.dumps(value, ensure_ascii=False).encode()
    except ValueError:
        return False
    return True


def is_worded_alike(text: str, expected: str | None) -> bool:
    """Return False for deep nesting, huge exponents and combining letters, worded differently."""
    shown = re.findall(r"\\u\{([0-9a-f]+)\}", expected or "")
    combining = any(unicodedata.category(chr(int(code, 16))) in ("Mn", "Me") for code in shown)
    other = "recursion" in (expected or "") or "e9999" in text
    return is_json(text) and not other and not combining


def without_digits(answered: str | None) -> str | None:
    """Return an answer without the last digits of floats, in which two parsers may differ."""
    return answered and re.sub(r"(\d\.\d{12})\d+", r"\1", answered)


def refusal(decode: Callable[[], object]) -> str:
    with pytest.raises(ArgumentError) as caught:
        decode()
    return str(caught.value).removeprefix(PREFIX)


@pytest.mark.requirement("unified-exec.arguments.recorded")
def test_every_recorded_text_gets_the_recorded_answer() -> None:
    wrong = [
        (text, expected, got)
        for tool, text, expected in RECORDED
        if is_worded_alike(text, expected)
        and without_digits(got := answer(tool, text)) != without_digits(expected)
    ]
    assert not wrong


@pytest.mark.requirement("unified-exec.arguments.syntax")
def test_a_text_that_is_not_json_is_refused_with_a_place() -> None:
    # Of constants `json` does not say where they are; half a pair may be in a member not read.
    constants = ("NaN", "Infinity", "ud800")
    broken = [
        row for row in RECORDED if not is_json(row[1]) and not any(c in row[1] for c in constants)
    ]
    assert len(broken) > 100
    for tool, text, _ in broken:
        got = answer(tool, text)
        assert got is not None, text
        assert re.fullmatch(f"{PREFIX}.+ at line \\d+ column \\d+", got), (text, got)


@pytest.mark.requirement("unified-exec.arguments.syntax")
@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "EOF while parsing a value at line 1 column 0"),
        ("hello", "expected value at line 1 column 1"),
        ('{"cmd":', "EOF while parsing a value at line 1 column 7"),
        ('{"cmd":"echo', "EOF while parsing a string at line 1 column 12"),
        ('{"cmd":"a"', "EOF while parsing an object at line 1 column 10"),
        ('{"prefix_rule":["a"', "EOF while parsing a list at line 1 column 19"),
        ('{"cmd":"a",}', "trailing comma at line 1 column 12"),
        ('{"cmd":"a" "b"}', "expected `,` or `}` at line 1 column 12"),
        ('{"prefix_rule":["a" "b"]}', "expected `,` or `]` at line 1 column 21"),
        ('{cmd:"a"}', "key must be a string at line 1 column 2"),
        ('{"cmd" "a"}', "expected `:` at line 1 column 8"),
        ('{"cmd":"\\q"}', "invalid escape at line 1 column 10"),
        ('{"cmd":"é\n"}', "control character (\\u0000-\\u001F) found while parsing a string"),
        ('{"cmd":"a"} x', "trailing characters at line 1 column 13"),
        ('{"cmd":"a","yield_time_ms":01}', "invalid number at line 1 column 29"),
        ('{"cmd":"\\ud800"}', "unexpected end of hex escape at line 1 column 15"),
        ('{"cmd":NaN}', "`NaN` is not a JSON number"),
        ('{"cmd":' + "[" * 100_000, "the arguments are nested too deeply"),
    ],
)
def test_faults_of_the_syntax_are_named(text: str, fault: str) -> None:
    assert refusal(Arguments(text).exec_command).startswith(fault)


@given(st.sampled_from(RECORDED), st.data())
def test_a_text_that_is_cut_anywhere_is_refused_with_a_place_inside_of_it(
    row: tuple[str, str, str | None], data: st.DataObject
) -> None:
    tool, text, _ = row
    cut = text[: data.draw(st.integers(0, len(text)))]
    said = answer(tool, cut)
    if said is not None and said.startswith(PREFIX):
        _, _, position = said.rpartition(" at line ")
        line, _, column = position.partition(" column ")
        lines = cut.encode().split(b"\n")
        assert int(column) <= len(lines[int(line) - 1])


@given(st.text(alphabet='{}[]",:\\u0dx1-.e+ntrulfas \n\x01é', max_size=60))
def test_any_text_is_taken_or_refused(text: str) -> None:
    for tool in ("exec_command", "write_stdin to a session"):
        answer(tool, text)


@given(
    st.dictionaries(
        st.sampled_from(["cmd", "tty", "session_id", "chars", "other", "workdir"]),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner),
            max_leaves=8,
        ),
    )
)
def test_members_mean_the_same_as_their_compact_text(members: dict[str, object]) -> None:
    text = json.dumps(members, ensure_ascii=False, separators=(",", ":"))
    outcomes = []
    for given_form in (text, members):
        try:
            outcomes.append(repr(Arguments(given_form).exec_command()))
        except ArgumentError as error:
            outcomes.append(str(error))
    assert outcomes[0] == outcomes[1]


def test_every_argument_of_exec_command() -> None:
    assert Arguments(
        {
            "cmd": "ls",
            "workdir": "sub",
            "tty": True,
            "yield_time_ms": 2**64 - 1,
            "max_output_tokens": 5,
            "shell": "bash",
            "login": False,
            "environment_id": "local",
            "sandbox_permissions": "require_escalated",
            "justification": "may I?",
            "prefix_rule": ["ls", "-l"],
            "additional_permissions": {
                "network": {"enabled": True},
                "file_system": {"read": ["a"], "write": None},
            },
            "unknown": [1, {"deep": 2}],
        }
    ).exec_command() == ExecArguments(
        cmd="ls",
        workdir="sub",
        tty=True,
        yield_time_ms=2**64 - 1,
        max_output_tokens=5,
        shell="bash",
        login=False,
        environment_id="local",
        sandbox_permissions="require_escalated",
        justification="may I?",
        prefix_rule=("ls", "-l"),
        additional_permissions=RequestedPermissions(
            network=True, file_system=RequestedFiles(entries=None, read=("a",))
        ),
    )


def test_absent_arguments_have_the_defaults_of_the_contract() -> None:
    assert Arguments('{"cmd":"ls"}').exec_command() == ExecArguments(
        cmd="ls", tty=False, yield_time_ms=10_000, login=None, max_output_tokens=None
    )
    assert Arguments('{"session_id":7}').write_stdin() == WriteArguments(
        session_id=7, chars="", yield_time_ms=250, max_output_tokens=None
    )


def test_an_empty_workdir_counts_as_absent_and_an_empty_environment_does_not() -> None:
    arguments = Arguments('{"cmd":"ls","workdir":"","environment_id":""}')
    assert arguments.workdir() is None
    assert arguments.environment_id() == ""


def test_escapes_in_names_and_texts_are_decoded() -> None:
    text = '{"c\\u006dd":"a\\n\\u00e9\\ud83d\\ude00\\/"}'
    assert Arguments(text).exec_command().cmd == "a\né😀/"


def test_file_entries_are_given_as_objects() -> None:
    entry: dict[str, object] = {
        "path": {"type": "special", "value": {"kind": "root"}},
        "access": "read",
    }
    arguments = Arguments(
        {
            "cmd": "ls",
            "additional_permissions": {
                "file_system": {"entries": [entry], "glob_scan_max_depth": 3}
            },
        }
    )
    asked = arguments.exec_command().additional_permissions
    assert asked == RequestedPermissions(
        file_system=RequestedFiles(entries=(entry,), glob_scan_max_depth=3)
    )


def test_a_half_surrogate_in_members_is_refused_like_its_escape() -> None:
    said = refusal(Arguments({"cmd": "\ud800"}).exec_command)
    assert said == "unexpected end of hex escape at line 1 column 15"


def test_what_json_does_not_have_is_refused() -> None:
    with pytest.raises(ArgumentError, match="bytes is not JSON serializable"):
        Arguments({"cmd": b"ls"})


# -- beyond the original


@pytest.mark.requirement("unified-exec.arguments.extras")
def test_the_extras_are_ignored_unless_they_are_asked_for() -> None:
    given_members = {"cmd": "ls", "wait_for": 5, "head": "x", "tail": 0, "grep": []}
    assert Arguments(given_members).exec_command() == ExecArguments(cmd="ls")


@pytest.mark.requirement("unified-exec.arguments.extras")
def test_every_extra_argument() -> None:
    extras = {
        "wait_for": {"pattern": "ready", "quiet_ms": 500, "port": 8080, "input": True},
        "head": 1,
        "tail": 20,
        "grep": "err",
    }
    wanted = WaitForArguments(pattern="ready", quiet_ms=500, port=8080, input=True)
    started = Arguments({"cmd": "ls", **extras}, extras=True).exec_command()
    written = Arguments({"session_id": 1, **extras}, extras=True).write_stdin()
    for found in (started, written):
        assert (found.wait_for, found.head, found.tail, found.grep) == (wanted, 1, 20, "err")


@pytest.mark.requirement("unified-exec.arguments.extras")
@pytest.mark.parametrize(
    ("member", "said"),
    [
        ('"head":0', "`head`: invalid value: integer `0`, expected a number of lines from 1"),
        ('"tail":"5"', '`tail`: invalid type: string "5", expected a number of lines from 1'),
        ('"grep":5', "`grep`: invalid type: integer `5`, expected a string"),
        ('"wait_for":5', "`wait_for`: invalid type: integer `5`, expected an object"),
        (
            '"wait_for":{"port":0}',
            "`wait_for`: `port`: invalid value: integer `0`, expected a port from 1 to 65535",
        ),
        (
            '"wait_for":{"ports":1}',
            "unknown field `ports`, expected one of `pattern`, `quiet_ms`, `port`, `input`",
        ),
        ('"wait_for":{}', "needs one of `pattern`, `quiet_ms`, `port`, `input`"),
        ('"wait_for":{"input":false}', "needs one of"),
        ('"wait_for":{"quiet_ms":null}', "needs one of"),
        (
            '"wait_for":{"quiet_ms":86400001}',
            "`quiet_ms`: invalid value: integer `86400001`, expected milliseconds from 1 to",
        ),
    ],
)
def test_a_wrong_extra_argument_is_named(member: str, said: str) -> None:
    text = f'{{"cmd":"ls",{member}}}'
    assert said in refusal(Arguments(text, extras=True).exec_command)


@pytest.mark.requirement("unified-exec.arguments.extras")
def test_the_arguments_of_read_output() -> None:
    assert Arguments({"call_id": "c1", "lines": [-5]}).read_output() == ReadArguments(
        call_id="c1", lines=(-5, None)
    )
    assert Arguments({"session_id": 9, "lines": [1, 2]}).read_output().id == 9
    assert "either `call_id` or `session_id`" in refusal(Arguments({}).read_output)
    both = Arguments({"call_id": "c", "from_seq": 1, "lines": [1]})
    assert "either `from_seq` or `lines`" in refusal(both.read_output)
    assert "`lines`: needs the first" in refusal(
        Arguments({"call_id": "c", "lines": []}).read_output
    )


def steps(arguments: Arguments) -> list[object]:
    """Return the result or the refusal of each step, in the order in which a manager takes them."""
    return [
        said(step)
        for step in (
            arguments.environment_id,
            arguments.workdir,
            arguments.exec_command,
            arguments.session_id,
            arguments.write_stdin,
        )
    ]


def said(step: Callable[[], object]) -> object:
    """Return the result of a step, or the text of its refusal."""
    try:
        return step()
    except ArgumentError as error:
        return str(error)


def exact_steps(given: str | dict[str, object], *, extras: bool) -> list[object]:
    """Return the results of the steps if the quick reader takes nothing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "holdfast.agent.unified_exec.arguments.tool_arguments.read_plain",
            lambda data, kind, **_: None,
        )
        return steps(Arguments(given, extras=extras))


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from([-1, 0, 1, 250, 2**31 - 1, 2**31, 2**64 - 1, 2**64, 1.0, -0.0, 1e400]),
    st.sampled_from(["", "ls", "use_default", "\ud800", "ü", "\U0001f600", "a\x00b"]),
    st.lists(st.sampled_from(["git", "\udc00", 1, None]), max_size=2),
    st.dictionaries(st.sampled_from(["pattern", "ü"]), st.just("x"), max_size=1),
)
NAMES = [
    *("cmd", "workdir", "environment_id", "shell", "login", "tty", "yield_time_ms"),
    *("max_output_tokens", "sandbox_permissions", "additional_permissions", "justification"),
    *("prefix_rule", "session_id", "chars", "wait_for", "head", "tail", "grep"),
    *("unknown", "ünknown", "\ud800"),
]


@pytest.mark.requirement("unified-exec.arguments.plain")
@given(
    st.lists(st.tuples(st.sampled_from(NAMES), VALUES), max_size=4),
    st.sampled_from(["", " ", "x", ",}"]),
    st.booleans(),
)
def test_the_quick_reader_and_the_exact_one_agree(
    members: list[tuple[str, object]], behind: str, extras: bool
) -> None:
    pairs = [f"{json.dumps(name)}:{json.dumps(value)}" for name, value in members]
    text = '{"cmd":"true",' + ",".join(pairs).replace("-0.0", "-0") + "}" + behind
    for whole in (
        text,
        text.replace('"cmd":"true",', '"session_id":1234,'),
        json.loads(json.dumps(dict(members))),
    ):
        assert steps(Arguments(whole, extras=extras)) == exact_steps(whole, extras=extras)


@pytest.mark.requirement("unified-exec.arguments.plain")
def test_recorded_texts_mean_the_same_to_both_readers() -> None:
    for _, text, _ in RECORDED:
        assert steps(Arguments(text)) == exact_steps(text, extras=False)


@pytest.mark.requirement("unified-exec.arguments.plain")
def test_an_ordinary_call_does_not_need_the_exact_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("holdfast.agent.unified_exec.arguments.tool_arguments.JsonReader")
    text = '{"cmd": "ls ü", "login": false, "yield_time_ms": 1000, "tty": true}'
    expected = ExecArguments(cmd="ls ü", login=False, yield_time_ms=1000, tty=True)
    assert Arguments(text).exec_command() == expected
    assert Arguments(json.loads(text)).exec_command() == expected
    assert Arguments('{"session_id":4711,"chars":"\\u0003"}').write_stdin() == WriteArguments(
        session_id=4711, chars="\x03"
    )


@pytest.mark.parametrize(
    ("kind", "wrong", "said"),
    [
        (ExecArguments, {"cmd": 5}, "cmd is 5, it must be str"),
        (ExecArguments, {"cmd": "x", "tty": "yes"}, "tty is 'yes', it must be bool"),
        (ExecArguments, {"cmd": "x", "head": True}, "head is True, it must be int or None"),
        (ExecArguments, {"cmd": "x", "head": 1.5}, "head is 1.5, it must be int or None"),
        (ExecArguments, {"cmd": "x", "wait_for": {"port": 80}}, "wait_for is .*WaitForArguments"),
        (ExecArguments, {"cmd": "x", "prefix_rule": "ls"}, "prefix_rule is 'ls', it must be tuple"),
        (ExecArguments, {"cmd": "x", "yield_time_ms": -1}, "yield_time_ms is -1, it must be from"),
        (ExecArguments, {"cmd": "x", "yield_time_ms": 10**400}, "yield_time_ms is 1000"),
        (WriteArguments, {"session_id": "7"}, "session_id is '7', it must be int"),
        (WriteArguments, {"session_id": 7, "chars": b"x"}, "chars is b'x', it must be str"),
    ],
)
def test_what_a_program_gives_wrongly_is_named(
    kind: type, wrong: dict[str, object], said: str
) -> None:
    with pytest.raises((TypeError, InvalidParams), match=said):
        kind(**wrong)


@pytest.mark.requirement("unified-exec.arguments.extras")
def test_a_write_that_waits_for_something_has_time_for_it() -> None:
    waits = {"session_id": 1, "chars": "x", "wait_for": {"input": True}}
    assert Arguments(waits, extras=True).write_stdin().yield_time_ms == 10_000
    said = Arguments(waits | {"yield_time_ms": 300}, extras=True).write_stdin()
    assert said.yield_time_ms == 300
    assert Arguments(waits).write_stdin().yield_time_ms == 250  # ignored without extras
