"""Limits in the units of people."""

import pytest

from holdfast.base.errors import InvalidParams
from holdfast.environments.limits import Limits
from holdfast.wire.protocol.process import ProcessLimits


def test_no_limits_are_none() -> None:
    assert Limits().on_wire() is None


def test_every_limit_has_its_field_on_the_wire() -> None:
    limits = Limits(
        address_space=1,
        processes=2,
        open_files=30,
        memory=4 << 20,
        cpu_time=4,
        output=5,
        wall_time=0.0061,
    )
    assert limits.on_wire() == ProcessLimits(
        memory_bytes=4 << 20,
        address_space_bytes=1,
        processes=2,
        open_files=30,
        cpu_seconds=4,
        output_bytes=5,
        wall_time_ms=7,  # rather later than too early
    )


def test_limits_take_units() -> None:
    limits = Limits(address_space="2G", output="10K", wall_time="1m", cpu_time="1500ms")
    assert limits.on_wire() == ProcessLimits(
        address_space_bytes=2 << 30, output_bytes=10_240, wall_time_ms=60_000, cpu_seconds=2
    )


def test_a_limit_that_is_refused_is_named() -> None:
    with pytest.raises(InvalidParams, match="limit cpu_time must be more than 0, not -1"):
        Limits(cpu_time=-1).on_wire()
    with pytest.raises(InvalidParams, match=r"limit wall_time: expected seconds, or a time .* 'x'"):
        Limits(wall_time="x").on_wire()
    with pytest.raises(TypeError, match="limit wall_time is a number, not b'1'"):
        Limits(wall_time=b"1").on_wire()  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="limit processes is a whole number, not '1K'"):
        Limits(processes="1K").on_wire()  # type: ignore[arg-type]
    with pytest.raises(InvalidParams, match="limit open_files must be at least 16"):
        Limits(open_files=1).on_wire()
    with pytest.raises(TypeError, match=r"limit output is a whole number, not 1\.5"):
        Limits(output=1.5).on_wire()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "limits",
    [
        Limits(address_space=0),
        Limits(open_files=3),
        Limits(memory=4096),
        Limits(wall_time=0),
        Limits(wall_time=-1),
        Limits(wall_time=float("inf")),
        Limits(wall_time=float("nan")),
        Limits(output=1 << 63),
    ],
)
def test_what_is_no_limit_is_refused(limits: Limits) -> None:
    with pytest.raises(InvalidParams):
        limits.on_wire()
