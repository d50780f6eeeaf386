"""Gaps of a sandbox: only those that apply to it are named."""

import pytest

from holdfast.engine.sandbox.bubblewrap.gaps import machine_gaps, policy_gaps
from holdfast.engine.sandbox.bubblewrap.landlock import OLDEST_ABI, SCOPING_ABI
from holdfast.engine.sandbox.policy.policy import Policy, Rule

READ = {"/": Rule("/", "read", "directory")}
WORK = {
    **READ,
    "/work": Rule("/work", "write", "directory"),
    "/work/.git": Rule("/work/.git", "read", "directory", "protected"),
}


def about(words: tuple[str, ...]) -> list[str]:
    return [word for word in ("FIFO", "network", "pattern", "hard links") if word in str(words)]


def restricted(rules: dict[str, Rule], **options: object) -> Policy:
    return Policy(full_write=False, network="restricted", rules=rules, **options)  # type: ignore[arg-type]


def test_each_gap_is_named_only_where_it_applies() -> None:
    assert policy_gaps(Policy(), SCOPING_ABI) == ()
    assert policy_gaps(restricted(READ), SCOPING_ABI) == ()
    assert about(policy_gaps(restricted(WORK), OLDEST_ABI)) == ["FIFO", "hard links"]
    assert about(policy_gaps(restricted(WORK), 0)) == ["hard links"]
    (gap,) = policy_gaps(
        restricted({"/work": WORK["/work"]}, group_directories=("/work",)), SCOPING_ABI
    )
    assert gap.startswith("programs that other users run with the group of /work can be made")
    open_network = Policy(full_write=False, rules=READ)
    assert about(policy_gaps(open_network, SCOPING_ABI)) == ["network"]


@pytest.mark.requirement("security.sandbox.old-kernels")
@pytest.mark.parametrize(
    ("abi", "root", "count"), [(OLDEST_ABI, False, 0), (0, False, 1), (OLDEST_ABI, True, 1)]
)
def test_a_machine_has_gaps_of_its_own(abi: int, root: bool, count: int) -> None:
    assert len(machine_gaps(abi, root=root)) == count
