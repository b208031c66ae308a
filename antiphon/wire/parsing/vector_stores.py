"""Parse request bodies about vector stores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from msgspec import UNSET, Meta, Struct, UnsetType

from antiphon.errors import invalid_field, unsupported_value
from antiphon.wire.json_types import JsonObject
from antiphon.wire.resources.conversations import Metadata
from antiphon.wire.resources.filters import Filter, read_filter
from antiphon.wire.resources.vector_stores import (
    DEFAULT_CHUNKING,
    AutoChunking,
    ChunkingStrategy,
    VectorStoreExpiresAfter,
)

from .errors import empty_value, missing_parameter, mutually_exclusive, out_of_range
from .fields import convert, known_fields, read_object, require
from .json_body import DEFAULT_LIMITS, BodyLimits, parse_json_object

_MAX_FILES, _MAX_BATCH_FILES = 500, 2000
_MAX_QUERIES = 32
_MAX_QUERY_CHARS = 4096
Attributes = dict[str, str | int | float | bool]
_S = TypeVar("_S", bound=Struct)


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


class AddFile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file to add to a vector store."""

    file_id: str
    attributes: _Attributes | None = None
    chunking_strategy: AutoChunking | ChunkingStrategy | None = None

    @property
    def chunking(self) -> ChunkingStrategy:
        """The strategy, with the sizes of the default one."""
        given = self.chunking_strategy
        return given if isinstance(given, ChunkingStrategy) else DEFAULT_CHUNKING


#: Path of the field with a file's id → the file.
FilesByPath = Mapping[str, AddFile]


