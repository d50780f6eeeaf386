"""A second engine at work in the same workspace, as a program of its own."""

import asyncio
import sys
from pathlib import Path

from holdfast.engine.process.registry import LocalBackend
from tests.breakout.ground import PROFILES, Prepared
from tests.breakout.harness import params


async def main() -> None:
    base, rounds = Path(sys.argv[1]), int(sys.argv[2])
    ground = Prepared(
        {"base": base}
        | {name: str(base / name) for name in ("work", "linked", "extra", "dangling")}
    )
    async with LocalBackend() as backend:
        for _ in range(rounds):
            start = params(ground, "true", sandbox=PROFILES["workspace"](ground))
            await (await backend.start(start)).wait()


if __name__ == "__main__":
    asyncio.run(main())
