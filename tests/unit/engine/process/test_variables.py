"""The variables of a child, against a plain reading of the rules."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.base.errors import InvalidParams
from holdfast.engine.process.variables import child_environment
from holdfast.wire.protocol.process import EnvInherit, EnvPolicy, StartMetadata, ThreadId

SERVER = {
    "PATH": "/bin",
    "HOME": "/home/me",
    "lc_all": "C",
    "EDITOR": "vi",
    "API_KEY": "1",
    "my_token": "2",
    "SECRETS": "3",
}


def policy(
    inherit: EnvInherit = "all",
    *,
    keep_secrets: bool = False,
    exclude: tuple[str, ...] = (),
    set_: dict[str, str] | None = None,
    include_only: tuple[str, ...] = (),
) -> EnvPolicy:
    return EnvPolicy(
        inherit=inherit,
        ignore_default_excludes=keep_secrets,
        exclude=list(exclude),
        set=set_ or {},
        include_only=list(include_only),
    )


def inherited(rules: EnvPolicy, env: dict[str, str] | None = None) -> dict[str, str]:
    return child_environment(env or {}, rules, None, SERVER)


@pytest.mark.requirement("env.exact")
def test_without_a_policy_a_child_has_what_it_is_given_and_nothing_else() -> None:
    assert child_environment({"A": "1"}, None, None, SERVER) == {"A": "1"}


@pytest.mark.requirement("env.odd-names")
def test_odd_names_are_passed_through() -> None:
    odd = {"A=B": "1", "": "2", "a b": "3", "ü": "4"}
    assert child_environment(odd, None, None, SERVER) == odd


@pytest.mark.requirement("env.policy.inherit")
def test_all_some_or_nothing_is_inherited() -> None:
    assert inherited(policy("all", keep_secrets=True)) == SERVER
    assert inherited(policy("none", keep_secrets=True)) == {}
    assert inherited(policy("core")) == {"PATH": "/bin", "HOME": "/home/me", "lc_all": "C"}


@pytest.mark.requirement("env.policy.default-excludes")
def test_names_that_sound_like_secrets_are_dropped_unless_told_otherwise() -> None:
    assert inherited(policy()).keys() == {"PATH", "HOME", "lc_all", "EDITOR"}


@pytest.mark.requirement("env.policy.exclude")
def test_excluded_names_are_dropped_but_what_is_set_is_not() -> None:
    rules = policy(exclude=("ed*", "PATH"), set_={"EDITOR": "ed", "NEW_KEY": "k"})
    assert inherited(rules) == {"HOME": "/home/me", "lc_all": "C", "EDITOR": "ed", "NEW_KEY": "k"}


@pytest.mark.requirement("env.policy.include-only")
def test_only_included_names_stay_also_of_those_that_are_set() -> None:
    rules = policy(set_={"A": "1", "B": "2"}, include_only=("home", "A"))
    assert inherited(rules) == {"HOME": "/home/me", "A": "1"}


@pytest.mark.requirement("env.policy.env-wins")
def test_what_is_given_with_the_start_is_never_filtered() -> None:
    rules = policy(exclude=("*",), include_only=("NOTHING",), set_={"PATH": "x"})
    given_variables = {"PATH": "/usr/bin", "MY_TOKEN": "t"}
    assert inherited(rules, given_variables) == given_variables


# Names no child may see.


@pytest.mark.requirement("env.reserved")
@pytest.mark.parametrize(
    "name",
    [
        "CODEX_EXEC_SERVER_NOISE_AUTH_TOKEN",
        "NODE_REPL_AUTH_TOKEN",
        "OPENAI_FEDERATION_RULE_ID",
        "OPENAI_IDENTITY_TOKEN_FILE",
        "OPENAI_WORKLOAD_IDENTITY_CONTEXT",
        "CODEX_GUARDIAN_DECISIONS_API_KEY",
    ],
)
def test_secrets_of_the_server_are_dropped_in_any_case_and_wherever_they_come_from(
    name: str,
) -> None:
    for spelling in (name, name.lower(), name.title()):
        server = {spelling: "1", "A": "1"}
        rules = policy(keep_secrets=True, set_={spelling: "1"})
        assert child_environment({}, rules, None, server) == {"A": "1"}
        assert child_environment({spelling: "1"}, None, None, {}) == {}


@pytest.mark.requirement("env.reserved")
@pytest.mark.parametrize("name", ["CODEX_EXEC_SERVER_EXIT_ON_STDIN_CLOSE", "CODEX_TOOL_CALL_ID"])
def test_two_names_are_dropped_only_as_they_are_written(name: str) -> None:
    assert child_environment({name: "1"}, None, None, {}) == {}
    assert child_environment({name.lower(): "1"}, None, None, {}) == {name.lower(): "1"}


# Whose call it is.


@pytest.mark.requirement("env.tool-call-id")
@pytest.mark.parametrize("call", ["call-1", ""])
def test_the_id_of_the_call_is_told_to_the_child(call: str) -> None:
    metadata = StartMetadata(tool_call_id=call)
    env = {"CODEX_TOOL_CALL_ID": "forged"}
    assert child_environment(env, None, metadata, {}) == {"CODEX_TOOL_CALL_ID": call}
    assert child_environment(env, None, StartMetadata(), {}) == {}


@pytest.mark.requirement("env.thread-id")
def test_the_id_of_the_thread_is_told_to_the_child() -> None:
    thread = ThreadId("67e55044-10b1-426f-9247-bb680e5fe0c8")
    env = {"CODEX_THREAD_ID": "mine"}
    assert child_environment(env, None, None, {}) == env
    assert child_environment(env, None, StartMetadata(), {}) == {}
    assert child_environment(env, None, StartMetadata(thread_id=thread), {}) == {
        "CODEX_THREAD_ID": thread
    }


# Patterns.


@pytest.mark.requirement("env.policy.patterns")
@pytest.mark.parametrize(
    ("pattern", "name", "matches"),
    [
        ("HOME", "HOME", True),
        ("home", "HOME", True),
        ("HOM", "HOME", False),
        ("OME", "HOME", False),
        ("*", "", True),
        ("*", "A\nB", True),
        ("H*E", "HE", True),
        ("H*E", "HOME", True),
        ("H?ME", "HOME", True),
        ("H?ME", "HME", False),
        ("?", "", False),
        ("", "", False),
        ("", "HOME", False),
        ("[H]OME", "HOME", False),
        ("[H]OME", "[h]ome", True),
        ("A.B", "AxB", False),
        ("A|B", "A", False),
        ("\\d", "1", False),
        ("ü*", "ÜBER", True),
    ],
)
def test_a_pattern_is_for_the_whole_name_and_only_stars_and_question_marks_are_special(
    pattern: str, name: str, matches: bool
) -> None:
    rules = policy(exclude=(pattern,))
    assert (child_environment({}, rules, None, {name: "1"}) == {}) is matches


# Against a plain model.


def naive_match(pattern: str, name: str) -> bool:
    if not pattern:
        return not name
    if pattern[0] == "*":
        return naive_match(pattern[1:], name) or (name != "" and naive_match(pattern, name[1:]))
    if not name:
        return False
    return pattern[0] in ("?", name[0]) and naive_match(pattern[1:], name[1:])


def naive_any(patterns: list[str], name: str) -> bool:
    return any(p != "" and naive_match(p.upper(), name.upper()) for p in patterns)


def naive(env: dict[str, str], rules: EnvPolicy, server: dict[str, str]) -> dict[str, str]:
    core = "PATH SHELL TMPDIR TEMP TMP HOME LANG LC_ALL LC_CTYPE LOGNAME USER"
    found: dict[str, str] = {}
    for name, value in server.items():
        if rules.inherit == "none":
            continue
        if rules.inherit == "core" and name.upper() not in core.split(" "):
            continue
        secret = any(word in name.upper() for word in ("KEY", "SECRET", "TOKEN"))
        if secret and not rules.ignore_default_excludes:
            continue
        if not naive_any(rules.exclude, name):
            found[name] = value
    found.update(rules.set)
    if rules.include_only:
        found = {n: v for n, v in found.items() if naive_any(rules.include_only, n)}
    return {**found, **env}


letters = st.text(st.sampled_from("AaBbk[]."), max_size=4)
names = letters | st.sampled_from([*SERVER, "Path", "tmp", "TOKEN", "xKEYx", "LC_CTYPE"])
patterns = st.lists(
    st.text(st.sampled_from("AaBb*?[.k"), max_size=5) | names | st.just("*K*"), max_size=3
)
variables = st.dictionaries(names, st.text(string.digits, max_size=2), max_size=6)
policies = st.builds(
    EnvPolicy,
    inherit=st.sampled_from(["core", "all", "none"]),
    ignore_default_excludes=st.booleans(),
    exclude=patterns,
    set=variables,
    include_only=patterns,
)


@pytest.mark.slow
@pytest.mark.requirement(
    "env.policy.inherit",
    "env.policy.default-excludes",
    "env.policy.exclude",
    "env.policy.include-only",
    "env.policy.env-wins",
    "env.policy.patterns",
)
@given(variables, policies, variables)
def test_any_policy_gives_what_its_rules_say(
    env: dict[str, str], rules: EnvPolicy, server: dict[str, str]
) -> None:
    assert child_environment(env, rules, None, server) == naive(env, rules, server)


@pytest.mark.requirement("env.policy.exclude")
@pytest.mark.parametrize(
    ("pattern", "kept"),
    [
        ("*a*b", False),
        ("a*b*c", True),
        ("*", False),
        ("?AXB", False),
        ("a**b", False),
        ("ab", True),
    ],
)
def test_a_pattern_may_have_several_stars(pattern: str, kept: bool) -> None:
    rules = policy(exclude=(pattern,))
    assert ("XAXB" in child_environment({}, rules, None, {"XAXB": "1", "AXB": "2"})) is (
        kept or pattern.startswith("a")
    )


def test_a_pattern_of_many_stars_takes_no_time() -> None:
    """A plain expression for it would try for years."""
    rules = policy(exclude=("*a" * 30 + "b",))
    name = "A" * 60
    assert child_environment({}, rules, None, {name: "1"}) == {name: "1"}


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        (policy(exclude=("A*",) * 257), "envPolicy.exclude has 257 patterns of 514 characters"),
        (policy(include_only=("?" * 9_000,)), "envPolicy.includeOnly has 1 patterns of 9,000"),
        (policy(set_={"x" * 2_000: "y"}, include_only=("*",)), "has a name of 2,000 characters"),
    ],
)
def test_a_policy_that_would_take_long_to_match_is_refused(rules: EnvPolicy, said: str) -> None:
    # Thousands of patterns held the event loop for seconds.
    with pytest.raises(InvalidParams, match=said):
        inherited(rules)
    assert inherited(policy(exclude=("A*",) * 256, set_={"x" * 2_000: "y"}))
