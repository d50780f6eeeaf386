"""Switching telemetry on, and its cost when it is off."""

import os
import platform
import subprocess
import sys
import threading

import pytest

from holdfast.telemetry.configure import configure_telemetry, wanted_exporters
from holdfast.telemetry.otel import OpenTelemetry
from holdfast.telemetry.sdk import Exporting, export

ENDPOINT = "http://127.0.0.1:9"
NONE: dict[str, list[str]] = {"TRACES": [], "METRICS": [], "LOGS": []}
ALL = {signal: ["otlp"] for signal in NONE}


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)


# What the variables ask for.


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"OTEL_SERVICE_NAME": "mine", "OTEL_RESOURCE_ATTRIBUTES": "a=b"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "", "OTEL_TRACES_EXPORTER": " "},
        {f"OTEL_{signal}_EXPORTER": "none" for signal in NONE},
    ],
)
def test_nothing_is_exported_unless_it_is_asked_for(environ: dict[str, str]) -> None:
    assert wanted_exporters(environ) == NONE


def test_an_endpoint_asks_for_everything_it_is_for() -> None:
    assert wanted_exporters({"OTEL_EXPORTER_OTLP_ENDPOINT": ENDPOINT}) == ALL
    for signal in NONE:
        wanted = wanted_exporters({f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT": ENDPOINT})
        assert wanted == {**NONE, signal: ["otlp"]}


def test_an_exporter_asks_for_its_signal_and_none_refuses_it() -> None:
    assert wanted_exporters({"OTEL_TRACES_EXPORTER": "otlp"}) == {**NONE, "TRACES": ["otlp"]}
    assert wanted_exporters({"OTEL_METRICS_EXPORTER": "OTLP, console"}) == {
        **NONE,
        "METRICS": ["otlp", "console"],
    }
    environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": ENDPOINT, "OTEL_LOGS_EXPORTER": "none"}
    assert wanted_exporters(environ) == {**ALL, "LOGS": []}


def test_all_of_it_can_be_switched_off() -> None:
    environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": ENDPOINT, "OTEL_SDK_DISABLED": " TRUE"}
    assert wanted_exporters(environ) == {}


def test_an_exporter_that_is_not_there_is_named(caplog: pytest.LogCaptureFixture) -> None:
    assert wanted_exporters({"OTEL_TRACES_EXPORTER": "zipkin,otlp"})["TRACES"] == ["otlp"]
    assert caplog.messages == [
        "telemetry: OTEL_TRACES_EXPORTER=zipkin is not one of otlp, console, none"
    ]


def test_another_protocol_is_not_spoken_and_not_ignored(caplog: pytest.LogCaptureFixture) -> None:
    environ = {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}
    assert wanted_exporters(environ)["TRACES"] == ["otlp"]
    assert caplog.messages == ["telemetry: traces are sent as http/protobuf, not as grpc"]
    caplog.clear()
    wanted_exporters({**environ, "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf"})
    assert caplog.messages == []


# What is made of them.


def test_without_a_request_for_it_there_is_no_telemetry() -> None:
    assert configure_telemetry() is None


def test_the_environment_switches_it_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "console")
    exporting = configure_telemetry()
    assert exporting is not None
    exporting.close()


def test_without_the_extra_it_stays_off_and_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", ENDPOINT)
    monkeypatch.delitem(sys.modules, "holdfast.telemetry.sdk")
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    assert configure_telemetry() is None
    (message,) = caplog.messages
    assert message.startswith("telemetry is off: ")
    assert "pip install 'holdfast-exec[otel]'" in message
    assert "\n" not in message


def test_variables_that_make_no_sense_keep_no_server_from_starting(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", ENDPOINT)
    monkeypatch.setenv("OTEL_SPAN_EVENT_COUNT_LIMIT", "many")
    assert configure_telemetry() is None
    (message,) = caplog.messages
    assert message.startswith("telemetry is off: ")


def test_each_signal_goes_to_the_console_that_is_no_part_of_the_protocol(
    capfd: pytest.CaptureFixture[str],
) -> None:
    names = ["console"]
    exporting = export(traces=names, metrics=names, logs=names)
    telemetry = exporting.telemetry
    telemetry.request("process/read", None, None).finish("success")
    exporting.close()
    out, err = capfd.readouterr()
    assert out == ""
    assert '"name": "process/read"' in err
    assert "exec_server_requests_total" in err
    assert "codex.process.start" in err


def test_a_server_is_described_unless_the_environment_says_otherwise(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for variables, name in (
        ({}, "holdfast"),
        ({"OTEL_SERVICE_NAME": "mine", "OTEL_RESOURCE_ATTRIBUTES": "env=test"}, "mine"),
    ):
        for variable, value in variables.items():
            monkeypatch.setenv(variable, value)
        exporting = export(traces=["console"], metrics=[], logs=[])
        exporting.telemetry.request("process/read", None, None).finish("success")
        exporting.close()
        err = capfd.readouterr().err
        assert f'"service.name": "{name}"' in err
        assert '"service.version": "' in err
        assert '"service.instance.id": "' in err
        assert '"os": "' in err
        assert '"os_version": "' in err
        assert ('"env": "test"' in err) == bool(variables)


def test_a_system_that_does_not_say_what_it_is_goes_by_its_kernel(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def missing() -> dict[str, str]:
        raise FileNotFoundError

    monkeypatch.setattr(platform, "freedesktop_os_release", missing)
    export(traces=[], metrics=["console"], logs=[]).close()
    err = capfd.readouterr().err
    assert f'"os": "{platform.system()}"' in err
    assert f'"os_version": "{platform.release()}"' in err


def test_a_collector_that_does_not_answer_is_not_waited_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    never = threading.Event()
    done: list[str] = []
    exporting = Exporting(OpenTelemetry(), [never.wait, lambda: done.append("the other")])
    exporting.close(limit=0.01)
    assert done == ["the other"]
    assert caplog.messages == ["telemetry: some data was lost: the collector does not respond"]
    never.set()


# What it costs.


def test_without_telemetry_a_server_does_not_even_import_it() -> None:
    script = (
        "import sys\n"
        "import holdfast.server.operate.run_server, holdfast.client\n"
        "from holdfast.telemetry.configure import configure_telemetry\n"
        "assert configure_telemetry() is None\n"
        "print([name for name in sys.modules if name.startswith(('opentelemetry', 'google'))])\n"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, text=True)
    assert ran.stdout == "[]\n"
