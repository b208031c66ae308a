"""A page of events ends with the batch that makes it long, so that a reader holds one at a time."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from antiphon.store.records import Append, RunEnd
from antiphon.testing.store_checks.runs import batch, begin_run, ended_response
from tests.stores import POSTGRES, open_empty_store


@pytest.mark.parametrize("kind", ["sqlite", POSTGRES])
async def test_page_holds_one_long_batch(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    store = await open_empty_store(kind, request, tmp_path)
    claim = await begin_run(store)
    long = [replace(batch(n), lines=b"%d" % n * 1_500_000 + b"\n") for n in range(2, 5)]
    for each in long:
        await store.runs.append((Append(claim, each),))
    await store.runs.end(claim, RunEnd(stored=ended_response("a"), batch=batch(5)))
    after, pages = -1, []
    while not pages or not pages[-1].ended:
        page = await store.runs.events("t", "resp_a", after, limit=100)
        assert page is not None
        pages.append(page)
        after = page.batches[-1].last
    assert [[each.first for each in page.batches] for page in pages] == [[0, 2], [3], [4], [5]]
    assert [page.batches[-1].lines for page in pages[:3]] == [each.lines for each in long]
    await store.close()
