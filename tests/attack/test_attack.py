"""Attacks in their short forms; the modules beside this one tell how to run the long ones."""

import hmac
import os
import subprocess
import sys
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest

from holdfast.base.token_file import NamedToken
from holdfast.server.operate.auth import AuthOptions, Unauthorized, check_tokens, make_check
from holdfast.wire.protocol.methods import METHODS
from holdfast.wire.rpc.params import decode_params
from tests.attack.authentication import attack_authentication
from tests.attack.exhaustion import ATTACKS, attack_exhaustion
from tests.attack.fuzz import TRANSPORTS, fuzz, right_requests
from tests.attack.kills import kill_servers
from tests.attack.races import attack_races
from tests.attack.scripts import attack_scripts
from tests.e2e.wire import LIMIT


def test_what_is_made_wrong_was_right_and_every_method_is_among_it() -> None:
    """A request that is wrong from the start never gets beyond the decoding of its parameters."""
    methods = {method.name: method for method in METHODS}
    asked = set()
    for request in right_requests("/"):
        method = methods.get(request["method"])
        if method is not None:
            decode_params(request.get("params"), method.params)
            asked.add(method.name)
    assert asked == set(methods)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_wrong_messages_do_no_harm(transport: str) -> None:
    assert fuzz(transport, messages=3_000, seed=2026, growth=8.0).messages == 3_000


@pytest.mark.timeout(120)
async def test_killed_servers_leave_nothing() -> None:
    await kill_servers(kills=4, seed=2026)


@pytest.mark.timeout(120)
@pytest.mark.requirement("sandbox.ends-with-its-owner")
def test_killed_programs_leave_no_sandbox() -> None:
    """In an interpreter without other threads, as its children are forked."""
    attack = [sys.executable, "-m", "tests.attack.kills", "--programs", "--count", "6"]
    done = subprocess.run(attack, capture_output=True, text=True, timeout=LIMIT * 8, check=False)
    assert "6 kills, nothing left" in done.stdout, done.stderr


@pytest.mark.timeout(120)
def test_nobody_gets_in_without_the_right_to() -> None:
    figures = attack_authentication(count=300, seed=2026)
    assert figures.cases >= 250
    assert 0 < figures.let_in < 150  # the changes are neither all harmless nor all fatal


@pytest.mark.requirement("security.token.constant-time")
def test_all_tokens_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[tuple[int, int]] = []
    compare: Callable[[bytes, bytes], bool] = hmac.compare_digest

    def counted(one: bytes, other: bytes) -> bool:
        lengths.append((len(one), len(other)))
        return compare(one, other)

    monkeypatch.setattr("holdfast.server.operate.auth.hmac.compare_digest", counted)
    check = check_tokens([NamedToken(name, f"token-of-{name}") for name in ("a", "bb", "ccc")])
    for token in ("token-of-a", "token-of-ccc", "x", "token-of-a" * 100):
        lengths.clear()
        try:
            check(f"Bearer {token}")
        except Unauthorized:
            assert token not in ("token-of-a", "token-of-ccc")
        assert lengths == [(32, 32)] * 3
    digest = sha256(b"the-token").hexdigest()
    capability = make_check(AuthOptions(mode="capability-token", token_sha256=digest))
    assert capability is not None
    lengths.clear()
    capability("Bearer the-token")
    assert lengths == [(32, 32)]


@pytest.mark.timeout(120)
@pytest.mark.requirement("approvals.split.generated")
def test_no_script_hides_a_forbidden_command() -> None:
    figures = attack_scripts(count=1_500, seed=2026)
    assert (figures.hidden, figures.parsed) == ([], [])
    # Neither is all of it noticed at once, nor is all of it given up.
    assert figures.noticed > 200
    assert figures.run > 200


@pytest.mark.parametrize(
    ("launcher", "why"),
    [
        ('until [ "$1" = --chdir ]; do shift; done; cd "$2"; shift 3; exec "$@"', "not confined"),
        ("exit 1", "cannot run"),
    ],
)
def test_scripts_run_in_confinement_or_not_at_all(
    launcher: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bwrap").write_text(f"#!/bin/sh\n{launcher}\n")
    (tmp_path / "bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(RuntimeError, match=why):
        attack_scripts(count=1, seed=2026)


@pytest.mark.timeout(120)
async def test_races_leave_and_double_nothing() -> None:
    await attack_races(count=40, seed=2026)


@pytest.mark.requirement("security.others.attacks")
@pytest.mark.timeout(120)
async def test_what_is_used_up_is_given_back() -> None:
    found = await attack_exhaustion(count=1, seed=2026)
    assert [figures.attack for figures in found] == list(ATTACKS)
