"""Parse request bodies about vector stores."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from antiphon.errors import InvalidRequest
from antiphon.wire.json_types import JsonObject
from antiphon.wire.resources.conversations import Metadata
from antiphon.wire.resources.filters import Filter, read_filter
from antiphon.wire.resources.vector_stores import StaticChunking, VectorStoreExpiresAfter

from .errors import (
    empty_value,
    invalid_type,
    invalid_value,
    json_type_name,
    missing_parameter,
    out_of_range,
    too_long_error,
    too_many,
    too_many_properties,
)
from .fields import drop_nulls, known_fields, read_array, read_object, read_tag
from .json_body import DEFAULT_LIMITS, BodyLimits, parse_json_object
from .requests import read_metadata

_MAX_FILES, _MAX_BATCH_FILES = 500, 2000
_MAX_QUERIES = 32
_MAX_QUERY_CHARS = 4096
#: The largest weight of a ranking. Sums and products of larger ones may be no number.
_MAX_WEIGHT = 1e9
Attributes = dict[str, str | int | float | bool]


class AddFile(Struct, frozen=True, kw_only=True):
    """A file to add to a vector store. ``path``: path of the request field that contains the file's
    id."""

    file_id: str
    path: str = "file_id"
    attributes: Attributes = {}
    chunking: StaticChunking = StaticChunking()


class CreateVectorStore(Struct, frozen=True, kw_only=True):
    """The body of ``POST /vector_stores``."""

    name: str = ""
    description: str | UnsetType = UNSET
    metadata: dict[str, str] = {}
    expires_after: VectorStoreExpiresAfter | None = None
    files: tuple[AddFile, ...] = ()


class UpdateVectorStore(Struct, frozen=True, kw_only=True):
    """Changes of a vector store. A field that is UNSET stays unchanged. An ``expires_after`` of
    None removes the expiry."""

    name: str | UnsetType = UNSET
    metadata: dict[str, str] | UnsetType = UNSET
    expires_after: VectorStoreExpiresAfter | UnsetType | None = UNSET


class RankingOptions(Struct, frozen=True, kw_only=True):
    """Options for ranking search results.

    Results with a score below ``threshold`` are dropped. ``embedding_weight`` is the weight of the
    ranking by vectors; ``text_weight`` is the weight of the ranking by words. ``ranker``: the
    ranker that reorders the combined results.
    """

    ranker: str = "auto"
    threshold: float = 0.0
    embedding_weight: float = 1.0
    text_weight: float = 1.0


class SearchRequest(Struct, frozen=True, kw_only=True):
    """A parsed search request. ``filter`` selects the files to search."""

    queries: tuple[str, ...]
    limit: int = 10
    filter: Filter | None = None
    ranking: RankingOptions = RankingOptions()


# --- bodies as clients write them ----------------------------------------------------------------

_Name = Annotated[str, Meta(max_length=512)]
_Attributes = Annotated[
    dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)] | float | bool],
    Meta(max_length=16),
]
_Weight = Annotated[float, Meta(ge=0)]


class AutoChunkingBody(
    Struct, frozen=True, kw_only=True, tag_field="type", tag="auto", forbid_unknown_fields=True
):
    """The default chunking: chunks of 800 tokens that overlap by 400 tokens."""


class ChunkSizes(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The maximum size of a chunk and the overlap of consecutive chunks, in tokens. The overlap is
    at most half of the maximum size."""

    max_chunk_size_tokens: Annotated[int, Meta(ge=100, le=4096)]
    chunk_overlap_tokens: Annotated[int, Meta(ge=0, le=2048)]


class StaticChunkingBody(
    Struct, frozen=True, kw_only=True, tag_field="type", tag="static", forbid_unknown_fields=True
):
    """Chunking with sizes that the client chooses."""

    static: ChunkSizes


ChunkingBody = AutoChunkingBody | StaticChunkingBody


class ExpiryBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When a vector store expires: ``days`` after its last use."""

    anchor: Literal["last_active_at"]
    days: Annotated[int, Meta(ge=1, le=365)]


class CreateVectorStoreBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A new vector store, and the files to add."""

    name: _Name | None = None
    description: _Name | None = None
    metadata: Metadata | None = None
    expires_after: ExpiryBody | None = None
    file_ids: Annotated[tuple[str, ...], Meta(max_length=_MAX_FILES)] | None = None
    chunking_strategy: ChunkingBody | None = None


class UpdateVectorStoreBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Changes of a vector store. An ``expires_after`` of null removes the expiry."""

    name: _Name | None = None
    metadata: Metadata | None = None
    expires_after: ExpiryBody | None = None


class AddFileBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file to add to a vector store."""

    file_id: str
    attributes: _Attributes | None = None
    chunking_strategy: ChunkingBody | None = None


class FileBatchBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Files to add to a vector store. The body has either ``file_ids``, with the same attributes
    and chunking for all files, or ``files``, with attributes and chunking for each file."""

    file_ids: Annotated[tuple[str, ...], Meta(min_length=1, max_length=_MAX_BATCH_FILES)] | None = (
        None
    )
    files: (
        Annotated[tuple[AddFileBody, ...], Meta(min_length=1, max_length=_MAX_BATCH_FILES)] | None
    ) = None
    attributes: _Attributes | None = None
    chunking_strategy: ChunkingBody | None = None


class FileAttributesBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """New attributes of a file. They replace all of its attributes."""

    attributes: _Attributes | None


class HybridSearchBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The weights of the ranking by vectors and of the ranking by words. At least one weight is
    above 0."""

    embedding_weight: _Weight | None = None
    text_weight: _Weight | None = None


class RankingOptionsBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options for ranking search results.

    ``ranker``: ``auto``, ``default-2024-11-15``, ``none`` or the name of a served reranking model.
    Results with a score below ``score_threshold`` are dropped.
    """

    ranker: Annotated[str, Meta(max_length=256)] | None = None
    score_threshold: Annotated[float, Meta(ge=0, le=1)] | None = None
    hybrid_search: HybridSearchBody | None = None


class FilterBody(Struct, frozen=True, kw_only=True):
    """A filter on file attributes. A comparison has ``key`` and ``value``. A filter of type ``and``
    or ``or`` has ``filters``."""

    type: Literal["eq", "ne", "gt", "gte", "lt", "lte", "in", "nin", "and", "or"]
    key: str | None = None
    value: str | float | bool | tuple[str | float | bool, ...] | None = None
    filters: Annotated[tuple[FilterBody, ...], Meta(min_length=1, max_length=128)] | None = None


_Query = Annotated[str, Meta(min_length=1, max_length=_MAX_QUERY_CHARS)]


class SearchBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A search in a vector store. ``filters`` selects files by their attributes."""

    query: _Query | Annotated[tuple[_Query, ...], Meta(min_length=1, max_length=_MAX_QUERIES)]
    filters: FilterBody | None = None
    max_num_results: Annotated[int, Meta(ge=1, le=50)] | None = None
    ranking_options: RankingOptionsBody | None = None
    rewrite_query: Literal[False] | None = None


def parse_create_vector_store(
    body: bytes, limits: BodyLimits = DEFAULT_LIMITS
) -> CreateVectorStore:
    """Parse the body of ``POST /vector_stores``. Raises ``InvalidRequest``."""
    raw = known_fields(
        parse_json_object(body, limits) if body.strip() else {},
        CreateVectorStoreBody.__struct_fields__,
        "",
    )
    cut = _read_chunking(raw)
    ids = _read_ids(raw.get("file_ids", []), "file_ids", _MAX_FILES)
    return CreateVectorStore(
        name=_read_text(raw, "name") or "",
        description=_read_text(raw, "description") or UNSET,
        metadata=read_metadata(raw.get("metadata", {})),
        expires_after=_read_expiry(raw["expires_after"]) if "expires_after" in raw else None,
        files=tuple(AddFile(file_id=one, path=where, chunking=cut) for one, where in ids.items()),
    )


def parse_update_vector_store(
    body: bytes, limits: BodyLimits = DEFAULT_LIMITS
) -> UpdateVectorStore:
    """Parse the body of ``POST /vector_stores/{id}``. Raises ``InvalidRequest``."""
    raw = parse_json_object(body, limits, nulls=True)
    known_fields(raw, UpdateVectorStoreBody.__struct_fields__, "")
    metadata, after = raw.get("metadata", UNSET), raw.get("expires_after", UNSET)
    return UpdateVectorStore(
        name=UNSET if "name" not in raw else _read_text(raw, "name") or "",
        metadata=UNSET
        if metadata is UNSET
        else read_metadata({} if metadata is None else metadata),
        expires_after=_read_expiry(after) if after is not UNSET and after is not None else after,
    )


def parse_add_file(body: bytes, limits: BodyLimits = DEFAULT_LIMITS) -> AddFile:
    """Parse the body of ``POST /vector_stores/{id}/files``. Raises ``InvalidRequest``."""
    return _read_file(parse_json_object(body, limits), "")


