"""
Sets up the telemetry of a server process by environment variables.

The variables are OpenTelemetry's own, and its SDK reads most of them. This module reads those
that select exporters, and imports OpenTelemetry only if one is selected.
"""

import logging
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from holdfast.base.late_import import late_module
from holdfast.base.version import install_command

if TYPE_CHECKING:
    from holdfast.telemetry import sdk
    from holdfast.telemetry.sdk import Exporting
else:
    # Needs OpenTelemetry, an optional dependency (extra `otel`).
    sdk = late_module("holdfast.telemetry.sdk")

__all__ = ["configure_telemetry", "wanted_exporters"]

logger = logging.getLogger(__name__)

_SIGNALS = ("TRACES", "METRICS", "LOGS")
_KNOWN = ("otlp", "console")
# The only protocol of the exporters in the extra; gRPC would need a large dependency.
_PROTOCOL = "http/protobuf"


def configure_telemetry() -> "Exporting | None":
    """
    Return the telemetry that environment variables ask for, or None.

    An error does not prevent the start of the server: it is one line in the log.
    """
    wanted = wanted_exporters(os.environ)
    if not any(wanted.values()):
        return None
    try:
        return sdk.export(traces=wanted["TRACES"], metrics=wanted["METRICS"], logs=wanted["LOGS"])
    except ImportError as error:
        logger.error(
            "telemetry is off: OTEL_… variables ask for it, but there is no way to send it (%s);"
            " to install one: %s",
            error,
            install_command("otel"),
        )
    except Exception as error:  # noqa: BLE001 - whatever the variables made of the exporters
        logger.error("telemetry is off: %s", error)
    return None


def wanted_exporters(environ: Mapping[str, str]) -> dict[str, list[str]]:
    """
    Return the exporters that environment variables ask for, by signal.

    An endpoint alone selects `otlp` for its signals. Without endpoint and exporter there is
    none, unlike OpenTelemetry's default: a server must not connect to a collector that nobody
    has configured.
    """
    # The SDK would check this too, but only after it is imported.
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return {}
    return {signal: _exporters(signal, environ) for signal in _SIGNALS}


def _exporters(signal: str, environ: Mapping[str, str]) -> list[str]:
    variable = f"OTEL_{signal}_EXPORTER"
    # OpenTelemetry treats an empty variable as unset.
    names = [name.strip().lower() for name in environ.get(variable, "").split(",") if name.strip()]
    if not names:
        endpoints = ("OTEL_EXPORTER_OTLP_ENDPOINT", f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT")
        names = ["otlp"] if any(environ.get(name) for name in endpoints) else []
    if "none" in names:
        return []
    # An unknown exporter is logged, and the others still work.
    for name in names:
        if name not in _KNOWN:
            logger.error("telemetry: %s=%s is not one of otlp, console, none", variable, name)
    if "otlp" in names:
        protocol = environ.get(f"OTEL_EXPORTER_OTLP_{signal}_PROTOCOL") or environ.get(
            "OTEL_EXPORTER_OTLP_PROTOCOL"
        )
        if protocol and protocol.strip() != _PROTOCOL:
            logger.error(
                "telemetry: %s are sent as %s, not as %s", signal.lower(), _PROTOCOL, protocol
            )
    return [name for name in names if name in _KNOWN]
