"""Tasks end with their owners, and no failure is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import structlog

from antiphon.errors import StoreError
from antiphon.support.tasks import (
    BackgroundTasks,
    Backoff,
    repeat,
    repeat_until_done,
    retry,
    run_together,
    running,
)

WAIT_S = 30


@pytest.fixture
async def reported() -> AsyncIterator[list[dict[str, Any]]]:
    """What the exception handler of the event loop is told."""
    contexts: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: contexts.append(context))
    yield contexts
    loop.set_exception_handler(None)


async def fail() -> None:
    raise ValueError("lost?")


async def wait_forever(ended: list[str]) -> None:
    try:
        await asyncio.get_running_loop().create_future()
    finally:
        ended.append("ended")


# --- groups --------------------------------------------------------------------------------------


async def test_close_cancels_tasks_and_waits_for_their_end() -> None:
    tasks, ended = BackgroundTasks("test"), list[str]()

    async def ends_slowly() -> None:
        try:
            await wait_forever([])
        finally:
            await asyncio.sleep(0)
            tasks.start(wait_forever(ended))  # a task that starts during the close is closed, too
            await asyncio.sleep(0)

    tasks.start(ends_slowly())
    await asyncio.sleep(0)
    await tasks.close()
    assert (len(tasks), ended) == (0, ["ended"])


async def test_close_leaves_time_to_tasks_that_end_by_themselves() -> None:
    tasks, event = BackgroundTasks("test"), asyncio.Event()
    task = tasks.start(event.wait())
    asyncio.get_running_loop().call_soon(event.set)
    await tasks.close(grace_s=WAIT_S)
    assert task.result() is True


async def test_failure_that_nobody_awaits_is_reported_at_once(
    reported: list[dict[str, Any]],
) -> None:
    tasks = BackgroundTasks("indexing")
    tasks.start(fail())
    assert await tasks.wait(WAIT_S)
    await asyncio.sleep(0)
    (context,) = reported
    assert context["message"] == "a background task failed: indexing"
    assert str(context["exception"]) == "lost?"


async def test_failure_of_an_awaited_task_is_raised_only_there(
    reported: list[dict[str, Any]],
) -> None:
    tasks = BackgroundTasks("test")
    with pytest.raises(ValueError, match="lost"):
        await tasks.start(fail(), is_awaited=True)
    assert reported == []


async def test_key_has_one_running_task_at_a_time() -> None:
    tasks, event = BackgroundTasks("test"), asyncio.Event()
    first = tasks.start_once("k", event.wait)
    assert tasks.start_once("k", event.wait) is first
    assert "k" in tasks
    event.set()
    await first
    assert "k" not in tasks
    assert tasks.start_once("k", event.wait) is not first
    await tasks.close()


async def test_cancelled_key_is_free_at_once() -> None:
    tasks, ended = BackgroundTasks("test"), list[str]()
    tasks.start(wait_forever(ended), key="k")
    await asyncio.sleep(0)
    tasks.cancel("k")
    second = tasks.start(wait_forever(ended), key="k")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert ended == ["ended"]
    assert tasks.get("k") is second
    await tasks.close()


async def test_work_finishes_although_its_caller_is_cancelled(
    reported: list[dict[str, Any]],
) -> None:
    tasks, event, ends = BackgroundTasks("test"), asyncio.Event(), list[str]()

    async def write() -> None:
        await event.wait()
        ends.append("written")
        raise ValueError("lost?")

    async with running(tasks.finish(write())):
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    event.set()
    assert await tasks.wait(WAIT_S)
    await asyncio.sleep(0)
    assert ends == ["written"]
    assert [str(context["exception"]) for context in reported] == ["lost?"]


# --- blocks --------------------------------------------------------------------------------------


async def test_task_ends_with_its_block() -> None:
    ended: list[str] = []
    with pytest.raises(ValueError, match="block"):
        async with running(wait_forever(ended)):
            await asyncio.sleep(0)
            raise ValueError("block")
    assert ended == ["ended"]


async def test_first_failure_of_a_group_cancels_the_others() -> None:
    ended: list[str] = []
    with pytest.raises(ValueError, match="lost"):
        await run_together([wait_forever(ended), fail()])
    assert ended == ["ended"]
    await run_together([])


# --- repetition ----------------------------------------------------------------------------------


def work_that(*outcomes: Exception | bool) -> Callable[[], Any]:
    """Return work that fails or returns, in this order."""
    left = list(outcomes)

    async def work() -> bool:
        outcome = left.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    return work


async def test_repeated_work_continues_after_failures_and_counts_them() -> None:
    work = work_that(StoreError("down"), ValueError("bug"), False, StoreError("down"), True)
    with structlog.testing.capture_logs() as entries:
        await repeat_until_done(work, 0, failure="not swept")
    assert {entry["event"] for entry in entries} == {"not swept"}
    assert [(entry["log_level"], entry["failures"]) for entry in entries] == [
        ("warning", 1),
        ("error", 2),
        ("warning", 1),
    ]


async def test_cancelled_future_does_not_end_repeated_work() -> None:
    """Only the cancellation of the task itself ends the repetition."""
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    future.cancel()
    runs = 0

    async def work() -> bool:
        nonlocal runs
        runs += 1
        if runs == 1:
            await future
        return True

    await repeat_until_done(work, 0, failure="failed")
    assert runs == 2


async def test_repetition_is_cancelled_at_once() -> None:
    runs: list[str] = []

    async def work() -> None:
        runs.append("run")

    tasks = BackgroundTasks("test")
    tasks.start(repeat(work, 3600, failure="failed"))
    tasks.start(repeat(work, 3600, failure="failed", is_first_delayed=True))
    await asyncio.sleep(0)
    async with asyncio.timeout(WAIT_S):
        await tasks.close()
    assert runs == ["run"]


async def test_operation_is_retried_until_it_succeeds() -> None:
    backoff = Backoff(0, 0)
    work = work_that(StoreError("down"), StoreError("down"), True)
    assert await retry(work, StoreError, backoff, failure="down") is True


async def test_other_errors_and_the_limit_end_the_retries() -> None:
    with pytest.raises(ValueError, match="bug"):
        await retry(work_that(ValueError("bug")), StoreError, Backoff(0, 0), failure="down")
    with pytest.raises(StoreError, match="down"):
        await retry(
            work_that(StoreError("down")), StoreError, Backoff(2, 2), failure="down", limit_s=1
        )


def test_pauses_double_up_to_the_longest() -> None:
    backoff = Backoff(1, 5)
    assert [backoff.take() for _ in range(4)] == [1, 2, 4, 5]
    backoff.reset()
    assert backoff.take() == 1
