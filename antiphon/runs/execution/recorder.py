"""Records a run: turns deltas into items of the response, and stores the token ids that the model
sampled."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from antiphon.errors import BackendError
from antiphon.stream.deltas import (
    Annotate,
    Checkpoint,
    Close,
    Delta,
    Finish,
    FinishReason,
    NewPrompt,
    Open,
    Progress,
    SampledTokens,
    Summary,
    Text,
)
from antiphon.stream.kinds import KINDS
from antiphon.stream.writer import ItemWriter, ResponseWriter
from antiphon.wire.items import (
    Compaction,
    Item,
    ItemBase,
    McpListTools,
    Message,
    Reasoning,
    is_model_call,
)
from antiphon.wire.response import Usage

from .steering import waiting_items
from .token_log import append_prompt

#: The usage of tools that were not used: OpenAI reports zeros (``Response.tool_usage``).
_NO_TOOL_USAGE: Mapping[str, Any] = {
    "image_gen": {
        "input_tokens": 0,
        "input_tokens_details": {"image_tokens": 0, "text_tokens": 0},
        "output_tokens": 0,
        "total_tokens": 0,
    },
    "web_search": {"num_requests": 0},
}

#: Items that do not answer the client.
_SILENT_TYPES = frozenset({Compaction, McpListTools, Reasoning})

#: Returns fields to set on a reasoning item that the model has finished. They override the
#: backend's fields.
ReasoningFields = Callable[[Reasoning], Mapping[str, Any]]


class _DiscardingWriter:
    """Replaces the ``ItemWriter`` of an item that is hidden from the client. It discards the
    text."""

    def write(self, *text: object) -> None: ...

    def add_summary(self, text: str) -> None: ...

    def annotate(self, annotation: object) -> None: ...

    def progress(self, name: str, **fields: object) -> None: ...


class Recorder:
    """Records the deltas of one run into a response.

    ``reasoning_fields``: returns fields to set on a finished reasoning item. ``hidden_types``: item
    types that the client does not see. Their tokens are sampled and counted, but the items are not
    part of the response. ``prompt``: token ids of the run's first prompt.
    """

    def __init__(
        self,
        writer: ResponseWriter,
        *,
        reasoning_fields: ReasoningFields = lambda item: {},
        hidden_types: tuple[type[ItemBase], ...] = (),
        prompt: Sequence[int] = (),
    ) -> None:
        self._writer = writer
        self._reasoning_fields = reasoning_fields
        self._hidden_types = hidden_types
        self._prompt = prompt
        #: The item to which deltas without a key belong.
        self._current: ItemWriter | _DiscardingWriter | None = None
        #: Open calls of server-side tools by key. After an interruption, the key is the item's id.
        self._calls: dict[str, ItemWriter] = {}
        #: The id of the item that the model was writing at an interruption.
        self._written_id = ""
        self._last_closed: Item | None = None
        #: Whether an item of the response answers the client. Reasoning, for example, does not.
        self._has_answer = False
        #: All token ids that the model sampled (see the module ``token_log``).
        self.token_log = array("I")
        #: Whether the recorded deltas must be persisted before further deltas are recorded.
        self.checkpoint_pending = False
        self.finish_reason: FinishReason | None = None
        #: The stop string of the request that ended the reply.
        self.stop_text: str | None = None
        self.usage: Usage | None = None
        #: Usage of hosted tools, as ``Response.tool_usage``.
        self.tool_usage: Mapping[str, Any] = {}

    def resume(self, token_log: array[int]) -> None:
        """Continue an interrupted run. Call this only when the ``ResponseWriter`` already contains
        the run's items. ``token_log``: the run's token log so far."""
        writer = self._writer
        self.token_log = token_log
        self._calls = {item.shell.id: item for item in writer.open_items}
        for item in writer.open_items:
            self._current = self._current or item
            if KINDS[type(item.shell)].written_by_model:
                self._current, self._written_id = item, item.shell.id
                del self._calls[item.shell.id]
        if self._hidden_types and token_log and self._current is None:
            # The run may have been interrupted inside a hidden item.
            self._current = _DiscardingWriter()
        self._last_closed = next(reversed(writer.items), None)
        items = (*writer.items, *(item.shell for item in writer.open_items))
        self._has_answer = not _SILENT_TYPES.issuperset(map(type, items))

    def record(self, deltas: Iterable[Delta]) -> None:
        """Apply deltas to the response, and keep the token ids in them. Raises ``BackendError`` if
        a delta contains text while no item is open."""
        for delta in deltas:
            if type(delta) is Text:  # nearly all
                item = self._current or self._current_item()
                item.write(delta.text, delta.logprobs, delta.channel)
            else:
                _RECORDERS[type(delta)](self, delta)

    @property
    def waits_for_tools(self) -> bool:
        """Whether server-side tools run. Their calls were persisted before they began."""
        return bool(self._calls) and self._current is None

    @property
    def is_at_boundary(self) -> bool:
        """Whether the response could end here and be continued: no item is open, and the model
        waits for no call."""
        is_open = self._current is not None or self._calls
        return not is_open and not waiting_items(self._writer.items)

    @property
    def is_truncated(self) -> bool:
        """Whether the token limit cut the reply inside an item.

        A reply that was cut after a complete tool call counts as complete, because clients drop the
        calls of an incomplete response.
        """
        if self.finish_reason != "length":
            return False
        last = self._last_closed
        return not is_model_call(last) or last.status == "incomplete"

    def _add_tokens(self, delta: SampledTokens) -> None:
        self.token_log.extend(delta.ids)

    def _add_prompt(self, delta: NewPrompt) -> None:
        append_prompt(self.token_log, self._prompt, delta.ids)

    def _add_summary(self, delta: Summary) -> None:
        self._current_item().add_summary(delta.text)

    def _annotate(self, delta: Annotate) -> None:
        self._current_item().annotate(delta.annotation)

    def _progress(self, delta: Progress) -> None:
        item = self._calls[delta.key] if delta.key else self._current_item()
        item.progress(delta.name, **delta.fields)

    def _request_checkpoint(self, delta: Checkpoint) -> None:
        self.checkpoint_pending = True

    def _current_item(self) -> ItemWriter | _DiscardingWriter:
        if self._current is None:
            raise BackendError("The model's reply could not be read.")
        return self._current

    def _open(self, delta: Open) -> None:
        self.close_current()
        if isinstance(delta.item, self._hidden_types):
            self._current = _DiscardingWriter()
            return
        self._current = item = self._writer.open(delta.item)
        self._has_answer = self._has_answer or type(delta.item) not in _SILENT_TYPES
        if delta.key:
            self._calls[delta.key] = item

    def close_current(self, status: str = "completed", **result: object) -> None:
        """Close the current item. Exception: if the item is the call of a server-side tool, only
        the arguments of the call end now, and the item stays open until the tool has finished.
        ``status``, ``result``: the final status and further fields of the closed item."""
        item, self._current = self._current, None
        if item is None:
            return
        if item in self._calls.values():
            if isinstance(item, ItemWriter):
                item.seal()
        elif isinstance(item, ItemWriter):
            if item.shell.is_reasoning:
                value = replace(item.value, **result)
                assert isinstance(value, Reasoning)
                result = {**result, **self._reasoning_fields(value)}
            elif item.shell.is_message and status == "completed" and item.is_empty:
                if not result.get("content"):
                    item.begin()  # clients read the first part
            self._last_closed = item.close(status, **result)

    def _close(self, delta: Close) -> None:
        if delta.key and delta.key != self._written_id:
            self._close_call(delta)
        else:
            self.close_current(**{"status": delta.status, **delta.result})

    def _close_call(self, delta: Close) -> None:
        """Close the call of a server-side tool after the tool has returned."""
        if delta.tool_usage:
            self.tool_usage = _sum_numbers(self.tool_usage or _NO_TOOL_USAGE, delta.tool_usage)
        item = self._calls.pop(delta.key)
        if self._current is item:
            self._current = None
        self._last_closed = item.close(delta.status, **delta.result)

    def _finish(self, delta: Finish) -> None:
        self.finish_reason, self.usage = delta.reason, delta.usage
        self.stop_text = delta.stop_text
        if delta.is_answer and delta.reason == "stop" and not self._has_answer:
            self._add_empty_message()
        self.close_current("completed" if delta.reason == "stop" else "incomplete")
        for key in list(self._calls):
            self._last_closed = self._calls.pop(key).close("incomplete")

    def _add_empty_message(self) -> None:
        """Add a message without text, because clients fail on a completed response that has no
        answer."""
        self.close_current()
        self._current = self._writer.open(Message(role="assistant", content=()))


#: Type of a delta → the method that records it.
_RECORDERS: Mapping[type[Delta], Callable[[Recorder, Any], None]] = {
    Annotate: Recorder._annotate,
    Checkpoint: Recorder._request_checkpoint,
    Close: Recorder._close,
    Finish: Recorder._finish,
    NewPrompt: Recorder._add_prompt,
    Open: Recorder._open,
    Progress: Recorder._progress,
    SampledTokens: Recorder._add_tokens,
    Summary: Recorder._add_summary,
}


def _sum_numbers(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sum of two mappings: integers with the same name are added, also in nested
    mappings. Values of ``other`` that are neither integers nor mappings are ignored."""
    total = dict(one)
    for name, value in other.items():
        if isinstance(value, Mapping):
            nested = total.get(name)
            total[name] = _sum_numbers(nested if isinstance(nested, Mapping) else {}, value)
        elif isinstance(value, int):
            total[name] = total.get(name, 0) + value
    return total
