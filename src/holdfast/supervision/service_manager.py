"""
News of a server for the service manager that started it (`sd_notify` of systemd).

systemd listens to the process that it started: the guardian. The worker asks the guardian to
pass news on, by real-time signals. So the socket is out of reach of everything that the
worker starts, and a unit needs no `NotifyAccess=all`, which would let any command tell
systemd that the service is dead.
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

READY = signal.SIGRTMIN
STOPPING = signal.SIGRTMIN + 1
RELOADING = signal.SIGRTMIN + 2
WATCHDOG = signal.SIGRTMIN + 3

_NEWS: dict[int, str] = {
    READY: "READY=1",
    STOPPING: "STOPPING=1",
    RELOADING: "RELOADING=1",
    WATCHDOG: "WATCHDOG=1",
}


class ServiceManager:
    """The other end of `NOTIFY_SOCKET`, as the guardian has it."""

    signals = tuple(_NEWS)
    """The signals from the worker to the guardian, one for each kind of news."""

    def __init__(self, address: str, watchdog: float | None) -> None:
        self.watchdog = watchdog
        """Seconds without `WATCHDOG` after which the service is ended; None: never."""
        # An abstract socket is written with @ for the NUL that its name begins with.
        self._address = "\0" + address[1:] if address.startswith("@") else address

    def send(self, number: int) -> None:
        """Pass on what a signal stands for; a manager that is gone is no concern of ours."""
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
    Return the manager that the environment names, if any, and remove it from there.

    What is started later must not speak for this service.
    """
    address = os.environ.pop("NOTIFY_SOCKET", "")
    microseconds = os.environ.pop("WATCHDOG_USEC", "")
    watched = os.environ.pop("WATCHDOG_PID", str(os.getpid()))
    # vsock and relative names are not known here.
    if not address.startswith(("/", "@")) or len(address) < 2:
        return None
    watchdog = None
    if microseconds.isascii() and microseconds.isdigit() and watched == str(os.getpid()):
        watchdog = int(microseconds) / 1e6 or None
    return ServiceManager(address, watchdog)
