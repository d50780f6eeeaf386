"""Sockets that a service manager hands over, and news for it."""

import os
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.engine.supervision.service_manager import (
    READY,
    RELOADING,
    STOPPING,
    WATCHDOG,
    ServiceManager,
    take_service_manager,
)
from holdfast.server.listen import BadListenUrl, ListenUrl
from holdfast.server.operate import systemd
from holdfast.server.operate.systemd import inherited_sockets, lets_everybody_in


@pytest.fixture
def first(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """The one socket that is handed over; a test has other things at descriptor 3."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        monkeypatch.setattr(systemd, "_FIRST", sock.fileno())
        monkeypatch.setenv("LISTEN_PID", str(os.getpid()))
        monkeypatch.setenv("LISTEN_FDS", "1")
        monkeypatch.setenv("LISTEN_FDNAMES", "web")
        yield sock


def test_a_socket_is_a_place_to_listen_on(first: socket.socket) -> None:
    os.set_inheritable(first.fileno(), True)
    port = first.getsockname()[1]
    assert inherited_sockets() == [ListenUrl("ws", "127.0.0.1", port, descriptor=first.fileno())]
    assert not os.get_inheritable(first.fileno())
    assert not any(name.startswith("LISTEN_") for name in os.environ)
    assert inherited_sockets() == []  # and only once


@pytest.mark.parametrize("pid", ["1", "", "x", "999999999999"])
def test_sockets_for_another_process_are_left_alone(
    first: socket.socket, monkeypatch: pytest.MonkeyPatch, pid: str
) -> None:
    monkeypatch.setenv("LISTEN_PID", pid)
    assert inherited_sockets() == []
    assert os.environ["LISTEN_FDS"] == "1"


@pytest.mark.parametrize("count", ["x", "-1", "17", "9" * 5000, "1.5", "", " 1", "\u0661"])
def test_a_number_that_makes_no_sense_is_refused(
    first: socket.socket, monkeypatch: pytest.MonkeyPatch, count: str
) -> None:
    monkeypatch.setenv("LISTEN_FDS", count)
    with pytest.raises(BadListenUrl, match=r"LISTEN_FDS is `.*`; expected a number from 0 to 16"):
        inherited_sockets()


def test_no_sockets_are_no_mistake(first: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LISTEN_FDS", "0")
    assert inherited_sockets() == []


def test_what_is_no_listening_socket_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    with socket.socket() as unbound, socket.socket(type=socket.SOCK_DGRAM) as datagrams:
        for descriptor, text in (
            (reader, "is not a socket: Socket operation on non-socket"),
            (900, "is not a socket: Bad file descriptor"),
            (unbound.fileno(), "is not a listening socket"),
            (datagrams.fileno(), "is not a listening socket"),
        ):
            monkeypatch.setattr(systemd, "_FIRST", descriptor)
            monkeypatch.setenv("LISTEN_PID", str(os.getpid()))
            monkeypatch.setenv("LISTEN_FDS", "1")
            with pytest.raises(BadListenUrl, match=f"descriptor {descriptor} of LISTEN_FDS {text}"):
                inherited_sockets()
    os.close(reader)
    os.close(writer)


def test_a_unix_socket_says_who_may_use_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "sock"
    with socket.socket(socket.AF_UNIX) as named, socket.socket(socket.AF_UNIX) as abstract:
        named.bind(str(path))
        abstract.bind(f"\0{path}")
        for sock, shown in ((named, str(path)), (abstract, f"@{path}")):
            sock.listen()
            monkeypatch.setattr(systemd, "_FIRST", sock.fileno())
            monkeypatch.setenv("LISTEN_PID", str(os.getpid()))
            monkeypatch.setenv("LISTEN_FDS", "1")
            (url,) = inherited_sockets()
            assert url == ListenUrl("unix", path=shown, descriptor=sock.fileno())
            path.chmod(0o666)
            assert lets_everybody_in(url)
            path.chmod(0o660)
            assert lets_everybody_in(url) is (sock is abstract)
    assert not lets_everybody_in(ListenUrl("unix", path=str(path)))  # made here, with its mode


def test_news_are_sent_in_the_words_of_systemd(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        sender = ServiceManager(str(tmp_path / "notify"), None)
        for news, text in (
            (READY, b"READY=1"),
            (STOPPING, b"STOPPING=1"),
            (WATCHDOG, b"WATCHDOG=1"),
        ):
            sender.send(news)
            assert manager.recv(100) == text
        sender.send(RELOADING)
        reloading, when = manager.recv(100).decode().split("\n")
        assert reloading == "RELOADING=1"
        assert int(when.removeprefix("MONOTONIC_USEC=")) > 0


def test_a_guardian_that_is_slow_sends_the_end_of_a_reload_after_its_beginning() -> None:
    sent = [RELOADING, READY, STOPPING]
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ServiceManager.signals)
    try:
        for number in sent:
            signal.pthread_kill(threading.get_ident(), number)
        received = [signal.sigwaitinfo(ServiceManager.signals).si_signo for _ in sent]
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    assert received == sent


@pytest.mark.parametrize(
    "address", ["@nobody-listens-here", "/no/such/socket", "/", "@", "/" * 500]
)
def test_a_manager_that_is_gone_is_no_concern_of_the_server(address: str) -> None:
    ServiceManager(address, None).send(READY)


@pytest.mark.parametrize(
    ("variables", "watchdog"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "30000000"}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "x"}, None),
        ({"WATCHDOG_USEC": "-5"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
    ],
)
def test_the_variables_are_taken_away(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], watchdog: float | None
) -> None:
    for name, value in {"NOTIFY_SOCKET": "/run/notify", **variables}.items():
        monkeypatch.setenv(name, value)
    manager = take_service_manager()
    assert manager is not None
    assert manager.watchdog == watchdog
    assert not any(name.startswith(("NOTIFY_", "WATCHDOG_")) for name in os.environ)


@pytest.mark.parametrize("address", ["", "relative", "vsock:2:1234", "/"])
def test_an_address_of_another_kind_is_none(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", address)
    assert take_service_manager() is None
    assert "NOTIFY_SOCKET" not in os.environ
