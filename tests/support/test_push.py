"""Sinks, and the guard that tells their errors from those of the source."""

from __future__ import annotations

from collections.abc import Awaitable

import pytest

from antiphon.support.push import Guard, send


async def test_send_waits_for_a_pause() -> None:
    taken: list[str] = []

    async def take_slowly(value: str) -> None:
        taken.append(value)

    await send(taken.append, "at once")
    await send(take_slowly, "slowly")
    assert taken == ["at once", "slowly"]


@pytest.mark.parametrize("is_late", [False, True])
async def test_guard_remembers_the_error_of_its_sink(is_late: bool) -> None:
    failure = KeyError("x")

    async def fail() -> None:
        raise failure

    def take(value: str) -> Awaitable[None] | None:
        if value == "good":
            return None
        if is_late:
            return fail()
        raise failure

    guard = Guard(take)
    assert guard("good") is None and guard.error is None
    with pytest.raises(KeyError):
        await send(guard, "bad")
    assert guard.error is failure
