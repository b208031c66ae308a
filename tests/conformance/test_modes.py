"""All modes answer alike: the same items, usage, status and error, however a request is sent.

The other tests with the fixture ``ask`` run in two of the modes each, or in all with
``--every-mode``; this law holds them together.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from antiphon.backends.base import Backend
from antiphon.backends.scripted_backend import ScriptedBackend
from antiphon.stream.deltas import Delta
from tests.conformance.conftest import Serve
from tests.conformance.scripts import TOOL, call, finish, message_deltas, reasoning_deltas
from tests.conformance.server import MODES, Answer, Json, engine, local, send_in_mode

#: Fields that differ by what was asked for, not by what was answered.
ASKED = {"background": None, "created_at": None, "completed_at": None}


def deltas(*parts: list[Delta], reason: Any = "stop") -> Callable[[], Backend]:
    script = [delta for part in parts for delta in part]
    return lambda: ScriptedBackend([[*script, finish(reason)]])


def model(*replies: str) -> Callable[[], Backend]:
    return lambda: local(engine(list(replies)))


CASES: dict[str, tuple[Callable[[], Backend], Json]] = {
    "text": (deltas(message_deltas("One ", "answer.")), {}),
    "several items": (
        deltas(reasoning_deltas("Hm."), message_deltas("First."), call('{"city": "Paris"}')),
        {"tools": [TOOL]},
    ),
    "parallel calls": (
        deltas(call('{"city": "Paris"}', call_id="a"), call('{"city": "Rome"}', call_id="b")),
        {"tools": [TOOL], "tool_choice": "required"},
    ),
    "nothing": (deltas(), {}),
    "length": (deltas(message_deltas("cut"), reason="length"), {}),
    "content filter": (deltas(message_deltas("cut"), reason="content_filter"), {}),
    "written by a model": (
        model("<think>\nWeather.\n</think>\n\nSunny."),
        {"include": ["message.output_text.logprobs"], "top_logprobs": 2},
    ),
    "limit of tokens": (model("One two three four five six."), {"max_output_tokens": 16}),
    "failure": (model("One two!"), {"input": "x" * 1_000_000}),
    "field": (deltas(message_deltas("a")), {"temperature": 3}),
    "tool": (deltas(message_deltas("a")), {"tools": [{"type": "no_tool"}]}),
    "chain": (deltas(message_deltas("a")), {"previous_response_id": "resp_none"}),
}


@pytest.mark.parametrize("case", CASES)
async def test_modes_answer_alike(serve: Serve, case: str) -> None:
    make_backend, body = CASES[case]
    answers = {
        mode: _comparable(await send_in_mode(mode, serve(make_backend()), {"input": "hi", **body}))
        for mode in MODES
    }
    plain = answers.pop("plain")
    assert answers == dict.fromkeys(answers, plain)


def _comparable(answer: Answer) -> object:
    """Return what must be equal, with ids numbered by appearance."""
    if answer.response is None:
        return answer.http, answer.error
    numbers: dict[str, str] = {}

    def number(found: re.Match[str]) -> str:
        return numbers.setdefault(found.group(), f"{found.group(1)}_{len(numbers)}")

    return re.sub(r"\b([a-z]+)_\d+\b", number, repr({**answer.response, **ASKED}))
