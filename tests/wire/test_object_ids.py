"""Ids of objects."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor

from antiphon.wire.object_ids import IdMaker, new_id


def test_ids_are_ordered_by_their_milliseconds() -> None:
    seconds = [0.0, 1.0, 1700000000.0, 1700000000.001, 1700000001.0, 4e9]
    ids = [new_id("resp", now) for now in seconds]
    assert ids == sorted(ids)
    assert {len(id) for id in ids} == {len("resp_") + 48}


def test_ids_of_one_moment_differ() -> None:
    assert len({new_id("msg", 1700000000.0) for _ in range(1000)}) == 1000


def test_maker_makes_ids_of_the_same_form() -> None:
    times = iter([1700000000.0, 1700000000.001])
    make = IdMaker(lambda: next(times))
    first, second = make("resp"), make("resp")
    assert first < second
    assert first[:17] == new_id("resp", 1700000000.0)[:17]
    assert re.fullmatch("resp_[0-9a-f]{48}", first) and len(set(first)) > 8


def test_threads_get_different_ids() -> None:
    make = IdMaker(lambda: 0.0)
    with ThreadPoolExecutor(8) as threads:
        ids = list(threads.map(lambda _: make("msg"), range(20_000)))
    assert len({id[17:] for id in ids}) == len(ids)
    assert {len(id) for id in ids} == {52}