def parse_file_batch(body: bytes, limits: BodyLimits = DEFAULT_LIMITS) -> tuple[AddFile, ...]:
    """Parse the body of ``POST /vector_stores/{id}/file_batches``. Raises ``InvalidRequest``.

    The body has either ``file_ids``, with the same attributes and chunking for all files, or
    ``files``, with attributes and chunking for each file. If a file occurs twice, the last entry
    applies.
    """
    raw = known_fields(parse_json_object(body, limits), FileBatchBody.__struct_fields__, "")
    if "files" in raw:
        if "file_ids" in raw:
            raise InvalidRequest(
                "Mutually exclusive parameters: 'file_ids' and 'files'.",
                param="files",
                code="mutually_exclusive_parameters",
            )
        files = read_array(raw["files"], "files", _MAX_BATCH_FILES)
        if not files:
            raise empty_value("files", ())
        added = (
            _read_file(read_object(one, f"files[{at}]"), f"files[{at}]")
            for at, one in enumerate(files)
        )
        return tuple({one.file_id: one for one in added}.values())
    if "file_ids" not in raw:
        raise missing_parameter("file_ids")
    ids = _read_ids(raw["file_ids"], "file_ids", _MAX_BATCH_FILES)
    if not ids:
        raise empty_value("file_ids", ())
    attributes, cut = _read_attributes(raw), _read_chunking(raw)
    return tuple(
        AddFile(file_id=one, path=where, attributes=attributes, chunking=cut)
        for one, where in ids.items()
    )


def parse_file_attributes(body: bytes, limits: BodyLimits = DEFAULT_LIMITS) -> Attributes:
    """Parse the new attributes of a file. They replace all attributes that the file has. Raises
    ``InvalidRequest``."""
    raw = parse_json_object(body, limits, nulls=True)
    known_fields(raw, FileAttributesBody.__struct_fields__, "")
    if "attributes" not in raw:
        raise missing_parameter("attributes")
    return _read_attributes(drop_nulls(raw))


def parse_search(body: bytes, limits: BodyLimits = DEFAULT_LIMITS) -> SearchRequest:
    """Parse the body of ``POST /vector_stores/{id}/search``. Raises ``InvalidRequest``."""
    raw = known_fields(parse_json_object(body, limits), SearchBody.__struct_fields__, "")
    rewrite = raw.get("rewrite_query", False)
    if not isinstance(rewrite, bool):
        raise invalid_type("rewrite_query", "a boolean", json_type_name(rewrite))
    if rewrite:
        raise InvalidRequest(
            "Unsupported value: 'rewrite_query' is not supported; queries are used as written.",
            param="rewrite_query",
            code="unsupported_value",
        )
    count = raw.get("max_num_results", 10)
    return SearchRequest(
        queries=_read_queries(raw.get("query")),
        limit=_read_integer(count, "max_num_results", 1, 50),
        filter=read_filter(raw["filters"], "filters") if "filters" in raw else None,
        ranking=read_ranking(raw.get("ranking_options", {}), "ranking_options"),
    )


def read_ranking(raw: object, path: str) -> RankingOptions:
    """Read ``ranking_options``. Raises ``InvalidRequest``."""
    fields = known_fields(read_object(raw, path), RankingOptionsBody.__struct_fields__, path)
    ranker = fields.get("ranker", "auto")
    if not isinstance(ranker, str):
        raise invalid_type(f"{path}.ranker", "a string", json_type_name(ranker))
    threshold = _read_decimal(fields.get("score_threshold", 0.0), f"{path}.score_threshold", 1.0)
    where = f"{path}.hybrid_search"
    weights = known_fields(
        read_object(fields.get("hybrid_search", {}), where),
        HybridSearchBody.__struct_fields__,
        where,
    )
    embedding_weight = _read_decimal(
        weights.get("embedding_weight", 1.0), f"{where}.embedding_weight"
    )
    text_weight = _read_decimal(weights.get("text_weight", 1.0), f"{where}.text_weight")
    if not embedding_weight + text_weight:
        raise InvalidRequest(
            f"Invalid '{where}': at least one weight must be above 0.",
            param=where,
            code="invalid_value",
        )
    return RankingOptions(
        ranker=ranker,
        threshold=threshold,
        embedding_weight=embedding_weight,
        text_weight=text_weight,
    )


# --- fields --------------------------------------------------------------------------------------


def _read_file(raw: JsonObject, path: str) -> AddFile:
    before = f"{path}." if path else ""
    fields, where = known_fields(raw, AddFileBody.__struct_fields__, path), f"{before}file_id"
    if "file_id" not in fields:
        raise missing_parameter(where)
    if not isinstance(fields["file_id"], str):
        raise invalid_type(where, "a string", json_type_name(fields["file_id"]))
    return AddFile(
        file_id=fields["file_id"],
        path=where,
        attributes=_read_attributes(fields, before),
        chunking=_read_chunking(fields, before),
    )


def _read_attributes(raw: JsonObject, path: str = "") -> Attributes:
    where = f"{path}attributes"
    fields = raw.get("attributes", {})
    if not isinstance(fields, dict):
        raise invalid_type(where, "an object", json_type_name(fields))
    if len(fields) > 16:
        raise too_many_properties(where, len(fields), 16)
    for name, value in fields.items():
        if len(name) > 64:
            raise too_long_error(where, len(name), 64)
        if not isinstance(value, str | bool | int | float):
            at = f"{where}.{name}"
            raise invalid_type(at, "a string, a number or a boolean", json_type_name(value))
        if isinstance(value, str) and len(value) > 512:
            raise too_long_error(f"{where}.{name}", len(value), 512)
    return fields


