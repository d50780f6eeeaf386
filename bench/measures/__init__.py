"""Every benchmark, in the order of the table."""

from bench.figures import Benchmark
from bench.measures import echo, http, launch, memory, rpc, starts, streams

__all__ = ["ALL"]

ALL: tuple[Benchmark, ...] = (
    rpc.ROUND_TRIP,
    rpc.PIPELINED,
    starts.PIPES,
    starts.TERMINAL,
    starts.BURST,
    streams.PIPE,
    streams.TERMINAL,
    echo.ECHO,
    http.REQUESTS,
    memory.IDLE,
    launch.SERVER,
    launch.IMPORT,
)
