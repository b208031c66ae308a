"""The grammar: which event may follow which, as tables, and a checker that holds a stream to them.

Two rules for this file: everything that says what is legal is in a table here, each edge with its
source; and it knows nothing of the writer, so that the two can be compared. One machine runs for
the response and one for each item, chosen by the item's type. A look-up that fails is a violation:
our bug, ``GrammarError``. Events are named without their ``response.`` prefix; a part is named
with its type, ``content_part.added/refusal``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct

from antiphon.errors import GrammarError
from antiphon.wire import events as ev

__all__ = [
    "ANYWHERE",
    "ITEM",
    "PLAIN_ITEM",
    "RESPONSE",
    "SOURCES",
    "Checker",
    "Edge",
    "Machine",
    "check",
]


class Edge(Struct, frozen=True):
    """Where an event leads, and who says that it may come here (a key of ``SOURCES``)."""

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


def _machine(source: str, *edges: tuple[str, str, str] | tuple[str, str, str, str]) -> Machine:
    return {
        (edge[0], edge[1]): Edge(edge[2], edge[3] if len(edge) == 4 else source) for edge in edges
    }


#: May come at any moment after ``created`` and changes nothing.
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
    """The ladder of one part: added, deltas, the whole, done; back to ``open``."""
    return (
        ("open", f"content_part.added/{part}", state),
        (state, f"{name}.delta", state),
        *more,
        (state, f"{name}.done", f"{state} whole"),
        (f"{state} whole", f"content_part.done/{part}", "open"),
    )


_END = ("open", "output_item.done", "closed")


def _call_text(name: str, field: str) -> tuple[tuple[str, str, str], ...]:
    """A call: its text streams, is whole, and then the tool may work."""
    return (
        ("open", f"{name}{field}.delta", "open"),
        ("open", f"{name}{field}.done", "said"),
    )


_SUMMARY = (
    ("open", "reasoning_summary_part.added", "summary"),
    ("summary", "reasoning_summary_text.delta", "summary"),
    ("summary", "reasoning_summary_text.done", "summary whole"),
    ("summary whole", "reasoning_summary_part.done", "open"),
)

#: A machine for each item type whose events are more than ``added`` and ``done``.
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
        *_part("reasoning_text", "reasoning_text", "thinking"),
        ("thinking", "reasoning.delta", "thinking", "or"),
        ("thinking", "reasoning.done", "thinking whole", "or"),
        *_SUMMARY,
        _END,
    ),
    "function_call": _machine(
        "recorded",
        *_call_text("function_call", "_arguments"),
        ("said", "output_item.done", "closed"),
    ),
    "custom_tool_call": _machine(
        "api",
        *_call_text("custom_tool_call", "_input"),
        ("said", "output_item.done", "closed"),
    ),
    "mcp_call": _machine(
        "api",
        ("open", "mcp_call.in_progress", "open"),
        *_call_text("mcp_call", "_arguments"),
        ("said", "mcp_call.completed", "over"),
        ("said", "mcp_call.failed", "over"),
        ("said", "output_item.done", "closed", "antiphon"),
        ("over", "output_item.done", "closed"),
    ),
    "mcp_list_tools": _machine(
        "api",
        ("open", "mcp_list_tools.in_progress", "working"),
        ("working", "mcp_list_tools.completed", "over"),
        ("working", "mcp_list_tools.failed", "over"),
        ("working", "output_item.done", "closed", "antiphon"),
        ("over", "output_item.done", "closed"),
        ("open", "output_item.done", "closed", "antiphon"),
    ),
    "code_interpreter_call": _machine(
        "recorded",
        ("open", "code_interpreter_call.in_progress", "open"),
        *_call_text("code_interpreter_call", "_code"),
        ("said", "code_interpreter_call.interpreting", "working"),
        ("working", "code_interpreter_call.completed", "over"),
        ("said", "output_item.done", "closed", "antiphon"),
        ("working", "output_item.done", "closed", "antiphon"),
        ("over", "output_item.done", "closed"),
    ),
    "web_search_call": _machine(
        "recorded",
        ("open", "web_search_call.in_progress", "begun"),
        ("begun", "web_search_call.searching", "working"),
        ("working", "web_search_call.completed", "over"),
        ("over", "output_item.done", "closed"),
        ("open", "output_item.done", "closed", "antiphon"),
        ("begun", "output_item.done", "closed", "antiphon"),
        ("working", "output_item.done", "closed", "antiphon"),
    ),
    "file_search_call": _machine(
        "api",
        ("open", "file_search_call.in_progress", "begun"),
        ("begun", "file_search_call.searching", "working"),
        ("working", "file_search_call.completed", "over"),
        ("over", "output_item.done", "closed"),
        ("open", "output_item.done", "closed", "antiphon"),
        ("begun", "output_item.done", "closed", "antiphon"),
        ("working", "output_item.done", "closed", "antiphon"),
    ),
    "image_generation_call": _machine(
        "api",
        ("open", "image_generation_call.in_progress", "begun"),
        ("begun", "image_generation_call.generating", "working"),
        ("working", "image_generation_call.partial_image", "working"),
        ("working", "image_generation_call.completed", "over"),
        ("over", "output_item.done", "closed"),
        ("open", "output_item.done", "closed", "antiphon"),
        ("begun", "output_item.done", "closed", "antiphon"),
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

#: Every other item type: nothing between ``added`` and ``done``.
PLAIN_ITEM: Machine = _machine("api", _END)


class _OpenItem(Struct):
    """An item between ``added`` and ``done``: its machine, where that stands, and its parts."""

    machine: Machine
    id: str
    call_id: str | None
    state: str = "open"
    parts: int = 0
    summaries: int = 0


class Checker:
    """Follows a stream and raises ``GrammarError`` at the first event that may not be there.

    Beside the tables it holds numbers to what they mean: sequence numbers without gaps, each new
    item at the next index, parts at theirs, one id an item for life.
    """

    def __init__(self, number: int = 0) -> None:
        self._state = "start"
        self._number = number
        self._items: dict[int, _OpenItem] = {}
        self._count = 0
        self._ids: set[str] = set()
        self._response_id: str | None = None

    @property
    def ended(self) -> bool:
        """The terminal event has come."""
        return self._state == "ended"

    def feed(self, event: ev.Event) -> None:
        """Check the next event."""
        name = _name(event)
        self._expect(event.sequence_number == self._number, name, "sequence number")
        self._number += 1
        if name in ANYWHERE:
            self._expect(self._state not in ("start", "ended"), name, f"in state {self._state}")
            return
        if isinstance(event, ev.OutputItemAdded):
            self._item_added(event)
        elif (index := getattr(event, "output_index", None)) is not None:
            self._item_event(name, index, event)
            if not isinstance(event, ev.OutputItemDone):
                self._expect(self._state == "running", name, f"in state {self._state}")
                return
        if (edge := RESPONSE.get((self._state, name))) is None:
            raise GrammarError(f"{name} may not come in state {self._state}")
        self._state = edge.to
        self._check_envelope(name, event)

    def _check_envelope(self, name: str, event: ev.Event) -> None:
        response = getattr(event, "response", None)
        if response is None:
            return
        self._expect(self._response_id in (None, response.id), name, "response id changed")
        self._response_id = response.id
        if self._state == "ended":
            self._expect(not self._items, name, "items still open")
            self._expect(len(response.output) == self._count, name, "items missing")
            self._expect(response.status == name, name, "status")

    def _item_added(self, event: ev.OutputItemAdded) -> None:
        item = event.item
        self._expect(event.output_index == self._count, "output_item.added", "output index")
        self._expect(bool(item.id) and item.id not in self._ids, "output_item.added", "item id")
        self._ids.add(item.id)
        self._count += 1
        tag = str(item.__struct_config__.tag)
        self._items[event.output_index] = _OpenItem(
            ITEM.get(tag, PLAIN_ITEM), item.id, getattr(item, "call_id", None)
        )

    def _item_event(self, name: str, index: int, event: ev.Event) -> None:
        item = self._items.get(index)
        if item is None:
            raise GrammarError(f"{name} at index {index}, where no item is open")
        if (edge := item.machine.get((item.state, name))) is None:
            raise GrammarError(f"{name} may not come in state {item.state} of {item.id}")
        item.state = edge.to
        self._check_indices(name, item, event)
        if isinstance(event, ev.OutputItemDone):
            same = getattr(event.item, "call_id", None) == item.call_id
            self._expect(event.item.id == item.id and same, name, "ids changed")
            del self._items[index]
        else:
            self._expect(getattr(event, "item_id", item.id) == item.id, name, "item id")

    def _check_indices(self, name: str, item: _OpenItem, event: ev.Event) -> None:
        if name.startswith("content_part.added"):
            item.parts += 1
        elif name == "reasoning_summary_part.added":
            item.summaries += 1
        part = getattr(event, "content_index", None)
        self._expect(part is None or part == item.parts - 1, name, "content index")
        summary = getattr(event, "summary_index", None)
        self._expect(summary is None or summary == item.summaries - 1, name, "summary index")

    def _expect(self, holds: bool, name: str, what: str) -> None:
        if not holds:
            raise GrammarError(f"{name}: {what}")


def _name(event: ev.Event) -> str:
    name = str(event.__struct_config__.tag).removeprefix("response.")
    if name.startswith("content_part."):
        return f"{name}/{event.part.__struct_config__.tag}"  # type: ignore[attr-defined]
    return name


def check(events: Iterable[ev.Event]) -> None:
    """Check a whole stream, or a prefix of one. Raises ``GrammarError``."""
    checker = Checker()
    for event in events:
        checker.feed(event)
