"""A golden: one file per story, with the request, the model's chunks, the events and the response.

A line separates the turns of the model. Code and commands run in fake boxes; see
``tests/conformance/fake_containers.py``. Images come from
``tests/tools/image_generation/fake_generator.py``, searches and MCP from ``tooled``. At ``wait``
the client disconnects. A model that is ``late`` has
tools with a very short time limit.

The events are one line each, so that a diff in review shows the change of behaviour.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from antiphon.runs.dependencies import OptionalFeatures, RunDependencies
from antiphon.runs.policy import Policy
from antiphon.runs.service import Service
from antiphon.runs.tool_loop.executor import ToolLimits
from antiphon.sandbox.base import ExecutionResult, Limits, OutputCallback
from antiphon.stream.event_grammar import check
from antiphon.testing.memory_store.store import MemoryStore
from antiphon.testing.sandbox import FakeBox, FakeSandbox
from antiphon.tools.code_interpreter import CodeInterpreterProvider
from antiphon.tools.shell import ShellProvider
from antiphon.wire import events as ev
from antiphon.wire.parsing.requests import parse_create_response
from antiphon.wire.response import Response
from tests.conformance.fake_containers import containers
from tests.conformance.fake_containers import run_command as line
from tests.golden.models import backend
from tests.golden.programs import programs
from tests.golden.tooled import ScriptedWords
from tests.runs.scripted_service import RecordingSink
from tests.tools.image_generation.fake_generator import FakeImageGenerator, image_provider

RULE = "----------"
TURN = "\n==========\n"
FOLDER = Path(__file__).parent / "stories"
#: Separates chunks. Control tokens contain the character too.
_BORDER = re.compile(r"(?<!<)\|(?!>)")


class Story(Struct):
    """A parsed file. ``model`` is the first line, after ``# ``."""

    path: Path
    model: str
    request: str
    turns: list[list[str]]
    events: str
    response: str


class StoryModels(Struct):
    """The only model of a story."""

    backend: Any
    name: str = "scripted"
    aliases: tuple[str, ...] = ()
    created: int = 0
    defaults: dict[str, Any] = {}
    thinking_budgets: dict[str, int] = {}
    instructions: str | None = None

    def find(self, name: str | None) -> StoryModels:
        return self

    def all(self) -> tuple[StoryModels, ...]:
        return (self,)


def read(path: Path) -> Story:
    sections = path.read_text().split(f"{RULE}\n")
    head, request = sections[0].split("\n", 1)
    output = sections[1].removesuffix("\n")
    turns = [_BORDER.split(turn) if turn.strip("\n") else [] for turn in output.split(TURN)]
    events, response = (*sections[2:], "", "")[:2]
    return Story(path, head.removeprefix("# "), request, turns, events, response)


class Played(Struct):
    """The result of a story."""

    events: list[ev.Event]
    response: Response


async def play(story: Story, turns: Sequence[Sequence[str]]) -> Played:
    """Run the story's request while the model writes these chunks."""
    numbers = itertools.count(1)
    sandbox, painter, words = _Leaving(), FakeImageGenerator(), ScriptedWords()
    container_pool = containers(sandbox)
    model, _, late = story.model.partition(" ")
    service = Service(
        RunDependencies(
            models=StoryModels(backend(model, turns)),
            store=MemoryStore(),
            clock=lambda: 1000.0,
            ids=lambda prefix: f"{prefix}_{next(numbers)}",
            policy=Policy(
                keepalive_s=0, tool_limits=ToolLimits(call_timeout_s=0.05 if late else 60)
            ),
        ),
        OptionalFeatures(
            providers={
                "code_interpreter": CodeInterpreterProvider(container_pool),
                "shell": ShellProvider(container_pool),
                "image_generation": image_provider(painter),
                **programs(),
                **words.providers(),
            },
            containers=container_pool,
        ),
    )
    request = parse_create_response(
        json.dumps({"model": "scripted", **json.loads(story.request)}).encode()
    )
    run = await service.create("tenant", request)
    sink = RecordingSink()
    driving = asyncio.create_task(run.drive(sink))
    painter.leave = words.leave = driving.cancel
    sandbox.leave = driving.cancel
    await asyncio.wait({driving}, timeout=60)
    await service.drain(5)
    check(sink.events)
    return Played(sink.events, run.response)


