"""Message batches of Anthropic's API, translated to and from batches of OpenAI's API.

The fields follow the types of the ``anthropic`` SDK 2.14.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from antiphon.errors import invalid_field
from antiphon.wire.json_types import JsonObject
from antiphon.wire.parsing.fields import convert, require
from antiphon.wire.parsing.json_body import DEFAULT_LIMITS, BodyLimits, parse_json_object
from antiphon.wire.resources.batches import Batch, CreateBatch

from .types import rfc3339

#: The beginning of the ids of these batches.
BATCH_PREFIX = "msgbatch"
#: What the engine of batches needs to know about such a batch.
ENGINE_REQUEST = CreateBatch(input_file_id="", endpoint="/v1/messages", completion_window="24h")
_CustomId = Annotated[str, Meta(min_length=1, max_length=64)]


class BatchRequest(Struct, frozen=True, kw_only=True):
    """A request of a batch. ``params``: a request of the Messages API."""

    custom_id: _CustomId
    params: JsonObject


class CreateMessageBatch(Struct, frozen=True, kw_only=True):
    """The body of ``POST /messages/batches``."""

    requests: Annotated[tuple[BatchRequest, ...], Meta(min_length=1, max_length=50_000)]


class MessageBatchCounts(Struct, frozen=True, kw_only=True):
    processing: int = 0
    succeeded: int = 0
    errored: int = 0
    canceled: int = 0
    expired: int = 0


class MessageBatch(Struct, frozen=True, kw_only=True):
    """A message batch. Times have the form of RFC 3339."""

    id: str
    processing_status: Literal["in_progress", "canceling", "ended"]
    request_counts: MessageBatchCounts
    created_at: str
    expires_at: str
    ended_at: str | None
    cancel_initiated_at: str | None
    results_url: str | None
    archived_at: None = None
    type: Literal["message_batch"] = "message_batch"


class MessageBatchPage(Struct, frozen=True, kw_only=True):
    data: tuple[MessageBatch, ...]
    first_id: str | None
    last_id: str | None
    has_more: bool


class DeletedMessageBatch(Struct, frozen=True):
    id: str
    type: Literal["message_batch_deleted"] = "message_batch_deleted"


class MessageBatchResult(Struct, frozen=True, kw_only=True):
    """The result of one request. ``result.type``: ``succeeded``, ``errored``, ``canceled`` or
    ``expired``."""

    custom_id: str
    result: JsonObject


def parse_message_batch(body: bytes, limits: BodyLimits = DEFAULT_LIMITS) -> CreateMessageBatch:
    """Parse a request body. Raises ``InvalidRequest``, also if two requests have the same id."""
    raw = parse_json_object(body, limits)
    require(raw, "", "requests")
    batch = convert(raw, CreateMessageBatch, "")
    seen: set[str] = set()
    for index, request in enumerate(batch.requests):
        if request.custom_id in seen:
            path = f"requests[{index}].custom_id"
            raise invalid_field(path, "the id is used more than once.")
        seen.add(request.custom_id)
    return batch


def batch_lines(batch: CreateMessageBatch) -> bytes:
    """Return the requests as the lines of an input file."""
    lines = (
        {
            "custom_id": each.custom_id,
            "method": "POST",
            "url": ENGINE_REQUEST.endpoint,
            "body": each.params,
        }
        for each in batch.requests
    )
    return b"".join(msgspec.json.encode(line) + b"\n" for line in lines)


def message_batch(batch: Batch, results_url: Callable[[str], str]) -> MessageBatch:
    """Translate a batch. All requests count as ``processing`` until the batch has ended.
    ``results_url``: returns the URL of the results of a batch."""
    counts, total = batch.request_counts, batch.request_counts.total
    ended_at = batch.completed_at or batch.failed_at or batch.expired_at or batch.cancelled_at
    not_run = {"cancelled": "canceled", "expired": "expired"}.get(batch.status, "errored")
    return MessageBatch(
        id=batch.id,
        processing_status="ended"
        if ended_at
        else "canceling"
        if batch.cancelling_at
        else "in_progress",
        request_counts=MessageBatchCounts(succeeded=counts.completed, **{not_run: counts.failed})
        if ended_at
        else MessageBatchCounts(processing=total),
        created_at=rfc3339(batch.created_at),
        expires_at=rfc3339(batch.expires_at),
        ended_at=rfc3339(ended_at) if ended_at else None,
        cancel_initiated_at=rfc3339(batch.cancelling_at) if batch.cancelling_at else None,
        results_url=results_url(batch.id) if ended_at else None,
    )


_NOT_RUN = {"batch_cancelled": "canceled", "batch_expired": "expired"}


def message_result(line: bytes) -> bytes:
    """Translate a line of a result file."""
    raw: Any = msgspec.json.decode(line)
    if (error := raw["error"]) is not None:
        result: JsonObject = {"type": _NOT_RUN[error["code"]]}
    elif raw["response"]["status_code"] < 300:
        result = {"type": "succeeded", "message": raw["response"]["body"]}
    else:
        result = {"type": "errored", "error": raw["response"]["body"]}
    return msgspec.json.encode(MessageBatchResult(custom_id=raw["custom_id"], result=result))
