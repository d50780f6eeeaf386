"""Files that a server reads again at SIGHUP."""

import asyncio
import threading
from time import monotonic

from holdfast.server.entrance import Entrance
from holdfast.server.reloading import Reloading


def test_files_that_hang_at_a_reload_do_not_hold_up_the_end() -> None:
    free, reading = threading.Event(), threading.Event()

    class OnDeadMount(Entrance):
        def reload(self) -> list[str]:
            reading.set()
            free.wait(3)
            return []

    async def serve() -> None:
        reloading = Reloading(OnDeadMount(None), lambda: None)
        reloading.hang_up()
        assert await asyncio.to_thread(reading.wait, 3)
        reloading.hang_up()  # reads them again after that

    began = monotonic()
    asyncio.run(serve())
    assert monotonic() - began < 2
    free.set()
