"""From bodies about vector stores to frozen values, or to a 400 with the path of what is wrong."""

from __future__ import annotations

import math
from typing import Any

from msgspec import UNSET, Struct, UnsetType

from antiphon.errors import InvalidRequest
from antiphon.wire.filters import Filter, read_filter
from antiphon.wire.vector_stores import ExpiresAfter, StaticChunking

from .errors import (
    bad_type,
    bad_value,
    empty,
    kind_of,
    missing,
    out_of_range,
    too_long,
    too_many,
    too_many_properties,
)
from .fields import Json, array, fields_of, known, tag_of, without_nulls
from .json_body import DEFAULT_LIMITS, Limits, parse
from .requests import read_metadata

__all__ = [
    "AddFile",
    "CreateVectorStore",
    "Ranking",
    "Search",
    "UpdateVectorStore",
    "add_batch",
    "add_file",
    "create_vector_store",
    "read_ranking",
    "search",
    "update_file",
    "update_vector_store",
]

_MOST_FILES, _MOST_IN_BATCH = 500, 2000
_MOST_QUERIES = 32
_LONGEST_QUERY = 4096
_RANKERS = ("none", "auto", "default-2024-11-15")
#: What bodies and the objects in them may say.
_CREATED = ("name", "description", "metadata", "expires_after", "file_ids", "chunking_strategy")
_ADDED = ("file_id", "attributes", "chunking_strategy")
_BATCH = ("file_ids", "files", "attributes", "chunking_strategy")
_SEARCHED = ("query", "filters", "max_num_results", "ranking_options", "rewrite_query")
_RANKED = ("ranker", "score_threshold", "hybrid_search")
_WEIGHTS = ("embedding_weight", "text_weight")

Attributes = dict[str, str | int | float | bool]


class AddFile(Struct, frozen=True, kw_only=True):
    """A file that is to be searched. ``path``: where the body names it."""

    file_id: str
    path: str = "file_id"
    attributes: Attributes = {}
    chunking: StaticChunking = StaticChunking()


class CreateVectorStore(Struct, frozen=True, kw_only=True):
    """The body of ``POST /vector_stores``."""

    name: str = ""
    description: str | UnsetType = UNSET
    metadata: dict[str, str] = {}
    expires_after: ExpiresAfter | None = None
    files: tuple[AddFile, ...] = ()


class UpdateVectorStore(Struct, frozen=True, kw_only=True):
    """What is to be changed; UNSET stays as it is, null is none."""

    name: str | UnsetType = UNSET
    metadata: dict[str, str] | UnsetType = UNSET
    expires_after: ExpiresAfter | UnsetType | None = UNSET


class Ranking(Struct, frozen=True, kw_only=True):
    """Results below ``threshold`` are left out. The weights are those of the two rankings that are
    fused: by meaning and by words."""

    threshold: float = 0.0
    meaning: float = 1.0
    words: float = 1.0


class Search(Struct, frozen=True, kw_only=True):
    """What is looked for, in files that ``filter`` lets through."""

    queries: tuple[str, ...]
    limit: int = 10
    filter: Filter | None = None
    ranking: Ranking = Ranking()


def create_vector_store(body: bytes, limits: Limits = DEFAULT_LIMITS) -> CreateVectorStore:
    """Raises ``InvalidRequest``."""
    raw = known(parse(body, limits) if body.strip() else {}, _CREATED, "")
    cut = _chunking(raw)
    ids = _ids(raw.get("file_ids", []), "file_ids", _MOST_FILES)
    return CreateVectorStore(
        name=_text(raw, "name") or "",
        description=_text(raw, "description") or UNSET,
        metadata=read_metadata(raw.get("metadata", {})),
        expires_after=_expiry(raw["expires_after"]) if "expires_after" in raw else None,
        files=tuple(AddFile(file_id=one, path=where, chunking=cut) for one, where in ids.items()),
    )


def update_vector_store(body: bytes, limits: Limits = DEFAULT_LIMITS) -> UpdateVectorStore:
    """Raises ``InvalidRequest``."""
    raw = parse(body, limits, nulls=True)
    known(raw, UpdateVectorStore.__struct_fields__, "")
    metadata, after = raw.get("metadata", UNSET), raw.get("expires_after", UNSET)
    return UpdateVectorStore(
        name=UNSET if "name" not in raw else _text(raw, "name") or "",
        metadata=UNSET if metadata is UNSET else read_metadata(metadata or {}),
        expires_after=_expiry(after) if after is not UNSET and after is not None else after,
    )


