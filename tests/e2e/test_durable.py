"""Background runs outlive their process: real servers are killed at random moments while readers
follow, and what the readers have in the end is what an undisturbed run says.

``pytest tests/e2e/test_durable.py --kills 50`` is the long form.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import signal
from contextlib import ExitStack
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from antiphon.stream.event_grammar import check
from antiphon.stream.fold import fold
from antiphon.wire.events import EVENTS, Event
from tests.child_processes import LINUX, descendants
from tests.e2e.server import Server, serving
from tests.real.postgres import Postgres

pytestmark = pytest.mark.e2e

#: Answers in which the model is sure of every word: where two words are as likely as each other,
#: arithmetic that depends on the shape of a batch may choose either.
PROMPTS = (
    "Count from 1 to 50, separated by commas.",
    "Repeat the word hello fifty times.",
)
#: An answer that a grammar constrains. The model is not sure of each value.
ANSWERS = {"type": "array", "items": {"type": "boolean"}, "minItems": 24, "maxItems": 24}
CONSTRAINED = {
    "input": "Which of the first 24 numbers are even? Answer with booleans.",
    "text": {
        "format": {
            "type": "json_schema",
            "name": "answers",
            "strict": True,
            "schema": {
                "type": "object",
                "properties": {"answers": ANSWERS},
                "required": ["answers"],
                "additionalProperties": False,
            },
        }
    },
}
_event = msgspec.json.Decoder(reduce(or_, EVENTS.values())).decode


class Reader:
    """Follow one response, from server to server."""

    def __init__(self, response_id: str) -> None:
        self.id = response_id
        self.events: list[dict[str, Any]] = []
        self.resumed = 0

    @property
    def last(self) -> int:
        return int(self.events[-1]["sequence_number"]) if self.events else -1

    @property
    def ended(self) -> bool:
        return bool(self.events) and self.events[-1]["type"] in (
            "response.completed",
            "response.incomplete",
        )

    async def follow(self, server: Server) -> None:
        """Read on from the last event until the stream or the server ends."""
        query = {"stream": "true"} | ({"starting_after": self.last} if self.events else {})
        try:
            async with (
                httpx.AsyncClient(timeout=60) as client,
                client.stream("GET", f"{server.url}/responses/{self.id}", params=query) as answer,
            ):
                assert answer.status_code == 200, await answer.aread()
                async for line in answer.aiter_lines():
                    if line.startswith("data: {"):
                        event = json.loads(line[6:])
                        if event["type"] != "keepalive":
                            self.events.append(event)
        except httpx.HTTPError:
            self.resumed += 1

    def check(self) -> str:
        """Check that no event is missing, doubled or out of order. Return the text."""
        numbers = [event["sequence_number"] for event in self.events]
        assert numbers == list(range(len(numbers)))
        events: list[Event] = [_event(json.dumps(event).encode()) for event in self.events]
        check(events)
        final = self.events[-1]["response"]
        assert self.ended, final["error"]
        assert msgspec.to_builtins(fold(events).output) == msgspec.to_builtins(
            events[-1].response.output  # type: ignore[attr-defined]
        )
        deltas = [e["delta"] for e in self.events if e["type"] == "response.output_text.delta"]
        text: str = final["output"][0]["content"][0]["text"]
        assert "".join(deltas) == text
        return text


def _create(prompt: str) -> dict[str, Any]:
    return {
        "model": "smollm2",
        "input": prompt,
        "temperature": 0,
        "max_output_tokens": 80,
    }


def _check_all(readers: list[Reader], expected: list[str]) -> None:
    """Check what each reader has in the end. The readers of one run follow each other."""
    texts = [reader.check() for reader in readers]
    assert texts[: 2 * len(PROMPTS)] == [text for text in expected for _ in range(2)]
    assert texts[-1] == texts[-2]
    assert len(json.loads(texts[-1])["answers"]) == 24


async def _uninterrupted_events(server: Server) -> list[str]:
    async with httpx.AsyncClient(timeout=120) as client:
        answers = [
            (await client.post(f"{server.url}/responses", json=_create(prompt))).json()
            for prompt in PROMPTS
        ]
    return [answer["output"][0]["content"][0]["text"] for answer in answers]


async def _start_run(server: Server) -> list[Reader]:
    readers: list[Reader] = []
    async with httpx.AsyncClient(timeout=60) as client:
        for request in (*map(_create, PROMPTS), {**_create(""), **CONSTRAINED}):
            body = {**request, "background": True}
            created = (await client.post(f"{server.url}/responses", json=body)).json()
            assert created["status"] == "queued"
            readers += [Reader(created["id"]), Reader(created["id"])]
    return readers


async def _read_until_killed(server: Server, readers: list[Reader], moment_s: float) -> None:
    following = [asyncio.create_task(reader.follow(server)) for reader in readers]
    await asyncio.sleep(moment_s)  # the moment of death is what is tried here
    server.kill()
    async with asyncio.timeout(60):
        await asyncio.gather(*following)


async def _read_to_the_end(server: Server, readers: list[Reader]) -> None:
    async with asyncio.timeout(120):
        await asyncio.gather(*(reader.follow(server) for reader in readers))


@pytest.mark.requirement("D-31", "API-DURABLE")
def test_run_survives_the_death_of_its_process(tmp_path: Path, kills: int) -> None:
    """One process over SQLite, started again each time."""
    dice = random.Random(kills)
    with serving(tmp_path) as server:
        expected = asyncio.run(_uninterrupted_events(server))
    resumed = 0
    while kills > 0:
        readers: list[Reader] = []
        while kills > 0 and not (readers and all(reader.ended for reader in readers)):
            with serving(tmp_path) as server:
                readers = readers or asyncio.run(_start_run(server))
                asyncio.run(_read_until_killed(server, readers, dice.uniform(0.0, 2.0)))
            kills -= 1
        with serving(tmp_path) as server:
            asyncio.run(_read_to_the_end(server, [r for r in readers if not r.ended]))
        _check_all(readers, expected)
        resumed += sum(reader.resumed for reader in readers)
    assert resumed, "nobody was ever interrupted"


@LINUX
@pytest.mark.requirement("API-DURABLE")
@pytest.mark.parametrize(
    ("settings", "victim"),
    [("", "server_program"), ("workers = 2", "server_program"), ("workers = 2", " host")],
)
def test_responses_survive_the_death_of_the_engine(
    tmp_path: Path, settings: str, victim: str, kills: int
) -> None:
    """Only a process that computes tokens is killed. Background runs, streams and plain requests
    go on: the text is that of an undisturbed response."""
    dice = random.Random(kills)
    with serving(tmp_path, settings) as server:
        expected = asyncio.run(_uninterrupted_events(server))
        for _ in range(kills):
            readers = asyncio.run(_start_run(server))
            answers = asyncio.run(
                _follow_beside_kill(server, readers, victim, dice.uniform(0.2, 2.0))
            )
            _check_all(readers, expected)
            assert answers == expected
        assert all(reader.resumed == 0 for reader in readers)


async def _follow_beside_kill(
    server: Server, readers: list[Reader], victim: str, moment_s: float
) -> list[str]:
    """Follow the readers, and send a plain request and a stream, while the process ``victim`` is
    killed. Returns the texts of both."""
    async with httpx.AsyncClient(timeout=120) as client, asyncio.timeout(120):
        url = f"{server.url}/responses"
        plain = asyncio.create_task(client.post(url, json=_create(PROMPTS[0])))
        stream = asyncio.create_task(client.post(url, json={**_create(PROMPTS[1]), "stream": True}))
        following = [asyncio.create_task(reader.follow(server)) for reader in readers]
        await asyncio.sleep(moment_s)  # the moment of death is what is tried here
        processes = descendants(server.process.pid)
        (pid,) = (pid for pid, command in processes.items() if command.endswith(victim))
        os.kill(pid, signal.SIGKILL)
        await asyncio.gather(*following)
        events = [
            json.loads(line[6:])
            for line in (await stream).text.splitlines()
            if line.startswith("data: {")
        ]
        responses = ((await plain).json(), events[-1]["response"])
    return [response["output"][0]["content"][0]["text"] for response in responses]


@pytest.mark.requirement("API-DURABLE", "API-MANY-PROCESSES")
def test_another_process_takes_over_a_run(tmp_path: Path, kills: int, database: Postgres) -> None:
    """Two processes over PostgreSQL, one of which is killed, and another started in its place;
    readers that lose theirs go on at the other one."""
    dice = random.Random(kills)
    store = asyncio.run(database.create_migrated_database())
    numbers = itertools.count()
    with ExitStack() as stack:

        def another() -> Server:
            folder = tmp_path / f"server{next(numbers)}"
            return stack.enter_context(serving(folder, "lease_s = 0.5", store=store))

        fleet = [another(), another()]
        expected = asyncio.run(_uninterrupted_events(fleet[0]))
        resumed = 0
        while kills > 0:
            readers = asyncio.run(_start_run(dice.choice(fleet)))
            while kills > 0 and not all(reader.ended for reader in readers):
                dice.shuffle(fleet)
                victim, survivor = fleet
                asyncio.run(
                    _read_until_one_is_killed(victim, survivor, readers, dice.uniform(0.0, 2.0))
                )
                fleet = [survivor, another()]
                kills -= 1
            asyncio.run(_read_to_the_end(fleet[0], [r for r in readers if not r.ended]))
            _check_all(readers, expected)
            resumed += sum(reader.resumed for reader in readers)
        assert resumed, "nobody was ever interrupted"


async def _read_until_one_is_killed(
    victim: Server, survivor: Server, readers: list[Reader], moment_s: float
) -> None:
    """Half of the readers follow at each server; those of the killed one continue at the other."""
    going = [reader for reader in readers if not reader.ended]
    lost = [asyncio.create_task(reader.follow(victim)) for reader in going[::2]]
    safe = [asyncio.create_task(reader.follow(survivor)) for reader in going[1::2]]
    await asyncio.sleep(moment_s)
    victim.kill()
    async with asyncio.timeout(60):
        await asyncio.gather(*lost)
    for task in safe:
        task.cancel()
    await asyncio.gather(*safe, return_exceptions=True)
