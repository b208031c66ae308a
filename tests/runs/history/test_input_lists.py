"""The input of a response is read once for all of its pages."""

from __future__ import annotations

import pytest

from antiphon.errors import InvalidRequest
from antiphon.runs.history.input_lists import InputLists
from antiphon.testing.store_checks.responses import make_response
from antiphon.wire.cursors import PageParams
from tests.runs.history.test_chain_cache import CountingStore

FIRST, REST = PageParams(limit=2, order="asc"), PageParams(order="asc", after="msg_o_a")


async def lists(**bounds: float) -> tuple[CountingStore, InputLists]:
    """Input lists over a store with a chain of two responses."""
    store = CountingStore()
    await store.save("t", make_response("a"))
    await store.save("t", make_response("b", "a"))
    return store, InputLists(store, **bounds)  # type: ignore[arg-type]


async def test_pages_after_the_first_one_read_no_response() -> None:
    store, inputs = await lists()
    first = await inputs.page("t", "resp_b", FIRST)
    rest = await inputs.page("t", "resp_b", REST)
    assert first is not None and rest is not None
    assert [item.id for item in (*first.data, *rest.data)] == ["msg_i_a", "msg_o_a", "msg_i_b"]
    assert (first.has_more, rest.has_more, store.walks) == (True, False, 1)
    with pytest.raises(InvalidRequest):
        await inputs.page("t", "resp_b", PageParams(after="msg_none"))


async def test_deleted_response_has_no_pages() -> None:
    store, inputs = await lists()
    assert await inputs.page("t", "resp_b", FIRST) is not None
    await store.delete("t", "resp_b")
    assert await inputs.page("t", "resp_b", REST) is None
    assert await inputs.page("t", "resp_b", FIRST) is None


async def test_other_tenants_get_no_cached_page() -> None:
    _, inputs = await lists()
    assert await inputs.page("t", "resp_b", FIRST) is not None
    assert await inputs.page("u", "resp_b", FIRST) is None


async def test_input_of_one_page_is_not_cached() -> None:
    store, inputs = await lists()
    for walks in (1, 2):
        assert await inputs.page("t", "resp_b", PageParams()) is not None
        assert store.walks == walks


async def test_input_over_the_limit_is_read_for_each_page() -> None:
    store, inputs = await lists(max_bytes=10)
    for walks in (1, 2):
        assert await inputs.page("t", "resp_b", FIRST) is not None
        assert store.walks == walks
