"""Checks that a store fulfils its contract for files."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import wraps

from msgspec import UNSET

from antiphon.store.base import Retention, Store
from antiphon.store.files import BlobRef, FileLimits, FileQuery
from antiphon.wire.resources.files import File


def make_file(
    name: str, content: bytes = b"x", *, purpose: str = "user_data", expires_at: int | None = None
) -> File:
    """Return a file with the id ``file-NAME`` and the size of ``content``."""
    return File(
        id=f"file-{name}",
        bytes=len(content),
        created_at=1_000,
        filename=f"{name}.txt",
        purpose=purpose,
        expires_at=UNSET if expires_at is None else expires_at,
    )


async def _store_files(store: Store, *names: str, tenant: str = "t") -> None:
    for name in names:
        assert await store.files.put(tenant, make_file(name), b"x")


async def _names(store: Store, listing: FileQuery, tenant: str = "t") -> str:
    found = await store.files.list_page(tenant, listing) or ()
    return " ".join(file.id.removeprefix("file-") for file in found)


async def stores_files_with_contents(store: Store) -> None:
    content = bytes(range(256)) * 5_000
    assert await store.files.put("t", make_file("a", content), content)
    assert await store.files.get("t", "file-a") == make_file("a", content)
    assert await store.files.read("t", "file-a") == content
    assert await store.files.put("t", make_file("b", b""), b"")
    assert await store.files.read("t", "file-b") == b""


async def isolates_files_by_tenant(store: Store) -> None:
    await _store_files(store, "a")
    assert await store.files.get("u", "file-a") is None
    assert await store.files.read("u", "file-a") is None
    assert await store.files.delete("u", "file-a") is False
    assert await store.files.list_page("u", FileQuery()) == ()
    assert await store.files.list_page("u", FileQuery(after="file-a")) is None
    await _store_files(store, "a", tenant="u")
    assert await store.files.delete("u", "file-a") is True
    assert await store.files.get("t", "file-a") is not None


async def lists_files_in_pages(store: Store) -> None:
    await _store_files(store, "a", "b", "c", "d")
    assert await _names(store, FileQuery()) == "d c b a"
    assert await _names(store, FileQuery(newest_first=False)) == "a b c d"
    assert await _names(store, FileQuery(limit=2)) == "d c"
    assert await _names(store, FileQuery(limit=2, after="file-c")) == "b a"
    assert await _names(store, FileQuery(newest_first=False, after="file-c")) == "d"
    assert await store.files.list_page("t", FileQuery(after="file-x")) is None


async def lists_files_by_purpose(store: Store) -> None:
    await _store_files(store, "a")
    assert await store.files.put("t", make_file("b", purpose="vision"), b"x")
    assert await _names(store, FileQuery(purpose="vision")) == "b"
    assert await _names(store, FileQuery(purpose="user_data", after="file-b")) == "a"
    assert await _names(store, FileQuery(purpose="batch")) == ""


async def deletes_a_file_once(store: Store) -> None:
    await _store_files(store, "a", "b")
    assert await store.files.delete("t", "file-a") is True
    assert await store.files.delete("t", "file-a") is False
    assert await store.files.get("t", "file-a") is None
    assert await store.files.read("t", "file-a") is None
    assert await _names(store, FileQuery()) == "b"


async def deletes_expired_files(store: Store) -> None:
    for name, at in (("a", 1_500), ("b", 2_500)):
        assert await store.files.put("t", make_file(name, expires_at=at), b"x")
    await _store_files(store, "c")
    assert await _names(store, FileQuery(now=1_499)) == "c b a"
    assert await _names(store, FileQuery(now=1_500)) == "c b"
    assert await store.sweep(Retention(), 1_500) == 0
    assert await store.files.read("t", "file-a") is None
    assert await store.files.read("t", "file-b") == b"x"
    await store.sweep(Retention(), 9_000_000_000)
    assert await _names(store, FileQuery()) == "c"


async def enforces_the_file_quota(store: Store) -> None:
    few_bytes = FileLimits(max_bytes=5)
    assert await store.files.put("t", make_file("a", b"123"), b"123", few_bytes)
    assert not await store.files.put("t", make_file("b", b"123"), b"123", few_bytes)
    assert await store.files.get("t", "file-b") is None
    assert await store.files.read("t", "file-b") is None
    assert await store.files.put("u", make_file("b", b"123"), b"123", few_bytes)
    assert await store.files.delete("t", "file-a")
    both = [store.files.put("t", make_file(name, b"123"), b"123", few_bytes) for name in "cd"]
    assert sorted(await asyncio.gather(*both)) == [False, True], (
        "concurrent uploads must not exceed the quota"
    )


def make_blob(key: str, content: str = "x") -> BlobRef:
    """Return a reference to a blob that need not exist. The size in the reference is 1 byte.
    ``content``: one letter that stands for the content of the blob. It determines the checksum:
    equal letters give equal checksums."""
    return BlobRef(key=key, sha256=content * 64, bytes=1)


def _of_blobs(check: Callable[[Store], Awaitable[None]]) -> Callable[[Store], Awaitable[None]]:
    """Return the check for stores that support contents in blobs. It does nothing for others."""

    @wraps(check)
    async def checked(store: Store) -> None:
        if store.files.supports_blobs:
            await check(store)

    return checked


@_of_blobs
async def refers_to_contents_in_blobs(store: Store) -> None:
    first = make_blob("k/1")
    assert await store.files.put("t", make_file("a"), first)
    assert await store.files.read("t", "file-a") == first
    assert await store.files.get("t", "file-a") == make_file("a")
    assert await store.files.read("u", "file-a") is None
    assert await store.files.find_unknown_blobs(["k/1", "k/2"]) == {"k/2"}
    assert await store.files.list_unused_blobs(10) == ()
    one_file = FileLimits(max_files=1)
    assert not await store.files.put("t", make_file("b"), make_blob("k/3", "y"), one_file)
    assert await store.files.find_unknown_blobs(["k/3"]) == {"k/3"}


@_of_blobs
async def shares_equal_contents_of_a_tenant(store: Store) -> None:
    first, again, foreign = make_blob("k/1"), make_blob("k/2"), make_blob("k/3")
    assert await store.files.put("t", make_file("a"), first)
    assert await store.files.put("t", make_file("b"), again)
    assert await store.files.put("u", make_file("c"), foreign)
    assert await store.files.read("t", "file-b") == first
    assert await store.files.read("u", "file-c") == foreign
    assert await store.files.list_unused_blobs(10) == ("k/2",)
    await store.files.forget_blobs(["k/2"])
    assert await store.files.delete("t", "file-a")
    assert await store.files.list_unused_blobs(10) == ()
    assert await store.files.read("t", "file-b") == first
    assert await store.files.delete("t", "file-b")
    assert await store.files.list_unused_blobs(10) == ("k/1",)
    assert await store.files.put("t", make_file("d"), make_blob("k/4"))
    assert await store.files.read("t", "file-d") == make_blob("k/4"), "k/1 will be deleted"


@_of_blobs
async def frees_the_blobs_of_expired_files(store: Store) -> None:
    assert await store.files.put("t", make_file("a", expires_at=1_500), make_blob("k/1"))
    await store.sweep(Retention(), 1_600)
    assert await store.files.list_unused_blobs(10) == ("k/1",)
    assert await store.files.find_unknown_blobs(["k/1"]) == frozenset()
    await store.files.forget_blobs(["k/1"])
    assert await store.files.list_unused_blobs(10) == ()
    assert await store.files.find_unknown_blobs(["k/1"]) == {"k/1"}


@_of_blobs
async def frees_the_blobs_of_deleted_tenants(store: Store) -> None:
    assert await store.files.put("t", make_file("a"), make_blob("k/1"))
    assert await store.files.put("u", make_file("b"), make_blob("k/2"))
    await store.delete_tenant("t")
    assert await store.files.list_unused_blobs(10) == ("k/1",)


@_of_blobs
async def moves_contents(store: Store) -> None:
    files, blob = store.files, make_blob("k/1")
    await _store_files(store, "a", "b")
    assert await files.put("u", make_file("c"), make_blob("k/0"))
    in_store = await files.list_contents(after=0, limit=10, in_blobs=False)
    assert [(row.tenant, row.file.id, row.blob) for row in in_store] == [
        ("t", "file-a", None),
        ("t", "file-b", None),
    ]
    rest = await files.list_contents(after=in_store[0].position, limit=1, in_blobs=False)
    assert [row.file.id for row in rest] == ["file-b"]
    assert await files.replace_content("t", "file-a", None, blob)
    assert not await files.replace_content("t", "file-a", None, make_blob("k/2", "y"))
    assert not await files.replace_content("t", "file-x", None, make_blob("k/2", "y"))
    assert await files.read("t", "file-a") == blob
    in_blobs = await files.list_contents(after=0, limit=10, in_blobs=True)
    assert {row.file.id: row.blob for row in in_blobs} == {
        "file-a": blob,
        "file-c": make_blob("k/0"),
    }
    assert await files.replace_content("t", "file-b", None, make_blob("k/2"))
    assert await files.list_unused_blobs(10) == ("k/2",), "both have the same content"
    moved = make_blob("k/3")
    assert await files.replace_content("t", "file-a", blob, moved)
    assert not await files.replace_content("t", "file-b", blob, make_blob("k/4"))
    assert await files.read("t", "file-b") == moved
    assert set(await files.list_unused_blobs(10)) == {"k/1", "k/2"}
    assert await files.replace_content("t", "file-a", moved, b"x")
    assert await files.read("t", "file-a") == b"x"
    assert await files.delete("t", "file-b")
    assert set(await files.list_unused_blobs(10)) == {"k/1", "k/2", "k/3"}
