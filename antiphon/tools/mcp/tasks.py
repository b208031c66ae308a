"""Tasks of MCP servers. A server may answer a call with a task, which it finishes later. The client
then asks for the state of the task until it ends.

This module imports the MCP SDK, which takes about a second, so import it only when the SDK is
needed anyway.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from mcp.client import ClaimContext, ClientExtension, ResultClaim
from mcp_types import CallToolResult, Request, RequestParams, Result

_EXTENSION = "io.modelcontextprotocol/tasks"


class TaskState(Result):
    """The state of a task. ``result`` is set if the task is completed, ``error`` if it failed."""

    task_id: str
    status: Literal["working", "input_required", "completed", "failed", "cancelled"]
    status_message: str | None = None
    poll_interval_ms: int | None = None
    result: CallToolResult | None = None
    error: dict[str, Any] | None = None
    result_type: str = "complete"


class CreatedTask(TaskState):
    """The answer to a call that the server finishes later."""

    result_type: Literal["task"] = "task"


class StartedTask(CallToolResult):
    """Takes the place of a call's result, because the server has started a task instead."""

    task: TaskState


class TaskRequest(RequestParams):
    """The parameters of requests about a task."""

    task_id: str


class GetTask(Request[TaskRequest, Literal["tasks/get"]]):
    """Asks for the state of a task."""

    name_param = "taskId"
    method: Literal["tasks/get"] = "tasks/get"
    params: TaskRequest


class CancelTask(Request[TaskRequest, Literal["tasks/cancel"]]):
    """Asks the server to stop a task."""

    name_param = "taskId"
    method: Literal["tasks/cancel"] = "tasks/cancel"
    params: TaskRequest


class EmptyAnswer(Result):
    """An answer whose contents do not matter."""


class TaskSupport(ClientExtension):
    """Tells MCP servers that they may answer calls with tasks."""

    identifier = _EXTENSION

    def claims(self) -> Sequence[ResultClaim[Any]]:
        return (ResultClaim(result_type="task", model=CreatedTask, resolve=_hand_over),)


async def _hand_over(task: CreatedTask, context: ClaimContext) -> CallToolResult:
    return StartedTask(content=[], task=task)
