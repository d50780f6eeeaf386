"""The processes of one owner: what is refused, how they start, and how long they stay."""

import asyncio
import errno
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.base.errors import (
    DuplicateProcess,
    InvalidParams,
    Refused,
    SpawnFailed,
)
from holdfast.engine.process.process import LocalProcess
from holdfast.engine.process.registry import ProcessRegistry
from holdfast.events import Reason, Verdict
from holdfast.wire.protocol.paths import PathUri
from holdfast.wire.protocol.process import (
    EnvPolicy,
    ShellSnapshotParams,
    ShellSnapshotShell,
    StartMetadata,
    ThreadId,
)
from holdfast.wire.protocol.sandbox import DisabledProfile, SandboxContext
from tests.unit.engine.process.starting import (
    LIMIT,
    closed,
    eventually,
    launch,
    output,
    program,
    shell,
    started,
)

# Starting.


@pytest.mark.requirement("start.state.descriptors", "start.state.session")
async def test_a_process_has_a_session_of_its_own_and_no_descriptors_of_ours(
    processes: ProcessRegistry,
) -> None:
    others = [
        launch(processes, program("/bin/cat", process_id=f"o{n}", pipe_stdin=True)) for n in (1, 2)
    ]
    script = "cat /proc/$$/stat; ls /proc/$$/fd"
    process = launch(processes, shell(script, pipe_stdin=True))
    await closed(process)
    stat, *descriptors = output(process).decode().splitlines()
    fields = stat.split()
    assert fields[0] == fields[4] == fields[5] == str(process.pid)
    assert set(descriptors) == {"0", "1", "2"}
    assert all(other.running for other in others)


@pytest.mark.requirement("env.exact", "env.shell-on-terminal")
async def test_a_terminal_without_a_shell_variable_gets_the_users(
    processes: ProcessRegistry,
) -> None:
    env = {"A": "1"}
    plain = launch(processes, program("/usr/bin/env", env=env, process_id="plain"))
    terminal = launch(processes, program("/usr/bin/env", env=env, process_id="tty", tty=True))
    given = {"SHELL": "mine"}
    with_own = launch(processes, program("/usr/bin/env", env=given, process_id="own", tty=True))
    for process in (plain, terminal, with_own):
        await closed(process)
    assert output(plain) == b"A=1\n"
    assert output(terminal) == b"A=1\r\nSHELL=/bin/login-shell\r\n"
    assert output(with_own) == b"SHELL=mine\r\n"


async def test_a_policy_inherits_from_the_server(processes: ProcessRegistry) -> None:
    policy = EnvPolicy(
        inherit="all", ignore_default_excludes=False, exclude=[], set={"S": "1"}, include_only=[]
    )
    metadata = StartMetadata(tool_call_id="call")
    params = program("/usr/bin/env", env={"E": "2"}, env_policy=policy, metadata=metadata)
    process = launch(processes, params)
    await closed(process)
    assert sorted(output(process).split()) == [
        b"CODEX_TOOL_CALL_ID=call",
        b"E=2",
        b"INHERITED=yes",
        b"S=1",
    ]


async def test_names_to_unset_are_removed_after_all_else(processes: ProcessRegistry) -> None:
    policy = EnvPolicy(
        inherit="all", ignore_default_excludes=True, exclude=[], set={"S": "1"}, include_only=[]
    )
    thread = ThreadId("00000000-0000-0000-0000-000000000001")
    params = program(
        "/usr/bin/env",
        env={"E": "2", "e": "3", "EE": "4", "PATH": "/nowhere"},
        env_policy=policy,
        metadata=StartMetadata(thread_id=thread, tool_call_id="call"),
        tty=True,
        unset=[
            "E",
            "S",
            "INHERITED",
            "SHELL",
            "PATH",
            "CODEX_THREAD_ID",
            "CODEX_TOOL_CALL_ID",
            "x",
        ],
    )
    process = launch(processes, params)
    await closed(process)
    assert sorted(output(process).split()) == [b"EE=4", b"e=3"]


async def test_a_list_of_nothing_unsets_nothing(processes: ProcessRegistry) -> None:
    process = launch(processes, program("/usr/bin/env", env={"A": "1"}, unset=[]))
    await closed(process)
    assert output(process) == b"A=1\n"


@pytest.mark.requirement("start.cwd.fallback-on-terminal", "start.cwd.missing-folder-on-pipes")
async def test_a_missing_folder_is_refused_on_pipes_and_replaced_on_a_terminal(
    processes: ProcessRegistry,
) -> None:
    with pytest.raises(SpawnFailed, match=r"^No such file or directory \(os error 2\)$"):
        await started(processes, program("/bin/pwd", cwd="/no/such"))
    env = {"HOME": "/usr"}
    process = launch(processes, program("/bin/pwd", cwd="/no/such", env=env, tty=True))
    await closed(process)
    assert output(process) == b"/usr\r\n"
    with pytest.raises(SpawnFailed, match=r"^No such file or directory \(os error 2\)$"):
        await started(
            processes,
            program("/bin/pwd", process_id="q", cwd="/no/such", env={"HOME": ""}, tty=True),
        )


