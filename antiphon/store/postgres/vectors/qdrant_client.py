"""Requests to a Qdrant server. Qdrant has one collection of vectors for each embedding model.

A point in a collection is a chunk, and the id of the point is the chunk's number. The payload of a
point contains the tenant, the vector store and the row number of the file. A file that is added
again gets another row number.

Every search is limited to one vector store. So the collection's HNSW index has a separate graph for
each vector store (``payload_m``), and no graph for the whole collection (``m = 0``):
https://qdrant.tech/documentation/manage-data/multitenancy/
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct

from antiphon.errors import SetupError, StoreError, first_line
from antiphon.support.installation import needs_extra

from .nearest_vectors import VectorRow

__all__ = ["QdrantClient", "SearchScope", "VectorHit", "search_depth"]

#: If a search covers at most this many points, Qdrant compares the query's vector with each point.
#: If a search covers more points, Qdrant searches its index.
EXACT_POINTS = 50_000
#: Number of candidates of a search in the index (hnsw_ef). The first number is for a search in all
#: files of the vector store. The second number is for a search in only some files. Such a search
#: needs more candidates, because it misses near points more often.
_CANDIDATES, _PART_CANDIDATES = 256, 1_024
#: Number of links of a point in the graph of its vector store.
LINKS = 16
_TIMEOUT_S = 30
_PORT = 6333
_NAME_CHARS = 40
_SCHEMES = {"qdrant": "http", "qdrants": "https"}


class SearchScope(Struct, frozen=True, kw_only=True):
    """The points (vectors in Qdrant) that a search covers. ``files``: the row numbers of the files
    to search; None means all files of the vector store. ``removed_files``: the row numbers of
    files to exclude."""

    tenant: str
    store_id: str
    files: Collection[int] | None = None
    removed_files: Collection[int] = ()


class VectorHit(Struct, frozen=True):
    """A chunk that a search has found. ``chunk``: the number of the chunk. ``file``: the row number
    of its file. ``score``: the cosine similarity of the chunk's vector and the query's vector."""

    chunk: int
    file: int
    score: float


class QdrantClient:
    """The Qdrant collections that hold the vectors of one PostgreSQL database. Made by ``connect``.
    ``address``: the URL of Qdrant's HTTP API. ``database``: a text that identifies the database.
    The names of the collections contain this text, because several databases can share a Qdrant
    server."""

    def __init__(self, client: Any, models: Any, address: str, database: str) -> None:
        self._client = client
        self._models = models
        self._address = address
        self._database = database

    @classmethod
    def connect(cls, url: str, *, key: str | None, database: str) -> QdrantClient:
        """Create a client for a Qdrant server, without connecting yet. ``url``:
        ``qdrant://HOST:PORT`` or ``qdrants://…``. ``key``: the API key of Qdrant; None means no
        key. ``database``: as in the class. Raises ``SetupError``."""
        address = _http_url(url)
        try:
            from qdrant_client import AsyncQdrantClient, models
        except ImportError:
            raise SetupError(
                needs_extra("vectors: the client of Qdrant is not installed", "qdrant")
            ) from None
        client = AsyncQdrantClient(
            url=address,
            # As a header: with api_key, the client warns that http:// is not encrypted.
            headers=None if key is None else {"api-key": key},
            timeout=_TIMEOUT_S,
            # Otherwise a thread asks the server for its version.
            check_compatibility=False,
            # No proxies from the environment: vectors go to this server only.
            trust_env=False,
        )
        return cls(client, models, address, database)

    async def check(self) -> None:
        """Raise ``StoreError`` if Qdrant does not answer."""
        with self._translate_errors():
            await self._client.get_collections()

    async def check_at_start(self) -> None:
        """Raise ``SetupError`` if Qdrant does not answer or refuses the API key."""
        try:
            await self.check()
        except StoreError as error:
            cause = error.__cause__ or error
            raise SetupError(
                f"vectors: Qdrant at {self._address} cannot be used: {first_line(cause)}"
            ) from None

    async def create(self, model: str, dimensions: int) -> bool:
        """Create the collection for the vectors of an embedding model. ``dimensions``: the number
        of dimensions of these vectors. Returns False if the collection already exists."""
        models, name = self._models, self._name(model, dimensions)
        with self._translate_errors():
            is_new = not await self._client.collection_exists(name)
            if is_new:
                await self._client.create_collection(
                    name,
                    models.VectorParams(size=dimensions, distance=models.Distance.COSINE),
                    hnsw_config=models.HnswConfigDiff(m=0, payload_m=LINKS),
                )
            for field, schema in (
                ("tenant", models.KeywordIndexParams(type="keyword", is_tenant=True)),
                ("store", models.KeywordIndexParams(type="keyword")),
                ("file", models.IntegerIndexParams(type="integer", lookup=True, range=False)),
            ):
                await self._client.create_payload_index(name, field, schema)
        return is_new

    async def add(self, tenant: str, store_id: str, model: str, rows: Sequence[VectorRow]) -> None:
        """Add the vectors of chunks, or replace them. All vectors must have the same number of
        dimensions."""
        floats = [array("f", row.vector).tolist() for row in rows]
        points = [
            self._models.PointStruct(
                id=row.chunk,
                vector=vector,
                payload={"tenant": tenant, "store": store_id, "file": row.file},
            )
            for row, vector in zip(rows, floats, strict=True)
        ]
        with self._translate_errors():
            await self._client.upsert(self._name(model, len(floats[0])), points, wait=True)

    async def remove(self, model: str, dimensions: int, files: Collection[int]) -> None:
        """Delete the vectors of these files from the collection for an embedding model.
        ``dimensions``: the number of dimensions of these vectors."""
        selected = self._models.Filter(must=[self._any_file(files)])
        with self._translate_errors():
            await self._client.delete(self._name(model, dimensions), selected, wait=True)

    async def search(
        self, model: str, vector: bytes, scope: SearchScope, limit: int
    ) -> tuple[VectorHit, ...]:
        """Return the chunks whose vectors are nearest to ``vector``, nearest first. If ``scope``
        contains few points, Qdrant compares ``vector`` with each of them. If it contains many
        points, Qdrant searches its index."""
        models, floats = self._models, array("f", vector).tolist()
        name = self._name(model, len(floats))
        whole = [_equals(models, "tenant", scope.tenant), _equals(models, "store", scope.store_id)]
        part = [] if scope.files is None else [self._any_file(scope.files)]
        removed = [self._any_file(scope.removed_files)] if scope.removed_files else None
        # Qdrant estimates the count well for one condition, but not for several conditions.
        counted = models.Filter(must=part or whole[1:])
        with self._translate_errors():
            count = (await self._client.count(name, counted, exact=False)).count
            is_exact, candidates = search_depth(count, bool(part), limit)
            answer = await self._client.query_points(
                name,
                query=floats,
                query_filter=models.Filter(must=[*whole, *part], must_not=removed),
                search_params=models.SearchParams(exact=is_exact, hnsw_ef=candidates),
                limit=limit,
                with_payload=["file"],
            )
        return tuple(
            VectorHit(chunk=int(point.id), file=int(point.payload["file"]), score=point.score)
            for point in answer.points
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    def _any_file(self, files: Collection[int]) -> Any:
        return self._models.FieldCondition(
            key="file", match=self._models.MatchAny(any=sorted(files))
        )

    def _name(self, model: str, dimensions: int) -> str:
        """Return the name of the collection for the vectors of an embedding model. ``dimensions``:
        the number of dimensions of these vectors. One part of the collection's name is readable,
        and a digest of the model's name makes it unique."""
        readable = re.sub(r"[^A-Za-z0-9]+", "-", model).strip("-")[:_NAME_CHARS]
        digest = sha256(model.encode("utf-8", "surrogatepass")).hexdigest()[:8]
        return f"antiphon-{self._database}-{readable}-{digest}-{dimensions}"

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        from qdrant_client.common.client_exceptions import QdrantException
        from qdrant_client.http.exceptions import ApiException

        try:
            yield
        except (ApiException, QdrantException) as error:
            raise StoreError("The vector database does not answer.") from error


