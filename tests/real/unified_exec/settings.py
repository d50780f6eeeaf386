"""Settings of `config.toml` as options of the library."""

from collections.abc import Mapping
from typing import Any

from holdfast.agent.unified_exec.text.truncate import TruncationPolicy


def model_policy(settings: Mapping[str, Any]) -> TruncationPolicy:
    """Return how much a model takes: an unknown one 10,000 bytes, others 10,000 tokens."""
    limit = settings.get("tool_output_token_limit")
    if "model" in settings:
        return TruncationPolicy("bytes", 10_000 if limit is None else 4 * limit)
    return TruncationPolicy("tokens", 10_000 if limit is None else limit)
