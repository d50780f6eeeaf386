"""Records of a client's requests, and the trace context it sends."""

from holdfast import ExecServerClient, MemoryTarget, Server
from holdfast.wire.protocol.envelope import Trace
from holdfast.wire.protocol.methods import ENVIRONMENT_STATUS


class Recorder:
    """Notes every request, and has one trace for all of them."""

    def __init__(self) -> None:
        self.methods: list[str] = []

    def client_request(self, method: str) -> Trace | None:
        self.methods.append(method)
        return Trace(traceparent="00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")


async def test_every_request_is_told_and_goes_out_with_its_trace() -> None:
    recorder = Recorder()
    async with Server() as server:
        target = MemoryTarget(server.accept)
        async with await ExecServerClient.connect(target, telemetry=recorder) as client:
            assert (await client.status()).status == "ready"
    assert recorder.methods == ["initialize", ENVIRONMENT_STATUS.name]
