"""
`python -m holdfast.front.drop_in`, which is `holdfast-sh`.

The launcher calls it to start a server (`ensure`), and that server is another call (`serve`).
"""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.base.late_import import late_module
from holdfast.front.drop_in.shell_paths import ShellPaths, UnusableShellFolder
from holdfast.front.drop_in.start import ensure_server

if TYPE_CHECKING:
    from holdfast.front.drop_in import entry, service
else:
    # A caller waits while a server is started: each of the three calls loads only its own part.
    entry = late_module("holdfast.front.drop_in.entry")
    service = late_module("holdfast.front.drop_in.service")

__all__ = ["main"]


def main(argv: list[str]) -> int:
    """Run `ensure LAUNCHER SOCKET LOCK`, `serve LAUNCHER SOCKET LOCK FD`, or the shell."""
    if argv[:1] not in (["ensure"], ["serve"]):
        return entry.main()
    what, launcher, where, lock, *rest = argv
    paths = ShellPaths(launcher=Path(launcher), socket=Path(where), lock=Path(lock))
    if what == "serve":
        given = os.environ.get("HOLDFAST_SH_IDLE", "")
        service.run_server(paths, int(rest[0]), idle=float(given) if given else None)
        return 0
    try:
        ensure_server(paths, os.environ)
    except (OSError, UnusableShellFolder) as error:
        print(f"holdfast-sh: the server cannot be started: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
