"""Known gaps of a sandbox: those of this machine, and those of one policy."""

from holdfast.engine.sandbox.bubblewrap.landlock import OLDEST_ABI, SCOPING_ABI
from holdfast.engine.sandbox.policy.policy import Policy

__all__ = ["machine_gaps", "policy_gaps"]


def machine_gaps(landlock_abi: int, *, root: bool, shared_mounts: bool = False) -> tuple[str, ...]:
    """
    Return the gaps of every sandbox on this machine, whatever its policy.

    Args:
        landlock_abi: Landlock ABI that is applied, 0 for none.
        root: True if the server runs as root.
        shared_mounts: True if mounts that are made on this machine show up in sandboxes.
    """
    gaps: list[str] = []
    if landlock_abi < OLDEST_ABI:
        gaps.append("existing FIFOs that can be seen can be written to (Landlock is not applied)")
    if root:
        gaps.append("the server runs as root: run it as an ordinary user")
    if shared_mounts:
        gaps.append(
            "file systems that are mounted while a command runs appear in its sandbox, writable"
            " (the mounts of this machine are shared)"
        )
    return tuple(gaps)


def policy_gaps(policy: Policy, landlock_abi: int) -> tuple[str, ...]:
    """Return the gaps of a sandbox with these rules, on any machine with that Landlock ABI."""
    if not policy.isolates:
        return ()
    gaps: list[str] = []
    below = tuple([f"{folder.rstrip('/')}/" for folder in policy.writable])
    kept_inside = [path for path in (*policy.protected, *policy.readable) if path.startswith(below)]
    # Landlock cannot take back what it allows for a directory above. Without Landlock this
    # holds for every FIFO, which is a gap of the machine.
    if kept_inside and landlock_abi >= OLDEST_ABI:
        gaps.append("FIFOs in a read-only directory below a writable one can be written to")
    if policy.network == "enabled":
        # Newer kernels keep abstract sockets apart; socket files stay reachable.
        kinds = "sockets" if landlock_abi < SCOPING_ABI else "socket files"
        gaps.append(
            f"with the network enabled, {kinds} of other programs that can be seen can be used"
        )
    # Mounts are made at the start, so a file that appears later has no mask.
    if policy.globs:
        gaps.append("files that come to match a denied pattern after the start can be read")
    gaps += [
        f"programs that other users run with the group of {path} can be made: the directory has the"
        " set-group-ID bit"
        for path in policy.group_directories
    ]
    if kept_inside or (policy.writable and policy.denied):
        gaps.append("hard links inside a writable directory reach the protected file behind them")
    return tuple(gaps)
