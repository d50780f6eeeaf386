"""A file system of this machine, which leaves no thread at work behind."""

from collections.abc import AsyncIterator

import pytest

from holdfast.engine.files.local_files import LocalFileSystem


@pytest.fixture
async def files() -> AsyncIterator[LocalFileSystem]:
    filesystem = LocalFileSystem()
    yield filesystem
    await filesystem.aclose()
