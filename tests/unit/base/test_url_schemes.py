"""The table of URL schemes, and that one row and one class make a new one."""

import asyncio
from collections.abc import Callable

import pytest

import holdfast
from holdfast.base import url_schemes
from holdfast.base.errors import ConnectFailed
from holdfast.base.url_schemes import SCHEMES, Scheme, is_stdio, scheme_of, socket_path
from holdfast.client.target import Target, TargetOptions, UnixTarget
from holdfast.client.websocket_target import WebSocketTarget
from holdfast.environments.config.server_urls import check_url
from holdfast.environments.ssh.ssh_target import SshTarget
from holdfast.server.app import Server
from holdfast.wire.transports.line_transport import LineTransport
from holdfast.wire.transports.transport import Receiver, Transport


def test_each_row_leads_to_a_target() -> None:
    targets = {scheme.name: scheme.load_target() for scheme in SCHEMES}
    assert targets == {
        "ws": WebSocketTarget,
        "wss": WebSocketTarget,
        "unix": UnixTarget,
        "ssh": SshTarget,
    }
    for scheme in SCHEMES:
        assert scheme.form.startswith(scheme.start)
        assert scheme_of(scheme.form) is scheme


@pytest.mark.parametrize("where", ["build", "unix://socket", "http://h", "", None, ["ssh://h"]])
def test_anything_else_has_no_scheme(where: object) -> None:
    assert scheme_of(where) is None


def test_helpers_for_single_schemes() -> None:
    assert socket_path("unix:///run/s") == "/run/s"
    assert socket_path("unix://s") is None
    assert is_stdio("stdio")
    assert is_stdio("stdio://")
    assert not is_stdio("ws://127.0.0.1:0")


class TcpTarget(Target):
    """A server that speaks lines on a TCP port, as CONTRIBUTING shows it."""

    def __init__(self, url: str) -> None:
        self.label = url
        host, _, port = url.removeprefix("tcp://").rpartition(":")
        self._address = host, int(port)

    @classmethod
    def of_url(cls, url: str, options: TargetOptions) -> "TcpTarget":
        return cls(url)

    async def open(self, accept: Callable[[Transport], Receiver]) -> Transport:
        loop = asyncio.get_running_loop()
        try:
            _, lines = await loop.create_connection(
                lambda: LineTransport("tcp", accept), *self._address
            )
        except OSError as error:
            raise ConnectFailed(f"cannot connect to {self.label}: {error}") from error
        return lines


async def test_a_row_and_a_class_make_a_scheme(monkeypatch: pytest.MonkeyPatch) -> None:
    row = Scheme("tcp", "tcp://", "tcp://HOST:PORT", f"{__name__}:{TcpTarget.__name__}")
    monkeypatch.setattr(url_schemes, "SCHEMES", (*SCHEMES, row))
    # The module is loaded under a name of pytest's own.
    monkeypatch.setattr(Scheme, "load_target", lambda scheme: TcpTarget)
    loop = asyncio.get_running_loop()
    async with Server() as server:
        listener = await loop.create_server(
            lambda: LineTransport("tcp", server.accept), "127.0.0.1", 0
        )
        url = f"tcp://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
        check_url(url)
        async with holdfast.connect(url) as environment:
            assert (await environment.run("echo hello")).stdout == "hello\n"
        listener.close()
        with pytest.raises(
            ConnectFailed, match=r"expected .*, `unix:///PATH` or `tcp://HOST:PORT`"
        ):
            Target.of("tpc//h")