def add_file(body: bytes, limits: Limits = DEFAULT_LIMITS) -> AddFile:
    """Raises ``InvalidRequest``."""
    return _added(parse(body, limits), "")


def add_batch(body: bytes, limits: Limits = DEFAULT_LIMITS) -> tuple[AddFile, ...]:
    """Either ``file_ids`` with what holds of all of them, or ``files``, of which the last holds of
    a file that is named twice. Raises ``InvalidRequest``."""
    raw = known(parse(body, limits), _BATCH, "")
    if "files" in raw:
        if "file_ids" in raw:
            raise InvalidRequest(
                "Mutually exclusive parameters: 'file_ids' and 'files'.",
                param="files",
                code="mutually_exclusive_parameters",
            )
        files = array(raw["files"], "files", _MOST_IN_BATCH)
        if not files:
            raise empty("files", ())
        added = (
            _added(fields_of(one, f"files[{at}]"), f"files[{at}]") for at, one in enumerate(files)
        )
        return tuple({one.file_id: one for one in added}.values())
    if "file_ids" not in raw:
        raise missing("file_ids")
    ids = _ids(raw["file_ids"], "file_ids", _MOST_IN_BATCH)
    if not ids:
        raise empty("file_ids", ())
    attributes, cut = _attributes(raw), _chunking(raw)
    return tuple(
        AddFile(file_id=one, path=where, attributes=attributes, chunking=cut)
        for one, where in ids.items()
    )


def update_file(body: bytes, limits: Limits = DEFAULT_LIMITS) -> Attributes:
    """The attributes that replace the old ones. Raises ``InvalidRequest``."""
    raw = parse(body, limits, nulls=True)
    known(raw, ("attributes",), "")
    if "attributes" not in raw:
        raise missing("attributes")
    return _attributes(without_nulls(raw))


def search(body: bytes, limits: Limits = DEFAULT_LIMITS) -> Search:
    """Raises ``InvalidRequest``."""
    raw = known(parse(body, limits), _SEARCHED, "")
    if raw.get("rewrite_query"):
        raise InvalidRequest(
            "Queries are searched as they are written: 'rewrite_query' is not supported.",
            param="rewrite_query",
            code="unsupported_value",
        )
    count = raw.get("max_num_results", 10)
    return Search(
        queries=_queries(raw.get("query")),
        limit=_whole(count, "max_num_results", 1, 50),
        filter=read_filter(raw["filters"], "filters") if "filters" in raw else None,
        ranking=read_ranking(raw.get("ranking_options", {}), "ranking_options"),
    )


def read_ranking(raw: Any, path: str) -> Ranking:
    """``ranking_options``. Raises ``InvalidRequest``."""
    fields = known(fields_of(raw, path), _RANKED, path)
    ranker = fields.get("ranker", "auto")
    if ranker not in _RANKERS:
        raise bad_value(f"{path}.ranker", str(ranker), _RANKERS)
    threshold = _decimal(fields.get("score_threshold", 0.0), f"{path}.score_threshold", 1.0)
    where = f"{path}.hybrid_search"
    weights = known(fields_of(fields.get("hybrid_search", {}), where), _WEIGHTS, where)
    meaning = _decimal(weights.get("embedding_weight", 1.0), f"{where}.embedding_weight")
    words = _decimal(weights.get("text_weight", 1.0), f"{where}.text_weight")
    if not meaning + words:
        raise InvalidRequest(
            f"Invalid '{where}': at least one weight must be above 0.",
            param=where,
            code="invalid_value",
        )
    return Ranking(threshold=threshold, meaning=meaning, words=words)


# --- pieces --------------------------------------------------------------------------------------


def _added(raw: Json, path: str) -> AddFile:
    before = f"{path}." if path else ""
    fields, where = known(raw, _ADDED, path), f"{before}file_id"
    if "file_id" not in fields:
        raise missing(where)
    if not isinstance(fields["file_id"], str):
        raise bad_type(where, "a string", kind_of(fields["file_id"]))
    return AddFile(
        file_id=fields["file_id"],
        path=where,
        attributes=_attributes(fields, before),
        chunking=_chunking(fields, before),
    )


