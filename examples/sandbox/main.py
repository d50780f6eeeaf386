"""Commands that can do no harm: by a name, by rules of your own, and within limits."""

import asyncio
import tempfile
from pathlib import Path

import holdfast
from holdfast import DenialKind, Environment, Limits, Reason, Refused, SandboxProfile


async def by_name(env: Environment, outside: Path) -> None:
    done = await env.run("echo draft > notes.txt", sandbox="read-only")
    assert done.denied
    done = await env.run("echo draft > notes.txt; cat notes.txt", sandbox="workspace-write")
    assert done.stdout == "draft\n"

    done = await env.run(["touch", f"{outside}/file"], sandbox="read-only")
    assert done.denial is not None
    assert done.denial.kind is DenialKind.READ_ONLY_FILE_SYSTEM
    assert done.denial.path == f"{outside}/file"
    print(done.verdict)


async def by_rules(env: Environment) -> None:
    await env.files.write("secrets/token", "t0p", parents=True)
    await env.files.write("vendor/library", "as it came", parents=True)
    profile = SandboxProfile(
        "read-only",
        write=["."],  # the folder of the environment
        read=["vendor"],
        deny=["secrets", "**/*.pem", "~/.ssh"],
    )
    done = await env.run("cat secrets/token", sandbox=profile)
    assert done.denied
    done = await env.run("rm vendor/library", sandbox=profile)
    assert done.denied
    assert await env.files.exists("vendor/library")

    # Nothing but the system's own folders and this one; and no network either way.
    narrow = SandboxProfile(read=[":minimal"], write=["."])
    done = await env.run("ls /", sandbox=narrow)
    print("all that is left of /:", done.stdout.split())
    assert "home" not in done.stdout.split()


async def by_default(folder: Path, outside: Path) -> None:
    profile = SandboxProfile("read-only", write=["."])
    async with holdfast.connect(cwd=folder, sandbox=profile) as env:
        await env.files.write("notes.txt", "mine\n")
        try:
            await env.files.write(outside / "notes.txt", "not mine\n")
        except Refused as error:
            print("a file:", error)
        assert not (outside / "notes.txt").exists()
        assert (await env.run(["touch", outside / "file"])).denied


async def within_limits(env: Environment) -> None:
    done = await env.run("yes", limits=Limits(output=10_000))
    assert done.reason is Reason.LIMIT
    print(done.verdict)
    done = await env.run("sleep 600", limits=Limits(wall_time=0.2), sandbox="read-only")
    assert done.reason is Reason.LIMIT
    print(done.verdict)


async def main() -> None:
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        folder, outside = Path(one), Path(other)
        async with asyncio.timeout(20), holdfast.connect(cwd=folder) as env:
            await by_name(env, outside)
            await by_rules(env)
            await by_default(folder, outside)
            await within_limits(env)


asyncio.run(main())
