"""Images for a model, read where its commands run and under their sandbox."""

import os
from pathlib import Path

import pytest

from holdfast.agent.unified_exec import ImageResult, Options, ToolError, UnifiedExec
from holdfast.agent.unified_exec.options import LARGEST_IMAGE
from holdfast.environments.environment import Environment
from holdfast.environments.sandbox import SandboxProfile
from tests.images import GIF, JPEG, WEBP, png

pytestmark = [pytest.mark.slow, pytest.mark.requirement("tools.images")]

SEEN = Options(view_image=True)


async def refusal(tools: UnifiedExec, path: object, **more: object) -> str:
    result = await tools.call("view_image", {"path": path, **more})
    assert isinstance(result, ToolError), result
    return result.text()


async def test_an_image_is_shown(machine: Environment, tmp_path: Path) -> None:
    async with UnifiedExec(machine, options=SEEN) as tools:
        for name, data in {"a.png": png(), "b": GIF, "c.txt": JPEG, "d.webp": WEBP}.items():
            (tmp_path / name).write_bytes(data)
            for path in (name, str(tmp_path / name), f"x/../{name}"):
                result = await tools.call("view_image", {"path": path, "detail": "high"})
                assert isinstance(result, ImageResult), result.text()
                assert (result.data, result.path) == (data, str(tmp_path / name))


async def test_a_call_that_cannot_be_done_says_why(machine: Environment, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello")
    (tmp_path / "long.png").write_bytes(png(8_001, 1))
    (tmp_path / "cut.png").write_bytes(png()[:-1])
    (tmp_path / "large.png").write_bytes(png())
    os.truncate(tmp_path / "large.png", LARGEST_IMAGE + 1)
    os.mkfifo(tmp_path / "fifo")
    os.symlink("nowhere", tmp_path / "link")
    not_an_image = "unable to process image: invalid or unsupported image data"
    missing = "No such file or directory (os error 2)"
    expected = {
        "none": f"unable to locate image at `{tmp_path}/none`: {missing}",
        "link": f"unable to locate image at `{tmp_path}/link`: {missing}",
        "text/x": f"unable to locate image at `{tmp_path}/text/x`: Not a directory (os error 20)",
        "": f"image path `{tmp_path}` is not a file",
        "fifo": f"image path `{tmp_path}/fifo` is not a file",
        "/dev/zero": "image path `/dev/zero` is not a file",
        "text": not_an_image,
        "cut.png": not_an_image,
        "a\0b": (
            f"unable to resolve image path `a\0b` against environment cwd `file://{tmp_path}`:"
            " 'a\0b' is invalid on 'linux'"
        ),
        "large.png": (
            f"unable to read image at `{tmp_path}/large.png`: file is too large to read: limit is"
            f" {LARGEST_IMAGE} bytes; make a smaller copy and view that"
        ),
        "long.png": (
            "unable to process image: it has 8001 x 1 pixels, limit is 8000 in each direction;"
            " make a smaller copy and view that"
        ),
    }
    async with UnifiedExec(machine, options=SEEN) as tools:
        assert {path: await refusal(tools, path) for path in expected} == expected
        unknown = "unknown turn environment id `zz`"
        assert await refusal(tools, 3, environment_id="zz") == unknown
        wrong = await tools.call("view_image", "{}")
        parse = "failed to parse function arguments: "
        assert wrong.text() == f"{parse}missing field `path` at line 1 column 2"
        text = await refusal(tools, None)
        assert text == f"{parse}invalid type: null, expected a string at line 1 column 12"
    # The tools are closed.
    assert await refusal(tools, "text") == "the tools are closed"


async def test_the_sandbox_of_commands_holds(
    machine: Environment, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    hidden = tmp_path_factory.mktemp("hidden")
    for folder in (hidden, tmp_path):
        (folder / "a.png").write_bytes(png())
    os.symlink(hidden / "a.png", tmp_path / "link.png")
    os.symlink(hidden, tmp_path / "folder")
    sandbox = SandboxProfile("read-only", deny=[str(hidden)])
    async with UnifiedExec(machine, options=Options(view_image=True, sandbox=sandbox)) as tools:
        seen = await tools.call("view_image", {"path": "a.png"})
        assert isinstance(seen, ImageResult)
        for path in (str(hidden / "a.png"), "link.png", "folder/a.png", f"{tmp_path}/link.png"):
            text = await refusal(tools, path)
            assert text.startswith(("unable to locate image at ", "unable to read image at "))
    async with UnifiedExec(machine, options=SEEN) as tools:
        assert isinstance(await tools.call("view_image", {"path": "link.png"}), ImageResult)


async def test_the_tool_is_there_only_if_asked_for(machine: Environment) -> None:
    async with UnifiedExec(machine) as tools:
        assert "view_image" not in [tool["name"] for tool in tools.schemas("anthropic")]
        assert await refusal(tools, "x") == "unsupported call: view_image"
    async with UnifiedExec(machine, options=SEEN) as tools:
        assert [tool["name"] for tool in tools.schemas("anthropic")][2:] == ["view_image"]
