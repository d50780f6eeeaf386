"""
Handles commands that call `apply_patch`, without starting a process.

First the patch is checked against the files. Then the hooks decide, which may involve an approver.
Then the files are written.
"""

import os
import posixpath
import time

from holdfast.agent.patching.apply import (
    EmptyPatch,
    PatchResult,
    apply_plan,
    plan_patch,
    read_patch,
)
from holdfast.agent.patching.patch_command import BARE_PATCH, PatchCommand, find_patch
from holdfast.agent.patching.patch_errors import InvalidPatch, PatchError
from holdfast.agent.patching.report import EMPTY_PATCH, result_text, tool_error_text
from holdfast.agent.unified_exec.hooks import Hooks, PatchRequest, StartRequest
from holdfast.agent.unified_exec.result import ExecResult
from holdfast.agent.unified_exec.text.truncate import TruncationPolicy
from holdfast.agent.unified_exec.tool_errors import CallRefused
from holdfast.base.dialect import texts
from holdfast.environments.collect.head_tail import Captured
from holdfast.environments.environment import Environment
from holdfast.wire.protocol.paths import ForeignPathUri, PathUri

__all__ = ["take_patch"]


async def take_patch(
    environment: Environment, command: StartRequest, hooks: Hooks, model: TruncationPolicy
) -> ExecResult | None:
    """
    Apply the patch in a command; return None if the command is not a patch.

    Args:
        environment: The environment of the files.
        command: The command as it would be started.
        hooks: Decide about the patch.
        model: The model's limit for one answer.

    Raises:
        CallRefused: The patch was not applied; the model reads the text.
        CallInterrupted: The approver cancelled the call.
    """
    found = find_patch(command.argv)
    if found is None or (found.bare and not await _is_patch(found.patch)):
        return None
    if found.bare:
        raise CallRefused(BARE_PATCH)
    began = time.monotonic()
    try:
        result = await _applied(environment, command, hooks, found)
    except EmptyPatch as error:
        raise CallRefused(EMPTY_PATCH) from error
    except PatchError as error:
        raise CallRefused(tool_error_text(error, seconds=time.monotonic() - began)) from error
    except ForeignPathUri as error:
        raise CallRefused(str(error)) from error
    output = result_text(result.text, exit_code=0, seconds=time.monotonic() - began)
    return ExecResult(
        call_id=command.call_id,
        chunk_id="",
        wall_time=0.0,
        captured=Captured(output.encode(errors="replace")),
        exit_code=0,
        session_id=None,
        command=command.argv,
        patch=result,
        max_output_tokens=command.arguments.max_output_tokens,
        model_policy=model,
    )


async def _is_patch(text: str) -> bool:
    try:
        await read_patch(text)
    except InvalidPatch:
        # Leave it to the shell, which refuses it.
        return False
    return True


async def _applied(
    environment: Environment, command: StartRequest, hooks: Hooks, found: PatchCommand
) -> PatchResult:
    files = environment.filesystem
    patch = await read_patch(found.patch)
    if patch.environment_id not in (None, environment.id):
        # In another environment it would change different files than the call was about.
        raise CallRefused(texts.unknown_environment(str(patch.environment_id)))
    cwd = _directory(command.cwd, found.workdir)
    plan = await plan_patch(patch, files=files, cwd=cwd, sandbox=command.sandbox)
    request = PatchRequest(
        command=command,
        text=found.patch,
        plan=plan,
        cwd=cwd,
        files=files,
        tmpdir=None if environment.is_remote else os.environ.get("TMPDIR"),
    )
    sandbox = await hooks.before_patch(request)
    return await apply_plan(plan, files=files, sandbox=sandbox)


def _directory(cwd: PathUri, below: str | None) -> PathUri:
    if below is None:
        return cwd
    return PathUri.from_path(posixpath.join(cwd.native, below))
