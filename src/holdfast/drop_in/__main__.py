"""Entry points of the launcher: start a server, and be the server. Not for people."""

import os
import sys
from pathlib import Path

from holdfast.drop_in.shell_paths import ShellPaths, UnusableShellFolder
from holdfast.drop_in.start import ensure_server, run_server

__all__ = ["main"]


def main(argv: list[str]) -> int:
    """Run `ensure LAUNCHER SOCKET LOCK` or `serve LAUNCHER SOCKET LOCK FD`."""
    what, launcher, where, lock, *rest = argv
    paths = ShellPaths(launcher=Path(launcher), socket=Path(where), lock=Path(lock))
    if what == "serve":
        given = os.environ.get("HOLDFAST_SH_IDLE", "")
        run_server(paths, int(rest[0]), idle=float(given) if given else None)
        return 0
    try:
        ensure_server(paths, os.environ)
    except (OSError, UnusableShellFolder) as error:
        print(f"holdfast-sh: the server cannot be started: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
