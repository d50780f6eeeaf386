"""What the launcher runs to start a server, and the server itself; not for people."""

import os
import sys
from pathlib import Path

from holdfast.drop_in.places import Places, UnusablePlace

__all__ = ["main"]


def main(argv: list[str]) -> int:
    """Run `ensure LAUNCHER SOCKET LOCK` or `serve LAUNCHER SOCKET LOCK FD`."""
    what, launcher, where, lock, *rest = argv
    places = Places(launcher=Path(launcher), socket=Path(where), lock=Path(lock))
    from holdfast.drop_in.start import ensure_server, run_server

    if what == "serve":
        given = os.environ.get("HOLDFAST_SH_IDLE", "")
        run_server(places, int(rest[0]), idle=float(given) if given else None)
        return 0
    try:
        ensure_server(places, os.environ)
    except (OSError, UnusablePlace) as error:
        print(f"holdfast-sh: the server cannot be started: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
