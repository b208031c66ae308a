"""Which responses a client may steer, where they may end early, and what they wait for.

A response may end early only between two items: after a message, after a piece of reasoning, or
after the results of tools. An item that is open is finished first, and a tool that runs is not
stopped. A response with a call that has no output yet cannot end early, because it could not be
continued without the output.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import UNSET

from antiphon.errors import InvalidRequest
from antiphon.stream.kinds import KINDS
from antiphon.wire import items as it
from antiphon.wire.json_types import JsonObject
from antiphon.wire.response import Response
from antiphon.wire.tags import tag_of

#: How many submissions may wait for the end of a response, and the bytes of those that wait above
#: which no further one is accepted.
_MAX_STEERS, _MAX_STEER_BYTES = 16, 16 * 2**20


#: Type of a call → type of its output.
_OUTPUTS: Mapping[type[it.ItemBase], type[it.ItemBase]] = {
    kind.answers: cls for cls, kind in KINDS.items() if kind.answers is not None
}


def waiting_items(items: Iterable[it.Item]) -> tuple[it.Item, ...]:
    """Return the calls and approval requests without an answer, for which the model waits. A call
    that was cut off cannot be answered: it is incomplete, or a program without a fingerprint."""
    items = tuple(items)
    answered = {item.call_id for item in items if KINDS[type(item)].answers is not None}
    return tuple(
        item
        for item in items
        if isinstance(item, it.McpApprovalRequest)
        or (
            type(item) in _OUTPUTS
            and item.status != "incomplete"
            and not (isinstance(item, it.Program) and not item.fingerprint)
            and item.async_ is not True
            and item.call_id not in answered
        )
    )


def required_input(items: Iterable[it.Item]) -> tuple[JsonObject, ...]:
    """Return stubs of the items that the client has to send before the model goes on: the outputs
    of its calls, and its answers to approval requests. The client adds the results to the stubs.
    ``items``: the output of a response."""
    return tuple(map(_stub, waiting_items(items)))


def _stub(item: it.Item) -> JsonObject:
    if isinstance(item, it.McpApprovalRequest):
        return {"type": tag_of(it.McpApprovalResponse), "approval_request_id": item.id}
    stub: JsonObject = {"type": tag_of(_OUTPUTS[type(item)]), "call_id": item.call_id}
    if isinstance(item, it.FunctionCall):
        stub["name"] = item.name
    if isinstance(item, it.ToolSearchCall):
        stub["execution"] = "client"
    return stub


def check_steerable(response: Response) -> None:
    """Check that a response in progress can be steered. Raises ``InvalidRequest``."""
    if response.conversation is not UNSET:
        raise steering_not_supported("A response of a conversation cannot be steered.")
    if response.context_management is not UNSET:
        raise steering_not_supported("A response with context_management cannot be steered.")
    if response.background and not response.store:
        raise steering_not_supported("A background response with store=false cannot be steered.")


def steering_not_supported(message: str) -> InvalidRequest:
    """Return the error for a response that cannot be steered. ``message``: the reason."""
    return InvalidRequest(message, param="response_id", code="steering_not_supported")


def already_completed(response_id: str) -> InvalidRequest:
    """Return the error for a response that has ended."""
    return InvalidRequest(
        f"Response with id '{response_id}' has ended, so it cannot be steered. Continue it with "
        "'previous_response_id'.",
        param="response_id",
        code="response_already_completed",
    )


def check_room(response_id: str, count: int, size: int) -> None:
    """Check that one more submission may wait for the end of a response. ``count``: how many wait
    already. ``size``: their bytes together. Raises ``InvalidRequest``."""
    if count >= _MAX_STEERS or size > _MAX_STEER_BYTES:
        raise InvalidRequest(
            f"Too much input already waits for the end of the response '{response_id}': at most "
            f"{_MAX_STEERS} submissions, and no more after {_MAX_STEER_BYTES} bytes.",
            param="response_id",
            code="too_many_pending_steers",
        )
