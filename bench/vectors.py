"""Vectors for benchmarks. They form clusters, like embeddings of texts."""

from __future__ import annotations

import random
from typing import Any

_CLUSTERS, _TOPICS = 500, 4
#: Directions in which the vectors of a cluster differ, as embeddings of texts do: noise in all
#: dimensions would make all of them equally far from each other.
_INTRINSIC = 32


def clustered_vectors(files: Any, dimensions: int) -> Any:
    """Return a matrix with a vector of each chunk. ``files``: the numbers of the chunks' files.

    A file is about few things, so a filter by files is related to the meaning of their chunks."""
    import numpy

    source = numpy.random.default_rng(1)
    centers = source.normal(size=(_CLUSTERS, dimensions)).astype("f4")
    topics = source.integers(0, _CLUSTERS, size=(int(files.max()) + 1, _TOPICS))
    chosen = topics[files, source.integers(0, _TOPICS, size=len(files))]
    axes = source.normal(size=(_INTRINSIC, dimensions)).astype("f4") / _INTRINSIC**0.5
    noise = source.normal(size=(len(files), _INTRINSIC)).astype("f4")
    data = centers[chosen] + 0.9 * noise @ axes
    data /= numpy.linalg.norm(data, axis=1, keepdims=True)
    return data


def near(vector: Any, chance: random.Random) -> Any:
    """Return a query that is close to a vector."""
    import numpy

    query = vector + numpy.array([chance.gauss(0, 0.02) for _ in range(len(vector))], "f4")
    return query / numpy.linalg.norm(query)
