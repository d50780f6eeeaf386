"""
The tools as a model calls them: a name and arguments go in, a text comes out.

Nothing that a model can write makes a call raise. What it got wrong is the text it reads.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from holdfast.agent.unified_exec.arguments.schemas import SchemaKind, schemas
from holdfast.agent.unified_exec.arguments.tool_arguments import Arguments
from holdfast.agent.unified_exec.output.patterns import patterns_available
from holdfast.agent.unified_exec.reporter import error_notes
from holdfast.agent.unified_exec.result import (
    ExecResult,
    ImageResult,
    PermissionGrant,
    ReadResult,
    ToolError,
)
from holdfast.agent.unified_exec.session_manager import SessionManager, new_call_id
from holdfast.agent.unified_exec.tool_errors import (
    CallRefused,
    UnifiedExecError,
    exec_failure_text,
    write_failure_text,
)
from holdfast.base.dialect import texts
from holdfast.base.errors import HoldfastError
from holdfast.base.late_import import late_module

if TYPE_CHECKING:
    from holdfast.agent.unified_exec import view_image as images
else:
    # Most conversations have no image.
    images = late_module("holdfast.agent.unified_exec.view_image")

__all__ = ["UnifiedExec"]

EXEC_COMMAND: Final = "exec_command"
WRITE_STDIN: Final = "write_stdin"
READ_OUTPUT: Final = "read_output"
REQUEST_PERMISSIONS: Final = "request_permissions"
VIEW_IMAGE: Final = "view_image"


class UnifiedExec(SessionManager):
    """
    The tools `exec_command` and `write_stdin` for one model. An async context manager.

    Whoever makes it owns its processes: they end with it. It belongs to one event loop.
    """

    def schemas(self, kind: SchemaKind = "openai") -> list[dict[str, object]]:
        """
        Return the tools in the form that an API of a model takes.

        What cannot be used is not offered: the choice of an environment if there is only
        one, and regular expressions if RE2 is not installed.

        Returns:
            An empty list if there is no default environment to run in.

        Raises:
            ValueError: `kind` is none of the four.
        """
        ids = self.environment_ids
        if not ids:
            return []
        approvals = self.options.approvals
        return schemas(
            kind,
            environments=ids,
            extras=self.options.extras,
            patterns=patterns_available(),
            login=self.options.allow_login_shell,
            additional_permissions=approvals is not None and approvals.additional_permissions,
            permission_requests=approvals is not None and approvals.permission_requests,
            view_image=self.options.view_image,
        )

    async def call(
        self, name: str, arguments: str | Mapping[str, object], *, call_id: str | None = None
    ) -> ExecResult | ReadResult | ImageResult | PermissionGrant | ToolError:
        """
        Do what a model asks for, and return what it is to read.

        Args:
            name: `exec_command` or `write_stdin`; with the options that offer them also
                `read_output`, `view_image` and `request_permissions`.
            arguments: The JSON text as the model wrote it, or the object.
            call_id: The id of the call; made up unless given.
        """
        call_id = call_id or new_call_id()
        try:
            given = Arguments(arguments, extras=self.options.extras)
            if name == EXEC_COMMAND:
                return await self._call_exec_command(given, call_id)
            if name == WRITE_STDIN:
                return await self._call_write_stdin(given, call_id)
            if name == READ_OUTPUT and self.options.extras:
                return await self._call_read_output(given, call_id)
            if name == VIEW_IMAGE and self.options.view_image:
                return await self._call_view_image(given, call_id)
            approvals = self.options.approvals
            if name == REQUEST_PERMISSIONS and approvals and approvals.permission_requests:
                return await self.request_permissions(given.request_permissions(), call_id=call_id)
            raise CallRefused(texts.unsupported_call(name))
        except UnifiedExecError as error:
            shown = exec_failure_text if name == EXEC_COMMAND else write_failure_text
            return self._failed(call_id, shown(error), error)
        except HoldfastError as error:
            return self._failed(call_id, str(error), error)

    def _failed(self, call_id: str, message: str, error: HoldfastError) -> ToolError:
        return ToolError(
            call_id=call_id,
            message=message,
            cause=error,
            notes=error_notes(error),
            show_notes=self.options.notes,
        )

    async def _call_exec_command(self, given: Arguments, call_id: str) -> ExecResult:
        # Errors about the environment come before all others.
        self.environment(given.environment_id())
        return await self.exec_command(given.exec_command(), call_id=call_id)

    async def _call_write_stdin(self, given: Arguments, call_id: str) -> ExecResult:
        self.environment(None)
        # An unknown session hides what is wrong with the other arguments.
        self.session(given.session_id())
        return await self.write_stdin(given.write_stdin(), call_id=call_id)

    async def _call_read_output(self, given: Arguments, call_id: str) -> ReadResult:
        wanted = given.read_output()
        page = await self.read_output(
            wanted.id, from_seq=wanted.from_seq, lines=wanted.lines, pattern=wanted.pattern
        )
        return ReadResult(call_id=call_id, page=page)

    async def view_image(
        self, path: str, *, environment_id: str | None = None, call_id: str | None = None
    ) -> ImageResult:
        """
        Return an image by its path, as far as the sandbox of commands lets it be read.

        Args:
            path: The file, absolute or relative to the directory of the environment.
            environment_id: Where the file is; by default in the default environment.
            call_id: The id of the call; made up unless given.

        Raises:
            CallRefused: It cannot be read, is too large or not an image; the text is for the model.
        """
        environment = self._open_environment(environment_id)
        async with self._starter.ended_by_close():
            return await images.view_image(
                environment, path, self.options, call_id=call_id or new_call_id()
            )

    async def _call_view_image(self, given: Arguments, call_id: str) -> ImageResult:
        environment_id = given.environment_id()
        # As for `exec_command`, an unknown environment hides what is wrong with the path.
        self.environment(environment_id)
        return await self.view_image(
            given.view_image(), environment_id=environment_id, call_id=call_id
        )
