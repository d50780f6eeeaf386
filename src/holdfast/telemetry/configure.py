"""
Telemetry for a server with a process of its own: on when the environment asks for it.

The variables are OpenTelemetry's own; most of them are read by its SDK. This module
looks at those that say whether there is anything to do, and imports OpenTelemetry
only if there is.
"""

import logging
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from holdfast._version import install_command

if TYPE_CHECKING:
    from holdfast.telemetry.sdk import Exporting

__all__ = ["configure_telemetry", "wanted_exporters"]

logger = logging.getLogger(__name__)

_SIGNALS = ("TRACES", "METRICS", "LOGS")
_KNOWN = ("otlp", "console")
_PROTOCOL = "http/protobuf"


def configure_telemetry() -> "Exporting | None":
    """
    Set up telemetry if the environment asks for it.

    A problem never keeps a server from starting: it is one line in the log.
    """
    wanted = wanted_exporters(os.environ)
    if not any(wanted.values()):
        return None
    try:
        from holdfast.telemetry.sdk import export

        return export(traces=wanted["TRACES"], metrics=wanted["METRICS"], logs=wanted["LOGS"])
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
    The exporters the environment asks for, by signal.

    An endpoint alone asks for the signals it is for. Without endpoint or exporter
    there is none, unlike in OpenTelemetry's own defaults: a server must not look for
    a collector that nobody told it of.
    """
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return {}
    return {signal: _exporters(signal, environ) for signal in _SIGNALS}


def _exporters(signal: str, environ: Mapping[str, str]) -> list[str]:
    variable = f"OTEL_{signal}_EXPORTER"
    # An empty variable is as good as none, by OpenTelemetry's rules.
    names = [name.strip().lower() for name in environ.get(variable, "").split(",") if name.strip()]
    if not names:
        endpoints = ("OTEL_EXPORTER_OTLP_ENDPOINT", f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT")
        names = ["otlp"] if any(environ.get(name) for name in endpoints) else []
    if "none" in names:
        return []
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
