"""Paths that every Linux machine may have: its programs, and sockets that lead out of a sandbox."""

from typing import Final

from holdfast.base.dialect import names

__all__ = ["ENGINE_SOCKETS", "PLATFORM_DIRECTORIES", "ROOT_SOCKETS"]

PLATFORM_DIRECTORIES: Final = (
    "/bin",
    "/sbin",
    "/usr",
    "/etc",
    "/lib",
    "/lib64",
    "/nix/store",
    "/run/current-system/sw",
)
"""Directories that `minimal` makes readable if they exist: programs and their libraries."""

# A client of one of these sockets can start programs outside the sandbox. Without a network no
# command can connect to a socket; with one, these are hidden unless an entry names them.
ENGINE_SOCKETS: Final = (
    "/run/docker.sock",
    "/run/podman/podman.sock",
    "/run/containerd/containerd.sock",
    "/run/crio/crio.sock",
    "/run/libvirt/libvirt-sock",
    "/run/snapd.socket",
    "/run/user/{uid}/bus",
    "/run/user/{uid}/docker.sock",
    "/run/user/{uid}/podman/podman.sock",
    "/run/user/{uid}/systemd/private",
    "/run/user/{uid}/systemd/io.systemd.Manager",
    "/run/systemd/private",
    "/run/systemd/io.systemd.Manager",
    names.DAEMON_DIRECTORY,
    # Terminals of this user: a client opens a window and types a command.
    "/tmp/tmux-{uid}",  # noqa: S108
    "/run/tmux/{uid}",
    "/run/screen",
)

# For users other than root, its services refuse requests that would run programs.
ROOT_SOCKETS: Final = ("/run/dbus/system_bus_socket",)