class CreateVectorStore(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A new vector store, and the files to add."""

    name: _Name | None = None
    description: _Name | None = None
    metadata: Metadata | None = None
    expires_after: VectorStoreExpiresAfter | None = None
    file_ids: Annotated[tuple[str, ...], Meta(max_length=_MAX_FILES)] | None = None
    chunking_strategy: AutoChunking | ChunkingStrategy | None = None

    @property
    def files(self) -> FilesByPath:
        """The files to add."""
        return _files(self.file_ids or (), chunking_strategy=self.chunking_strategy)


class UpdateVectorStore(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Changes of a vector store. A field that is missing stays unchanged. An ``expires_after`` of
    null removes the expiry."""

    name: _Name | UnsetType | None = UNSET
    metadata: Metadata | UnsetType | None = UNSET
    expires_after: VectorStoreExpiresAfter | UnsetType | None = UNSET


class FileBatchBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Files to add to a vector store. The body has either ``file_ids``, with the same attributes
    and chunking for all files, or ``files``, with attributes and chunking for each file."""

    file_ids: Annotated[tuple[str, ...], Meta(min_length=1, max_length=_MAX_BATCH_FILES)] | None = (
        None
    )
    files: (
        Annotated[tuple[AddFile, ...], Meta(min_length=1, max_length=_MAX_BATCH_FILES)] | None
    ) = None
    attributes: _Attributes | None = None
    chunking_strategy: AutoChunking | ChunkingStrategy | None = None


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


class SearchFilter(Struct, frozen=True, kw_only=True):
    """A filter on file attributes. A comparison has ``key`` and ``value``. A filter of type ``and``
    or ``or`` has ``filters``."""

    type: Literal["eq", "ne", "gt", "gte", "lt", "lte", "in", "nin", "and", "or"]
    key: str | None = None
    value: str | float | bool | tuple[str | float | bool, ...] | None = None
    filters: Annotated[tuple[SearchFilter, ...], Meta(min_length=1, max_length=128)] | None = None


_Query = Annotated[str, Meta(min_length=1, max_length=_MAX_QUERY_CHARS)]


class SearchBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A search in a vector store. ``filters`` selects files by their attributes. ``rewrite_query``
    must not be true: queries are used as written."""

    query: _Query | Annotated[tuple[_Query, ...], Meta(min_length=1, max_length=_MAX_QUERIES)]
    filters: SearchFilter | None = None
    max_num_results: Annotated[int, Meta(ge=1, le=50)] | None = None
    ranking_options: RankingOptionsBody | None = None
    rewrite_query: bool | None = None


def parse_create_vector_store(
    body: bytes, limits: BodyLimits = DEFAULT_LIMITS
) -> CreateVectorStore:
    """Parse the body of ``POST /vector_stores``. Raises ``InvalidRequest``."""
    raw = parse_json_object(body, limits) if body.strip() else {}
    parsed = _convert(raw, CreateVectorStore)
    _check_overlap(parsed)
    return parsed


def parse_update_vector_store(
    body: bytes, limits: BodyLimits = DEFAULT_LIMITS
) -> UpdateVectorStore:
    """Parse the body of ``POST /vector_stores/{id}``. Raises ``InvalidRequest``."""
    raw = parse_json_object(body, limits, nulls=True)
    names = UpdateVectorStore.__struct_fields__
    known_fields(raw, names, "")  # only to refuse the others
    return convert({name: raw[name] for name in names if name in raw}, UpdateVectorStore, "")


def parse_add_file(body: bytes, limits: BodyLimits = DEFAULT_LIMITS) -> AddFile:
    """Parse the body of ``POST /vector_stores/{id}/files``. Raises ``InvalidRequest``."""
    parsed = _convert(parse_json_object(body, limits), AddFile)
    _check_overlap(parsed)
    return parsed


def parse_file_batch(body: bytes, limits: BodyLimits = DEFAULT_LIMITS) -> FilesByPath:
    """Parse the body of ``POST /vector_stores/{id}/file_batches``. Raises ``InvalidRequest``.

    The body has either ``file_ids``, with the same attributes and chunking for all files, or
    ``files``, with attributes and chunking for each file. If a file occurs twice, the last entry
    applies.
    """
    parsed = _convert(parse_json_object(body, limits), FileBatchBody)
    if parsed.files is not None:
        if parsed.file_ids is not None:
            raise mutually_exclusive("file_ids", "files")
        for at, one in enumerate(parsed.files):
            _check_overlap(one, f"files[{at}].")
        last = {one.file_id: at for at, one in enumerate(parsed.files)}
        return {f"files[{at}].file_id": parsed.files[at] for at in last.values()}
    if parsed.file_ids is None:
        raise missing_parameter("file_ids")
    _check_overlap(parsed)
    return _files(
        parsed.file_ids,
        attributes=parsed.attributes,
        chunking_strategy=parsed.chunking_strategy,
    )


def parse_file_attributes(body: bytes, limits: BodyLimits = DEFAULT_LIMITS) -> Attributes:
    """Parse the new attributes of a file. They replace all attributes that the file has. Raises
    ``InvalidRequest``."""
    raw = parse_json_object(body, limits, nulls=True)
    require(raw, "", "attributes")
    return _convert(raw, FileAttributesBody).attributes or {}


def parse_search(body: bytes, limits: BodyLimits = DEFAULT_LIMITS) -> SearchRequest:
    """Parse the body of ``POST /vector_stores/{id}/search``. Raises ``InvalidRequest``."""
    raw = parse_json_object(body, limits)
    filters = raw.pop("filters", None)
    parsed = _convert(raw, SearchBody)
    if parsed.rewrite_query:
        raise unsupported_value(
            "rewrite_query", "'rewrite_query' is not supported; queries are used as written."
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
        raise invalid_field(where, "at least one weight must be above 0.")
    return RankingOptions(
        ranker="auto" if options.ranker is None else options.ranker,
        threshold=options.score_threshold or 0.0,
        embedding_weight=by_vectors,
        text_weight=by_words,
    )


def _convert(raw: JsonObject, cls: type[_S], path: str = "") -> _S:
    return convert(known_fields(raw, cls.__struct_fields__, path), cls, path)


def _files(ids: tuple[str, ...], **options: Any) -> FilesByPath:
    """Return the files with these ids. If one occurs twice, its last entry applies."""
    last = {id: at for at, id in enumerate(ids)}
    return {f"file_ids[{at}]": AddFile(file_id=id, **options) for id, at in last.items()}


def _check_overlap(body: AddFile | CreateVectorStore | FileBatchBody, before: str = "") -> None:
    """Raise ``InvalidRequest`` if the chunks overlap too much. ``before``: the beginning of the
    paths of its fields."""
    if isinstance(given := body.chunking_strategy, ChunkingStrategy):
        largest = given.static.max_chunk_size_tokens // 2
        if (overlap := given.static.chunk_overlap_tokens) > largest:
            path = f"{before}chunking_strategy.static.chunk_overlap_tokens"
            raise out_of_range(path, "integer", overlap, "<=", str(largest))
