"""What a server does beside serving."""

import pytest

from holdfast.process import sandboxes
from holdfast.server import life


def test_a_look_at_the_machine_that_fails_does_not_end_a_server(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise OSError("nobody thought of this")

    monkeypatch.setattr(sandboxes.shared_sandboxes(), "climb", fail)

    life._look_at_sandboxes()

    assert "what can be enforced here could not be found out" in caplog.text
    assert "nobody thought of this" in caplog.text
