"""Rules for Landlock, for a policy and a kernel."""

import struct

import pytest

from holdfast.engine.sandbox.bubblewrap.landlock import landlock_abi, ruleset
from holdfast.engine.sandbox.policy.policy import Policy, Rule

WRITE, MOVE = 1 << 1, 1 << 13

POLICY = Policy(
    full_read=False,
    full_write=False,
    rules={
        rule.path: rule
        for rule in (
            Rule("/", "read", "directory"),
            Rule("/ws", "write", "directory"),
            Rule("/ws/.git", "read", "directory", "protected"),
            Rule("/ws/secret", "deny", "directory"),
            Rule("/log", "write", "file"),
            Rule("/pipe", "write", "other"),
            Rule("/gone", "write", None),
        )
    },
)


@pytest.mark.requirement("security.sandbox.fifos")
def test_only_what_may_be_written_can_be_opened_for_writing() -> None:
    made = ruleset(POLICY, 7)

    assert made is not None
    assert dict(made.rules) == {
        "/dev": WRITE | MOVE,
        "/proc": WRITE,
        "/ws": WRITE | MOVE,
        "/log": WRITE,
        "/pipe": WRITE,
    }


@pytest.mark.parametrize(
    ("abi", "attributes"),
    [
        (2, struct.pack("<Q", WRITE | MOVE)),
        (5, struct.pack("<Q", WRITE | MOVE)),
        (6, struct.pack("<QQQ", WRITE | MOVE, 0, 1)),
        (9, struct.pack("<QQQ", WRITE | MOVE, 0, 1)),
    ],
)
def test_a_kernel_is_told_no_more_than_it_knows(abi: int, attributes: bytes) -> None:
    made = ruleset(POLICY, abi)

    assert made is not None
    assert made.attributes == attributes


def test_a_root_directory_that_is_private_can_be_written_to() -> None:
    made = ruleset(Policy(full_read=False, full_write=False, minimal=True), 7)

    assert made is not None
    assert dict(made.rules) == {"/": WRITE | MOVE, "/dev": WRITE | MOVE, "/proc": WRITE}


@pytest.mark.requirement("security.sandbox.old-kernels")
@pytest.mark.parametrize("abi", [0, 1])
def test_a_kernel_that_is_too_old_is_told_nothing(abi: int) -> None:
    assert ruleset(POLICY, abi) is None


def test_where_everything_may_be_written_nothing_is_refused() -> None:
    assert ruleset(Policy(network="restricted"), 7) is None


def test_the_version_is_asked_for_without_anything_being_applied() -> None:
    assert landlock_abi() >= 0
    assert landlock_abi() == landlock_abi()
