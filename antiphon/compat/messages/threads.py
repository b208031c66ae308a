"""Threads of the Messages API: conversations that the server keeps, so that a request contains only
its new messages.

A thread is a chain of stored responses. The id of a message determines the id of its response, so
``previous_message_id`` becomes ``previous_response_id``. As with this field, several requests may
continue the same message, which Anthropic's server does not allow.
"""

from __future__ import annotations

from msgspec.structs import replace

from antiphon.errors import InvalidRequest, NotFound, invalid_field
from antiphon.wire.json_types import JsonObject
from antiphon.wire.parsing.fields import read_object, read_string, read_tag
from antiphon.wire.parsing.tools import check_tool_choice, read_tool_choice
from antiphon.wire.request import CreateResponse
from antiphon.wire.response import Response
from antiphon.wire.tools import Function

from .tools import INCLUDE

#: Name of a tool of the server → its type in the Responses API.
_HOSTED = {
    "code_execution": "code_interpreter",
    "web_fetch": "web_fetch",
    "web_search": "web_search",
}
#: Fields that a thread keeps from its first request.
_KEPT = ("system", "tools")


def message_id(response_id: str) -> str:
    """Return the id of the message that a response becomes."""
    return "msg_" + response_id.partition("_")[2]


def response_id(message_id: str) -> str:
    """Return the id of the response that has become a message."""
    return "resp_" + message_id.removeprefix("msg_")


def read_thread(body: JsonObject) -> JsonObject:
    """Translate the field ``thread`` of a request body to fields of the Responses request. A body
    without this field is not stored. Raises ``InvalidRequest``."""
    if "thread" not in body:
        return {"store": False}
    thread = read_object(body["thread"], "thread")
    kind = read_tag(thread, "thread", ("create", "continue"))
    if kind == "create":
        return {"store": True}
    for field in _KEPT:
        if field in body:
            raise invalid_field(
                field,
                f"a request that continues a thread uses the '{field}' with"
                " which the thread was created.",
            )
    id = read_string(thread, "previous_message_id", "thread")
    return {"store": True, "previous_response_id": response_id(id)}


def continued_request(
    request: CreateResponse, previous: Response, choice: object = None
) -> CreateResponse:
    """Return a request that continues a thread, with what the thread keeps: the system prompt and
    the tools of its last response. ``choice``: the ``tool_choice`` of the request, which may name
    one of these tools; None if it has none. Raises ``InvalidRequest``."""
    if choice is not None:
        if isinstance(choice, dict) and (hosted := _HOSTED.get(choice.get("name", ""))) is not None:
            choice = {"type": hosted}
        chosen = read_tool_choice(choice)
        check_tool_choice(chosen, previous.tools)
        request = replace(request, tool_choice=chosen)
    instructions = previous.instructions
    is_client_run = all(isinstance(tool, Function) for tool in previous.tools)
    return replace(
        request,
        instructions=instructions if isinstance(instructions, str) else None,
        tools=previous.tools,
        max_tool_calls=previous.max_tool_calls,
        include=request.include if is_client_run else INCLUDE,
    )


def thread_unsupported(param: str) -> InvalidRequest:
    """Return the error for a request that a thread cannot keep because of the field ``param``."""
    return InvalidRequest(
        f"Unsupported parameter: '{param}' is not supported in threads. Send the whole"
        " conversation without 'thread'.",
        param=param,
        code="thread_unsupported_request",
    )


def thread_not_found(previous_message_id: str) -> NotFound:
    """Return the error for a message that no request can continue."""
    return NotFound(
        f"Thread with message '{previous_message_id}' not found. Send the whole conversation to"
        " create a new thread.",
        param="thread.previous_message_id",
        code="thread_not_found",
    )
