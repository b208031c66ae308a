"""Identifies the conversation of a request by a string that is the same on every turn.

A router in front of several engines uses a digest of this string to send a conversation to the same
engine each time.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from msgspec.structs import replace

from antiphon.store.records import StoredResponse
from antiphon.wire.items import Item, Message
from antiphon.wire.request import CreateResponse

__all__ = ["session_identity"]

_encode = msgspec.json.Encoder(order="deterministic").encode


def session_identity(
    request: CreateResponse,
    chain: tuple[StoredResponse, ...],
    input: Iterable[Item],
    response_id: str,
) -> str:
    """Return a string that identifies the conversation. It contains the first of these values that
    exists:

    - the client's ``prompt_cache_key``,
    - the id of the conversation,
    - the id of the chain's first response, if this response is stored,
    - the first user message,
    - the id of the chain's first response.

    The first user message serves clients that store no responses. Such a client sends the whole
    conversation each time, so the message is the same on every turn.

    ``chain``: the responses that the request continues, oldest first. If it is empty, the response
    to this request is the first response. ``input``: the items of the request. ``response_id``: the
    id of the response to the request.
    """
    if request.prompt_cache_key:
        return f"cache key {request.prompt_cache_key}"
    if request.conversation is not None:
        return f"conversation {request.conversation.id}"
    is_stored = request.store is not False
    if chain:
        first = chain[0]
        is_stored, response_id, input = first.response.store, first.response.id, first.input
    text = None if is_stored else _first_user_message(input)
    return f"response {response_id}" if text is None else f"message {text}"


def _first_user_message(input: Iterable[Item]) -> str | None:
    """Return the first user message as JSON, without its id."""
    for item in input:
        if isinstance(item, Message) and item.role == "user":
            return _encode(replace(item, id="")).decode()
    return None
