"""The MCP approvals of a request. They are checked, and each approved call runs only once.

Theory. When a response asks for an approval, the journal gets an entry with a digest of what the
user is shown: the MCP server, the tool and the arguments. The client approves the
``mcp_approval_request`` with an ``mcp_approval_response``, now or, after a denial, later. The
response that uses the approval sets the result of the entry. So an approval is good for exactly the
call that was shown, and neither a later request nor a parallel request runs this call again.

If the call fails, and the tool has certainly not run, the response gives the approval back: it
removes the result. The client can then send the approval again. In the conversation, such a call
looks like any failed call, so only the journal knows whether an approval is good.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256

import msgspec
from msgspec import Struct

from antiphon.errors import InvalidRequest, StoreError
from antiphon.runs.tool_loop.turn import ToolCall
from antiphon.store.journal import Journal, JournalEntry
from antiphon.tools.mcp.request import server_identity
from antiphon.wire import items as it
from antiphon.wire.tools import Mcp, Tool


class ApprovedCall(Struct, frozen=True):
    """An approved call that has not run. ``request_id``: the id of the approval request.
    ``digest``: the digest of the call as it would run now. ``path``: the path of the approving item
    in the request, for error messages. ``path`` is None if the item that approves the call is from
    an earlier request."""

    request_id: str
    digest: bytes
    path: str | None = None


def find_approved_calls(
    items: Sequence[it.Item], own: Sequence[it.Item], tools: Iterable[Tool]
) -> tuple[ApprovedCall, ...]:
    """Return the approved calls of a conversation that have not run.

    ``items``: the items that the model sees. ``own``: the items of the request. Only approvals in
    ``own`` are checked. ``tools``: the tools of the request that can run.

    Raises ``InvalidRequest`` with the path of an approval in three cases:

    - The approval request does not exist.
    - The approval request was approved before, or is answered twice in this request.
    - The MCP server of the approval request is not among the tools.
    """
    if it.McpApprovalResponse not in map(type, items):
        return ()
    paths = {id(item): f"input[{index}]" for index, item in enumerate(own)}
    servers = {tool.server_label: server_identity(tool) for tool in tools if isinstance(tool, Mcp)}
    approved: list[ApprovedCall] = []
    for request, answer in _answered_requests(items, paths):
        if not answer.approve:
            continue
        path = paths.get(id(answer))
        if path is not None and request.server_label not in servers:
            raise _missing_tool(request, path)
        server = servers.get(request.server_label, "")
        digest = call_digest(server, request.name, request.arguments)
        approved.append(ApprovedCall(request.id, digest, path))
    return tuple(approved)


def _answered_requests(
    items: Iterable[it.Item], paths: Mapping[int, str]
) -> list[tuple[it.McpApprovalRequest, it.McpApprovalResponse]]:
    """Return the approval requests that have been answered and whose calls did not follow, each
    with its last answer. ``paths``: the paths of the request's own items by identity. The user can
    approve a call that was denied or failed earlier. Raises ``InvalidRequest`` for an answer of the
    request that answers nothing, or comes too late."""
    requests: dict[str, it.McpApprovalRequest] = {}
    answers: dict[str, it.McpApprovalResponse] = {}
    done: set[str] = set()
    for item in items:
        if isinstance(item, it.McpApprovalRequest):
            requests[item.id] = item
        elif isinstance(item, it.McpApprovalResponse):
            request_id, path = item.approval_request_id, paths.get(id(item))
            if path is not None and request_id not in requests:
                raise _refusal(_UNKNOWN_REQUEST, request_id, path)
            earlier = answers.get(request_id)
            is_final = earlier is not None and (earlier.approve or id(earlier) in paths)
            if path is not None and (is_final or request_id in done):
                raise _refusal(_ALREADY_ANSWERED, request_id, path)
            answers[request_id] = item
        elif item.tool_type is not None and isinstance(item.approval_request_id, str):
            answers.pop(item.approval_request_id, None)
            if item.status != "failed":
                done.add(item.approval_request_id)
    return [(requests[name], answer) for name, answer in answers.items() if name in requests]


async def record_approval_requests(
    journal: Journal, tenant: str, response_id: str, calls: Iterable[ToolCall], *, now: int
) -> None:
    """Record what the user is shown, for the calls that need an approval. ``now``: Unix time in
    seconds."""
    entries = [
        JournalEntry(
            key=call.item_id,
            response_id=response_id,
            intent=call_digest(call.function.server, request.name, call.arguments),
            is_approval=True,
        )
        for call in calls
        if isinstance(request := call.function.initial_item, it.McpApprovalRequest)
        and call.is_complete
    ]
    if entries:
        await journal.begin(tenant, entries, now)


async def claim_approvals(
    journal: Journal, tenant: str, response_id: str, calls: Sequence[ApprovedCall]
) -> frozenset[str]:
    """Record that a response runs these calls. Return the ids of the approval requests whose calls
    must not run.

    A call must not run if another response has already run it, or if the user was not shown this
    call. The result depends on the item that approves the call:

    - An item of the request: this function raises ``InvalidRequest`` with the path of the item, and
      records nothing.
    - An earlier item: the id of the call is in the returned set.
    """
    if not calls:
        return frozenset()
    found = await journal.find(tenant, [call.request_id for call in calls])
    entries: Mapping[str, JournalEntry] = {entry.key: entry for entry in found}
    claimed: list[ApprovedCall] = []
    spent: set[str] = set()
    for call in calls:
        entry = entries.get(call.request_id)
        is_shown = entry is not None and entry.intent == call.digest
        if is_shown and await journal.settle(tenant, call.request_id, None, response_id.encode()):
            claimed.append(call)
        elif call.path is None:
            spent.add(call.request_id)
        else:
            await release_approvals(journal, tenant, response_id, claimed)
            known = _ALREADY_ANSWERED if is_shown else _OTHER_CALL
            message = _UNKNOWN_REQUEST if entry is None else known
            raise _refusal(message, call.request_id, call.path)
    return frozenset(spent)


async def release_approvals(
    journal: Journal, tenant: str, response_id: str, calls: Iterable[ApprovedCall]
) -> None:
    """Release approvals that a response has claimed but not used, so that another response can run
    the approved calls."""
    for call in calls:
        await journal.settle(tenant, call.request_id, response_id.encode(), None)


async def return_approvals(
    journal: Journal, tenant: str, response_id: str, calls: Iterable[ToolCall]
) -> None:
    """Release the approvals of calls that have certainly not run. If the store does not answer,
    they stay used."""
    for call in calls:
        if isinstance(request_id := call.function.initial_item.approval_request_id, str):
            with suppress(StoreError):
                await journal.settle(tenant, request_id, response_id.encode(), None)


def call_digest(server: str, tool: str, arguments: str) -> bytes:
    """Return the digest of what a user is shown of a call. ``server``: see ``server_identity``."""
    return sha256(msgspec.json.encode([server, tool, arguments])).digest()


_UNKNOWN_REQUEST = "No MCP approval request found with id '{id}'."
_OTHER_CALL = (
    "The MCP approval request '{id}' showed another call: an approval is good only for the server,"
    " the tool and the arguments that were shown."
)
_ALREADY_ANSWERED = (
    "The MCP approval request '{id}' has been answered already. An approval runs its call once."
)


def _refusal(message: str, request_id: str, path: str) -> InvalidRequest:
    param = f"{path}.approval_request_id"
    return InvalidRequest(message.format(id=request_id), param=param, code="invalid_value")


def _missing_tool(request: it.McpApprovalRequest, path: str) -> InvalidRequest:
    return InvalidRequest(
        f"The approved call of '{request.name}' cannot run: 'tools' contains no MCP server with the"
        f" label '{request.server_label}'.",
        param=path,
        code="invalid_value",
    )