@pytest.mark.requirement("start.program.dot-slash-argv0")
@pytest.mark.parametrize("tty", [False, True])
async def test_a_script_sees_how_it_was_found(
    processes: ProcessRegistry, tmp_path: Path, tty: bool
) -> None:
    (tmp_path / "tool").write_text('#!/bin/sh\necho "$0"\n')
    (tmp_path / "tool").chmod(0o755)
    process = launch(processes, program("./tool", cwd=str(tmp_path), tty=tty))
    await closed(process)
    assert output(process).strip().decode() == (f"{tmp_path}/./tool" if tty else "./tool")


@pytest.mark.requirement("start.program.nul")
async def test_a_nul_in_a_bare_name_is_refused(processes: ProcessRegistry) -> None:
    with pytest.raises(SpawnFailed, match=r"^nul byte found in provided data$"):
        await started(processes, program("x\0"))


@pytest.mark.requirement("security.others.descriptors")
async def test_no_descriptors_left_is_a_refusal_and_not_the_end(
    processes: ProcessRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> tuple[int, int]:
        raise OSError(errno.EMFILE, "no")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pipe", refuse)
        patch.setattr(os, "openpty", refuse)
        for tty in (False, True):
            with pytest.raises(SpawnFailed, match=r"^Too many open files \(os error 24\)$"):
                await started(processes, program("/bin/true", tty=tty))
    await closed(launch(processes, program("/bin/true")))


# The order of the checks, and what is refused.

PROXY: dict[str, Any] = {"network_proxy": {"proxy": {"enabled": True}}}
DISABLED = SandboxContext(permissions=DisabledProfile(), windows_sandbox_level="disabled")


@pytest.mark.requirement("start.sandbox-refused")
@pytest.mark.parametrize(
    ("option", "text"),
    [
        (PROXY, "network proxies are not supported by this exec-server"),
        ({"managed_network": {}}, "managed networking is not supported by this exec-server"),
    ],
    ids=repr,
)
async def test_a_protection_that_is_not_there_is_refused_and_never_ignored(
    processes: ProcessRegistry, option: dict[str, Any], text: str
) -> None:
    with pytest.raises(InvalidParams) as caught:
        processes.launch(program("/bin/true", **option))
    assert str(caught.value) == text
    assert len(processes) == 0


@pytest.mark.requirement("start.sandbox-refused")
async def test_a_sandbox_that_is_disabled_asks_for_nothing(processes: ProcessRegistry) -> None:
    await closed(launch(processes, program("/bin/true", sandbox=DISABLED)))


@pytest.mark.requirement("start.managed-network-alone")
async def test_managed_networking_without_a_sandbox_has_no_effect(
    processes: ProcessRegistry,
) -> None:
    await closed(launch(processes, program("/bin/true", enforce_managed_network=True)))


@pytest.mark.parametrize(
    "proxy",
    [
        {"HTTP_PROXY": "http://127.0.0.1:3128"},
        {"all_proxy": "socks5h://user:x@localhost:1080/"},
        {"npm_config_https_proxy": "http://[::1]"},
    ],
    ids=repr,
)
async def test_a_managed_network_with_a_proxy_is_refused(
    processes: ProcessRegistry, proxy: dict[str, str]
) -> None:
    params = program("/bin/true", sandbox=DISABLED, enforce_managed_network=True, env=proxy)

    with pytest.raises(InvalidParams, match="managed networking is not supported"):
        await started(processes, params)

    assert len(processes) == 0


@pytest.mark.parametrize("env", [{}, {"HTTP_PROXY": "http://proxy.example:3128"}], ids=repr)
async def test_a_managed_network_without_a_proxy_fails_as_a_process(
    processes: ProcessRegistry, env: dict[str, str]
) -> None:
    params = program("/bin/echo", "ran", sandbox=DISABLED, enforce_managed_network=True, env=env)

    starting = processes.launch(params)
    assert not isinstance(starting, LocalProcess)
    process = await starting
    verdict = await closed(process)

    assert verdict.exit_code == 101
    assert output(process) == (
        b"failed to prepare host proxy routing bridge:"
        b" managed proxy mode requires proxy environment variables\n"
    )


@pytest.mark.requirement("start.cwd.foreign")
@pytest.mark.parametrize("uri", ["file:///C:/x", "file://server/share"])
async def test_a_folder_of_another_machine_is_refused(processes: ProcessRegistry, uri: str) -> None:
    params = msgspec.structs.replace(program("/bin/true"), cwd=PathUri.parse(uri))
    with pytest.raises(InvalidParams) as caught:
        processes.launch(params)
    assert str(caught.value) == (
        f"cwd URI `{uri}` is not valid on this exec-server host: '{uri}' is invalid on 'linux'"
    )


@pytest.mark.requirement("start.check-order", "start.program.empty")
async def test_the_checks_have_an_order(processes: ProcessRegistry) -> None:
    async def refusal(**changes: object) -> Refused:
        params = msgspec.structs.replace(
            program(
                "/no/such",
                cwd="/",
                shell_snapshot=ShellSnapshotParams(
                    scope_id="", shell=ShellSnapshotShell(name="sh", path="/bin/sh")
                ),
                **PROXY,
            ),
            cwd=PathUri.parse("file:///C:/x"),
            argv=[],
        )
        with pytest.raises(Refused) as caught:
            await started(processes, msgspec.structs.replace(params, **changes))
        return caught.value

    launch(processes, program("/bin/cat", pipe_stdin=True))
    changes: dict[str, object] = {}
    assert str(await refusal(**changes)).startswith("network proxies")
    changes["network_proxy"] = None
    assert str(await refusal(**changes)).startswith("cwd URI")
    changes["cwd"] = PathUri.parse("file:///no/such")
    assert str(await refusal(**changes)).startswith("shell snapshot scope")
    changes["shell_snapshot"] = None
    assert str(await refusal(**changes)) == "argv must not be empty"
    changes["argv"] = ["/no/such"]
    assert isinstance(await refusal(**changes), DuplicateProcess)
    changes["process_id"] = "other"
    assert isinstance(await refusal(**changes), SpawnFailed)


# The table.


@pytest.mark.requirement("start.duplicate")
async def test_an_id_is_taken_once(processes: ProcessRegistry) -> None:
    process = launch(processes, program("/bin/cat", pipe_stdin=True))
    with pytest.raises(DuplicateProcess, match=r"^process p already exists$"):
        processes.launch(program("/bin/true"))
    assert processes.get("p") is processes.find("p") is process
    assert list(processes) == [process]
    await process.close_stdin()
    await closed(process)
    with pytest.raises(DuplicateProcess):  # it is still kept
        processes.launch(program("/bin/true"))


@pytest.mark.virtual_time
@pytest.mark.requirement("limits.closed-process")
async def test_a_closed_process_is_kept_for_80_seconds() -> None:
    processes = ProcessRegistry()
    process = launch(processes, program("/bin/true"))
    while not process.log.closed:  # noqa: ASYNC110 - see below
        await asyncio.sleep(0)  # without a timer: this clock would jump to it
    await asyncio.sleep(79)
    assert processes.find("p") is process
    await asyncio.sleep(2)
    assert processes.find("p") is None


@pytest.mark.requirement("limits.closed-process")
async def test_each_closed_process_is_kept_for_its_own_time() -> None:
    processes = ProcessRegistry(retention=0.001)
    for number in range(5):
        await closed(launch(processes, program("/bin/true", process_id=str(number))))
    lasting = launch(processes, program("/bin/cat", process_id="lasting", pipe_stdin=True))
    await eventually(lambda: len(processes) == 1)
    assert list(processes) == [lasting]
    processes.end(Reason.SERVER_STOPPING)
    assert await processes.wait_all_closed(LIMIT)


async def test_an_owner_that_ends_leaves_nothing_running(processes: ProcessRegistry) -> None:
    on_pipes = launch(processes, shell("trap '' TERM; sleep 60 & wait", process_id="1"))
    on_terminal = launch(processes, shell("trap '' HUP; sleep 60", process_id="2", tty=True))
    over = launch(processes, program("/bin/true", process_id="3"))
    await closed(over)
    processes.end(Reason.SERVER_STOPPING)
    assert await processes.wait_all_closed(LIMIT)
    assert over.log.verdict == Verdict(reason=Reason.EXITED, exit_code=0)
    for process in (on_pipes, on_terminal):
        assert process.log.verdict is not None
        assert process.log.verdict.reason is Reason.SERVER_STOPPING


async def test_waiting_for_all_can_run_out_of_time(processes: ProcessRegistry) -> None:
    launch(processes, program("/bin/cat", pipe_stdin=True))
    assert not await processes.wait_all_closed(0.001)


async def test_many_processes_at_once_each_have_their_own_output(
    processes: ProcessRegistry,
) -> None:
    started = [
        launch(processes, program("/bin/echo", str(n), process_id=str(n))) for n in range(50)
    ]
    for number, process in enumerate(started):
        await closed(process)
        assert output(process) == f"{number}\n".encode()
