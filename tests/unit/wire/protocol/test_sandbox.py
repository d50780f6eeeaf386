"""The `sandbox` member: what is read, what goes out, and the words for what is wrong."""

import json
from typing import Any

import msgspec
import pytest

from holdfast.base.errors import InvalidParams
from holdfast.wire.protocol.sandbox import SandboxContext
from holdfast.wire.rpc.params import decode_params

ROOT = {"path": {"type": "special", "value": {"kind": "root"}}, "access": "read"}
DISABLED = {"type": "disabled"}


def context(permissions: object = DISABLED, **members: object) -> dict[str, object]:
    return {"permissions": permissions, "windowsSandboxLevel": "disabled", **members}


def managed(*entries: object, network: object = "restricted", **files: object) -> dict[str, object]:
    files = {"type": "restricted", "entries": list(entries), **files}
    return {"type": "managed", "file_system": files, "network": network}


def entry(path: object, access: object = "read", **members: object) -> dict[str, object]:
    return {"path": path, "access": access, **members}


def special(**value: object) -> dict[str, object]:
    return entry({"type": "special", "value": value})


def plain(path: object, access: object = "read", **members: object) -> dict[str, object]:
    return entry({"type": "path", "path": path}, access, **members)


ACCEPTED: list[Any] = [
    context(),
    context({"type": "external", "network": "restricted"}),
    context({"type": "managed", "file_system": {"type": "unrestricted"}, "network": "enabled"}),
    context(managed()),
    context(managed(ROOT), cwd=None, workspaceRoots=["file:///srv"], policyContext={"cwd": None}),
    context(managed(special(kind="project_roots", subpath=".git"))),
    context(managed(special(kind="unknown", path=":new"))),
    context(managed(plain("file:///x", "none"))),
    context(managed(plain("file:///x", missing_path_behavior="skip"))),
    context(managed(plain("file:///x", missing_path_behavior=None))),
    context(managed(entry({"type": "glob_pattern", "pattern": "*.env"}, "deny"))),
    context(managed(ROOT, glob_scan_max_depth=4)),
    context(managed(ROOT, glob_scan_max_depth=None)),
    context(managed(ROOT), sandboxOverride="bypassSandboxFirstAttempt", somethingNew=1),
    context(managed(ROOT), userHomeDir="file:///h", temporaryDirectories=["file:///t"]),
    context(managed(ROOT), windowsSandboxProxySettingsMode=None, useLegacyLandlock=True),
]


@pytest.mark.requirement("sandbox.context")
@pytest.mark.parametrize("value", ACCEPTED, ids=json.dumps)
def test_a_context_is_read_and_written_back_the_same(value: object) -> None:
    first = decode_params(value, SandboxContext)
    again = msgspec.json.decode(msgspec.json.encode(first, enc_hook=str))
    assert decode_params(again, SandboxContext) == first
    assert hash(first) == hash(decode_params(value, SandboxContext))


def test_names_in_permissions_stay_as_they_are() -> None:
    sent = managed(ROOT, glob_scan_max_depth=2)
    context_ = decode_params(context(sent), SandboxContext)
    written = json.loads(msgspec.json.encode(context_, enc_hook=str))
    assert written["permissions"] == sent
    assert written["windowsSandboxLevel"] == "disabled"


