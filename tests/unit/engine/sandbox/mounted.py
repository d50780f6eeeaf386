"""Effect of bubblewrap's arguments on a path, by an independent reading of them."""

from __future__ import annotations

from typing import NamedTuple

from holdfast.engine.sandbox.bubblewrap.bwrap_arguments import Plan
from holdfast.engine.sandbox.policy.policy import Standing


class Mount(NamedTuple):
    path: str
    there: Standing
    """At the path itself."""
    below: Standing


_WIDTH = {"--bind": 2, "--ro-bind": 2, "--bind-try": 2, "--ro-bind-data": 2, "--symlink": 2}
_WIDTH |= {"--tmpfs": 1, "--remount-ro": 1, "--perms": 1, "--dev": 1, "--proc": 1, "--chdir": 1}
_WIDTH |= {"--cap-drop": 1}


def read_plan(plan: Plan) -> list[Mount]:
    """The mounts in their order."""
    words = plan.argv(range(100, 100 + plan.empty_fds))
    found: list[Mount] = []
    perms = ""
    at = 0
    while at < len(words):
        option = words[at]
        values = words[at + 1 : at + 1 + _WIDTH.get(option, 0)]
        at += 1 + len(values)
        if option == "--perms":
            (perms,) = values
            continue
        mount = _mount(option, values, perms)
        if mount is not None:
            found.append(mount)
        perms = ""
    return found


def _mount(option: str, values: list[str], perms: str) -> Mount | None:
    path = values[-1] if values else ""
    match option:
        case "--bind" | "--bind-try":
            assert values[0] == path
            return Mount(path, "write", "write")
        case "--ro-bind" if values[0] == "/dev/null":
            return Mount(path, "deny", "hidden")
        case "--ro-bind":
            assert values[0] == path
            return Mount(path, "read", "read")
        case "--ro-bind-data":
            return Mount(path, "deny" if perms == "000" else "read", "hidden")
        case "--tmpfs" if perms == "000":
            return Mount(path, "deny", "deny")
        case "--tmpfs" if perms == "111":
            return Mount(path, "deny", "hidden")
        case "--tmpfs" if perms == "555":
            return Mount(path, "read", "hidden")
        case "--tmpfs":
            return Mount(path, "hidden", "hidden")
    return None


def standing(mounts: list[Mount], path: str) -> Standing:
    """Return the access that the last mount on the way to a path leaves."""
    found: Standing = "hidden"
    for mount in mounts:
        if mount.path == path:
            found = mount.there
        elif path.startswith(mount.path.rstrip("/") + "/"):
            found = mount.below
    return found
