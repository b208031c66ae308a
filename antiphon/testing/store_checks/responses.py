"""Checks that a store fulfils its contract for responses and conversations."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Literal

from msgspec.structs import replace

from antiphon.errors import AntiphonError
from antiphon.store.base import Retention, Store
from antiphon.store.records import (
    ConversationLock,
    ItemQuery,
    ResponseQuery,
    StoredResponse,
    TurnTokens,
)
from antiphon.wire.items import FunctionCall, InputText, Item, Message, OutputText
from antiphon.wire.json_types import EncodedText
from antiphon.wire.resources.conversations import ConversationResource
from antiphon.wire.response import ConversationRef, Response, ResponseError, Usage
from antiphon.wire.response_list import STORED_CHAT, ResponseSummary, summarize
from antiphon.wire.timeline import ItemTimes, RunTimes
from antiphon.wire.tools import Function, SharedTools


def make_response(
    name: str,
    previous: str | None = None,
    *,
    created_at: int = 1_000,
    text: str = "x",
    added: tuple[Item, ...] = (),
) -> StoredResponse:
    """Return the stored response ``resp_NAME``. Its input is the item ``msg_i_NAME`` and the items
    ``added``. Its output is the item ``msg_o_NAME``."""
    answer = Message(id=f"msg_o_{name}", role="assistant", content=(OutputText(text=text),))
    asked = Message(id=f"msg_i_{name}", role="user", content=(InputText(text=text),))
    response = Response(
        id=f"resp_{name}",
        created_at=created_at,
        model="m",
        status="completed",
        output=(answer,),
        usage=Usage(output_tokens=1),
        metadata={"name": name},
        previous_response_id=None if previous is None else f"resp_{previous}",
    )
    tokens = TurnTokens(base=0, ids=b"\x01\x00\x00\x00", fingerprint="f")
    times = RunTimes(created_at=created_at + 0.25, items=(ItemTimes(started_at=created_at + 0.5),))
    return StoredResponse(response=response, input=(asked, *added), tokens=tokens, times=times)


async def _names(store: Store, name: str, tenant: str = "t") -> list[str]:
    chain = await store.load_chain(tenant, f"resp_{name}") or ()
    return [stored.response.id.removeprefix("resp_") for stored in chain]


async def stores_and_loads_responses(store: Store) -> None:
    stored = make_response("a")
    await store.save("t", stored)
    assert await store.load("t", "resp_a") == stored
    assert await store.load("t", "resp_b") is None


async def stores_responses_without_tokens(store: Store) -> None:
    stored = StoredResponse(response=make_response("a").response)
    await store.save("t", stored)
    assert await store.load("t", "resp_a") == stored


async def stores_tools_that_responses_share(store: Store) -> None:
    """Check that responses with the same tools and instructions are stored as others are. A store
    may keep what they share in another form."""
    tools = SharedTools(Function(name=f"tool_{n}", description="x" * 300) for n in range(30))
    tools.instructions = EncodedText.of("Be brief. " * 100)
    saved: list[StoredResponse] = []
    for n in range(20):
        stored = make_response(str(n), str(n - 1) if n else None)
        instructions = None if n % 4 == 1 else "Other." if n % 4 == 2 else tools.instructions.text
        response = replace(stored.response, tools=tools, instructions=instructions)
        saved.append(replace(stored, response=response))
        await store.save("t", saved[-1])
    assert await store.load_chain("t", "resp_19") == tuple(saved)
    loaded = await store.load("t", "resp_19")
    assert loaded == saved[19]
    changed = replace(loaded, response=replace(loaded.response, metadata={"a": "b"}))
    await store.save("t", changed)
    assert await store.load("t", "resp_19") == changed


async def saves_many_at_a_time(store: Store) -> None:
    names = [str(number) for number in range(150)]
    saves = [
        store.save("t", make_response(name, added=make_response(f"{name}x").input))
        for name in names
    ]
    again = [store.save("t", make_response(name, text="new")) for name in names[:20]]
    other = [store.save("u", make_response(name, text="theirs")) for name in names[:20]]
    assert all(await asyncio.gather(*saves, *again, *other))
    for name in names:
        assert await store.load("t", f"resp_{name}") == make_response(
            name,
            **(
                {"text": "new"}
                if name in names[:20]
                else {"added": make_response(f"{name}x").input}
            ),
        )
        is_there = await store.load_item("t", f"msg_i_{name}x") is not None
        assert is_there == (name not in names[:20])
        assert await store.load_item("t", f"msg_o_{name}") is not None
    assert await store.load("u", "resp_1") == make_response("1", text="theirs")
    assert (await store.usage("t")).responses == len(names)


async def saving_again_replaces(store: Store) -> None:
    await store.save("t", make_response("a", text="old"))
    await store.save("t", make_response("b", "a"))
    await store.save("t", make_response("a", text="new"))
    assert await store.load("t", "resp_a") == make_response("a", text="new")
    assert await _names(store, "b") == ["a", "b"]
    await store.save("t", make_response("c", added=(make_response("d").input)))
    await store.save("t", make_response("c"))
    assert await store.load_item("t", "msg_i_c") is not None
    assert await store.load_item("t", "msg_i_d") is None, (
        "an item of the replaced response was found"
    )


async def chains_oldest_first_and_branches(store: Store) -> None:
    for name, previous in (("a", None), ("b", "a"), ("c", "b"), ("d", "a")):
        await store.save("t", make_response(name, previous))
    assert await _names(store, "c") == ["a", "b", "c"]
    assert await _names(store, "d") == ["a", "d"]
    assert await store.load_chain("t", "resp_none") is None


async def lists_responses_page_by_page(store: Store) -> None:
    async def names(**query: Any) -> str | None:
        page = await store.list_responses("t", ResponseQuery(**query))
        return None if page is None else _joined(page)

    for name in "abcd":
        await store.save("t", make_response(name))
    await store.save("u", make_response("e"))
    await store.save("t", make_response("b", text="again"))  # its place in the list does not change
    assert await names() == "dcba"
    assert await names(newest_first=False, limit=3) == "abc"
    assert await names(after="resp_c", limit=1) == "b"
    assert await names(after="resp_c", newest_first=False) == "d"
    assert await names(after="resp_e") is None, "a response of another tenant"
    await store.save("t", make_response("f", "c"))
    await store.delete("t", "resp_c")
    assert await names() == "fdba", "a response that is kept for its descendants is not listed"
    assert await names(after="resp_c") is None


async def lists_responses_by_their_properties(store: Store) -> None:
    call = FunctionCall(id="fc_a", call_id="c", name="f", arguments="{}")
    changes: Mapping[str, Mapping[str, Any]] = {
        "a": {},
        "b": {"status": "failed", "error": ResponseError(code="x", message="y")},
        "c": {"background": True, "model": "n"},
        "d": {"conversation": ConversationRef(id="conv_1")},
        "e": {"output": (call,)},
        "f": {"previous_response_id": "resp_a"},
    }
    for name, change in changes.items():
        plain = make_response(name, text="Grüße\0 an Ströme" if name == "a" else f"text of {name}")
        await store.save("t", replace(plain, response=replace(plain.response, **change)))

    async def names(**query: Any) -> str:
        return _joined(await store.list_responses("t", ResponseQuery(**query)) or ())

    assert await names(status="failed") == await names(failed=True) == "b"
    assert await names(failed=False) == "fedca"
    assert await names(background=True) == await names(model="n") == "c"
    assert await names(conversation="conv_1") == "d"
    assert await names(tool="function") == "e"
    await store.save("u", make_response("a"))
    await store.save("u", make_response("chat_b"))
    chats = await store.list_responses("u", ResponseQuery(tool=STORED_CHAT)) or ()
    assert [each.id for each in chats] == ["resp_chat_b"]
    assert await names(tool="func") == await names(model="\0") == ""
    assert await names(previous_response_id="resp_a") == "f"
    assert await names(text="GRÜSSE an") == "a"
    assert await names(text="text OF", model="m") == "fedb"
    stored = await store.load("t", "resp_d")
    assert stored is not None
    page = await store.list_responses("t", ResponseQuery(conversation="conv_1"))
    assert page == (summarize(stored.response, stored.input),)


def _joined(page: tuple[ResponseSummary, ...]) -> str:
    return "".join(each.id.removeprefix("resp_") for each in page)


async def finds_items_of_loadable_responses(store: Store) -> None:
    stored = make_response("a")
    await store.save("t", stored)
    assert await store.load_item("t", "msg_i_a") == stored.input[0]
    assert await store.load_item("t", "msg_o_a") == stored.response.output[0]
    await store.delete("t", "resp_a")
    assert await store.load_item("t", "msg_i_a") is None


async def finds_items_shared_by_responses(store: Store) -> None:
    (shared,) = make_response("a").input
    for name in "abc":
        await store.save("t", make_response(name, added=() if name == "a" else (shared,)))
    for name, found in (("b", shared), ("c", shared), ("a", None)):
        await store.delete("t", f"resp_{name}")
        assert await store.load_item("t", shared.id) == found


async def deleting_preserves_the_context_of_descendants(store: Store) -> None:
    for name, previous in (("a", None), ("b", "a"), ("c", "b")):
        await store.save("t", make_response(name, previous))
    assert await store.delete("t", "resp_b") is True
    assert await store.delete("t", "resp_b") is False
    assert await store.load("t", "resp_b") is None
    assert [await store.has_response("t", f"resp_{name}") for name in "abc"] == [True, False, True]
    assert await store.load_chain("t", "resp_b") is None
    assert await store.load_item("t", "msg_o_b") is None
    assert await _names(store, "c") == ["a", "b", "c"]
    await store.delete("t", "resp_c")
    assert await _names(store, "a") == ["a"]


async def isolates_tenants(store: Store) -> None:
    await store.save("t", make_response("a", text="mine"))
    await store.save("u", make_response("a", text="yours"))
    await store.save("u", make_response("b", "a"))
    assert await store.load("t", "resp_a") == make_response("a", text="mine")
    assert await store.load("t", "resp_b") is None
    assert not await store.has_response("t", "resp_b")
    assert await store.load_item("t", "msg_o_b") is None
    assert await store.delete("t", "resp_b") is False
    assert await store.delete("t", "resp_a") is True
    assert await _names(store, "b", "u") == ["a", "b"]


async def expires_by_age(store: Store) -> None:
    for name, at in (("old", 100), ("new", 900)):
        await store.save("t", make_response(name, created_at=at))
    assert await store.sweep(Retention(max_age_s=500), 1_000) == 1
    assert await store.load("t", "resp_old") is None
    assert await store.load("t", "resp_new") is not None


async def expires_by_count_oldest_first(store: Store) -> None:
    for n in range(5):
        await store.save("tu"[n % 2], make_response(str(n), created_at=n))
    assert await store.sweep(Retention(max_responses=2), 1_000) == 3
    left = [n for n in range(5) if await store.load("tu"[n % 2], f"resp_{n}")]
    assert left == [3, 4]


async def expires_by_bytes_oldest_first(store: Store) -> None:
    for n in range(4):
        await store.save("t", make_response(str(n), created_at=n, text="y" * 50_000))
    assert await store.sweep(Retention(max_bytes=250_000), 1_000) == 2
    assert [n for n in range(4) if await store.load("t", f"resp_{n}")] == [2, 3]
    assert await store.sweep(Retention(max_bytes=250_000), 1_000) == 0


async def expires_responses_of_the_tenant_that_holds_most(store: Store) -> None:
    """Check which responses are deleted if the store has too many: the oldest responses of the
    tenant with the most responses. Responses of other tenants are kept, even if they are older."""
    for name in "ab":
        await store.save("small", make_response(name, created_at=100))
    for number in range(10):
        await store.save("large", make_response(f"flood{number}", created_at=200 + number))
    assert await store.sweep(Retention(max_responses=5), 1_000) == 7
    assert [await store.load("small", f"resp_{name}") is not None for name in "ab"] == [True] * 2
    left = [await store.load("large", f"resp_flood{number}") is not None for number in range(10)]
    assert left == [False] * 7 + [True] * 3, "the oldest responses must be deleted first"
    for number in range(4):
        stored = make_response(f"long{number}", text="y" * 50_000, created_at=300 + number)
        await store.save("large", stored)
    assert await store.sweep(Retention(max_bytes=120_000), 1_000) == 6
    assert [await store.load("small", f"resp_{name}") is not None for name in "ab"] == [True] * 2
    assert await store.load("large", "resp_long3") is not None


async def expires_an_ancestor_under_its_descendants(store: Store) -> None:
    await store.save("t", make_response("a", created_at=0))
    await store.save("t", make_response("b", "a", created_at=900))
    assert await store.sweep(Retention(max_age_s=500), 1_000) == 1
    assert await store.load("t", "resp_a") is None
    assert await _names(store, "b") == ["a", "b"]


async def frees_unreferenced_ancestors(store: Store) -> None:
    """Check when a deleted response counts towards the limit on bytes. It counts as long as a later
    response continues it. It no longer counts when all responses of its chain are deleted."""
    large, bound = "y" * 50_000, Retention(max_bytes=150_000)
    for n, (name, previous) in enumerate((("a", None), ("b", "a"), ("c", None), ("d", None))):
        await store.save("t", make_response(name, previous, created_at=n, text=large))
    for name in "ab":
        await store.delete("t", f"resp_{name}")
    await store.delete("t", "resp_d")
    assert await store.sweep(bound, 1_000) == 0, "a deleted response was counted"
    await store.save("t", make_response("e", "c", created_at=5, text=large))
    await store.save("t", make_response("f", created_at=6))
    assert await store.sweep(bound, 1_000) == 2, (
        "a response that a later response needs was not counted"
    )
    assert await store.load("t", "resp_f") is not None
    assert await store.sweep(bound, 1_000) == 0


async def supports_concurrent_saves(store: Store) -> None:
    await asyncio.gather(*(store.save("t", make_response(str(n))) for n in range(200)))
    found = await asyncio.gather(*(store.load("t", f"resp_{n}") for n in range(200)))
    assert all(stored is not None for stored in found)


async def stores_conversations(store: Store) -> None:
    talk = ConversationResource(id="conv_a", created_at=1, metadata={"k": "v"})
    first, second = make_response("a").input[0], make_response("b").input[0]
    await store.save_conversation("t", talk, (first,))
    assert await store.load_conversation("t", "conv_a") == talk
    assert await store.load_conversation("u", "conv_a") is None
    assert await store.add_conversation_items("t", "conv_a", (second,)) is True
    assert await store.add_conversation_items("t", "conv_none", (second,)) is False
    assert await store.add_conversation_items("u", "conv_a", (second,)) is False
    assert await store.load_conversation_items("t", "conv_a") == (first, second)
    assert await store.load_conversation_items("u", "conv_a") == ()
    assert await store.load_item("t", second.id) == second
    assert await store.load_item("u", second.id) is None
    relabelled = ConversationResource(id="conv_a", created_at=1, metadata={})
    await store.save_conversation("t", relabelled)
    assert await store.load_conversation("t", "conv_a") == relabelled
    assert await store.remove_conversation_item("t", "conv_a", first.id) is True
    assert await store.remove_conversation_item("t", "conv_a", first.id) is False
    assert await store.load_conversation_items("t", "conv_a") == (second,)
    assert await store.delete_conversation("u", "conv_a") is False
    assert await store.delete_conversation("t", "conv_a") is True
    assert await store.load_conversation("t", "conv_a") is None
    assert await store.load_item("t", second.id) is None


async def reads_pages_of_conversations(store: Store) -> None:
    """Check the pages of a conversation's items: in both orders, between two items, and with only
    some kinds of items. After an item was removed, the pages no longer contain it."""
    roles: tuple[Literal["user", "developer"], ...] = ("user", "user", "developer")
    items: tuple[Item, ...] = tuple(
        Message(id=f"msg_{n}", role=roles[n % 3], content=(InputText(text="x"),)) for n in range(9)
    )
    for name in ("conv_a", "conv_b"):
        await store.save_conversation("t", ConversationResource(id=name, created_at=1), items[:4])
        await store.add_conversation_items("t", name, items[4:])
    await store.remove_conversation_item("t", "conv_a", "msg_4")

    async def numbers(conversation: str = "conv_a", **query: Any) -> str | None:
        found = await store.list_conversation_items("t", conversation, ItemQuery(**query))
        return None if found is None else "".join(item.id.removeprefix("msg_") for item in found)

    assert await numbers(limit=3) == "012"
    assert await numbers(limit=3, newest_first=True) == "876"
    assert await numbers(limit=99, after="msg_2", until="msg_7") == "356"
    assert await numbers(limit=99, after="msg_7", until="msg_2") == ""
    assert await numbers(limit=99, after="msg_7", until="msg_2", newest_first=True) == "653"
    assert await numbers(limit=2, after="msg_6", newest_first=True) == "53"
    developer = frozenset({"developer"})
    assert await numbers(limit=99, kinds=developer) == "258"
    assert await numbers(limit=99, kinds=developer, until="msg_8") == "25"
    assert await numbers(limit=1, kinds=developer, newest_first=True) == "8"
    assert await numbers(limit=99, kinds=frozenset({"function_call"})) == ""
    assert await numbers(limit=9, after="msg_8") == ""
    assert await numbers(limit=9, after="msg_4") is None, "it was removed"
    assert await numbers(limit=9, until="msg_none") is None
    assert await numbers("conv_b", limit=99, after="msg_3") == "45678"
    assert await numbers("conv_none", limit=9) == ""
    found = await store.find_conversation_items("t", "conv_a", ["msg_5", "msg_4", "msg_0", "no"])
    assert found == (items[0], items[5])
    assert await store.find_conversation_items("u", "conv_a", ["msg_5"]) == ()
    assert await store.list_conversation_items("u", "conv_a", ItemQuery(limit=9)) == ()


async def adds_a_turn_to_its_conversation(store: Store) -> None:
    await store.save_conversation("t", ConversationResource(id="conv_a", created_at=1))
    stored = make_response("a")
    lock = await _locked(store, "conv_a", "resp_a")
    assert await store.save("t", stored, lock=lock) is True
    expected = (*stored.input, *stored.response.output)
    assert await store.load_conversation_items("t", "conv_a") == expected
    lock = await _locked(store, "conv_gone", "resp_b")
    assert await store.save("t", make_response("b"), lock=lock) is True
    assert await store.load("t", "resp_b") is not None
    await store.delete("t", "resp_a")
    assert await store.load_conversation_items("t", "conv_a") == expected


async def _locked(store: Store, conversation: str, response_id: str) -> ConversationLock:
    """Lock a conversation for a response that the server ``one`` works on. Returns the lock."""
    assert await store.runs.lock_conversation(
        "t", response_id, ConversationLock(conversation, "one"), lease_s=60
    )
    return ConversationLock(conversation, "one")


async def adds_no_turn_without_the_lock(store: Store) -> None:
    """Check that a server cannot save a response of a conversation if it does not hold the
    conversation's lock. Another server may have added items in the meantime."""
    await store.save_conversation("t", ConversationResource(id="conv_a", created_at=1))
    lock = ConversationLock("conv_a", "one")
    assert await store.save("t", make_response("never"), lock=lock) is False
    await _locked(store, "conv_a", "resp_slow")
    assert await store.save("t", make_response("other"), lock=lock) is False, (
        "another response holds the lock"
    )
    foreign = ConversationLock("conv_a", "two")
    assert await store.save("t", make_response("slow"), lock=foreign) is False, (
        "another server holds the lock"
    )
    assert await store.runs.lock_conversation(
        "t", "resp_b", ConversationLock("conv_a", "two"), lease_s=0
    )
    assert await store.save("t", make_response("slow"), lock=lock) is False
    assert await store.save("t", make_response("b"), lock=foreign) is True
    await store.runs.unlock_conversation("t", "conv_a", "resp_b")
    assert await store.save("t", make_response("slow"), lock=lock) is False, "the lock was released"
    assert await store.load("t", "resp_slow") is None
    items = await store.load_conversation_items("t", "conv_a")
    assert [item.id for item in items] == ["msg_i_b", "msg_o_b"]


async def a_repeated_save_changes_nothing(store: Store) -> None:
    """Check that saving a response again changes nothing. This holds even if the response has lost
    its conversation lock after the first save. A server repeats a save if it gets no answer from
    the store."""
    await store.save_conversation("t", ConversationResource(id="conv_a", created_at=1))
    lock = await _locked(store, "conv_a", "resp_a")
    assert await store.save("t", make_response("a"), lock=lock) is True
    assert await store.remove_conversation_item("t", "conv_a", "msg_i_a") is True
    assert await store.save("t", make_response("a"), lock=lock) is True
    await store.runs.unlock_conversation("t", "conv_a", "resp_a")
    assert await store.save("t", make_response("a", text="new"), lock=lock) is True
    assert await store.load("t", "resp_a") == make_response("a")
    items = await store.load_conversation_items("t", "conv_a")
    assert [item.id for item in items] == ["msg_o_a"]


async def close_completes_pending_writes(store: Store) -> None:
    saving = [asyncio.ensure_future(store.save("t", make_response(str(n)))) for n in range(20)]
    await asyncio.sleep(0)
    await store.close()
    await asyncio.gather(*saving)
    try:
        await store.load("t", "resp_1")
    except AntiphonError:
        return
    raise AssertionError("a closed store answered")
