"""
Applies patches in the `apply_patch` format to the files of any environment.

The package only uses the `FileSystem` seam. It does not start processes or ask for approval.
"""

from holdfast.agent.patching.apply import (
    EmptyPatch,
    PatchResult,
    apply_patch,
    apply_plan,
    plan_patch,
)
from holdfast.agent.patching.commit import PatchSandboxes
from holdfast.agent.patching.parse import Patch, parse_patch
from holdfast.agent.patching.patch_errors import (
    InvalidPatch,
    PatchError,
    PatchFailed,
    PatchMismatch,
)
from holdfast.agent.patching.plan import FileChange, PatchPlan, Rules
from holdfast.agent.patching.report import tool_error_text

__all__ = [
    "EmptyPatch",
    "FileChange",
    "InvalidPatch",
    "Patch",
    "PatchError",
    "PatchFailed",
    "PatchMismatch",
    "PatchPlan",
    "PatchResult",
    "PatchSandboxes",
    "Rules",
    "apply_patch",
    "apply_plan",
    "parse_patch",
    "plan_patch",
    "tool_error_text",
]
