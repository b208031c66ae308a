"""Vector stores as the API shows them. Source of the fields: the types of the ``openai`` SDK,
version 3.52."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

__all__ = [
    "DEFAULT_CHUNKING",
    "AutoChunking",
    "ChunkingStrategy",
    "FileBatch",
    "FileContentPage",
    "FileCounts",
    "FileStatus",
    "LastError",
    "SearchResultPage",
    "StaticChunking",
    "TextPart",
    "VectorStore",
    "VectorStoreExpiresAfter",
    "VectorStoreFile",
    "VectorStoreSearchResult",
]

FileStatus = Literal["in_progress", "completed", "cancelled", "failed"]


class FileCounts(Struct, frozen=True, kw_only=True):
    """Number of files by indexing status."""

    in_progress: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    total: int = 0


class VectorStoreExpiresAfter(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When a vector store expires: ``days`` after its last use."""

    anchor: Literal["last_active_at"]
    days: Annotated[int, Meta(ge=1, le=365)]


class VectorStore(Struct, frozen=True, kw_only=True):
    """A vector store. ``usage_bytes``: size of its index. Times are unix seconds."""

    id: str
    object: Literal["vector_store"] = "vector_store"
    created_at: int
    name: str = ""
    description: str | UnsetType = UNSET
    usage_bytes: int = 0
    file_counts: FileCounts = FileCounts()
    status: Literal["expired", "in_progress", "completed"] = "completed"
    expires_after: VectorStoreExpiresAfter | None = None
    expires_at: int | None = None
    last_active_at: int | None = None
    metadata: dict[str, str] = {}


class AutoChunking(
    Struct, frozen=True, kw_only=True, tag_field="type", tag="auto", forbid_unknown_fields=True
):
    """The default chunking: chunks of 800 tokens that overlap by 400 tokens."""


class StaticChunking(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The maximum size of a chunk and the overlap of consecutive chunks, in tokens. The overlap is
    at most half of the maximum size."""

    max_chunk_size_tokens: Annotated[int, Meta(ge=100, le=4096)]
    chunk_overlap_tokens: Annotated[int, Meta(ge=0, le=2048)]


class ChunkingStrategy(
    Struct, frozen=True, kw_only=True, tag_field="type", tag="static", forbid_unknown_fields=True
):
    """How a file is divided into chunks. For a file that was added with ``auto``, the sizes that
    the server chose are shown."""

    static: StaticChunking


DEFAULT_CHUNKING = ChunkingStrategy(
    static=StaticChunking(max_chunk_size_tokens=800, chunk_overlap_tokens=400)
)


class LastError(Struct, frozen=True, kw_only=True):
    """Why indexing of a file failed."""

    code: Literal["server_error", "unsupported_file", "invalid_file"]
    message: str


class VectorStoreFile(Struct, frozen=True, kw_only=True):
    """A file in a vector store. ``id`` is the id of the file."""

    id: str
    object: Literal["vector_store.file"] = "vector_store.file"
    created_at: int
    usage_bytes: int = 0
    vector_store_id: str
    status: FileStatus = "in_progress"
    last_error: LastError | None = None
    chunking_strategy: ChunkingStrategy = DEFAULT_CHUNKING
    attributes: dict[str, str | int | float | bool] = {}


class FileBatch(Struct, frozen=True, kw_only=True):
    """Files that one request added to a vector store."""

    id: str
    object: Literal["vector_store.files_batch"] = "vector_store.files_batch"
    created_at: int
    vector_store_id: str
    status: FileStatus = "in_progress"
    file_counts: FileCounts = FileCounts()


class TextPart(Struct, frozen=True, kw_only=True):
    """A piece of text."""

    type: Literal["text"] = "text"
    text: str


class VectorStoreSearchResult(Struct, frozen=True, kw_only=True):
    """One search result. ``score``: a number from 0 to 1. Without a reranking model, 1 means that
    the result is first in the ranking by vectors and in the ranking by words."""

    file_id: str
    filename: str
    score: float
    attributes: dict[str, str | int | float | bool] = {}
    content: tuple[TextPart, ...] = ()


class SearchResultPage(Struct, frozen=True, kw_only=True):
    """The results of a search, always on one page."""

    object: Literal["vector_store.search_results.page"] = "vector_store.search_results.page"
    search_query: tuple[str, ...]
    data: tuple[VectorStoreSearchResult, ...]
    has_more: bool = False
    next_page: None = None


class FileContentPage(Struct, frozen=True, kw_only=True):
    """The text extracted from a file."""

    object: Literal["vector_store.file_content.page"] = "vector_store.file_content.page"
    data: tuple[TextPart, ...]
    has_more: bool = False
    next_page: None = None
