"""Ids of objects."""

from __future__ import annotations

from antiphon.ids import new_id


def test_ids_are_ordered_by_their_milliseconds() -> None:
    seconds = [0.0, 1.0, 1700000000.0, 1700000000.001, 1700000001.0, 4e9]
    ids = [new_id("resp", now) for now in seconds]
    assert ids == sorted(ids)
    assert {len(id) for id in ids} == {len("resp_") + 48}


def test_ids_of_one_moment_differ() -> None:
    assert len({new_id("msg", 1700000000.0) for _ in range(1000)}) == 1000
