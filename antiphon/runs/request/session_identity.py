"""Identifies the conversation of a request by a string that is the same on every turn.

A router in front of several engines uses a digest of this string to send a conversation to the same
engine each time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from antiphon.store.records import StoredResponse
from antiphon.wire.items import Item
from antiphon.wire.request import CreateResponse

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
    - the client's name of the job (``continuation_id``),
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
        return conversation_identity(request.conversation.id)
    job = request.background_options
    if job is not None and job.continuation_id is not UNSET:
        return f"job {job.continuation_id}"
    is_stored = request.store is not False
    if chain:
        first = chain[0]
        is_stored, response_id, input = first.response.store, first.response.id, first.input
    text = None if is_stored else _first_user_message(input)
    return f"response {response_id}" if text is None else f"message {text}"


def _first_user_message(input: Iterable[Item]) -> str | None:
    """Return the first user message as JSON, without its id."""
    for item in input:
        if item.role == "user":
            return _encode(replace(item, id="")).decode()
    return None


def conversation_identity(conversation_id: str) -> str:
    """Return the identity of the responses in a conversation."""
    return f"conversation {conversation_id}"


def stored_session_identity(chain: Sequence[StoredResponse]) -> str:
    """Return the identity that ``session_identity`` has returned for the last response of a chain.
    ``chain``: the stored response with all responses that it continues, oldest first."""
    response = chain[-1].response
    if response.prompt_cache_key:
        return f"cache key {response.prompt_cache_key}"
    if response.conversation is not UNSET:
        return conversation_identity(response.conversation.id)
    return f"response {chain[0].response.id}"
