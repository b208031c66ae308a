"""Contract checks of the part of a store that keeps vector stores and searches their chunks."""

from __future__ import annotations

from array import array
from typing import Any

from msgspec.structs import replace

from antiphon.store.base import Retention, Store
from antiphon.store.vectors import (
    IndexedChunk,
    IndexedFile,
    IndexingTask,
    VectorFileQuery,
    VectorIndex,
    VectorsVersion,
    WordQuery,
)
from antiphon.wire.resources.vector_stores import (
    FileBatch,
    FileStatus,
    VectorStore,
    VectorStoreFile,
)

from .files import make_file


def make_vector_store(name: str = "a", *, expires_at: int | None = None) -> VectorStore:
    """Return the vector store ``vs_NAME``."""
    return VectorStore(id=f"vs_{name}", created_at=1_000, name=name, expires_at=expires_at)


def make_indexed_file(
    name: str, *, store: str = "a", status: FileStatus = "in_progress", size: int = 0
) -> IndexedFile:
    """Return the file ``file-NAME`` of the vector store ``vs_STORE``."""
    file = VectorStoreFile(
        id=f"file-{name}",
        created_at=1_000,
        vector_store_id=f"vs_{store}",
        status=status,
        usage_bytes=size,
    )
    return IndexedFile(file=file, filename=f"{name}.txt")


def _vector(*numbers: float) -> bytes:
    return array("f", numbers).tobytes()


async def _settled(vectors: VectorIndex, name: str, *texts: str, tenant: str = "t") -> None:
    """Add a file to a vector store and mark it as indexed. The file gets one chunk for each of
    these texts. The vector of the chunk with index ``i`` is ``(i, 1)``."""
    assert await vectors.add_files(tenant, [make_indexed_file(name)], None)
    chunks = [
        IndexedChunk(start=100 * at, text=text, vector=_vector(at, 1))
        for at, text in enumerate(texts)
    ]
    done = make_indexed_file(name, status="completed", size=10)
    assert await vectors.finish_file(tenant, done, chunks, "m")


async def _search_texts(
    vectors: VectorIndex, *words: str, files: str = "a b", limit: int = 9
) -> str:
    """Search for words in these files. ``files``: names of the files, separated by spaces. Returns
    the found texts with the names of their files, best first."""
    ids = [f"file-{name}" for name in files.split()]
    hits = await vectors.search_words("t", "vs_a", WordQuery(words=words, files=ids, limit=limit))
    texts = await vectors.chunk_texts("t", "vs_a", {hit.chunk for hit in hits})
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    return " | ".join(f"{hit.file_id[5:]}: {texts[hit.chunk]}" for hit in hits)


async def isolates_vector_stores_by_tenant(store: Store) -> None:
    vectors = store.vectors
    await vectors.put("t", make_vector_store("a"))
    await vectors.put("t", make_vector_store("b"))
    await vectors.put("t", replace(make_vector_store("a"), name="new"))
    assert await vectors.get("t", "vs_a") == replace(make_vector_store("a"), name="new")
    assert [each.id for each in await vectors.list_stores("t")] == ["vs_a", "vs_b"]
    assert await vectors.get("u", "vs_a") is None and await vectors.list_stores("u") == ()
    assert await vectors.delete("u", "vs_a") is False
    assert not await vectors.add_files("u", [make_indexed_file("a")], None)
    assert await vectors.delete("t", "vs_a") is True
    assert await vectors.delete("t", "vs_a") is False


async def finds_chunks_by_words(store: Store) -> None:
    vectors = store.vectors
    await vectors.put("t", make_vector_store())
    await _settled(vectors, "a", "the red fox", "the blue whale in the deep sea")
    await _settled(vectors, "b", "a fox and a fox", 'quotes " and (brackets) AND *')
    assert await _search_texts(vectors, "fox") == "b: a fox and a fox | a: the red fox"
    assert await _search_texts(vectors, "Whale", "nothing") == "a: the blue whale in the deep sea"
    assert await _search_texts(vectors, "fox", files="a") == "a: the red fox"
    assert await _search_texts(vectors, "fox", limit=1) == "b: a fox and a fox"
    assert await _search_texts(vectors, "brackets") == 'b: quotes " and (brackets) AND *'
    assert await _search_texts(vectors, "wolf") == "" == await _search_texts(vectors)
    await _settled(vectors, "a", "最长的峡湾是松恩峡湾。")
    assert await _search_texts(vectors, "峡湾", "冰川") == "a: 最长的峡湾是松恩峡湾。"
    assert await _search_texts(vectors, "冰川") == "" == await _search_texts(vectors, "whale")


