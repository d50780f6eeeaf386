"""Profiles by name."""

from pathlib import Path

import msgspec
import pytest

from holdfast.base.errors import InvalidParams
from holdfast.engine.sandbox.policy.build import PolicyInputs, resolve
from holdfast.engine.sandbox.profile.builtin import named_profile, sandbox_context
from holdfast.wire.protocol.sandbox import DisabledProfile, SandboxContext
from holdfast.wire.rpc.params import decode_params
from tests.unit.engine.sandbox.trees import FakeDisk


def special(kind: str, access: str, **more: str) -> dict[str, object]:
    return {"path": {"type": "special", "value": {"kind": kind}}, "access": access, **more}


def test_workspace_write_is_what_a_client_sends_for_it() -> None:
    context = sandbox_context("workspace-write", cwd="/srv/ws")
    sent = msgspec.json.decode(msgspec.json.encode(context, enc_hook=str))
    roots = [
        {
            "path": {"type": "special", "value": {"kind": "project_roots", "subpath": name}},
            "access": "read",
            "missing_path_behavior": "skip",
        }
        for name in (".git", ".agents", ".codex")
    ]
    assert sent["permissions"] == {
        "type": "managed",
        "file_system": {
            "type": "restricted",
            "entries": [
                special("root", "read"),
                special("project_roots", "write"),
                special("slash_tmp", "write"),
                special("tmpdir", "write"),
                *roots,
            ],
        },
        "network": "restricted",
    }
    assert (sent["cwd"], sent["workspaceRoots"]) == ("file:///srv/ws", ["file:///srv/ws"])
    assert decode_params(sent, SandboxContext) == context


def test_each_name_means_what_it_says() -> None:
    disk = FakeDisk({"/srv/ws": None, "/tmp": None, "/srv/other": None})
    facts = PolicyInputs(cwd="/srv/ws", tmpdir="/srv/none", disk=disk)

    def writable(name: str) -> tuple[str, ...]:
        return resolve(sandbox_context(name, cwd="/srv/ws"), facts).writable

    assert writable("read-only") == ()
    assert writable("workspace-write") == ("/srv/ws", "/tmp")
    assert not resolve(sandbox_context("disabled", cwd="/srv/ws"), facts).isolates
    two = sandbox_context("workspace-write", cwd="/srv/ws", roots=["/srv/other", Path("/srv/ws")])
    assert resolve(two, facts).writable == ("/srv/other", "/srv/ws", "/tmp")


def test_a_profile_or_a_whole_context_is_taken_as_it_is() -> None:
    context = sandbox_context(DisabledProfile(), cwd="/srv")
    assert context.permissions == DisabledProfile()
    assert sandbox_context(context, cwd="/elsewhere") is context
    enabled = sandbox_context("read-only", cwd="/srv", network="enabled")
    assert enabled.permissions == named_profile("read-only", network="enabled")


def test_a_name_that_nobody_knows_is_refused() -> None:
    with pytest.raises(InvalidParams) as caught:
        named_profile("write-only")
    assert str(caught.value) == (
        "unknown sandbox profile `write-only` (did you mean `read-only`?), "
        "expected one of `read-only`, `workspace-write`, `disabled`"
    )
