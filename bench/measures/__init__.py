"""Every benchmark, in the order of the table."""

from bench.figures import Benchmark
from bench.measures import (
    app_server,
    command_exec,
    delay,
    echo,
    files,
    http,
    launch,
    lines,
    looks,
    memory,
    readers,
    rpc,
    run,
    sandbox,
    starts,
    streams,
    unified_exec,
)

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
    files.METADATA,
    files.READ,
    files.WRITE,
    files.WALK,
    http.REQUESTS,
    delay.DELAY,
    sandbox.STARTS,
    sandbox.FILES,
    memory.IDLE,
    launch.SERVER,
    launch.IMPORT,
    run.RUN,
    command_exec.COMMAND_EXEC,
    readers.READERS,
    unified_exec.UNIFIED_EXEC,
    looks.LOOKS,
    lines.LINES,
    app_server.APP_SERVER,
)