async def isolates_search_results(store: Store) -> None:
    vectors = store.vectors
    for tenant in ("t", "u"):
        await vectors.put(tenant, make_vector_store())
    await vectors.put("t", make_vector_store("b"))
    await _settled(vectors, "a", "fox", tenant="u")
    assert await _search_texts(vectors, "fox") == ""
    assert await vectors.vectors_version("t", "vs_a", "m") == VectorsVersion(0, 0)
    assert (await vectors.load_vectors("t", "vs_a", "m")).chunks == ()
    assert await vectors.list_chunks("t", "vs_a", "file-a") == ()
    (hit,) = await vectors.search_words(
        "u", "vs_a", WordQuery(words=["fox"], files=["file-a"], limit=9)
    )
    assert await vectors.chunk_texts("t", "vs_a", {hit.chunk}) == {}
    assert await vectors.chunk_texts("u", "vs_a", {hit.chunk}) == {hit.chunk: "fox"}


async def loads_vectors_of_one_model(store: Store) -> None:
    vectors = store.vectors
    await vectors.put("t", make_vector_store())
    await _settled(vectors, "a", "one", "two")
    await _settled(vectors, "b", "three")
    matrix = await vectors.load_vectors("t", "vs_a", "m")
    assert matrix.file_ids == ("file-a", "file-a", "file-b")
    assert matrix.vectors == _vector(0, 1, 1, 1, 0, 1)
    texts = await vectors.chunk_texts("t", "vs_a", set(matrix.chunks))
    assert [texts[chunk] for chunk in matrix.chunks] == ["one", "two", "three"]
    mark = await vectors.vectors_version("t", "vs_a", "m")
    assert mark.count == 3 and mark.last == max(matrix.chunks)
    assert (await vectors.load_vectors("t", "vs_a", "other")).chunks == ()
    await vectors.remove_file("t", "vs_a", "file-b")
    await _settled(vectors, "b", "four")
    assert await vectors.vectors_version("t", "vs_a", "m") != mark, (
        "the version must change even if the number of vectors does not"
    )


async def reports_indexing_progress(store: Store) -> None:
    vectors = store.vectors
    await vectors.put("t", make_vector_store())
    batch = FileBatch(id="vsfb_1", created_at=1_000, vector_store_id="vs_a")
    assert await vectors.add_files("t", [make_indexed_file("x")], None)
    some = [replace(make_indexed_file(name), batch="vsfb_1") for name in "yz"]
    assert await vectors.add_files("t", some, batch)
    assert await vectors.get_batch("t", "vs_a", "vsfb_1") == batch
    assert await vectors.get_batch("u", "vs_a", "vsfb_1") is None
    done = replace(make_indexed_file("y", status="completed", size=7), batch="vsfb_1")
    assert await vectors.finish_file("t", done, [IndexedChunk(start=0, text="hi")], "")
    all, part = await vectors.usage("t", "vs_a"), await vectors.usage("t", "vs_a", "vsfb_1")
    assert (all.counts.total, all.counts.in_progress, all.counts.completed) == (3, 2, 1)
    assert (part.counts.total, part.counts.completed, part.bytes) == (2, 1, 7)
    assert (await vectors.usage("u", "vs_a")).counts.total == 0
    waiting = [IndexingTask(tenant="t", store_id="vs_a", file_id=f"file-{name}") for name in "xz"]
    assert list(await vectors.list_unfinished()) == waiting
    entries = await vectors.list_files("t", "vs_a")
    assert [entry.file.id for entry in entries] == ["file-x", "file-y", "file-z"]
    assert await vectors.get_file("t", "vs_a", "file-y") == done
    assert await vectors.get_file("u", "vs_a", "file-y") is None