def _read_chunking(raw: JsonObject, path: str = "") -> StaticChunking:
    """Parse a chunking strategy. As in OpenAI's API, ``auto`` means chunks of 800 tokens that
    overlap by 400 tokens."""
    where = f"{path}chunking_strategy"
    fields = known_fields(
        read_object(raw.get("chunking_strategy", {"type": "auto"}), where),
        ("type", "static"),
        where,
    )
    if read_tag(fields, where, ("auto", "static")) == "auto":
        return StaticChunking()
    if "static" not in fields:
        raise missing_parameter(f"{where}.static")
    names = StaticChunking.__struct_fields__
    inner = known_fields(read_object(fields["static"], f"{where}.static"), names, f"{where}.static")
    for name in ("max_chunk_size_tokens", "chunk_overlap_tokens"):
        if name not in inner:
            raise missing_parameter(f"{where}.static.{name}")
    at = f"{where}.static.max_chunk_size_tokens"
    size = _read_integer(inner["max_chunk_size_tokens"], at, 100, 4096)
    at = f"{where}.static.chunk_overlap_tokens"
    overlap = _read_integer(inner["chunk_overlap_tokens"], at, 0, size // 2)
    return StaticChunking(max_chunk_size_tokens=size, chunk_overlap_tokens=overlap)


def _read_expiry(raw: object) -> VectorStoreExpiresAfter:
    fields = known_fields(read_object(raw, "expires_after"), ("anchor", "days"), "expires_after")
    anchor = fields.get("anchor")
    if anchor is None:
        raise missing_parameter("expires_after.anchor")
    if anchor != "last_active_at":
        raise invalid_value("expires_after.anchor", str(anchor), ("last_active_at",))
    if "days" not in fields:
        raise missing_parameter("expires_after.days")
    return VectorStoreExpiresAfter(
        anchor="last_active_at", days=_read_integer(fields["days"], "expires_after.days", 1, 365)
    )


def _read_queries(raw: object) -> tuple[str, ...]:
    if raw is None:
        raise missing_parameter("query")
    texts = [raw] if isinstance(raw, str) else raw
    if not isinstance(texts, list):
        raise invalid_type("query", "a string or an array of strings", json_type_name(raw))
    if len(texts) > _MAX_QUERIES:
        raise too_many("query", len(texts), _MAX_QUERIES)
    for at, text in enumerate(texts):
        where = "query" if isinstance(raw, str) else f"query[{at}]"
        if not isinstance(text, str):
            raise invalid_type(where, "a string", json_type_name(text))
        if len(text) > _MAX_QUERY_CHARS:
            raise too_long_error(where, len(text), _MAX_QUERY_CHARS)
        if not text.strip():
            raise empty_value(where, "")
    if not texts:
        raise empty_value("query", ())
    return tuple(texts)


def _read_ids(raw: object, path: str, most: int) -> dict[str, str]:
    """Return a mapping from file id to the path of its entry in the array ``raw``. If an id occurs
    twice, the last entry counts. ``most``: the maximum length of the array."""
    ids = read_array(raw, path, most)
    for at, one in enumerate(ids):
        if not isinstance(one, str):
            raise invalid_type(f"{path}[{at}]", "a string", json_type_name(one))
    return {one: f"{path}[{at}]" for at, one in enumerate(ids)}


def _read_text(raw: JsonObject, name: str) -> str | None:
    value = raw.get(name)
    if value is None:
        return None
    if not isinstance(value, str):
        raise invalid_type(name, "a string", json_type_name(value))
    if len(value) > 512:
        raise too_long_error(name, len(value), 512)
    return value


def _read_integer(raw: object, path: str, least: int, most: int) -> int:
    if not isinstance(raw, int) or isinstance(raw, bool):
        raise invalid_type(path, "an integer", json_type_name(raw))
    if not least <= raw <= most:
        sign, bound = (">=", least) if raw < least else ("<=", most)
        raise out_of_range(path, "integer", raw, sign, str(bound))
    return raw


def _read_decimal(raw: object, path: str, most: float = _MAX_WEIGHT) -> float:
    if isinstance(raw, bool) or not isinstance(raw, int | float):
        raise invalid_type(path, "a decimal", json_type_name(raw))
    if not 0 <= raw <= most:
        sign, bound = (">=", 0.0) if raw < 0 else ("<=", most)
        raise out_of_range(path, "decimal", raw, sign, str(bound))
    return float(raw)
