"""Chunking, rank fusion and vector search."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from antiphon.retrieval.chunking import estimate_tokens, join_chunks, split_text
from antiphon.retrieval.rank_fusion import best_scores, fuse_rankings
from antiphon.retrieval.vector_search import VectorSearch
from antiphon.store.vectors import IndexedChunk
from antiphon.testing.memory_store.store import MemoryStore
from antiphon.testing.store_checks.vectors import make_indexed_file, make_vector_store

WORDS = st.lists(
    st.sampled_from(["fjord", "Straße ", "\n\n", "\n", " ", "東京都", "a.b(c)", "x" * 40])
)


@given(WORDS.map("".join), st.integers(2, 40), st.floats(0, 0.5))
@example("fjord" * 20, 8, 0.0)
def test_chunks_cover_the_whole_text(text: str, size: int, share: float) -> None:
    pieces = split_text(text, size, int(share * size))
    if not text.strip():
        assert pieces == []
        return
    assert join_chunks(pieces) == text
    assert all(estimate_tokens(piece.text) <= size for piece in pieces)
    assert all(text.startswith(piece.text, piece.start) for piece in pieces)
    starts = [piece.start for piece in pieces]
    assert starts == sorted(set(starts))


def test_chunks_overlap_and_end_at_boundaries() -> None:
    lines = [f"Line {n} says something of its own." for n in range(60)]
    pieces = split_text("\n".join(lines), 100, 50)
    assert all(piece.text.lstrip("\n").startswith("Line ") for piece in pieces)
    assert all(piece.text.endswith(".") for piece in pieces)
    whole = "".join(piece.text for piece in pieces)
    assert 1.5 < len(whole) / len("\n".join(lines)) < 2.5


def test_first_in_all_rankings_scores_1() -> None:
    scores = fuse_rankings([(1.0, ["a", "b"]), (1.0, ["a", "c"])])
    assert scores["a"] == 1.0 > scores["b"] == scores["c"] > 0
    assert fuse_rankings([(3.0, ["a"]), (1.0, ["b"])]) == {"a": 0.75, "b": 0.25}
    assert fuse_rankings([]) == {} and fuse_rankings([(0.0, ["a"]), (1.0, ["b"])])["b"] == 1.0
    assert best_scores([{"a": 0.5}, {"a": 0.2, "b": 0.9}]) == [("b", 0.9), ("a", 0.5)]


async def test_search_follows_changed_vectors() -> None:
    vectors = MemoryStore().vectors
    await vectors.put("t", make_vector_store("a"))
    nearest = VectorSearch(vectors, cache_bytes=1)

    async def add(name: str, *numbers: float) -> None:
        await vectors.add_files("t", [make_indexed_file(name)], None)
        chunk = IndexedChunk(start=0, text=name, vector=array("f", numbers).tobytes())
        assert await vectors.finish_file(
            "t", make_indexed_file(name, status="completed"), [chunk], "m"
        )

    async def found(files: list[str] | None = None, limit: int = 9) -> list[str]:
        hits = await nearest.search("t", "vs_a", "m", array("f", [1, 0]), files, limit)
        return [hit.file_id for hit in hits]

    assert await found() == []
    await add("far", 0, 1)
    await add("near", 1, 0)
    assert await found() == ["file-near", "file-far"]
    assert await found(limit=1) == ["file-near"]
    assert await found(["file-far"]) == ["file-far"]
    await add("nearer", 2, 0)
    assert await found() == ["file-nearer", "file-near", "file-far"]
    await vectors.remove_file("t", "vs_a", "file-nearer")
    assert await found() == ["file-near", "file-far"]


@pytest.mark.parametrize("text", ["", " \n"])
def test_empty_text_has_no_chunks(text: str) -> None:
    assert split_text(text, 100, 50) == [] and join_chunks([]) == ""
