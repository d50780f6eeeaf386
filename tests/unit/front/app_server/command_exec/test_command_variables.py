"""Variables that a command gets or loses [command-exec.env.*]."""

import pytest

from holdfast.front.app_server.command_exec.command_variables import command_variables
from holdfast.wire.protocol.sandbox import (
    DisabledProfile,
    ExternalProfile,
    ManagedProfile,
    Network,
    PermissionProfile,
    SandboxContext,
    UnrestrictedFiles,
)

ENDINGS = "CODEX_APPLY_PATCH_PRESERVE_LINE_ENDINGS"
NO_NETWORK = "CODEX_SANDBOX_NETWORK_DISABLED"


def sandbox(permissions: PermissionProfile) -> SandboxContext:
    return SandboxContext(permissions=permissions, windows_sandbox_level="disabled")


def managed(network: Network) -> SandboxContext:
    return sandbox(ManagedProfile(file_system=UnrestrictedFiles(), network=network))


@pytest.mark.requirement("command-exec.env.exact")
def test_a_text_sets_and_none_removes_by_the_exact_name() -> None:
    env, unset = command_variables({"A": "1", "a": None, "": "x", "B=C": "y"}, None)
    assert env == {"A": "1", "": "x", "B=C": "y", ENDINGS: "1"}
    assert unset == ["a"]


@pytest.mark.parametrize("name", ["", "A=B", "A\0B"])
def test_what_is_no_name_cannot_be_there_to_be_removed(name: str) -> None:
    assert command_variables({name: None}, None).unset == []


@pytest.mark.requirement("command-exec.env.secrets")
@pytest.mark.parametrize("name", ["NODE_REPL_AUTH_TOKEN", "openai_Identity_token_FILE"])
def test_secrets_of_a_server_cannot_be_set(name: str) -> None:
    assert command_variables({name: "x"}, None, forced=False).env == {}


@pytest.mark.requirement("command-exec.env.network")
@pytest.mark.parametrize(
    ("context", "restricted"),
    [
        (None, False),
        (managed("restricted"), True),
        (managed("enabled"), False),
        (sandbox(ExternalProfile(network="restricted")), True),
        (sandbox(ExternalProfile(network="enabled")), False),
        (sandbox(DisabledProfile()), False),
    ],
)
def test_a_command_is_told_that_it_has_no_network(
    context: SandboxContext | None, restricted: bool
) -> None:
    assert (NO_NETWORK in command_variables({}, context).env) == restricted


def test_what_codex_sets_cannot_be_changed() -> None:
    given = {ENDINGS: None, NO_NETWORK: None}
    assert command_variables(given, managed("restricted")) == (
        {ENDINGS: "1", NO_NETWORK: "1"},
        [],
    )
    assert command_variables({ENDINGS: "0"}, None).env == {ENDINGS: "1"}
    assert command_variables(given, managed("restricted"), forced=False) == (
        {},
        [ENDINGS, NO_NETWORK],
    )
