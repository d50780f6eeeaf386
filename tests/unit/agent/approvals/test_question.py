"""Questions and decisions: their JSON forms, and what is no decision."""

import pytest

from holdfast.agent.approvals.approval_cache import CommandKey, SessionCache, canonical_command
from holdfast.agent.approvals.permissions import AddedPermissions
from holdfast.agent.approvals.question import (
    Decision,
    DecisionKind,
    DeniedRun,
    Question,
    QuestionKind,
)
from holdfast.agent.approvals.split.simple_command import split_command
from holdfast.base.errors import InvalidParams


def question(**members: object) -> Question:
    given: dict[str, object] = {
        "kind": QuestionKind.COMMAND,
        "call_id": "c1",
        "environment_id": "local",
        "command": ("/bin/bash", "-lc", "cargo test -q"),
        "cwd": "/srv/ws",
        "digest": "d",
        "script": "cargo test -q",
        **members,
    }
    return Question(**given)  # type: ignore[arg-type]  # each test gives what fits


@pytest.mark.requirement("approvals.question.json")
def test_the_form_of_the_app_server() -> None:
    asked = question(
        reason="ok?",
        proposed_amendment=("cargo", "test"),
        thread_id="t",
        turn_id="u",
        started_at_ms=7,
    )
    assert asked.to_json() == {
        "threadId": "t",
        "turnId": "u",
        "itemId": "c1",
        "startedAtMs": 7,
        "kind": "command",
        "environmentId": "local",
        "reason": "ok?",
        "command": "/bin/bash -lc 'cargo test -q'",
        "cwd": "/srv/ws",
        "commandActions": [{"type": "unknown", "command": "cargo test -q"}],
        "proposedExecpolicyAmendment": ["cargo", "test"],
        "availableDecisions": [
            "accept",
            {"acceptWithExecpolicyAmendment": {"execpolicy_amendment": ["cargo", "test"]}},
            "cancel",
        ],
    }


@pytest.mark.requirement("approvals.question.json")
def test_a_script_that_was_replaced_is_not_shown() -> None:
    asked = question(command=("/bin/rm", "-rf", "x"))
    assert asked.to_json()["commandActions"] == [{"type": "unknown", "command": "/bin/rm -rf x"}]


@pytest.mark.requirement("approvals.question.offered")
def test_what_is_offered() -> None:
    def offered(asked: Question) -> list[object]:
        return [one.to_json() for one in asked.available_decisions]

    assert offered(question()) == ["accept", "cancel"]
    permissions = AddedPermissions(network=True)
    more = question(permissions=permissions, proposed_amendment=("a",))
    assert offered(more) == ["accept", "cancel"]
    assert more.to_json()["additionalPermissions"] == {"network": {"enabled": True}}
    network = question(network_context=("example.org", "https"))
    allow = {"host": "example.org", "action": "allow"}
    assert offered(network) == [
        "accept",
        "acceptForSession",
        {"applyNetworkPolicyAmendment": {"network_policy_amendment": allow}},
        "cancel",
    ]
    told = network.to_json()
    assert told["networkApprovalContext"] == {"host": "example.org", "protocol": "https"}
    assert told["proposedNetworkPolicyAmendments"] == [allow]


def test_what_was_denied_is_told() -> None:
    denied = DeniedRun(what="w", output="o", exit_code=1, network_attempts=("n",))
    assert question(denied=denied).to_json()["denied"] == {
        "what": "w",
        "output": "o",
        "exitCode": 1,
        "networkAttempts": ["n"],
    }


@pytest.mark.parametrize(
    "value",
    [
        "accept",
        "acceptForSession",
        "decline",
        "cancel",
        {"acceptWithExecpolicyAmendment": {"execpolicy_amendment": ["a", "b"]}},
        {
            "applyNetworkPolicyAmendment": {
                "network_policy_amendment": {"host": "h", "action": "deny"}
            }
        },
    ],
)
@pytest.mark.requirement("approvals.question.decisions")
def test_decisions_there_and_back(value: object) -> None:
    decision = Decision.parse(value, question_id="q")
    assert decision.to_json() == value
    assert decision.question_id == "q"
    assert decision.accepts == (
        decision.kind
        not in (DecisionKind.DECLINE, DecisionKind.CANCEL, "applyNetworkPolicyAmendment")
    )