async def lists_files_by_page(store: Store) -> None:
    vectors = store.vectors
    await vectors.put("t", make_vector_store())
    batch = FileBatch(id="vsfb_1", created_at=1, vector_store_id="vs_a")
    await vectors.add_files("t", [make_indexed_file(name) for name in "ab"], None)
    await vectors.add_files(
        "t", [replace(make_indexed_file(n), batch="vsfb_1") for n in "cde"], batch
    )
    await vectors.finish_file("t", make_indexed_file("b", status="completed"), (), "m")
    pages: tuple[tuple[dict[str, Any], str], ...] = (
        ({}, "abcde"),
        ({"limit": 2}, "ab"),
        ({"newest_first": True, "limit": 2}, "ed"),
        ({"after": "file-b", "limit": 2}, "cd"),
        ({"after": "file-b", "until": "file-d"}, "c"),
        ({"after": "file-d", "newest_first": True}, "cba"),
        ({"until": "file-b", "newest_first": True}, "edc"),
        ({"status": "completed"}, "b"),
        ({"batch": "vsfb_1", "after": "file-a", "limit": 2}, "cd"),
        ({"after": "file-x"}, ""),
        ({"until": "file-x"}, ""),
    )
    for fields, expected in pages:
        query = VectorFileQuery(**{"limit": 9, **fields})
        page = await vectors.list_file_page("t", "vs_a", query)
        found = "".join(entry.file.id.removeprefix("file-") for entry in page)
        assert found == expected, f"{fields}: {found}"
    everything = VectorFileQuery(limit=9)
    assert await vectors.list_file_page("u", "vs_a", everything) == ()
    assert await vectors.list_file_page("t", "vs_x", everything) == ()


async def finishes_only_files_in_progress(store: Store) -> None:
    vectors = store.vectors
    await vectors.put("t", make_vector_store())
    await _settled(vectors, "a", "fox")
    late = make_indexed_file("a", status="failed")
    assert not await vectors.finish_file("t", late, [IndexedChunk(start=0, text="fox")], "m")
    assert not await vectors.finish_file("t", make_indexed_file("b", status="completed"), (), "m")
    assert await _search_texts(vectors, "fox") == "a: fox"
    done = make_indexed_file("a", status="completed", size=10)
    done = replace(done, file=replace(done.file, attributes={"x": 1}))
    assert (
        await vectors.update_attributes("t", done)
        and await vectors.get_file("t", "vs_a", "file-a") == done
    )
    assert not await vectors.update_attributes("t", make_indexed_file("a")), (
        "it is not in progress any more"
    )
    assert not await vectors.update_attributes("t", make_indexed_file("b"))
    assert await vectors.add_files("t", [make_indexed_file("a")], None), "a file can be added again"
    assert await _search_texts(vectors, "fox") == ""


async def deletes_chunks_of_removed_files(store: Store) -> None:
    vectors = store.vectors
    for name in "ab":
        assert await store.files.put("t", make_file(name), b"x")
    await vectors.put("t", make_vector_store())
    await _settled(vectors, "a", "fox", "hare")
    await _settled(vectors, "b", "fox")
    assert [chunk.text for chunk in await vectors.list_chunks("t", "vs_a", "file-a")] == [
        "fox",
        "hare",
    ]
    assert await vectors.remove_file("u", "vs_a", "file-a") is False
    assert await vectors.remove_file("t", "vs_a", "file-a") is True
    assert await vectors.remove_file("t", "vs_a", "file-a") is False
    assert await _search_texts(vectors, "fox", "hare") == "b: fox"
    assert await store.files.delete("t", "file-b")
    assert await _search_texts(vectors, "fox") == "" and await vectors.list_files("t", "vs_a") == ()
    await vectors.put("t", make_vector_store(expires_at=2_000))
    await _settled(vectors, "c", "fox")
    await store.sweep(Retention(), 1_999)
    assert await _search_texts(vectors, "fox", files="c") == "c: fox"
    await store.sweep(Retention(), 2_000)
    assert await _search_texts(vectors, "fox", files="c") == ""
    assert await vectors.get("t", "vs_a") is not None, (
        "an expired vector store can still be retrieved"
    )
