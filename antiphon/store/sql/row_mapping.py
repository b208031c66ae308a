"""Conversion between values and database rows, the same for all databases.

The columns for bodies, inputs and outputs contain JSON in the format of the API. The body of a
response is the response without its output; tools that many responses share are compressed (see
``response_bodies.py``). Token ids are stored as packed integers. A function ``*_row`` converts a
value into the columns of a row. A function ``*_of`` converts a row into a value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from antiphon.store.common.search_terms import index_terms
from antiphon.store.containers import ContainerRecord, mark_expired
from antiphon.store.files import BlobRef, StoredContent
from antiphon.store.journal import JournalEntry
from antiphon.store.records import (
    Claim,
    EventBatch,
    Job,
    ResponseQuery,
    Steering,
    StoredResponse,
    TurnTokens,
)
from antiphon.store.sql.response_bodies import BodyDecoder, encode_body
from antiphon.store.usage import UsageRecord, UsageTotals
from antiphon.store.vectors import IndexedChunk, IndexedFile, IndexUsage
from antiphon.wire.items import Item
from antiphon.wire.resources.containers import ContainerResource
from antiphon.wire.resources.conversations import ConversationResource
from antiphon.wire.resources.files import File
from antiphon.wire.resources.vector_stores import FileBatch, FileCounts, VectorStore
from antiphon.wire.response_list import ResponseSummary, summarize
from antiphon.wire.timeline import RunTimes

encode = msgspec.json.Encoder().encode
_decode_container = msgspec.json.Decoder(ContainerResource).decode
_decode_times = msgspec.json.Decoder(RunTimes).decode
_decode_items = msgspec.json.Decoder(tuple[Item, ...]).decode

#: A row that a database returns.
Row = Sequence[Any]
#: Values of columns, to be stored or to be compared with.
Columns = tuple[Any, ...]
_T = TypeVar("_T")


def _body_of(kind: type[_T]) -> Callable[[Row], _T]:
    """Return the function that decodes the first column of a row, ``body``."""
    decode = msgspec.json.Decoder(kind).decode
    return lambda row: decode(row[0])


summary_of = _body_of(ResponseSummary)
item_of: Callable[[Row], Item] = _body_of(Item)  # type: ignore[arg-type]
conversation_of = _body_of(ConversationResource)
file_of = _body_of(File)
vector_store_of = _body_of(VectorStore)
indexed_file_of = _body_of(IndexedFile)
file_batch_of = _body_of(FileBatch)


def response_row(tenant: str, stored: StoredResponse, expires_at: int | None) -> Columns:
    """Return the columns of a response: ``tenant``, ``id``, ``parent``, ``created_at``, ``bytes``,
    ``body``, ``input``, ``output``, ``base``, ``tokens``, ``fingerprint``, ``expires_at``,
    ``times``."""
    response, tokens = stored.response, stored.tokens
    body = encode_body(response)
    input_, output = encode(stored.input), encode(response.output)
    packed = tokens.ids if tokens is not None else b""
    return (
        tenant,
        response.id,
        response.previous_response_id,
        response.created_at,
        len(body) + len(input_) + len(output) + len(packed),
        body,
        input_,
        output,
        tokens.base if tokens is not None else None,
        packed if tokens is not None else None,
        tokens.fingerprint if tokens is not None else None,
        expires_at,
        encode(stored.times) if stored.times is not None else None,
    )


def summary_row(stored: StoredResponse, *, is_searchable: bool) -> Columns:
    """Return the columns of a response's summary: ``status``, ``model``, ``parent``,
    ``conversation``, ``background``, ``failed``, ``tools``, ``text``, ``body``.
    ``is_searchable``: whether the database may read the text in which it searches."""
    summary = summarize(stored.response, stored.input)
    return (
        summary.status,
        _word(summary.model),
        _word(summary.previous_response_id),
        _word(summary.conversation.id if summary.conversation else None),
        summary.background,
        summary.error is not None,
        "".join(f",{label}," for label in summary.labels),
        search_column(summary, is_searchable=is_searchable),
        encode(summary),
    )


def search_column(summary: ResponseSummary, *, is_searchable: bool) -> str:
    """Return the column ``text`` of a summary: "" if the database may not read the text."""
    return summary.search_text.replace("\0", "\ufffd") if is_searchable else ""


def summary_filters(query: ResponseQuery) -> Columns:
    """Convert a query into one value for each column of ``summary_row``, except ``body``. A summary
    matches the query if its columns have these values. The value None matches everything. The
    columns ``tools`` and ``text`` match if they contain the value."""
    return (
        query.status,
        _word(query.model),
        _word(query.previous_response_id),
        _word(query.conversation),
        query.background,
        query.failed,
        None if query.tool is None else f",{_word(query.tool)},",
        None if query.text is None else _word(query.text.casefold()),
    )


def _word(text: str | None) -> str | None:
    """Replace U+0000 in a text by U+FFFD, because PostgreSQL cannot store U+0000."""
    return None if text is None else text.replace("\0", "\ufffd")


def stored_of(bodies: BodyDecoder, row: Row) -> StoredResponse:
    """Decode a stored response from the columns ``body``, ``input``, ``output``, ``base``,
    ``tokens``, ``fingerprint`` and ``times``. ``bodies``: decodes the column ``body``."""
    body, input_, output, base, tokens, fingerprint, times = row
    return StoredResponse(
        response=replace(bodies.decode(body), output=_decode_items(output)),
        input=_decode_items(input_),
        tokens=TurnTokens(base=base, ids=tokens, fingerprint=fingerprint)
        if tokens is not None
        else None,
        times=_decode_times(times) if times is not None else None,
    )


def items_of(row: Row) -> tuple[Item, ...]:
    """Return the items in the columns ``input`` and ``output``."""
    return (*_decode_items(row[0]), *_decode_items(row[1]))


def item_kind(item: Item) -> str:
    """Return the role of a message, or the type of any other item."""
    return item.role if item.is_message else item.type


def journal_entry_of(row: Row) -> JournalEntry:
    """Return the entry of the journal in a row."""
    key, response_id, attempt, intent, result, is_approval = row
    return JournalEntry(
        key=key,
        response_id=response_id,
        attempt=attempt,
        intent=bytes(intent),
        result=None if result is None else bytes(result),
        is_approval=bool(is_approval),
    )


def container_of(row: Row) -> ContainerRecord:
    """Return the container in the columns ``tenant``, ``owner``, ``is_auto``, ``url``,
    ``is_active`` and ``body``."""
    tenant, owner, is_auto, url, is_active, body = row
    resource = _decode_container(body)
    return ContainerRecord(
        tenant=tenant,
        resource=resource if is_active else mark_expired(resource),
        owner=owner,
        url=url if is_active else "",
        is_auto=bool(is_auto),
    )


def file_row(tenant: str, file: File) -> Columns:
    """Return the columns of a file: ``tenant``, ``id``, ``purpose``, ``bytes``, ``expires_at``,
    ``body``."""
    expires_at = None if file.expires_at is msgspec.UNSET else file.expires_at
    return (tenant, file.id, file.purpose, file.bytes, expires_at, encode(file))


def blob_of(row: Row) -> BlobRef:
    """Return a reference to a blob. The columns of the row are ``key``, ``sha256`` and
    ``bytes``."""
    return BlobRef(key=row[0], sha256=row[1], bytes=row[2])


def stored_content_of(row: Row) -> StoredContent:
    """Return a file and the place of its content. The columns of the row are ``body``, ``seq`` and
    ``tenant``. If the content is in a blob, the columns of ``blob_of`` follow."""
    blob = blob_of(row[3:6]) if len(row) > 3 else None
    return StoredContent(position=row[1], tenant=row[2], file=file_of(row), blob=blob)


def indexed_file_row(indexed: IndexedFile) -> Columns:
    """Return the columns of an indexed file: ``id``, ``batch``, ``status``, ``bytes``, ``body``."""
    file = indexed.file
    return (file.id, indexed.batch, file.status, file.usage_bytes, encode(indexed))


def chunk_row(chunk: IndexedChunk) -> tuple[int, str, str | None]:
    """Return the columns of a chunk: ``start``, ``text`` and ``indexed``. ``indexed`` is the text
    for the word search; None if it is the same as ``text``."""
    words = index_terms(chunk.text)
    return chunk.start, chunk.text, None if words == chunk.text else words


def usage_of(rows: Sequence[Row]) -> IndexUsage:
    """Return the usage of a vector store. ``rows``: one row for each file status that occurs, with
    the columns ``status``, ``count`` and ``bytes``."""
    counts = {status: count for status, count, _ in rows}
    return IndexUsage(
        counts=FileCounts(**counts, total=sum(counts.values())),
        bytes=sum(int(size) for _, _, size in rows),
    )


def steering_of(row: Row) -> Steering:
    """Return the steering of a run. ``row``: the columns ``steering_count`` and ``steering``."""
    count, body = row
    return Steering(count, body or b"")


def batch_row(batch: EventBatch) -> Columns:
    """Return the columns of a batch of events: ``first``, ``count``, ``lines``, ``tokens``,
    ``at``."""
    return batch.first, batch.count, batch.lines, batch.tokens, batch.at


def event_batch_of(row: Row) -> EventBatch:
    """Return the batch of events in the columns ``first``, ``count``, ``lines``, ``tokens`` and
    ``at``. The column ``at`` may be missing."""
    first, count, lines, tokens, *at = row
    return EventBatch(
        first=first, count=count, lines=lines, tokens=tokens, at=at[0] if at else None
    )


def claim_of(row: Row) -> Claim:
    """Return the claim in the columns ``tenant``, ``id``, ``model``, ``request``, ``prompt``,
    ``epoch``, ``attempts`` and ``seq``."""
    tenant, name, model, request, prompt, epoch, attempts, seq = row
    job = Job(tenant=tenant, id=name, model=model, request=request, prompt=prompt)
    return Claim(job=job, epoch=epoch, attempts=attempts, row=seq)


def encode_usage(records: Sequence[UsageRecord]) -> str:
    """Encode usage records as a JSON list, with one element for each row to insert."""
    return encode(records).decode()


def usage_totals_of(rows: Sequence[Row]) -> tuple[UsageTotals, ...]:
    """Convert rows into usage totals, sorted by start, tenant, API key and model. The columns are
    the fields of ``UsageTotals``."""
    names = UsageTotals.__struct_fields__
    totals = (UsageTotals(**dict(zip(names, row, strict=True))) for row in rows)
    return tuple(
        sorted(
            totals,
            key=lambda each: (each.start, each.tenant or "", each.api_key or "", each.model or ""),
        )
    )