@pytest.mark.requirement("approvals.question.decisions")
def test_a_decision_is_checked_when_it_is_made() -> None:
    # One of an unknown kind would be neither a refusal nor a cancellation.
    for kind in ("rejected", "Accept", "", None, True):
        with pytest.raises(InvalidParams, match="unknown decision"):
            Decision(kind)  # type: ignore[arg-type]  # on purpose
    assert Decision("decline").kind is DecisionKind.DECLINE  # type: ignore[arg-type]  # as above
    amend = DecisionKind.ACCEPT_WITH_AMENDMENT
    for words in ("ls", (), [1], 5):
        with pytest.raises(InvalidParams):
            Decision(amend, amendment=words)  # type: ignore[arg-type]  # as above
    with pytest.raises(InvalidParams, match="granted"):
        Decision(DecisionKind.ACCEPT, granted=True)  # type: ignore[arg-type]  # as above


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        "",
        "Accept",
        "approved",
        [],
        {},
        {"accept": {}},
        {"accept": {}, "decline": {}},
        {"acceptWithExecpolicyAmendment": {}},
        {"acceptWithExecpolicyAmendment": {"execpolicy_amendment": []}},
        {"acceptWithExecpolicyAmendment": {"execpolicy_amendment": "ls"}},
        {"acceptWithExecpolicyAmendment": {"execpolicy_amendment": [1]}},
        {"applyNetworkPolicyAmendment": {"network_policy_amendment": {"host": "h"}}},
        {
            "applyNetworkPolicyAmendment": {
                "network_policy_amendment": {"host": "h", "action": "maybe"}
            }
        },
    ],
)
@pytest.mark.requirement("approvals.question.decisions")
def test_what_is_no_decision(value: object) -> None:
    with pytest.raises(InvalidParams):
        Decision.parse(value)


# -- the cache


def key(script: str, **members: object) -> CommandKey:
    argv = (str(members.pop("shell", "/bin/bash")), str(members.pop("flag", "-c")), script)
    split = split_command(argv)
    given: dict[str, object] = {
        "environment_id": "local",
        "executable": argv[0],
        "command": canonical_command(argv, split.segments, plain=split.plain),
        "cwd": "/ws",
        "tty": False,
        "sandbox_permissions": "require_escalated",
        **members,
    }
    return CommandKey(**given)  # type: ignore[arg-type]  # each test gives what fits


@pytest.mark.requirement("approvals.cache.key")
def test_which_commands_are_the_same() -> None:
    one = key("echo s1")
    assert key("echo  's1'") == one
    assert key("echo s1", flag="-lc") == one
    assert len({one, key("echo s2"), key("echo s1", shell="/bin/sh")}) == 3
    assert key("echo s1", tty=True) != one
    assert key("echo s1", cwd="/") != one
    assert key("echo s1", environment_id="e") != one
    assert key("echo s1", sandbox_permissions="use_default") != one
    assert key("echo s1", permissions=AddedPermissions(network=True)) != one
    assert key("echo s1", rules_fingerprint="f") != one
    script = key("echo a > f")
    assert key("echo a  > f") != script
    assert key("echo a > f", flag="-lc") != script
    # A program whose name and arguments look like the key of a script.
    assert key("__codex_shell_script__ -c 'echo a > f'") != script
    assert canonical_command(("ls", "-l"), [("ls", "-l")], plain=False) == ("ls", "-l")


@pytest.mark.requirement("approvals.question.digest")
def test_digests_tell_apart_what_keys_tell_apart() -> None:
    keys = [key("a b"), key("a 'b c'"), key("a b c"), key("a b", tty=True), key("a b", cwd="/x")]
    assert len({one.digest() for one in keys}) == len(keys)
    assert key("a b").digest() == key("a  b").digest()
    assert key("a b").digest("x") != key("a b").digest()
    assert key("a b").digest("x", "y") != key("a b").digest("x y")


@pytest.mark.requirement("approvals.cache.all")
def test_a_cache_needs_all_keys_and_is_bounded() -> None:
    cache = SessionCache(capacity=3)
    keys = [key(f"echo {number}") for number in range(5)]
    assert not cache.holds()
    cache.add(keys[0])
    assert cache.holds(keys[0])
    assert not cache.holds(keys[0], keys[1])
    for one in keys:
        cache.add(one)
    assert len(cache) == 3
    assert not cache.holds(keys[0])
    assert cache.holds(*keys[2:])
    cache.clear()
    assert not cache.holds(keys[4])
