"""Reads an image for a model, under the sandbox of its commands."""

from typing import Final

from holdfast.agent.unified_exec.image_format import image_format
from holdfast.agent.unified_exec.options import Options
from holdfast.agent.unified_exec.planner import folder_of, refuse_half_characters
from holdfast.agent.unified_exec.result import ImageResult
from holdfast.agent.unified_exec.tool_errors import CallRefused
from holdfast.backends import FileSystem
from holdfast.base.dialect import texts
from holdfast.base.errors import Refused, RemoteError
from holdfast.environments.environment import Environment
from holdfast.wire.protocol.fs import GetMetadataParams, OpenParams
from holdfast.wire.protocol.paths import PathUri
from holdfast.wire.protocol.sandbox import SandboxContext

__all__ = ["LONGEST_SIDE", "view_image"]

LONGEST_SIDE: Final = 8_000
"""Pixels of an image in one direction: the least that any of the large providers takes."""

# Bytes of a block; a handle gives no more than 1 MiB at once.
_BLOCK: Final = 1 << 20

_SMALLER: Final = "make a smaller copy and view that"


async def view_image(
    environment: Environment, path: str, options: Options, *, call_id: str
) -> ImageResult:
    """
    Return an image by its path.

    Args:
        environment: The environment that has the file.
        path: The path as the model wrote it, relative to the directory of the environment.
        options: The options of the tools: sandbox and largest size.
        call_id: The id of the call.

    Raises:
        CallRefused: It cannot be read, is too large or not an image; the text is for the model.
    """
    refuse_half_characters(path=path)
    try:
        uri = await folder_of(environment, path)
    except CallRefused as error:
        raise CallRefused(texts.image_not_resolved(path, await environment.uri(), error)) from error
    shown = uri.shown
    sandbox = await environment.sandbox_context(options.sandbox)
    data = await _content(environment.filesystem, uri, sandbox, options.largest_image)
    found = image_format(data)
    if found is None:
        raise CallRefused(texts.NO_IMAGE)
    if max(found.width, found.height) > LONGEST_SIDE:
        raise CallRefused(
            f"unable to process image: it has {found.width} x {found.height} pixels, limit is"
            f" {LONGEST_SIDE} in each direction; {_SMALLER}"
        )
    return ImageResult(
        call_id=call_id,
        path=shown,
        data=data,
        mime_type=found.mime_type,
        width=found.width,
        height=found.height,
    )


async def _content(
    files: FileSystem, uri: PathUri, sandbox: SandboxContext | None, largest: int
) -> bytes:
    """
    Return the content of a file that is small enough.

    Raises:
        CallRefused: It is not, or it cannot be read.
    """
    shown = uri.shown
    try:
        metadata = await files.get_metadata(GetMetadataParams(uri, sandbox=sandbox))
    except (Refused, RemoteError) as error:
        raise CallRefused(texts.image_not_found(shown, _reason(error))) from error
    if not metadata.is_file:
        raise CallRefused(texts.image_not_a_file(shown))
    blocks: list[bytes] = []
    size = metadata.size
    try:
        if size <= largest:
            handle = await files.open(OpenParams(handle_id="", path=uri, sandbox=sandbox))
            try:
                size, ended = 0, False
                # By blocks: the file may be growing, and its size is not always known.
                while not ended and size <= largest:
                    block, ended = await handle.read_block(size, _BLOCK)
                    blocks.append(block)
                    size += len(block)
            finally:
                await handle.aclose()
    except (Refused, RemoteError) as error:
        raise CallRefused(texts.image_not_read(shown, _reason(error))) from error
    if size > largest:
        raise CallRefused(
            f"unable to read image at `{shown}`: file is too large to read: limit is"
            f" {largest} bytes; {_SMALLER}"
        )
    return b"".join(blocks)


def _reason(error: Refused | RemoteError) -> str:
    return error.message if isinstance(error, RemoteError) else str(error)