def search_depth(count: int, is_part: bool, limit: int) -> tuple[bool, int | None]:
    """Decide how a search compares ``count`` points. Return ``(True, None)`` if it compares them
    one by one. Return ``(False, candidates)`` if it uses the index: the index then considers this
    number of candidates. ``is_part``: whether the search covers only some files of the vector
    store. ``limit``: the number of results."""
    if count <= EXACT_POINTS:
        return True, None
    return False, max(_PART_CANDIDATES if is_part else _CANDIDATES, 2 * limit)


def _equals(models: Any, field: str, value: str) -> Any:
    return models.FieldCondition(key=field, match=models.MatchValue(value=value))


def _http_url(url: str) -> str:
    """Return the URL of Qdrant's HTTP API. ``url``: ``qdrant://HOST:PORT`` or ``qdrants://…``.
    Raises ``SetupError``."""
    parts = urlsplit(url)
    try:
        port = parts.port or _PORT
    except ValueError:
        port = 0
    # A key in the URL would appear in logs.
    if not port or not parts.hostname or "@" in parts.netloc or parts.query or parts.fragment:
        raise SetupError("vectors: use qdrant://HOST:PORT, and vectors_key for the API key")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{_SCHEMES[parts.scheme]}://{host}:{port}{parts.path.rstrip('/')}"