def _attributes(raw: Json, path: str = "") -> Attributes:
    where = f"{path}attributes"
    fields = raw.get("attributes", {})
    if not isinstance(fields, dict):
        raise bad_type(where, "an object", kind_of(fields))
    if len(fields) > 16:
        raise too_many_properties(where, len(fields), 16)
    for name, value in fields.items():
        if len(name) > 64:
            raise too_long(where, len(name), 64)
        if not isinstance(value, str | bool | int | float):
            at = f"{where}.{name}"
            raise bad_type(at, "a string, a number or a boolean", kind_of(value))
        if isinstance(value, str) and len(value) > 512:
            raise too_long(f"{where}.{name}", len(value), 512)
    return fields


def _chunking(raw: Json, path: str = "") -> StaticChunking:
    """``auto`` is 800 tokens, of which 400 stand in two chunks: OpenAI's rule."""
    where = f"{path}chunking_strategy"
    fields = known(
        fields_of(raw.get("chunking_strategy", {"type": "auto"}), where), ("type", "static"), where
    )
    if tag_of(fields, where, ("auto", "static")) == "auto":
        return StaticChunking()
    if "static" not in fields:
        raise missing(f"{where}.static")
    names = StaticChunking.__struct_fields__
    inner = known(fields_of(fields["static"], f"{where}.static"), names, f"{where}.static")
    for name in ("max_chunk_size_tokens", "chunk_overlap_tokens"):
        if name not in inner:
            raise missing(f"{where}.static.{name}")
    at = f"{where}.static.max_chunk_size_tokens"
    size = _whole(inner["max_chunk_size_tokens"], at, 100, 4096)
    at = f"{where}.static.chunk_overlap_tokens"
    overlap = _whole(inner["chunk_overlap_tokens"], at, 0, size // 2)
    return StaticChunking(max_chunk_size_tokens=size, chunk_overlap_tokens=overlap)


def _expiry(raw: Any) -> ExpiresAfter:
    fields = known(fields_of(raw, "expires_after"), ("anchor", "days"), "expires_after")
    anchor = fields.get("anchor")
    if anchor is None:
        raise missing("expires_after.anchor")
    if anchor != "last_active_at":
        raise bad_value("expires_after.anchor", str(anchor), ("last_active_at",))
    if "days" not in fields:
        raise missing("expires_after.days")
    return ExpiresAfter(
        anchor="last_active_at", days=_whole(fields["days"], "expires_after.days", 1, 365)
    )


def _queries(raw: Any) -> tuple[str, ...]:
    if raw is None:
        raise missing("query")
    texts = [raw] if isinstance(raw, str) else raw
    if not isinstance(texts, list):
        raise bad_type("query", "a string or an array of strings", kind_of(raw))
    if len(texts) > _MOST_QUERIES:
        raise too_many("query", len(texts), _MOST_QUERIES)
    for at, text in enumerate(texts):
        where = "query" if isinstance(raw, str) else f"query[{at}]"
        if not isinstance(text, str):
            raise bad_type(where, "a string", kind_of(text))
        if len(text) > _LONGEST_QUERY:
            raise too_long(where, len(text), _LONGEST_QUERY)
        if not text.strip():
            raise empty(where, "")
    if not texts:
        raise empty("query", ())
    return tuple(texts)


def _ids(raw: Any, path: str, most: int) -> dict[str, str]:
    """Each once, with where it stands."""
    ids = array(raw, path, most)
    for at, one in enumerate(ids):
        if not isinstance(one, str):
            raise bad_type(f"{path}[{at}]", "a string", kind_of(one))
    return {one: f"{path}[{at}]" for at, one in enumerate(ids)}


def _text(raw: Json, name: str) -> str | None:
    value = raw.get(name)
    if value is None:
        return None
    if not isinstance(value, str):
        raise bad_type(name, "a string", kind_of(value))
    if len(value) > 512:
        raise too_long(name, len(value), 512)
    return value


def _whole(raw: Any, path: str, least: int, most: int) -> int:
    if not isinstance(raw, int) or isinstance(raw, bool):
        raise bad_type(path, "an integer", kind_of(raw))
    if not least <= raw <= most:
        sign, bound = (">=", least) if raw < least else ("<=", most)
        raise out_of_range(path, "integer", raw, sign, str(bound))
    return raw


def _decimal(raw: Any, path: str, most: float = math.inf) -> float:
    if isinstance(raw, bool) or not isinstance(raw, int | float):
        raise bad_type(path, "a decimal", kind_of(raw))
    if not 0 <= raw <= most:
        sign, bound = (">=", 0.0) if raw < 0 else ("<=", most)
        raise out_of_range(path, "decimal", raw, sign, str(bound))
    return float(raw)
