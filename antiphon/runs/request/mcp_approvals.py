"""The MCP approvals of a request. They are checked, and each approved call runs only once.

The client approves an ``mcp_approval_request`` with an ``mcp_approval_response``. The store records
which response ran the approved call. Therefore neither a later request nor a parallel request runs
the call again.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence

from msgspec import Struct

from antiphon.errors import InvalidRequest
from antiphon.store.base import Store
from antiphon.wire import items as it
from antiphon.wire.tools import Mcp, Tool

__all__ = ["ApprovedCall", "claim_approvals", "find_approved_calls", "release_approvals"]


class ApprovedCall(Struct, frozen=True):
    """An approved call that has not run. ``request_id``: the id of the approval request. ``path``:
    the path of the approving item in the request, for error messages. ``path`` is None if the item
    that approves the call is from an earlier request."""

    request_id: str
    path: str | None = None


def find_approved_calls(
    items: Sequence[it.Item], own: Sequence[it.Item], tools: Iterable[Tool]
) -> tuple[ApprovedCall, ...]:
    """Return the approved calls of a conversation that have not run.

    ``items``: the items that the model sees. ``own``: the items of the request. Only approvals in
    ``own`` are checked. ``tools``: the tools of the request that can run.

    Raises ``InvalidRequest`` with the path of an approval in three cases:

    - The approval request does not exist.
    - The approval request was answered before.
    - The MCP server of the approval request is not among the tools.
    """
    if it.McpApprovalResponse not in map(type, items):
        return ()
    paths = {id(item): f"input[{index}]" for index, item in enumerate(own)}
    requests: dict[str, it.McpApprovalRequest] = {}
    answers: dict[str, it.McpApprovalResponse] = {}
    called: set[str] = set()
    for item in items:
        if isinstance(item, it.McpApprovalRequest):
            requests[item.id] = item
        elif isinstance(item, it.McpCall) and isinstance(item.approval_request_id, str):
            called.add(item.approval_request_id)
        elif isinstance(item, it.McpApprovalResponse):
            if (path := paths.get(id(item))) is not None:
                _check_answer(item.approval_request_id, path, requests, {*answers, *called})
            answers[item.approval_request_id] = item
    labels = {tool.server_label for tool in tools if isinstance(tool, Mcp)}
    approved: list[ApprovedCall] = []
    for request_id, answer in answers.items():
        if not answer.approve or request_id in called or request_id not in requests:
            continue
        path = paths.get(id(answer))
        if path is not None and requests[request_id].server_label not in labels:
            raise _missing_tool(requests[request_id], path)
        approved.append(ApprovedCall(request_id, path))
    return tuple(approved)


async def claim_approvals(
    store: Store, tenant: str, response_id: str, calls: Iterable[ApprovedCall], *, now: int
) -> frozenset[str]:
    """Record that a response runs these calls. Return the ids of the approval requests whose calls
    must not run. ``now``: Unix time in seconds.

    Each call can be recorded for one response only. If another response has already run a call, the
    result depends on the item that approves the call:

    - An item of the request: this function raises ``InvalidRequest`` with the path of the item, and
      records nothing.
    - An earlier item: the call must not run again, so its id is in the returned set.
    """
    claimed: list[ApprovedCall] = []
    spent: set[str] = set()
    for call in calls:
        if await store.claim_approval(tenant, call.request_id, response_id, now):
            claimed.append(call)
        elif call.path is None:
            spent.add(call.request_id)
        else:
            await release_approvals(store, tenant, response_id, claimed)
            raise _already_answered(call.request_id, call.path)
    return frozenset(spent)


async def release_approvals(
    store: Store, tenant: str, response_id: str, calls: Iterable[ApprovedCall]
) -> None:
    """Release approvals that a response has claimed but not used, so that another response can run
    the approved calls."""
    for call in calls:
        await store.release_approval(tenant, call.request_id, response_id)


def _check_answer(
    request_id: str, path: str, known: Container[str], answered: Container[str]
) -> None:
    if request_id not in known:
        raise InvalidRequest(
            f"No MCP approval request found with id '{request_id}'.",
            param=f"{path}.approval_request_id",
            code="invalid_value",
        )
    if request_id in answered:
        raise _already_answered(request_id, path)


def _already_answered(request_id: str, path: str) -> InvalidRequest:
    return InvalidRequest(
        f"The MCP approval request '{request_id}' has been answered already. An approval runs its"
        " call once.",
        param=f"{path}.approval_request_id",
        code="invalid_value",
    )


def _missing_tool(request: it.McpApprovalRequest, path: str) -> InvalidRequest:
    return InvalidRequest(
        f"The approved call of '{request.name}' cannot run: 'tools' contains no MCP server with the"
        f" label '{request.server_label}'.",
        param=path,
        code="invalid_value",
    )
