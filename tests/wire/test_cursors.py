"""Pages of a list equal slices of it, whatever the order and the cursors."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.errors import InvalidRequest
from antiphon.wire.cursors import PagedList, PageParams
from antiphon.wire.items import Message

CURSORS = st.none() | st.integers(0, 6)


def item(number: int, role: str = "user") -> Message:
    return Message(id=f"msg_{number}", role=role, content=())


def expected(params: PageParams, ids: list[str]) -> tuple[list[str], bool]:
    """The ids of the page, and whether there are more, from slices of all ids."""
    if params.order == "desc":
        ids = ids[::-1]
    if params.before is not None:
        ids = ids[: ids.index(params.before)]
    if params.after is not None:
        ids = ids[ids.index(params.after) + 1 :] if params.after in ids else []
    if params.is_backwards:
        return ids[-params.limit :], len(ids) > params.limit
    return ids[: params.limit], len(ids) > params.limit


@given(
    limit=st.integers(1, 8), order=st.sampled_from(["asc", "desc"]), after=CURSORS, before=CURSORS
)
def test_pages_are_slices(limit: int, order: str, after: int | None, before: int | None) -> None:
    items = [item(number) for number in range(7)]
    ids = [each.id for each in items]
    after_id, before_id = (None if cursor is None else ids[cursor] for cursor in (after, before))
    params = PageParams(limit=limit, order=order, after=after_id, before=before_id)
    page = PagedList(items).page(params)
    assert ([each.id for each in page.data], page.has_more) == expected(params, ids)


def test_of_items_with_one_id_the_last_one_counts() -> None:
    items = PagedList([item(1), item(2), item(1, "assistant")])
    assert items.page(PageParams(order="asc")).data == (item(1, "assistant"), item(2))
    assert len(items) == 2


@pytest.mark.parametrize("param", ["after", "before"])
def test_unknown_cursor_is_refused(param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        PagedList([item(1)]).page(PageParams(**{param: "msg_2"}))
    assert refused.value.param == param
