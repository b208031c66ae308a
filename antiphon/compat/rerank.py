"""Parse the body of ``POST /rerank`` and encode the answer, in the format of Jina and Cohere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

#: Maximum number of documents in a request. This is Cohere's limit.
_MAX_DOCUMENTS = 1000


class RerankDocument(Struct, frozen=True, kw_only=True):
    """A document that the client sends as an object."""

    text: str


class RerankRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request to rank documents by their relevance to a query. ``top_n``: number of documents to
    return. By default, all documents are returned."""

    query: Annotated[str, Meta(min_length=1)]
    documents: Annotated[
        tuple[str | RerankDocument, ...], Meta(min_length=1, max_length=_MAX_DOCUMENTS)
    ]
    model: Annotated[str, Meta(max_length=256)] | None = None
    top_n: Annotated[int, Meta(ge=1)] | None = None
    return_documents: bool = False
    user: str | None = None

    @property
    def texts(self) -> tuple[str, ...]:
        """The texts of the documents in the order of the request."""
        return tuple(each if isinstance(each, str) else each.text for each in self.documents)


class RankedDocument(Struct, frozen=True, kw_only=True):
    """A ranked document. ``index``: its index in the request. ``relevance_score``: a number from 0
    to 1."""

    index: int
    relevance_score: float
    document: RerankDocument | UnsetType = UNSET


class RerankUsage(Struct, frozen=True, kw_only=True):
    """The usage of a rerank request. Both fields contain the number of input tokens."""

    total_tokens: int
    prompt_tokens: int


class RerankAnswer(Struct, frozen=True, kw_only=True):
    """The answer to a rerank request. ``results``: the documents, most relevant first."""

    id: str
    model: str
    results: tuple[RankedDocument, ...]
    usage: RerankUsage
    object: Literal["list"] = "list"


def make_rerank_answer(
    request: RerankRequest, id: str, model: str, scores: Sequence[float], tokens: int
) -> RerankAnswer:
    """Build the answer. ``scores``: one relevance score per document, in the order of the request.
    ``tokens``: number of input tokens."""
    ranked = sorted(enumerate(scores), key=lambda pair: -pair[1])[: request.top_n]
    texts = request.texts
    return RerankAnswer(
        id=id,
        model=model,
        results=tuple(
            RankedDocument(
                index=index,
                relevance_score=score,
                document=RerankDocument(text=texts[index]) if request.return_documents else UNSET,
            )
            for index, score in ranked
        ),
        usage=RerankUsage(total_tokens=tokens, prompt_tokens=tokens),
    )