_ONE_OF_ACCESS = "expected one of `read`, `write`, `deny`, `none`"
_ONE_OF_KINDS = (
    "expected one of `root`, `minimal`, `current_working_directory`, `project_roots`, "
    "`tmpdir`, `slash_tmp`, `unknown`"
)
REFUSED: list[tuple[object, str]] = [
    (5, "invalid type: number, expected struct WireFileSystemSandboxContext"),
    ("x", 'invalid type: string "x", expected struct WireFileSystemSandboxContext'),
    ({}, "missing field `permissions`"),
    ({"permissions": DISABLED}, "missing field `windowsSandboxLevel`"),
    (
        {"permissions": DISABLED, "windowsSandboxLevel": "z"},
        "unknown variant `z`, expected one of `disabled`, `restricted-token`, `elevated`, `mxc`",
    ),
    (
        {"permissions": DISABLED, "windowsSandboxLevel": 4},
        "invalid type: number, expected string or map",
    ),
    (
        context(5),
        "invalid type: integer `5`, expected internally tagged enum ExecPermissionProfile",
    ),
    (context({}), "missing field `type`"),
    (context({"network": {"enabled": True}}), "missing field `type`"),
    (context({"type": 1}), "invalid type: number, expected variant identifier"),
    (
        context({"type": "readOnly"}),
        "unknown variant `readOnly`, expected one of `managed`, `disabled`, `external`",
    ),
    (context({"type": "managed"}), "missing field `file_system`"),
    (context({"type": "external"}), "missing field `network`"),
    (
        context({"type": "external", "network": "x"}),
        "unknown variant `x`, expected `restricted` or `enabled`",
    ),
    (context(managed(network=1)), "invalid type: integer `1`, expected string or map"),
    (
        context({"type": "managed", "file_system": 1, "network": "enabled"}),
        "invalid type: integer `1`, "
        "expected internally tagged enum ExecManagedFileSystemPermissions",
    ),
    (
        context({"type": "managed", "file_system": {"type": "z"}, "network": "enabled"}),
        "unknown variant `z`, expected `restricted` or `unrestricted`",
    ),
    (
        context({"type": "managed", "file_system": {"type": "restricted"}, "network": "enabled"}),
        "missing field `entries`",
    ),
    (context(managed(entries=5)), "invalid type: integer `5`, expected a sequence"),
    (
        context(managed(5)),
        "invalid type: integer `5`, expected struct ExecFileSystemSandboxEntry",
    ),
    (context(managed({})), "missing field `path`"),
    (
        context(managed(entry(5))),
        "invalid type: integer `5`, expected internally tagged enum ExecFileSystemPath",
    ),
    (
        context(managed(entry({"type": "q"}))),
        "unknown variant `q`, expected one of `path`, `glob_pattern`, `special`",
    ),
    (context(managed(plain("/x"))), "invalid URI: relative URL without a base"),
    (context(managed(plain("http://x"))), "unsupported path URI scheme `http`"),
    (context(managed(plain(5))), "invalid type: integer `5`, expected a string"),
    (context(managed(plain("file:///x", "exec"))), f"unknown variant `exec`, {_ONE_OF_ACCESS}"),
    (context(managed(plain("file:///x", 5))), "invalid type: integer `5`, expected string or map"),
    (context(managed({"path": {"type": "path", "path": "file:///x"}})), "missing field `access`"),
    (
        context(managed(plain("file:///x", missing_path_behavior="q"))),
        "unknown variant `q`, expected `skip`",
    ),
    (context(managed(entry({"type": "glob_pattern"}))), "missing field `pattern`"),
    (context(managed(entry({"type": "special"}))), "missing field `value`"),
    (
        context(managed(entry({"type": "special", "value": "root"}))),
        'invalid type: string "root", expected internally tagged enum FileSystemSpecialPath',
    ),
    (context(managed(special())), "missing field `kind`"),
    (context(managed(special(kind="bogus"))), f"unknown variant `bogus`, {_ONE_OF_KINDS}"),
    (context(managed(special(kind="unknown"))), "missing field `path`"),
    (
        context(managed(special(kind="project_roots", subpath=4))),
        "invalid type: integer `4`, expected a string",
    ),
    (
        context(managed(ROOT, glob_scan_max_depth=0)),
        "invalid value: integer `0`, expected a nonzero usize",
    ),
    (
        context(managed(ROOT, glob_scan_max_depth=-1)),
        "invalid value: integer `-1`, expected a nonzero usize",
    ),
    (
        context(managed(ROOT, glob_scan_max_depth=1.5)),
        "invalid type: floating point `1.5`, expected a nonzero usize",
    ),
    (
        context(managed(ROOT, glob_scan_max_depth="2")),
        'invalid type: string "2", expected a nonzero usize',
    ),
    (context(cwd="/x"), "invalid URI: relative URL without a base"),
    (context(cwd=5), "invalid type: number, expected a string"),
    (context(workspaceRoots=None), "invalid type: null, expected a sequence"),
    (context(workspaceRoots=["/x"]), "invalid URI: relative URL without a base"),
    (
        context(sandboxOverride="x"),
        "unknown variant `x`, expected one of `noOverride`, "
        "`escalatedSandboxWithRestrictions`, `bypassSandboxFirstAttempt`",
    ),
    (
        context(policyContext=5),
        "invalid type: number, expected struct WireFileSystemPolicyContext",
    ),
    (context(temporaryDirectories=[5]), "invalid type: number, expected a string"),
    (
        context(windowsSandboxProxySettingsMode="z"),
        "unknown variant `z`, expected `reconcile` or `preserve`",
    ),
    (context(useLegacyLandlock=5), "invalid type: number, expected a boolean"),
]


@pytest.mark.requirement("sandbox.context.malformed")
@pytest.mark.parametrize(
    ("value", "words"), REFUSED, ids=[json.dumps(value) for value, _ in REFUSED]
)
def test_what_is_wrong_is_told_in_the_words_of_the_protocol(value: object, words: str) -> None:
    with pytest.raises(InvalidParams) as caught:
        decode_params(value, SandboxContext)
    assert str(caught.value) == words
