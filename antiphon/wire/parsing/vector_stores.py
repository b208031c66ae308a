"""Parse request bodies about vector stores."""

from __future__ import annotations

from typing import Annotated, Literal, TypeVar

from msgspec import UNSET, Meta, Struct, UnsetType

from antiphon.errors import InvalidRequest
from antiphon.wire.json_types import JsonObject
from antiphon.wire.resources.conversations import Metadata
from antiphon.wire.resources.filters import Filter, read_filter
from antiphon.wire.resources.vector_stores import StaticChunking, VectorStoreExpiresAfter

from .errors import empty_value, missing_parameter, out_of_range
from .fields import convert, known_fields, read_object
from .json_body import DEFAULT_LIMITS, BodyLimits, parse_json_object

_MAX_FILES, _MAX_BATCH_FILES = 500, 2000
_MAX_QUERIES = 32
_MAX_QUERY_CHARS = 4096
Attributes = dict[str, str | int | float | bool]
_S = TypeVar("_S", bound=Struct)


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
    dict[
        Annotated[str, Meta(max_length=64)],
        Annotated[str, Meta(max_length=512)] | int | float | bool,
    ],
    Meta(max_length=16),
]
#: Sums and products of larger weights may be no number.
_Weight = Annotated[float, Meta(ge=0, le=1e9)]


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
    """A search in a vector store. ``filters`` selects files by their attributes. ``rewrite_query``
    must not be true: queries are used as written."""

    query: _Query | Annotated[tuple[_Query, ...], Meta(min_length=1, max_length=_MAX_QUERIES)]
    filters: FilterBody | None = None
    max_num_results: Annotated[int, Meta(ge=1, le=50)] | None = None
    ranking_options: RankingOptionsBody | None = None
    rewrite_query: bool | None = None


def parse_create_vector_store(
    body: bytes, limits: BodyLimits = DEFAULT_LIMITS
) -> CreateVectorStore:
    """Parse the body of ``POST /vector_stores``. Raises ``InvalidRequest``."""
    raw = parse_json_object(body, limits) if body.strip() else {}
    parsed = _convert(raw, CreateVectorStoreBody)
    cut = _chunking(parsed.chunking_strategy)
    return CreateVectorStore(
        name=parsed.name or "",
        description=parsed.description or UNSET,
        metadata=parsed.metadata or {},
        expires_after=_expiry(parsed.expires_after),
        files=tuple(
            AddFile(file_id=id, path=path, chunking=cut)
            for id, path in _paths(parsed.file_ids or ()).items()
        ),
    )


def parse_update_vector_store(
    body: bytes, limits: BodyLimits = DEFAULT_LIMITS
) -> UpdateVectorStore:
    """Parse the body of ``POST /vector_stores/{id}``. Raises ``InvalidRequest``."""
    raw = parse_json_object(body, limits, nulls=True)
    parsed = _convert(raw, UpdateVectorStoreBody)
    return UpdateVectorStore(
        name=parsed.name or "" if "name" in raw else UNSET,
        metadata=parsed.metadata or {} if "metadata" in raw else UNSET,
        expires_after=_expiry(parsed.expires_after) if "expires_after" in raw else UNSET,
    )


def parse_add_file(body: bytes, limits: BodyLimits = DEFAULT_LIMITS) -> AddFile:
    """Parse the body of ``POST /vector_stores/{id}/files``. Raises ``InvalidRequest``."""
    return _file(_convert(parse_json_object(body, limits), AddFileBody))


def parse_file_batch(body: bytes, limits: BodyLimits = DEFAULT_LIMITS) -> tuple[AddFile, ...]:
    """Parse the body of ``POST /vector_stores/{id}/file_batches``. Raises ``InvalidRequest``.

    The body has either ``file_ids``, with the same attributes and chunking for all files, or
    ``files``, with attributes and chunking for each file. If a file occurs twice, the last entry
    applies.
    """
    parsed = _convert(parse_json_object(body, limits), FileBatchBody)
    if parsed.files is not None:
        if parsed.file_ids is not None:
            raise InvalidRequest(
                "Mutually exclusive parameters: 'file_ids' and 'files'.",
                param="files",
                code="mutually_exclusive_parameters",
            )
        added = (_file(one, f"files[{at}].") for at, one in enumerate(parsed.files))
        return tuple({one.file_id: one for one in added}.values())
    if parsed.file_ids is None:
        raise missing_parameter("file_ids")
    attributes, cut = parsed.attributes or {}, _chunking(parsed.chunking_strategy)
    return tuple(
        AddFile(file_id=id, path=path, attributes=attributes, chunking=cut)
        for id, path in _paths(parsed.file_ids).items()
    )


