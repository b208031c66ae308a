"""Checks that a store fulfils its contract for the journal."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from antiphon.store.base import Retention, Store
from antiphon.store.journal import JournalEntry
from antiphon.store.records import ClaimQuery, NewRun, RunEnd

from .runs import batch, ended_response, job, queued_response

_CALL = JournalEntry(key="mcp_1", response_id="resp_r", attempt="one", intent=b"{\0}")
_APPROVAL = JournalEntry(key="mcpr_1", response_id="resp_x", intent=b"x", is_approval=True)


async def _start(store: Store) -> None:
    await store.runs.create(NewRun(job=job("r"), stored=queued_response("r"), batch=batch(0, 2)))


async def _end(store: Store) -> None:
    (claim,) = await store.runs.claim(ClaimQuery(owner="one", models=("m",), lease_s=60, limit=1))
    end = RunEnd(stored=ended_response("r"), batch=batch(2))
    assert await store.runs.end(claim, end)


async def an_entry_is_begun_once(store: Store) -> None:
    await _start(store)
    entries = [replace(_CALL, attempt=str(number)) for number in range(8)]
    begun = await asyncio.gather(*(store.journal.begin("t", [each], 1) for each in entries))
    (stored,) = {each for (each,) in begun}
    assert stored in entries, "all callers get the first entry"
    other = replace(_CALL, key="mcp_2")
    assert await store.journal.begin("t", [other, _CALL], 2) == (other, stored)
    assert await store.journal.begin("t", [], 2) == ()
    assert set(await store.journal.find("t", ["mcp_1", "mcp_2", "mcp_3"])) == {stored, other}
    assert await store.journal.find("u", ["mcp_1"]) == await store.journal.find("t", []) == ()


async def an_entry_is_settled_once(store: Store) -> None:
    await _start(store)
    await store.journal.begin("t", [_CALL, _APPROVAL], 1)
    for entry in (_CALL, _APPROVAL):
        assert not await store.journal.settle("u", entry.key, None, b"1")
        settling = (store.journal.settle("t", entry.key, None, str(n).encode()) for n in range(8))
        settled = await asyncio.gather(*settling)
        assert settled.count(True) == 1
        result = str(settled.index(True)).encode()
        assert await store.journal.settle("t", entry.key, None, result), "the answer was lost"
        stored = replace(entry, result=result)
        assert await store.journal.find("t", [entry.key]) == (stored,)
        assert await store.journal.begin("t", [replace(entry, intent=b"?")], 1) == (stored,)
        assert not await store.journal.settle("t", entry.key, b"other", None)
        assert await store.journal.settle("t", entry.key, result, None)
        assert await store.journal.find("t", [entry.key]) == (entry,)
    assert not await store.journal.settle("t", "mcp_3", None, b"1")


async def no_call_begins_without_its_run(store: Store) -> None:
    assert await store.journal.begin("t", [_CALL, _APPROVAL], 1) == (None, _APPROVAL)
    assert await store.journal.find("t", [_CALL.key]) == ()
    await _start(store)
    assert await store.journal.begin("u", [_CALL], 1) == (None,), "another tenant"
    assert await store.journal.begin("t", [_CALL], 1) == (_CALL,)
    await _end(store)
    late = replace(_CALL, key="mcp_2")
    assert await store.journal.begin("t", [late, _CALL], 1) == (None, _CALL)


async def entries_go_with_their_run(store: Store) -> None:
    await _start(store)
    await store.journal.begin("t", [_CALL, _APPROVAL], 1_000)
    await store.sweep(Retention(max_age_s=100), 1_050)
    assert len(await store.journal.find("t", [_CALL.key, _APPROVAL.key])) == 2
    await store.delete("t", "resp_r")
    for _ in range(2):  # what has been deleted is dropped an hour later at the latest
        await store.sweep(Retention(), 10_000)
    assert await store.journal.find("t", [_CALL.key, _APPROVAL.key]) == (_APPROVAL,)
    await store.sweep(Retention(max_age_s=100), 1_101)
    assert await store.journal.find("t", [_APPROVAL.key]) == ()


async def entries_have_keys_of_any_form(store: Store) -> None:
    for key in ("", "\0", "ü" * 5_000):
        entry = replace(_APPROVAL, key=key)
        assert await store.journal.begin("t", [entry], 1) == (entry,)
        assert await store.journal.settle("t", key, None, b"")
        assert await store.journal.find("t", [key]) == (replace(entry, result=b""),)


async def deletes_the_journal_of_a_tenant(store: Store) -> None:
    await _start(store)
    for tenant in ("t", "u"):
        await store.journal.begin(tenant, [_APPROVAL], 1)
    await store.journal.begin("t", [_CALL], 1)
    await store.delete_tenant("t")
    await store.sweep(Retention(), 10_000)
    assert await store.journal.find("t", [_CALL.key, _APPROVAL.key]) == ()
    assert await store.journal.find("u", [_APPROVAL.key]) == (_APPROVAL,)
