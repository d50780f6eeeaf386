"""
The numbers of the contract.

Other tests take them from the code: they show what a number does, and not which one it is.
"""

import pytest

from holdfast.agent.unified_exec.arguments import tool_arguments
from holdfast.agent.unified_exec.output import kept_output
from holdfast.agent.unified_exec.sessions import command_session as session
from holdfast.agent.unified_exec.sessions import owner
from holdfast.agent.unified_exec.sessions import session_events as events
from holdfast.agent.unified_exec.text import truncate
from holdfast.agent.unified_exec.waiting import clock
from holdfast.agent.unified_exec.waiting import input_watch as input_wanted


@pytest.mark.parametrize(
    ("used", "number"),
    [
        pytest.param(tool_arguments.EXEC_YIELD_MS, 10_000, id="wait of exec_command, ms"),
        pytest.param(tool_arguments.WRITE_YIELD_MS, 250, id="wait of write_stdin, ms"),
        pytest.param(clock.LONGEST_POLL, 300.0, id="longest poll, s"),
        pytest.param(clock.GRACE, 0.15, id="grace after a start, s"),
        pytest.param(session.INPUT_PAUSE, 0.1, id="pause after input, s"),
        pytest.param(session.END_OF_OUTPUT, 0.05, id="wait for the end of output, s"),
        pytest.param(truncate.BYTES_PER_TOKEN, 4, id="bytes of a token"),
        pytest.param(truncate.DEFAULT_OUTPUT_TOKENS, 10_000, id="tokens of output"),
        pytest.param(truncate.DENIAL_TOKENS, 262_144, id="tokens of a denial"),
        pytest.param(events.DELTA_BYTES, 8_192, id="bytes of live output"),
        pytest.param(events.MOST_DELTAS, 10_000, id="pieces of live output"),
        pytest.param(events.QUEUED_DELTAS, 64, id="pieces that wait for a listener"),
        pytest.param(owner.CAPACITY, 64, id="sessions"),
        pytest.param(owner.PROTECTED, 8, id="sessions that are protected"),
        pytest.param((owner.FIRST_ID, owner.LAST_ID), (1_000, 99_999), id="ids"),
        pytest.param(owner.CROWDED, 60, id="sessions from which on a note says so"),
        pytest.param(input_wanted.QUIET, 0.4, id="quiet time before a look, s"),
        pytest.param(kept_output.KEPT_BYTES, 1_048_576, id="buffer, bytes"),
        pytest.param(kept_output.ARCHIVE_LOGS, 32, id="ended commands that are kept"),
        pytest.param(kept_output.ARCHIVE_BYTES, 32 << 20, id="bytes kept of those"),
    ],
)
def test_a_number_is_that_of_the_contract(used: object, number: object) -> None:
    assert used == number
