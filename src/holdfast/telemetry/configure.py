"""
Configures the telemetry of a server process from environment variables.

The variables are OpenTelemetry's, and its SDK reads most of them. This module reads those that
select exporters, and imports OpenTelemetry only if one is selected.
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
# The only protocol of the extra's exporters; gRPC would need a large dependency.
_PROTOCOL = "http/protobuf"


def configure_telemetry() -> "Exporting | None":
    """
    Return the telemetry that environment variables enable, or None.

    An error is only logged and does not prevent the server from starting.
    """
    wanted = wanted_exporters(os.environ)
    if not any(wanted.values()):
        return None
    try:
        return sdk.export(traces=wanted["TRACES"], metrics=wanted["METRICS"], logs=wanted["LOGS"])
    except ImportError as error:
        logger.error(
            "telemetry is off: OTEL_… variables enable it, but its packages are missing (%s);"
            " to install them: %s",
            error,
            install_command("otel"),
        )
    except Exception as error:  # noqa: BLE001 - whatever the variables made of the exporters
        logger.error("telemetry is off: %s", error)
    return None


def wanted_exporters(environ: Mapping[str, str]) -> dict[str, list[str]]:
    """
    Return the exporters that environment variables select, by signal.

    An endpoint by itself selects `otlp` for its signals. Without endpoint and exporter nothing is
    exported, unlike OpenTelemetry's default: a server must not connect to a collector that was not
    configured.
    """
    # The SDK checks this too, but only once it is imported.
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
    # Log an unknown exporter, and use the others.
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
