"""Batches: types and the parser.

Source of the fields: the types of the ``openai`` SDK 3.57. ``/v1/messages`` is an endpoint of
batches only here, and the completion windows ``8h`` and ``2h`` are those of background responses.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from msgspec import Meta, Struct

from antiphon.wire.parsing.fields import convert, drop_nulls
from antiphon.wire.parsing.json_body import DEFAULT_LIMITS, BodyLimits, parse_json_object
from antiphon.wire.parsing.requests import read_metadata
from antiphon.wire.resources.files import FileExpiresAfter
from antiphon.wire.response import Usage

__all__ = [
    "BATCH_WINDOWS_S",
    "Batch",
    "BatchCounts",
    "BatchEndpoint",
    "BatchFault",
    "BatchFaults",
    "CreateBatch",
    "parse_create_batch",
]

BatchEndpoint = Literal[
    "/v1/responses",
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/messages",
]
#: Completion window → its length in seconds.
BATCH_WINDOWS_S: Mapping[str, int] = {"24h": 86_400, "8h": 28_800, "2h": 7_200}

BatchStatus = Literal[
    "validating",
    "failed",
    "in_progress",
    "finalizing",
    "completed",
    "expired",
    "cancelling",
    "cancelled",
]


class CreateBatch(Struct, frozen=True, kw_only=True):
    """The body of ``POST /batches``. ``input_file_id``: a file with the purpose ``batch``, which
    has one request per line. ``output_expires_after``: when the result files expire."""

    input_file_id: str
    endpoint: BatchEndpoint
    completion_window: Literal["24h", "8h", "2h"]
    metadata: Annotated[dict[str, str], Meta(max_length=16)] | None = None
    output_expires_after: FileExpiresAfter | None = None


def parse_create_batch(body: bytes, limits: BodyLimits = DEFAULT_LIMITS) -> CreateBatch:
    """Parse a request body. Raises ``InvalidRequest``."""
    raw = drop_nulls(parse_json_object(body, limits))
    if "metadata" in raw:
        raw["metadata"] = read_metadata(raw["metadata"])
    return convert(raw, CreateBatch, "")


class BatchFault(Struct, frozen=True, kw_only=True):
    """Why a batch failed. ``line``: the number of the faulty line of the file, from 1."""

    code: str
    message: str
    param: str | None = None
    line: int | None = None


class BatchFaults(Struct, frozen=True, kw_only=True):
    data: tuple[BatchFault, ...]
    object: Literal["list"] = "list"


class BatchCounts(Struct, frozen=True, kw_only=True):
    total: int = 0
    completed: int = 0
    failed: int = 0


class Batch(Struct, frozen=True, kw_only=True):
    """A batch. Times are Unix seconds. ``errors``: why the file could not be executed; requests
    that failed are in the error file instead."""

    id: str
    object: Literal["batch"] = "batch"
    endpoint: str
    input_file_id: str
    completion_window: str
    status: BatchStatus
    created_at: int
    expires_at: int
    model: str | None = None
    in_progress_at: int | None = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None
    errors: BatchFaults | None = None
    request_counts: BatchCounts = BatchCounts()
    usage: Usage = Usage()
    metadata: dict[str, str] | None = None
