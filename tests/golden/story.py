"""A golden: one file a story. Request, chunks of the model, events, response.

The events are one line each, so that a diff in review is the change of behaviour.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from antiphon.runs.service import Policy, Service
from antiphon.store.memory import MemoryStore
from antiphon.stream.grammar import check
from antiphon.wire import events as ev
from antiphon.wire.decode import create_response
from antiphon.wire.response import Response
from tests.golden.models import backend
from tests.runs.served import events_of

RULE = "----------"
FOLDER = Path(__file__).parent / "stories"
#: Between chunks; control tokens have it too.
_BORDER = re.compile(r"(?<!<)\|(?!>)")


class Story(Struct):
    """A file, read. ``model`` is the first line, behind ``# ``."""

    path: Path
    model: str
    request: str
    chunks: list[str]
    events: str
    response: str


class Served(Struct):
    """The one model of a story."""

    backend: Any
    name: str = "scripted"
    aliases: tuple[str, ...] = ()
    context_size: int | None = 4096
    created: int = 0
    defaults: dict[str, Any] = {}
    thinking_budgets: dict[str, int] = {}

    def find(self, name: str | None) -> Served:
        return self

    def all(self) -> tuple[Served, ...]:
        return (self,)

    async def ready(self) -> None: ...


def read(path: Path) -> Story:
    sections = path.read_text().split(f"{RULE}\n")
    head, request = sections[0].split("\n", 1)
    chunks = _BORDER.split(sections[1].removesuffix("\n")) if sections[1].strip("\n") else []
    events, response = (*sections[2:], "", "")[:2]
    return Story(path, head.removeprefix("# "), request, chunks, events, response)


async def play(story: Story, chunks: Sequence[str]) -> list[ev.Event]:
    """The events of the story's request when the model says ``chunks``."""
    numbers = itertools.count(1)
    service = Service(
        Served(backend(story.model, chunks)),
        MemoryStore(),
        policy=Policy(keepalive_s=0),
        clock=lambda: 1000.0,
        ids=lambda prefix: f"{prefix}_{next(numbers)}",
    )
    request = create_response(
        json.dumps({"model": "scripted", **json.loads(story.request)}).encode()
    )
    run = await service.create("tenant", request)
    events = await events_of(run)
    await service.drain(5)
    check(events)
    return events


def told(events: Sequence[ev.Event]) -> str:
    """The events, one line each."""
    return "".join(f"{_line(event)}\n" for event in events)


def _line(event: ev.Event) -> str:
    name = str(event.__struct_config__.tag).removeprefix("response.")
    said = [f"{event.sequence_number:>3} {name:<32}", *_place(event), *_said(event)]
    return " ".join(said).rstrip()


def _place(event: ev.Event) -> list[str]:
    index = getattr(event, "output_index", None)
    if index is None:
        return []
    part = getattr(event, "content_index", getattr(event, "summary_index", None))
    item = getattr(event, "item", None)
    owner = item.id if item is not None else getattr(event, "item_id", "")
    return [owner, f"@{index}" + (f".{part}" if part is not None else "")]


def _said(event: ev.Event) -> list[str]:
    match event:
        case ev.OutputItemAdded(item=item) | ev.OutputItemDone(item=item):
            facts = [str(item.__struct_config__.tag), getattr(item, "status", "")]
            facts += [getattr(item, name) for name in ("name", "call_id") if hasattr(item, name)]
            return [fact for fact in facts if fact]
        case ev.ContentPartAdded(part=part) | ev.ContentPartDone(part=part):
            return [str(part.__struct_config__.tag)]
        case ev.Error(code=code, message=message):
            return [code, json.dumps(message)]
    for field in ("delta", "text", "arguments", "input", "refusal"):
        if hasattr(event, field):
            count = len(getattr(event, "logprobs", ()))
            shown = json.dumps(getattr(event, field), ensure_ascii=False)
            return [shown, f"({count} logprobs)"] if count else [shown]
    if (response := getattr(event, "response", None)) is not None:
        return [response.status]
    return []


def final(events: Sequence[ev.Event]) -> Response:
    response: Response = events[-1].response  # type: ignore[attr-defined]
    return response


def shown(response: Response) -> str:
    """What came out, without the echo of the request."""
    raw = json.loads(msgspec.json.encode(response))
    names = ("status", "incomplete_details", "error", "output", "usage")
    return json.dumps(
        {n: raw[n] for n in names if raw[n] is not None}, indent=1, ensure_ascii=False
    )


def write(story: Story, events: Sequence[ev.Event]) -> None:
    chunks = "|".join(story.chunks)
    story.path.write_text(
        f"# {story.model}\n{story.request}{RULE}\n{chunks}\n{RULE}\n{told(events)}{RULE}\n"
        f"{shown(final(events))}\n"
    )
