"""Policies of older clients."""

from typing import Any

import msgspec
import pytest

from holdfast.engine.sandbox.profile.builtin import named_profile
from holdfast.front.app_server.sandboxes import from_legacy
from holdfast.wire.protocol.command_exec import LegacyPolicy
from holdfast.wire.protocol.sandbox import DisabledProfile, ExternalProfile, ManagedProfile
from tests.unit.engine.sandbox.trees import FakeDisk

DISK = FakeDisk({"/data/.git/config": "x", "/data/.codex": None, "/data/.aws": None})


def profile(**policy: object) -> Any:
    return from_legacy(msgspec.convert(policy, LegacyPolicy), disk=DISK)


@pytest.mark.requirement("sandbox.legacy")
def test_each_policy_has_a_profile() -> None:
    assert profile(type="readOnly") == named_profile("read-only")
    assert profile(type="readOnly", networkAccess=True) == named_profile(
        "read-only", network="enabled"
    )
    assert profile(type="workspaceWrite") == named_profile("workspace-write")
    assert profile(type="dangerFullAccess") == DisabledProfile()
    assert profile(type="externalSandbox", networkAccess="enabled") == ExternalProfile(
        network="enabled"
    )


@pytest.mark.requirement("sandbox.legacy")
def test_a_workspace_policy_lists_its_roots_and_what_is_protected_there() -> None:
    made = profile(
        type="workspaceWrite",
        writableRoots=["/data"],
        networkAccess=True,
        excludeTmpdirEnvVar=True,
        excludeSlashTmp=True,
    )
    assert isinstance(made, ManagedProfile)
    assert made.network == "enabled"
    said = [
        (entry["path"].get("path") or entry["path"]["value"], entry["access"])
        for entry in msgspec.json.decode(msgspec.json.encode(made, enc_hook=str))["file_system"][
            "entries"
        ]
    ]
    assert said == [
        ({"kind": "root"}, "read"),
        ({"kind": "project_roots"}, "write"),
        ("file:///data", "write"),
        ({"kind": "project_roots", "subpath": ".git"}, "read"),
        ({"kind": "project_roots", "subpath": ".agents"}, "read"),
        ({"kind": "project_roots", "subpath": ".codex"}, "read"),
        ("file:///data/.git", "read"),
        ("file:///data/.codex", "read"),
    ]
