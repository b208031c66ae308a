"""The legal order of events, as tables, and a checker that compares a stream with the tables.

Theory. A stream of events is a path through state machines. There is one machine for the response,
and one for each open item, which the item's type selects. An edge says that an event is legal in a
state, and names the next state and the source, such as a specification or a recorded stream, that
allows the event. Events of different items may be interleaved in any way, because each of them
moves only its own machine. ``ANYWHERE`` contains the events that move none.

Beside the order, the checker verifies what the machines cannot express: sequence numbers without
gaps, indexes in order, unique item ids, and fields that must not change during an item.

The tables are written independently of ``KINDS`` and of the writer, from the sources alone. A test
compares the three, so a mistake in one of them is found. An event without an edge is a bug in
Antiphon, and raises ``GrammarError``. The page ``docs/events.md`` is generated from the tables.

Event names are written without the prefix ``response.``. Names of part events end in the type of
the part: ``content_part.added/refusal``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct, UnsetType

from antiphon.errors import GrammarError
from antiphon.wire import events as ev


class Edge(Struct, frozen=True):
    """An edge of a state machine. ``to``: the state after the event. ``source``: a key of
    ``SOURCES``. It says which document, such as a specification, allows the event."""

    to: str
    source: str


Machine = Mapping[tuple[str, str], Edge]

SOURCES: Mapping[str, str] = {
    "api": "OpenAI API reference, streaming events of the Responses API",
    "recorded": "recorded streams of OpenAI's hosted API",
    "or": "Open Responses specification 2026-04-24, streaming",
    "sdk": "openai Python SDK 3.52, types and stream helper",
    "antiphon": "our own decision, see docs/decisions.md",
}


def _machine(source: str, *edges: tuple[str, ...]) -> Machine:
    return {
        (edge[0], edge[1]): Edge(edge[2], edge[3] if len(edge) == 4 else source) for edge in edges
    }


#: Events that are legal at any time after ``created`` and change no state. Event name → source.
ANYWHERE: Mapping[str, str] = {"keepalive": "sdk"}

RESPONSE: Machine = _machine(
    "api",
    ("start", "created", "created"),
    ("created", "queued", "queued"),
    ("created", "in_progress", "running"),
    ("queued", "in_progress", "running"),
    ("running", "output_item.added", "running"),
    ("running", "output_item.done", "running"),
    ("running", "completed", "ended"),
    ("running", "incomplete", "ended"),
    ("running", "error", "failing", "recorded"),
    ("created", "error", "failing", "recorded"),
    ("queued", "error", "failing", "recorded"),
    ("failing", "failed", "ended", "or"),
)


def _part(
    name: str, part: str, state: str, *more: tuple[str, str, str]
) -> tuple[tuple[str, str, str], ...]:
    """Return the edges of an item's state machine for one content part. The first edge, for the
    event ``content_part.added``, leads from the state ``open`` to ``state``. The last edge, for the
    event ``content_part.done``, leads back to ``open``.

    ``name``: the name of the text events. ``part``: the type of the part. ``state``: the state
    while the text is written. ``more``: edges for other events between the first and the last
    edge, such as annotations.
    """
    return (
        ("open", f"content_part.added/{part}", state),
        (state, f"{name}.delta", state),
        *more,
        (state, f"{name}.done", f"{state} complete"),
        (f"{state} complete", f"content_part.done/{part}", "open"),
    )


_END = ("open", "output_item.done", "closed")


def _call_text(name: str, field: str) -> tuple[tuple[str, str, str], ...]:
    """Return the edges of an item's state machine for the events that stream the arguments, the
    input or the code of a call. A ``delta`` event keeps the item in the state ``open``. The
    ``done`` event leads to the state ``text complete``, from which the events about the execution
    of the call start. ``name`` and ``field``: the two parts of the events' name, such as
    ``mcp_call`` and ``_arguments``."""
    return (
        ("open", f"{name}{field}.delta", "open"),
        ("open", f"{name}{field}.done", "text complete"),
    )


def _summary(outer: str, state: str, *source: str) -> tuple[tuple[str, ...], ...]:
    """Return the edges for one part of a reasoning summary. The edges lead from the state ``outer``
    back to ``outer``. ``state``: the state while the part is written. ``source``: the ``source`` of
    these edges (see ``Edge``). Without it, the edges get the source of the whole machine."""
    return (
        (outer, "reasoning_summary_part.added", state, *source),
        (state, "reasoning_summary_text.delta", state, *source),
        (state, "reasoning_summary_text.done", f"{state} complete", *source),
        (f"{state} complete", "reasoning_summary_part.done", outer, *source),
    )


#: Item type → its machine, for types with events between ``added`` and ``done``.
ITEM: Mapping[str, Machine] = {
    "message": _machine(
        "recorded",
        *_part(
            "output_text",
            "output_text",
            "text",
            ("text", "output_text.annotation.added", "text"),
        ),
        *_part("refusal", "refusal", "refusal"),
        _END,
    ),
    "reasoning": _machine(
        "recorded",
        *_part("reasoning_text", "reasoning_text", "reasoning"),
        ("reasoning", "reasoning.delta", "reasoning", "or"),
        ("reasoning", "reasoning.done", "reasoning complete", "or"),
        *_summary("open", "summary"),
        *_summary("reasoning", "summary beside reasoning", "antiphon"),
        _END,
    ),
    "function_call": _machine(
        "recorded",
        *_call_text("function_call", "_arguments"),
        ("text complete", "output_item.done", "closed"),
    ),
    "custom_tool_call": _machine(
        "api",
        *_call_text("custom_tool_call", "_input"),
        ("text complete", "output_item.done", "closed"),
    ),
    "mcp_call": _machine(
        "api",
        ("open", "mcp_call.in_progress", "open"),
        *_call_text("mcp_call", "_arguments"),
        ("text complete", "mcp_call.completed", "finished"),
        ("text complete", "mcp_call.failed", "finished"),
        ("text complete", "output_item.done", "closed", "antiphon"),
        ("finished", "output_item.done", "closed"),
    ),
    "mcp_list_tools": _machine(
        "api",
        ("open", "mcp_list_tools.in_progress", "working"),
        ("working", "mcp_list_tools.completed", "finished"),
        ("working", "mcp_list_tools.failed", "finished"),
        ("working", "output_item.done", "closed", "antiphon"),
        ("finished", "output_item.done", "closed"),
        ("open", "output_item.done", "closed", "antiphon"),
    ),
    "code_interpreter_call": _machine(
        "recorded",
        ("open", "code_interpreter_call.in_progress", "open"),
        *_call_text("code_interpreter_call", "_code"),
        ("text complete", "code_interpreter_call.interpreting", "working"),
        ("working", "code_interpreter_call.completed", "finished"),
        ("text complete", "output_item.done", "closed", "antiphon"),
        ("working", "output_item.done", "closed", "antiphon"),
        ("finished", "output_item.done", "closed"),
    ),
    "web_search_call": _machine(
        "recorded",
        ("open", "web_search_call.in_progress", "in_progress"),
        ("in_progress", "web_search_call.searching", "working"),
        ("working", "web_search_call.completed", "finished"),
        ("finished", "output_item.done", "closed"),
        ("open", "output_item.done", "closed", "antiphon"),
        ("in_progress", "output_item.done", "closed", "antiphon"),
        ("working", "output_item.done", "closed", "antiphon"),
    ),
    "file_search_call": _machine(
        "api",
        ("open", "file_search_call.in_progress", "in_progress"),
        ("in_progress", "file_search_call.searching", "working"),
        ("working", "file_search_call.completed", "finished"),
        ("finished", "output_item.done", "closed"),
        ("open", "output_item.done", "closed", "antiphon"),
        ("in_progress", "output_item.done", "closed", "antiphon"),
        ("working", "output_item.done", "closed", "antiphon"),
    ),
    "image_generation_call": _machine(
        "api",
        ("open", "image_generation_call.in_progress", "in_progress"),
        ("in_progress", "image_generation_call.generating", "working"),
        ("working", "image_generation_call.partial_image", "working"),
        ("working", "image_generation_call.completed", "finished"),
        ("finished", "output_item.done", "closed"),
        ("open", "output_item.done", "closed", "antiphon"),
        ("in_progress", "output_item.done", "closed", "antiphon"),
        ("working", "output_item.done", "closed", "antiphon"),
    ),
    "shell_call": _machine(
        "api",
        ("open", "shell_call_command.added", "command"),
        ("command", "shell_call_command.delta", "command"),
        ("command", "shell_call_command.done", "open"),
        _END,
        ("command", "output_item.done", "closed", "antiphon"),
    ),
    "shell_call_output": _machine(
        "api",
        ("open", "shell_call_output_content.delta", "open"),
        ("open", "shell_call_output_content.done", "open"),
        _END,
    ),
    "compaction": _machine("api", ("open", "compaction.compacting", "open"), _END),
}

#: The machine of all other item types. They have no events between ``added`` and ``done``.
PLAIN_ITEM: Machine = _machine("api", _END)


class _OpenItem(Struct):
    """An item whose ``output_item.done`` event has not been read yet. ``machine`` and ``state``:
    its state machine and the current state. ``parts`` and ``summaries``: how many content parts and
    summary parts were added."""

    machine: Machine
    id: str
    call_id: str | UnsetType | None
    state: str = "open"
    parts: int = 0
    summaries: int = 0


class Checker:
    """Checks a stream event by event. Raises ``GrammarError`` at the first event that is not legal.

    The checker also checks numbers and ids. Sequence numbers must have no gaps. Each new item and
    each new part must have the next index. Two items must not have the same id, and the ids of an
    item must not change.
    """

    def __init__(self, first_number: int = 0) -> None:
        self._state = "start"
        self._number = first_number
        self._items: dict[int, _OpenItem] = {}
        self._count = 0
        self._ids: set[str] = set()
        self._response_id: str | None = None

    def feed(self, event: ev.Event) -> None:
        """Check the next event."""
        name = _name(event)
        self._expect(event.sequence_number == self._number, name, "wrong sequence number")
        self._number += 1
        if name in ANYWHERE:
            legal = self._state not in ("start", "ended")
            self._expect(legal, name, f"not allowed in state {self._state}")
            return
        if isinstance(event, ev.OutputItemAdded):
            self._item_added(event)
        elif (index := getattr(event, "output_index", None)) is not None:
            self._item_event(name, index, event)
            if not isinstance(event, ev.OutputItemDone):
                running = self._state == "running"
                self._expect(running, name, f"not allowed in state {self._state}")
                return
        if (edge := RESPONSE.get((self._state, name))) is None:
            raise GrammarError(f"{name}: not allowed in state {self._state}")
        self._state = edge.to
        self._check_envelope(name, event)

    def _check_envelope(self, name: str, event: ev.Event) -> None:
        response = getattr(event, "response", None)
        if response is None:
            return
        self._expect(self._response_id in (None, response.id), name, "the response id changed")
        self._response_id = response.id
        if self._state == "ended":
            self._expect(not self._items, name, "items are still open")
            self._expect(len(response.output) == self._count, name, "items are missing in output")
            self._expect(response.status == name, name, "the status differs from the event")

    def _item_added(self, event: ev.OutputItemAdded) -> None:
        item = event.item
        name = "output_item.added"
        self._expect(event.output_index == self._count, name, "wrong output index")
        self._expect(bool(item.id), name, "the item has no id")
        self._expect(item.id not in self._ids, name, "another item has this id")
        self._ids.add(item.id)
        self._count += 1
        machine = ITEM.get(item.type, PLAIN_ITEM)
        self._items[event.output_index] = _OpenItem(machine, item.id, item.call_id)

    def _item_event(self, name: str, index: int, event: ev.Event) -> None:
        item = self._items.get(index)
        if item is None:
            raise GrammarError(f"{name}: no item is open at output index {index}")
        if (edge := item.machine.get((item.state, name))) is None:
            raise GrammarError(f"{name}: not allowed in state {item.state} of {item.id}")
        item.state = edge.to
        self._check_indices(name, item, event)
        if isinstance(event, ev.OutputItemDone):
            same = event.item.call_id == item.call_id
            self._expect(event.item.id == item.id and same, name, "the item's ids changed")
            del self._items[index]
        else:
            self._expect(getattr(event, "item_id", item.id) == item.id, name, "wrong item id")

    def _check_indices(self, name: str, item: _OpenItem, event: ev.Event) -> None:
        if name.startswith("content_part.added"):
            item.parts += 1
        elif name == "reasoning_summary_part.added":
            item.summaries += 1
        part = getattr(event, "content_index", None)
        self._expect(part is None or part == item.parts - 1, name, "wrong content index")
        summary = getattr(event, "summary_index", None)
        is_last = summary is None or summary == item.summaries - 1
        self._expect(is_last, name, "wrong summary index")

    def _expect(self, condition: bool, name: str, problem: str) -> None:
        if not condition:
            raise GrammarError(f"{name}: {problem}")


def _name(event: ev.Event) -> str:
    name = str(event.__struct_config__.tag).removeprefix("response.")
    if name.startswith("content_part."):
        return f"{name}/{event.part.__struct_config__.tag}"  # type: ignore[attr-defined]
    return name


def check(events: Iterable[ev.Event]) -> None:
    """Check the events of a stream, or the first events of a stream. Raises ``GrammarError``."""
    checker = Checker()
    for event in events:
        checker.feed(event)
