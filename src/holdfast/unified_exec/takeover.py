"""
Takes over commands that are a call of `apply_patch`: no process is started for them.

The patch is checked against the files first. Then the hooks decide, who may ask somebody, and
then the files are written.
"""

import os
import posixpath
import time

from holdfast.environments.environment import Environment
from holdfast.patching.apply import EmptyPatch, PatchResult, apply_plan, plan_patch
from holdfast.patching.command import BARE_PATCH, find_patch
from holdfast.patching.errors import PatchError
from holdfast.patching.parse import parse_patch
from holdfast.patching.report import EMPTY_PATCH, result_text, tool_error_text
from holdfast.protocol.paths import ForeignPathUri, PathUri
from holdfast.unified_exec.errors import CallRefused, unknown_environment_text
from holdfast.unified_exec.hooks import Hooks, PatchRequest, StartRequest

__all__ = ["patch_output", "take_patch", "write_patch"]


async def take_patch(
    environment: Environment, command: StartRequest, hooks: Hooks
) -> PatchResult | None:
    """
    Apply the patch that a command is, or return None if it is to be started.

    Args:
        environment: Where its files are.
        command: The command as it would be started.
        hooks: Decide over the patch.

    Raises:
        CallRefused: The patch was not applied; the model reads the text.
        CallInterrupted: Somebody was asked and cancelled the call.
    """
    found = find_patch(command.argv)
    if found is None:
        return None
    if found.patch is None:
        raise CallRefused(BARE_PATCH)
    return await write_patch(environment, command, hooks, found.patch, workdir=found.workdir)


async def write_patch(
    environment: Environment,
    command: StartRequest,
    hooks: Hooks,
    text: str,
    *,
    workdir: str | None = None,
) -> PatchResult:
    """
    Apply a patch as far as the hooks let it.

    Args:
        environment: As for `take_patch`, as are the next two.
        command: The command that it was given as, or would have been.
        hooks: Decide over the patch.
        text: The patch.
        workdir: A directory below that of the command, for relative paths.

    Raises:
        CallRefused: The patch was not applied; the model reads the text.
        CallInterrupted: Somebody was asked and cancelled the call.
    """
    began = time.monotonic()
    files = environment.filesystem
    try:
        patch = parse_patch(text)
        if patch.environment_id not in (None, environment.id):
            # Elsewhere it would change other files than the call was about.
            raise CallRefused(unknown_environment_text(str(patch.environment_id)))
        cwd = _folder(command.cwd, workdir)
        plan = await plan_patch(patch, files=files, cwd=cwd, sandbox=command.sandbox)
        request = PatchRequest(
            command=command,
            text=text,
            plan=plan,
            cwd=cwd,
            files=files,
            tmpdir=None if environment.is_remote else os.environ.get("TMPDIR"),
        )
        sandbox = await hooks.before_patch(request)
        return await apply_plan(plan, files=files, sandbox=sandbox)
    except EmptyPatch as error:
        raise CallRefused(EMPTY_PATCH) from error
    except PatchError as error:
        raise CallRefused(tool_error_text(error, seconds=time.monotonic() - began)) from error
    except ForeignPathUri as error:
        raise CallRefused(str(error)) from error


def patch_output(result: PatchResult, seconds: float) -> bytes:
    """Return what counts as the output of a command that was a patch."""
    return result_text(result.text, exit_code=0, seconds=seconds).encode(errors="replace")


def _folder(cwd: PathUri, below: str | None) -> PathUri:
    if below is None:
        return cwd
    return PathUri.from_path(posixpath.join(cwd.native, below))
