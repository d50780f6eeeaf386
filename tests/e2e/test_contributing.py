"""The examples of CONTRIBUTING.md: what they add works."""

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

OVER_THE_LIMIT = """
import asyncio
import holdfast

async def main():
    async with holdfast.connect("local") as env:
        done = await env.run(
            "exec head -c 20000 /dev/zero > large", limits=holdfast.Limits(file_size="10K")
        )
    print(done.verdict.limit, done.verdict.detail)

asyncio.run(main())
"""

MODIFIED_MEANWHILE = """
import asyncio
import sys
import holdfast

async def main():
    serve = [sys.executable, "-m", "holdfast", "serve", "--listen", "stdio"]
    for where, sandbox in (("local", None), ("local", "workspace-write"), (serve, None)):
        async with holdfast.connect(where, cwd=".", sandbox=sandbox) as env:
            await env.files.write("file", "content")
            written = (await env.files.stat("file")).modified_at_ms / 1000
            try:
                await env.files.remove("file", unmodified_since=written - 1)
            except holdfast.InvalidRequest as error:
                print(error)
            await env.files.remove("file", unmodified_since=written)
            assert not await env.files.exists("file")

asyncio.run(main())
"""


def output_with(example: str, program: str, folder: Path) -> tuple[str, list[str]]:
    """Apply the diff of a section; return what a program writes then, and the changed files."""
    section = (ROOT / "CONTRIBUTING.md").read_text().split(f"## {example}\n")[1]
    diff = section.split("```diff\n")[1].split("```\n")[0]
    # With its compiled files, so that only changed modules have to be compiled again.
    shutil.copytree(ROOT / "src", folder / "src")
    subprocess.run(["git", "apply", "-p0"], input=diff, text=True, cwd=folder, check=True)
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(folder / "src"), "HOME": str(folder)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    changed = [line.split()[1] for line in diff.splitlines() if line.startswith("+++ ")]
    return done.stdout, changed


def test_the_example_of_a_new_limit_is_enforced(tmp_path: Path) -> None:
    written, _ = output_with("Adding a limit of a command", OVER_THE_LIMIT, tmp_path)
    assert written == "fileSize wrote a file of more than 10240 bytes\n"


def test_the_example_of_a_parameter_works_on_each_kind_of_files(tmp_path: Path) -> None:
    example = "Adding a parameter of a file operation"
    written, changed = output_with(example, MODIFIED_MEANWHILE, tmp_path)
    assert written == "cannot remove file: it was modified meanwhile\n" * 3
    assert len(changed) == 3
