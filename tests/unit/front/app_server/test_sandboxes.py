"""From policies and names to the sandbox of a command."""

import pytest

from holdfast.base.errors import InvalidRequest
from holdfast.engine.sandbox.profile.builtin import named_profile
from holdfast.environments.local_environment import LocalEnvironment
from holdfast.front.app_server.sandboxes import SandboxProfiles
from holdfast.wire.protocol.command_exec import (
    DangerFullAccess,
    ExternalSandbox,
    LegacyPolicy,
    ReadOnly,
    WorkspaceWrite,
)
from holdfast.wire.protocol.paths import PathUri
from holdfast.wire.protocol.sandbox import ExternalProfile, ManagedProfile, SandboxContext

pytestmark = pytest.mark.requirement("app-server.profiles")

CWD = PathUri.from_path("/srv/work")


async def context(
    policy: LegacyPolicy | None = None,
    profile: str | None = None,
    sandboxes: SandboxProfiles | None = None,
) -> SandboxContext | None:
    environment = LocalEnvironment()
    environment.cwd = "/srv"
    return await (sandboxes or SandboxProfiles()).context(
        environment, policy=policy, profile=profile, cwd=CWD
    )


async def test_the_default_is_to_read_only() -> None:
    found = await context()
    assert found is not None
    assert found.permissions == named_profile("read-only")
    assert found.workspace_roots == (PathUri.from_path("/srv"),)
    assert await context(sandboxes=SandboxProfiles(default=named_profile("disabled"))) is None


async def test_policies_are_about_the_folder_of_the_server() -> None:
    assert await context(DangerFullAccess()) is None
    external = await context(ExternalSandbox(network_access="enabled"))
    assert external is not None
    assert external.permissions == ExternalProfile(network="enabled")
    reading = await context(ReadOnly(network_access=True))
    assert reading is not None
    assert isinstance(reading.permissions, ManagedProfile)
    assert reading.permissions.network == "enabled"
    writing = await context(WorkspaceWrite(writable_roots=("/data",)))
    assert writing is not None
    assert writing.workspace_roots == (PathUri.from_path("/srv"),)
    assert writing.cwd == CWD


async def test_profiles_are_about_the_folder_of_the_command() -> None:
    mine = named_profile("workspace-write", network="enabled")
    sandboxes = SandboxProfiles(named={"mine": mine})
    for name in (":workspace", "mine"):
        found = await context(profile=name, sandboxes=sandboxes)
        assert found is not None
        assert found.workspace_roots == (CWD,)
    assert await context(profile=":danger-full-access") is None


@pytest.mark.parametrize(
    ("name", "named", "reason"),
    [
        (":x", (), "refers to unknown built-in profile `:x`"),
        ("x", (), "requires a `[permissions]` table"),
        ("", (), "requires a `[permissions]` table"),
        ("x", ("mine",), "refers to undefined profile `x`"),
    ],
)
async def test_a_profile_that_is_not_there(name: str, named: tuple[str, ...], reason: str) -> None:
    sandboxes = SandboxProfiles(named={one: named_profile("read-only") for one in named})
    with pytest.raises(InvalidRequest) as caught:
        await context(profile=name, sandboxes=sandboxes)
    assert str(caught.value) == f"invalid permission profile: default_permissions {reason}"
