"""
Notifications of the service manager that started a server (`sd_notify` of systemd).

systemd accepts notifications from the process that it started: the guardian. The worker asks the
guardian for them by real-time signals. So no command of the worker can reach the socket, and a unit
needs no `NotifyAccess=all`, which would let any command report that the service is dead.
"""

import os
import signal
import socket
import time

__all__ = [
    "READY",
    "RELOADING",
    "STOPPING",
    "WATCHDOG",
    "ServiceManager",
    "take_service_manager",
]

# Of several pending signals, the guardian receives the lowest number first. In another order,
# the READY at the end of a short reload could be sent before its RELOADING, and systemd would
# wait for the end of the reload in vain.
RELOADING = signal.SIGRTMIN
READY = signal.SIGRTMIN + 1
STOPPING = signal.SIGRTMIN + 2
WATCHDOG = signal.SIGRTMIN + 3

_NEWS: dict[int, str] = {
    RELOADING: "RELOADING=1",
    READY: "READY=1",
    STOPPING: "STOPPING=1",
    WATCHDOG: "WATCHDOG=1",
}


class ServiceManager:
    """Client of `NOTIFY_SOCKET`, for use in the guardian."""

    signals = tuple(_NEWS)
    """The signals from the worker to the guardian, one for each notification."""

    def __init__(self, address: str, watchdog: float | None) -> None:
        self.watchdog = watchdog
        """Seconds without `WATCHDOG` after which the service is killed; None to disable that."""
        # systemd writes `@` for the NUL at the beginning of an abstract socket's name.
        self._address = "\0" + address[1:] if address.startswith("@") else address

    def send(self, number: int) -> None:
        """Send the notification of a signal; errors are ignored, as the manager may be gone."""
        text = _NEWS[number]
        if number == RELOADING:
            text += f"\nMONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}"
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sender:
                sender.sendto(text.encode(), self._address)
        except OSError:
            pass


def take_service_manager() -> ServiceManager | None:
    """
    Return the manager that the environment names, or None, and remove its variables.

    Processes started later must not notify systemd in the name of this service.
    """
    address = os.environ.pop("NOTIFY_SOCKET", "")
    microseconds = os.environ.pop("WATCHDOG_USEC", "")
    watched = os.environ.pop("WATCHDOG_PID", str(os.getpid()))
    # Only paths and abstract names; systemd can also name a vsock.
    if not address.startswith(("/", "@")) or len(address) < 2:
        return None
    watchdog = None
    if microseconds.isascii() and microseconds.isdigit() and watched == str(os.getpid()):
        watchdog = int(microseconds) / 1e6 or None
    return ServiceManager(address, watchdog)
