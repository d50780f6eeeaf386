"""
Contract of `sandbox` and `limits` for commands and files, in every kind of environment.

Also on the real Codex, which has sandboxes too, and no limits.
"""

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from holdfast.base.errors import InvalidParams, Refused, Unsupported
from holdfast.environments.environment import Environment
from holdfast.environments.limits import Limits
from holdfast.environments.sandbox import SandboxProfile
from holdfast.events import DenialKind, Reason
from holdfast.wire.protocol.paths import PathUri
from tests.contract.conftest import Subject
from tests.contract.test_environment import read_until


@pytest.fixture
def outside(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that no sandbox of these tests lets a command write to."""
    return tmp_path_factory.mktemp("outside")


def confined(**rules: Sequence[str]) -> SandboxProfile:
    """Everything can be read, and the folder of the environment written."""
    return SandboxProfile("read-only", write=["."], **rules)  # type: ignore[arg-type]


@pytest.mark.slow
async def test_a_sandboxed_command_writes_to_its_workspace_only(
    env: Environment, tmp_path: Path, outside: Path
) -> None:
    script = f"echo in > inside; echo out > {outside}/file"
    done = await env.run(script, sandbox=confined())
    assert (tmp_path / "inside").read_text() == "in\n"
    assert not (outside / "file").exists()
    assert (done.ok, done.denied, done.reason) == (False, True, Reason.EXITED)
    assert done.denial is not None
    assert done.denial.kind is DenialKind.READ_ONLY_FILE_SYSTEM
    assert "denied by its sandbox" in str(done)
    (note,) = done.notes
    assert note.text == f"The sandbox may have denied access to `{outside}/file`."
    assert (await env.run(script, sandbox="disabled")).ok  # so it is the sandbox that refused
    assert (outside / "file").exists()


@pytest.mark.slow
async def test_every_start_tells_what_is_enforced_and_what_is_not(
    env: Environment, subject: Subject
) -> None:
    done = await env.run(["true"], sandbox="read-only")
    if subject.real:
        assert done.enforcement is None  # Codex does not tell
    else:
        assert done.enforcement is not None
        assert done.enforcement.isolation == "full"
        # Only what applies: nothing can be written, so nothing inside of it is protected.
        assert not any("writable" in gap for gap in done.enforcement.gaps)
        writing = (await env.run(["true"], sandbox="workspace-write")).enforcement
        assert writing is not None
        assert any("hard links" in gap for gap in writing.gaps)
    assert (await env.run(["true"])).enforcement is None
    assert (await env.run(["true"], sandbox="disabled")).enforcement is None


@pytest.mark.slow
async def test_a_denial_names_the_file_or_the_network(env: Environment, outside: Path) -> None:
    done = await env.run(["touch", f"{outside}/file"], sandbox="read-only")
    assert done.denial is not None
    assert (done.denial.path, done.denial.network) == (f"{outside}/file", False)
    script = ["bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/9"]
    done = await env.run(script, sandbox="read-only")
    assert done.denial is not None
    assert done.denial.network


@pytest.mark.requirement("security.sandbox.network-reported")
@pytest.mark.slow
async def test_what_the_kernel_refused_is_told_though_the_command_is_silent(
    env: Environment, subject: Subject
) -> None:
    done = await env.run(
        ["bash", "-c", "{ exec 3<>/dev/tcp/127.0.0.1/9; } 2>&-"], sandbox="read-only"
    )
    assert (done.exit_code, done.denied) == (1, False)
    tried = [(one.program, one.family, one.kind) for one in done.network_attempts]
    assert tried == ([] if subject.real else [("bash", "IPv4", "stream")])


@pytest.mark.slow
async def test_names_of_sandboxes_mean_the_folder_of_the_environment(
    env: Environment, tmp_path: Path
) -> None:
    done = await env.run("echo x > file", sandbox="read-only")
    assert done.denied
    assert os.listdir(tmp_path) == []
    (tmp_path / ".git").mkdir()
    (tmp_path / "below").mkdir()
    script = "echo x > ../file && ! echo x > ../.git/config"
    assert (await env.run(script, sandbox="workspace-write", cwd="below")).ok
    assert (tmp_path / "file").exists()
    assert os.listdir(tmp_path / ".git") == []


@pytest.mark.slow
async def test_what_is_hidden_cannot_be_read(env: Environment, tmp_path: Path) -> None:
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "file").write_text("x")
    (tmp_path / "a.pem").write_text("x")
    for path in ("secret/file", "a.pem"):
        profile = confined(deny=["secret", "*.pem"])
        assert (await env.run(["cat", path], sandbox=profile)).stdout == ""
        assert (await env.run(["cat", path])).stdout == "x"


@pytest.mark.slow
async def test_a_process_that_goes_on_is_sandboxed_too(env: Environment, outside: Path) -> None:
    for tty in (False, True):
        script = f"echo x > {outside}/file; echo tried"
        async with env.start(script, sandbox=confined(), tty=tty) as process:
            await read_until(process, "tried")
            assert (await process.wait()).exit_code == 0
        assert not (outside / "file").exists()


@pytest.mark.slow
async def test_the_sandbox_of_an_environment_holds_for_commands_and_files(
    env: Environment, tmp_path: Path, outside: Path
) -> None:
    (tmp_path / "secret").write_text("x")
    env.sandbox = confined(deny=["secret"])
    assert (await env.run(["touch", f"{outside}/file"])).denied
    await env.files.write("file", "text")
    assert await env.files.read_text("file") == "text"
    with pytest.raises(Refused):
        await env.files.write(f"{outside}/file", "text")
    with pytest.raises(Refused):
        await env.files.mkdir(f"{outside}/folder")
    with pytest.raises(Refused):
        await env.files.copy("file", f"{outside}/file")
    with pytest.raises(Refused):
        await env.files.read_text("secret")
    assert os.listdir(outside) == []
    await env.files.download("file", outside / "copy")
    await env.files.upload(outside / "copy", "again")
    assert await env.files.read_text("again") == "text"
    for blocked in (
        env.files.download("secret", outside / "secret"),
        env.files.upload(outside / "copy", f"{outside}/up"),
        env.files.remove(f"{outside}/copy"),
    ):
        with pytest.raises(Refused):
            await blocked
    assert os.listdir(outside) == ["copy"]
    assert (await env.run(["touch", f"{outside}/file"], sandbox="disabled")).ok


async def test_an_unknown_sandbox_is_refused(env: Environment) -> None:
    with pytest.raises(InvalidParams, match="unknown sandbox profile `none`"):
        await env.run("true", sandbox="none")


async def test_a_profile_of_another_kind_of_machine_is_refused(env: Environment) -> None:
    profile = SandboxProfile("read-only", write=[PathUri.parse("file:///C:/x")])
    with pytest.raises(InvalidParams, match="file:///C:/x"):
        await env.run("true", sandbox=profile)


@pytest.mark.parametrize(
    ("limits", "script", "named"),
    [
        (Limits(wall_time=0.1), "sleep 600", "ran for more than 0.1 seconds"),
        (Limits(output=1000), "yes", "wrote more than 1000 bytes"),
    ],
)
async def test_a_command_is_ended_by_its_limit_which_is_named(
    env: Environment, subject: Subject, limits: Limits, script: str, named: str
) -> None:
    if subject.real:  # it would ignore them without a word
        with pytest.raises(Unsupported):
            await env.run(script, limits=limits)
        return
    done = await env.run(script, limits=limits)
    assert (done.reason, done.ok) == (Reason.LIMIT, False)
    assert named in str(done)


async def test_a_limit_that_the_kernel_keeps_is_the_affair_of_the_command(
    env: Environment, subject: Subject
) -> None:
    if subject.real:
        return  # see above
    done = await env.run("ulimit -n", limits=Limits(open_files=20))
    assert done.stdout == "20\n"
    with pytest.raises(InvalidParams, match="limit open_files must be at least 16"):
        await env.run("true", limits=Limits(open_files=3))
