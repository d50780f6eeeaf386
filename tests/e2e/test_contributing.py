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


def test_the_example_of_a_new_limit_is_enforced(tmp_path: Path) -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    section = text.split("## Adding a limit of a command")[1]
    diff = section.split("```diff\n")[1].split("```\n")[0]
    # With its compiled files, so that only three modules have to be compiled again.
    shutil.copytree(ROOT / "src", tmp_path / "src")
    subprocess.run(["git", "apply", "-p0"], input=diff, text=True, cwd=tmp_path, check=True)
    done = subprocess.run(
        [sys.executable, "-c", OVER_THE_LIMIT],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(tmp_path / "src"), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "fileSize wrote a file of more than 10240 bytes\n"