class _Box(FakeBox):
    def __init__(self, leave: Callable[[], object]) -> None:
        super().__init__(line, Limits())
        self._leave = leave

    async def python(self, code: str, *, timeout_s: float, max_chars: int) -> ExecutionResult:
        await self._wait(code)
        return await super().python(code, timeout_s=timeout_s, max_chars=max_chars)

    async def command(
        self,
        command: str,
        *,
        timeout_s: float,
        max_chars: int,
        on_output: OutputCallback | None = None,
    ) -> ExecutionResult:
        await self._wait(command)
        return await super().command(
            command, timeout_s=timeout_s, max_chars=max_chars, on_output=on_output
        )

    async def _wait(self, text: str) -> None:
        if text == "wait":
            self._leave()
            await asyncio.Event().wait()


class _Leaving(FakeSandbox):
    """Boxes in which the client may disconnect."""

    def __init__(self) -> None:
        super().__init__(line)
        self.leave: Callable[[], object] = lambda: None

    async def open(self, limits: Limits) -> FakeBox:
        return _Box(lambda: self.leave())


def render_events(events: Sequence[ev.Event]) -> str:
    """Return the events, one line each."""
    return "".join(f"{_line(event)}\n" for event in events)


def _line(event: ev.Event) -> str:
    name = str(event.__struct_config__.tag).removeprefix("response.")
    parts = [f"{event.sequence_number:>3} {name:<32}", *_item_position(event), *_event_facts(event)]
    return " ".join(parts).rstrip()


def _item_position(event: ev.Event) -> list[str]:
    index = getattr(event, "output_index", None)
    if index is None:
        return []
    part = getattr(event, "content_index", getattr(event, "summary_index", None))
    item = getattr(event, "item", None)
    owner = item.id if item is not None else getattr(event, "item_id", "")
    return [owner, f"@{index}" + (f".{part}" if part is not None else "")]


def _event_facts(event: ev.Event) -> list[str]:
    match event:
        case ev.OutputItemAdded(item=item) | ev.OutputItemDone(item=item):
            facts = [item.type]
            fields = ("status", "name", "call_id")
            facts += [getattr(item, name) for name in fields if name in item.__struct_fields__]
            return [fact for fact in facts if fact]
        case ev.ContentPartAdded(part=part) | ev.ContentPartDone(part=part):
            return [str(part.__struct_config__.tag)]
        case ev.ImageGenerationCallPartialImage(partial_image_index=index, size=size):
            return [str(index), str(size)]
        case ev.Error(code=code, message=message):
            return [code, json.dumps(message)]
    for field in ("delta", "text", "arguments", "input", "refusal", "code", "command", "output"):
        if hasattr(event, field):
            count = len(getattr(event, "logprobs", ()))
            value = json.dumps(getattr(event, field), ensure_ascii=False)
            return [value, f"({count} logprobs)"] if count else [value]
    if (response := getattr(event, "response", None)) is not None:
        return [response.status]
    return []


def render_response(response: Response) -> str:
    """Return the response without the echo of the request."""
    raw = json.loads(msgspec.json.encode(response))
    names = ("status", "incomplete_details", "error", "output", "usage")
    return json.dumps(
        {n: raw[n] for n in names if raw[n] is not None}, indent=1, ensure_ascii=False
    )


def write(story: Story, played: Played) -> None:
    turns = TURN.join("|".join(chunks) for chunks in story.turns)
    events, response = render_events(played.events), render_response(played.response)
    story.path.write_text(
        f"# {story.model}\n{story.request}{RULE}\n{turns}\n{RULE}\n{events}{RULE}\n{response}\n"
    )