def parse_file_attributes(body: bytes, limits: BodyLimits = DEFAULT_LIMITS) -> Attributes:
    """Parse the new attributes of a file. They replace all attributes that the file has. Raises
    ``InvalidRequest``."""
    raw = parse_json_object(body, limits, nulls=True)
    if "attributes" not in raw:
        raise missing_parameter("attributes")
    return _convert(raw, FileAttributesBody).attributes or {}


def parse_search(body: bytes, limits: BodyLimits = DEFAULT_LIMITS) -> SearchRequest:
    """Parse the body of ``POST /vector_stores/{id}/search``. Raises ``InvalidRequest``."""
    raw = parse_json_object(body, limits)
    filters = raw.pop("filters", None)
    parsed = _convert(raw, SearchBody)
    if parsed.rewrite_query:
        raise InvalidRequest(
            "Unsupported value: 'rewrite_query' is not supported; queries are used as written.",
            param="rewrite_query",
            code="unsupported_value",
        )
    is_one = isinstance(parsed.query, str)
    queries = (parsed.query,) if isinstance(parsed.query, str) else parsed.query
    for at, text in enumerate(queries):
        if not text.strip():
            raise empty_value("query" if is_one else f"query[{at}]", "")
    return SearchRequest(
        queries=queries,
        limit=parsed.max_num_results or 10,
        filter=None if filters is None else read_filter(filters, "filters"),
        ranking=_ranking(parsed.ranking_options, "ranking_options"),
    )


def read_ranking(raw: object, path: str) -> RankingOptions:
    """Read ``ranking_options``. Raises ``InvalidRequest``."""
    return _ranking(_convert(read_object(raw, path), RankingOptionsBody, path), path)


def _ranking(options: RankingOptionsBody | None, path: str) -> RankingOptions:
    if options is None:
        return RankingOptions()
    given = options.hybrid_search or HybridSearchBody()
    weights = (given.embedding_weight, given.text_weight)
    by_vectors, by_words = (1.0 if each is None else each for each in weights)
    if not by_vectors + by_words:
        where = f"{path}.hybrid_search"
        raise InvalidRequest(
            f"Invalid '{where}': at least one weight must be above 0.",
            param=where,
            code="invalid_value",
        )
    return RankingOptions(
        ranker="auto" if options.ranker is None else options.ranker,
        threshold=options.score_threshold or 0.0,
        embedding_weight=by_vectors,
        text_weight=by_words,
    )


def _convert(raw: JsonObject, cls: type[_S], path: str = "") -> _S:
    return convert(known_fields(raw, cls.__struct_fields__, path), cls, path)


def _file(body: AddFileBody, before: str = "") -> AddFile:
    """Return a file to add. ``before``: the beginning of the paths of its fields."""
    return AddFile(
        file_id=body.file_id,
        path=f"{before}file_id",
        attributes=body.attributes or {},
        chunking=_chunking(body.chunking_strategy, before),
    )


def _chunking(body: ChunkingBody | None, before: str = "") -> StaticChunking:
    if not isinstance(body, StaticChunkingBody):
        return StaticChunking()
    size, overlap = body.static.max_chunk_size_tokens, body.static.chunk_overlap_tokens
    if overlap > size // 2:
        path = f"{before}chunking_strategy.static.chunk_overlap_tokens"
        raise out_of_range(path, "integer", overlap, "<=", str(size // 2))
    return StaticChunking(max_chunk_size_tokens=size, chunk_overlap_tokens=overlap)


def _expiry(body: ExpiryBody | None) -> VectorStoreExpiresAfter | None:
    return None if body is None else VectorStoreExpiresAfter(anchor=body.anchor, days=body.days)


def _paths(ids: tuple[str, ...]) -> dict[str, str]:
    """Return file id → the path of its last entry in ``file_ids``."""
    return {id: f"file_ids[{at}]" for at, id in enumerate(ids)}
