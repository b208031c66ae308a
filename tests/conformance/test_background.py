"""Background responses, with the official client: queued, polled, streamed, resumed, cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest

from antiphon.backends.scripted_backend import ScriptedBackend
from antiphon.errors import BackendError
from antiphon.store.base import Store
from antiphon.stream.deltas import Close, Open, Text
from antiphon.wire.items import Message
from tests.conformance import oracle
from tests.conformance.conftest import Serve
from tests.conformance.scripts import finish
from tests.conformance.server import Server
from tests.conformance.stepped_backend import SteppedBackend
from tests.harness import official_client

ANSWER = Open(Message(role="assistant", content=()))
STORY = " ".join(f"word{number}" for number in range(30))


@pytest.fixture
async def story(serve: Serve, store: Store) -> AsyncIterator[tuple[Server, openai.AsyncOpenAI]]:
    """A server with a long answer, and the official client."""
    server = serve(ScriptedBackend([STORY]), on=store)
    async with official_client(server.app) as asking, asyncio.timeout(60):
        yield server, asking


async def poll(asking: openai.AsyncOpenAI, response_id: str) -> Any:
    """Poll as the documentation describes."""
    while (found := await asking.responses.retrieve(response_id)).status in (
        "queued",
        "in_progress",
    ):
        await asyncio.sleep(0)
    return found


@pytest.mark.requirement("API-BACKGROUND", "VN-70")
async def test_background_response_is_queued_polled_and_completed(story: Any) -> None:
    _, asking = story
    queued = await asking.responses.create(model="tiny", input="hi", background=True)
    assert (queued.status, queued.output, queued.background) == ("queued", [], True)
    ended = await poll(asking, queued.id)
    assert (ended.status, ended.output_text) == ("completed", STORY)
    again = await asking.responses.create(model="tiny", input="b", previous_response_id=queued.id)
    assert again.status == "completed"


@pytest.mark.requirement("API-RESUME", "VN-71", "D-38")
async def test_stream_resumes_in_both_client_ways(story: Any) -> None:
    _, asking = story
    queued = await asking.responses.create(model="tiny", input="hi", background=True)
    await poll(asking, queued.id)
    stream = await asking.responses.retrieve(queued.id, stream=True)
    whole = [event async for event in stream]
    assert [event.sequence_number for event in whole] == list(range(len(whole)))
    for after in (0, 3, len(whole) // 2, len(whole) - 2):
        rest = await asking.responses.retrieve(queued.id, stream=True, starting_after=after)
        assert [event async for event in rest] == whole[after + 1 :]
        async with asking.responses.stream(response_id=queued.id, starting_after=after) as result:
            prompt_texts = [event.sequence_number async for event in result]
        assert prompt_texts == [event.sequence_number for event in whole[after + 1 :]]


@pytest.mark.requirement("D-33")
async def test_replay_beyond_the_end_ends_at_once(story: Any) -> None:
    _, asking = story
    queued = await asking.responses.create(model="tiny", input="hi", background=True)
    await poll(asking, queued.id)
    rest = await asking.responses.retrieve(queued.id, stream=True, starting_after=10_000)
    assert [event async for event in rest] == []


@pytest.mark.requirement("VN-72")
async def test_invalid_replay_is_rejected_before_the_stream(story: Any) -> None:
    server, asking = story
    with pytest.raises(openai.NotFoundError):
        await asking.responses.retrieve("resp_none", stream=True)
    plain = await asking.responses.create(model="tiny", input="hi")
    with pytest.raises(openai.BadRequestError, match="background=true"):
        await asking.responses.retrieve(plain.id, stream=True)
    assert (await server.get(f"responses/{plain.id}", starting_after=1)).status_code == 400


@pytest.mark.requirement("D-35", "D-36", "D-37")
async def test_cancelled_background_run_stops_and_stays_cancelled(
    serve: Serve, store: Store
) -> None:
    gate = asyncio.Event()
    server = serve(
        SteppedBackend([ANSWER, Text("one "), gate, Text("two"), Close(), finish()]), on=store
    )
    async with official_client(server.app) as asking, asyncio.timeout(60):
        queued = await asking.responses.create(model="tiny", input="hi", background=True)
        while not (observed := await asking.responses.retrieve(queued.id)).output:
            await asyncio.sleep(0)
        assert (observed.status, observed.output_text) == ("in_progress", "one ")
        cancelled = await asking.responses.cancel(queued.id)
        assert (cancelled.status, cancelled.output_text) == ("cancelled", "one ")
        assert cancelled.usage is None and cancelled.completed_at is None
        gate.set()
        assert await asking.responses.cancel(queued.id) == cancelled
        assert await asking.responses.retrieve(queued.id) == cancelled
        replay = await server.get(f"responses/{queued.id}", stream=True)
        assert replay.content.endswith(b"data: [DONE]\n\n")
        assert b"response.completed" not in replay.content
        with pytest.raises(openai.BadRequestError, match="cancelled"):
            await asking.responses.create(model="tiny", input="b", previous_response_id=queued.id)
        with pytest.raises(openai.NotFoundError):
            await asking.responses.cancel("resp_none")


@pytest.mark.requirement("D-36")
async def test_cancelling_a_finished_response_changes_nothing(story: Any) -> None:
    _, asking = story
    queued = await asking.responses.create(model="tiny", input="hi", background=True)
    ended = await poll(asking, queued.id)
    assert await asking.responses.cancel(queued.id) == ended


async def test_deleting_a_running_response(serve: Serve, store: Store) -> None:
    backend = SteppedBackend([ANSWER, Text("one "), asyncio.Event()])
    server = serve(backend, on=store)
    async with official_client(server.app) as asking, asyncio.timeout(60):
        queued = await asking.responses.create(model="tiny", input="hi", background=True)
        while not (await asking.responses.retrieve(queued.id)).output:
            await asyncio.sleep(0)
        await asking.responses.delete(queued.id)
        await backend.closed.wait()
        with pytest.raises(openai.NotFoundError):
            await asking.responses.retrieve(queued.id)


@pytest.mark.requirement("VN-73")
async def test_failed_run_fails_for_all_readers(serve: Serve, store: Store) -> None:
    breaks = BackendError("It broke.", permanent=True)  # otherwise the model is called again
    server = serve(SteppedBackend([ANSWER, Text("one "), breaks]), on=store)
    async with official_client(server.app) as asking, asyncio.timeout(60):
        queued = await asking.responses.create(model="tiny", input="hi", background=True)
        ended = await poll(asking, queued.id)
        assert ended.status == "failed" and ended.error is not None
        assert (ended.error.code, ended.error.message) == ("server_error", "It broke.")
        replay = await server.get(f"responses/{queued.id}", stream=True)
        assert b"event: response.failed" in replay.content


@pytest.mark.requirement("VN-12")
async def test_unstored_background_response_can_be_fetched_but_not_continued(story: Any) -> None:
    _, asking = story
    queued = await asking.responses.create(model="tiny", input="hi", background=True, store=False)
    ended = await poll(asking, queued.id)
    assert ended.output_text == STORY
    with pytest.raises(openai.BadRequestError) as rejection:
        await asking.responses.create(model="tiny", input="b", previous_response_id=queued.id)
    assert rejection.value.code == "previous_response_not_found"
    reference = {"type": "item_reference", "id": ended.output[0].id}
    with pytest.raises(openai.NotFoundError):
        await asking.responses.create(model="tiny", input=[reference])


async def test_unfinished_response_cannot_be_continued(serve: Serve, store: Store) -> None:
    server = serve(SteppedBackend([ANSWER, Text("one "), asyncio.Event()]), on=store)
    async with official_client(server.app) as asking, asyncio.timeout(60):
        queued = await asking.responses.create(model="tiny", input="hi", background=True)
        with pytest.raises(openai.BadRequestError, match="only a completed or incomplete"):
            await asking.responses.create(model="tiny", input="b", previous_response_id=queued.id)


@pytest.mark.requirement("D-37")
async def test_status_goes_from_queued_to_in_progress_to_terminal(
    serve: Serve, store: Store
) -> None:
    gate = asyncio.Event()
    steps = [ANSWER, Text("one "), gate, Text("two"), Close(), finish()]
    server = serve(SteppedBackend(steps), on=store)
    statuses: list[str] = []
    async with official_client(server.app) as asking, asyncio.timeout(60):
        found = await asking.responses.create(model="tiny", input="hi", background=True)
        while found.status in ("queued", "in_progress"):
            statuses += [found.status] if found.status not in statuses else []
            if found.output_text == "one ":
                gate.set()
            found = await asking.responses.retrieve(found.id)
            await asyncio.sleep(0)
    assert [*statuses, found.status] == ["queued", "in_progress", "completed"]
    assert found.output_text == "one two"


@pytest.mark.requirement("D-37")
async def test_list_has_the_status_that_a_response_has_now(serve: Serve, store: Store) -> None:
    gate = asyncio.Event()
    steps = [ANSWER, Text("one "), gate, Text("two"), Close(), finish()]
    server = serve(SteppedBackend(steps), on=store)

    async def listed(**filters: str) -> list[tuple[str, str]]:
        page = (await server.get("responses", **filters)).json()
        return [(each["id"], each["status"]) for each in page["data"]]

    async with official_client(server.app) as asking, asyncio.timeout(60):
        found = await asking.responses.create(model="tiny", input="hi", background=True)
        while found.output_text != "one ":
            found = await asking.responses.retrieve(found.id)
            await asyncio.sleep(0)
        running = [(found.id, "in_progress")]
        assert await listed() == await listed(status="in_progress") == running
        assert await listed(status="queued") == await listed(status="completed") == []
        gate.set()
        while found.status == "in_progress":
            found = await asking.responses.retrieve(found.id)
            await asyncio.sleep(0)
        assert await listed() == await listed(status="completed") == [(found.id, "completed")]


@pytest.mark.requirement("D-37")
async def test_failed_run_keeps_its_output(serve: Serve, store: Store) -> None:
    server = serve(SteppedBackend([ANSWER, Text("one "), KeyError("broken")]), on=store)
    async with official_client(server.app) as asking, asyncio.timeout(60):
        queued = await asking.responses.create(model="tiny", input="hi", background=True)
        failed = await poll(asking, queued.id)
    assert (failed.status, failed.output_text) == ("failed", "one ")
    assert failed.error is not None and failed.error.code == "server_error"


@pytest.mark.requirement("D-32")
@pytest.mark.parametrize("status", ["completed", "incomplete", "failed"])
async def test_replay_ends_at_any_terminal_event(serve: Serve, store: Store, status: str) -> None:
    ends: dict[str, list[Any]] = {
        "completed": [Close(), finish()],
        "incomplete": [Close(), finish("length")],
        "failed": [KeyError("broken")],
    }
    server = serve(SteppedBackend([ANSWER, Text("one "), *ends[status]]), on=store)
    async with official_client(server.app) as asking, asyncio.timeout(60):
        queued = await asking.responses.create(model="tiny", input="hi", background=True)
        await poll(asking, queued.id)
        replay = await server.get(f"responses/{queued.id}", stream=True)
        types = [event["type"] for event in oracle.stream(replay.content)]
    assert types[-1] == f"response.{status}"
    assert sum(kind.startswith(f"response.{status}") for kind in types) == 1
