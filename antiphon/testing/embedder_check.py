"""Check of the contract of an embedder, for authors of embedders. It raises ``AssertionError`` if
the embedder breaks the contract."""

from __future__ import annotations

import asyncio
import math

from antiphon.embeddings.base import Embedder, Vector

__all__ = ["check_embedder", "dot_product"]


def dot_product(one: Vector, other: Vector) -> float:
    """Return the dot product of two vectors."""
    return sum(a * b for a, b in zip(one, other, strict=True))


async def check_embedder(embedder: Embedder) -> None:
    """Check an embedder: shape and order of its vectors, repeatability, unusual texts and
    concurrent calls. Closes the embedder."""
    texts = ("A cat is a small animal.", "The market fell today.", "A cat is an animal.")
    made = await embedder.embed(texts, "passage")
    assert len(made.vectors) == len(texts) and made.tokens >= len(texts)
    for vector in made.vectors:
        assert len(vector) == embedder.dimensions
        assert math.isclose(dot_product(vector, vector), 1, abs_tol=1e-3), (
            "a vector does not have length 1"
        )
    cat, market, other_cat = made.vectors
    assert dot_product(cat, other_cat) > dot_product(cat, market), (
        "similar texts have less similar vectors than other texts"
    )

    again = await embedder.embed(texts[::-1], "passage")
    for one, same in zip(made.vectors, again.vectors[::-1], strict=True):
        assert dot_product(one, same) > 0.999, (
            "a vector depends on the order of the texts or on the other texts"
        )

    strange = (" ", "\0", "a\0b", "é😀", "\n" * 50, "<s></s>[CLS]", "x" * 3000)
    for text in strange:
        (vector,) = (await embedder.embed((text,))).vectors
        assert all(map(math.isfinite, vector)), f"no vector for {text[:10]!r}"
    assert (await embedder.embed(())).vectors == ()

    many = [embedder.embed((f"Text number {n}.",)) for n in range(8)]
    assert len({tuple(one.vectors[0]) for one in await asyncio.gather(*many)}) == len(many)

    if embedder.vocabulary_size is not None:
        (vector,) = (await embedder.embed(((1, 2, 3),))).vectors
        assert len(vector) == embedder.dimensions
    await embedder.close()
    await embedder.close()
