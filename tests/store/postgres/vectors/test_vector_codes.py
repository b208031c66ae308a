"""The codes of vectors find candidates among which the nearest vectors are."""

from __future__ import annotations

from typing import Any

import numpy

from antiphon.store.postgres.vectors.vector_codes import VectorCodes, can_use_codes

DIMENSIONS, CHUNKS = 100, 50


def make_vectors(files: int) -> Any:
    """Vectors of the chunks of files, of length 1, with a mean that is not 0."""
    source = numpy.random.default_rng(1)
    vectors = source.normal(size=(files * CHUNKS, DIMENSIONS)) @ source.normal(
        size=(DIMENSIONS, DIMENSIONS)
    ) + source.normal(scale=5, size=DIMENSIONS)
    return (vectors / numpy.linalg.norm(vectors, axis=1)[:, None]).astype("f4")


def row(codes: VectorCodes, vectors: Any, file: int) -> tuple[int, bytes, bytes]:
    """A file as PostgreSQL returns it."""
    chunks = numpy.arange(file * CHUNKS, (file + 1) * CHUNKS)
    values = vectors[chunks].astype("f2").astype("f4")
    low, high = codes.bounds
    bits = numpy.hstack([values > numpy.array(low), values > numpy.array(high)])
    return file, chunks.astype(">i8").tobytes(), numpy.packbits(bits, axis=1).tobytes()


def test_candidates_contain_the_nearest_vectors() -> None:
    assert can_use_codes()
    vectors = make_vectors(60)
    codes = VectorCodes(vectors.mean(0).tolist())
    for file in range(0, 60, 4):  # grows several times
        codes.add([row(codes, vectors, n) for n in range(file, file + 4)])
    files = list(range(1, 60, 3))
    chunks = [file * CHUNKS + n for file in files for n in range(CHUNKS)]
    found = 0
    for query in vectors[::300]:
        nearest = sorted(chunks, key=lambda n, query=query: -float(vectors[n] @ query))[:10]
        candidates = codes.find_candidates(query.tolist(), files, 250)
        assert len(candidates) == 250
        assert set(candidates) <= set(chunks)
        found += len(set(nearest) & set(candidates))
    assert found >= 98, "of 100"


def test_codes_know_their_files() -> None:
    vectors = make_vectors(3)
    codes = VectorCodes(vectors.mean(0).tolist())
    codes.add([row(codes, vectors, 0), (7, b"", b"")])
    codes.add([row(codes, vectors, 2)])
    assert codes.find_missing([0, 1, 2, 7]) == [1]
    assert codes.count([0, 1, 7]) == CHUNKS
    assert (codes.count(), codes.file_count) == (2 * CHUNKS, 3)
    assert codes.byte_count >= 2 * CHUNKS * (2 * DIMENSIONS / 8 + 8)
    assert codes.find_candidates([0.0] * DIMENSIONS, [7, 1], 9) == []
    everything = codes.find_candidates([0.0] * DIMENSIONS, [2, 7, 0], 999)
    assert sorted(everything) == [*range(CHUNKS), *range(2 * CHUNKS, 3 * CHUNKS)]
