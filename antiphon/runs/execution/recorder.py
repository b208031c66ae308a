"""The recorder: what a model means, written down as items. It keeps the sampled token ids too.

Deltas in, calls on the writer out; it knows no events, no engine and no time.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
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
    Text,
)
from antiphon.stream.kinds import KINDS
from antiphon.stream.writer import ItemWriter, ResponseWriter
from antiphon.wire.items import CustomToolCall, FunctionCall, Item, ItemBase
from antiphon.wire.response import Usage

from .token_log import append_prompt

__all__ = ["ExtraFields", "Recorder"]

#: OpenAI reports a family of tools that was not used with zeros (``Response.tool_usage``).
_NO_TOOL_USAGE: Mapping[str, Any] = {
    "image_gen": {
        "input_tokens": 0,
        "input_tokens_details": {"image_tokens": 0, "text_tokens": 0},
        "output_tokens": 0,
        "total_tokens": 0,
    },
    "web_search": {"num_requests": 0},
}

#: Fields that an item gets when it is closed, besides what was said; they replace what a backend
#: gave in the same place.
ExtraFields = Callable[[Item], Mapping[str, Any]]


class _Unheard:
    """Where an item is written that nobody is told of."""

    def write(self, *text: object) -> None: ...

    def annotate(self, annotation: object) -> None: ...

    def progress(self, name: str, **fields: object) -> None: ...


class Recorder:
    """Records the replies of one run into a response. ``sampled``: the token ids behind what has
    been written so far (``tape``), by a run that was interrupted; ``prompt``: the ids of its first
    prompt. ``hides``: kinds of items that are sampled
    and counted, but not written down."""

    def __init__(
        self,
        writer: ResponseWriter,
        sampled: array[int] | None = None,
        *,
        extra_fields: ExtraFields = lambda item: {},
        hidden_types: tuple[type[ItemBase], ...] = (),
        prompt: Sequence[int] = (),
    ) -> None:
        self._out = writer
        self._besides = extra_fields
        self._hides = hidden_types
        self._prompt = prompt
        self._item: ItemWriter | _Unheard | None = next(iter(writer.open_items), None)
        #: Calls of tools that run here, by their keys: those of an interruption by their ids.
        self._calls: dict[str, ItemWriter] = {
            item.value.id: item
            for item in writer.open_items
            if not KINDS[type(item.value)].written_by_model
        }
        if hidden_types and sampled and self._item is None:
            self._item = _Unheard()  # for all we know, it was interrupted in one of those
        self._last: Item | None = next(reversed(writer.items), None)
        self.sampled = array("I") if sampled is None else sampled
        #: What is recorded has to last before any more is.
        self.checkpoint_pending = False
        self.reason: FinishReason | None = None
        self.usage: Usage | None = None
        #: What hosted tools used.
        self.tool_usage: Mapping[str, Any] = {}

    def take(self, delta: Delta) -> None:
        """Record the next delta. Raises ``BackendError`` for one that cannot come here."""
        if isinstance(delta, Text):  # nearly all are
            item = self._item or self._open_item()
            return item.write(delta.text, delta.logprobs, delta.channel)
        match delta:
            case SampledTokens():
                self.sampled.extend(delta.ids)
            case Open():
                self._open(delta)
            case Close():
                self._done(delta)
            case Annotate():
                self._open_item().annotate(delta.annotation)
            case Progress():
                item = self._calls[delta.key] if delta.key else self._open_item()
                item.progress(delta.name, **delta.fields)
            case NewPrompt() | Checkpoint():
                self._between(delta)
            case Finish():
                self.reason, self.usage = delta.reason, delta.usage
                self._close("completed" if delta.reason == "stop" else "incomplete")
                for key in list(self._calls):
                    self._last = self._calls.pop(key).close("incomplete")

    def _between(self, delta: NewPrompt | Checkpoint) -> None:
        """Turns of the model."""
        if isinstance(delta, Checkpoint):
            self.checkpoint_pending = True
        else:
            append_prompt(self.sampled, self._prompt, delta.ids)

    @property
    def truncated(self) -> bool:
        """A limit cut the reply where that matters. After a call that is whole nothing is missing,
        and clients drop the calls of an incomplete response."""
        if self.reason != "length":
            return False
        last = self._last
        return not isinstance(last, FunctionCall | CustomToolCall) or last.status == "incomplete"

    def _open_item(self) -> ItemWriter | _Unheard:
        if self._item is None:
            raise BackendError("The model's reply could not be read.")
        return self._item

    def _open(self, delta: Open) -> None:
        self._close()
        if isinstance(delta.item, self._hides):
            self._item = _Unheard()
            return
        self._item = item = self._out.open(delta.item)
        if delta.key:
            self._calls[delta.key] = item

    def _done(self, delta: Close) -> None:
        if not delta.key:
            return self._close(**delta.result)
        if delta.tool_usage:
            self.tool_usage = _sum_numbers(self.tool_usage or _NO_TOOL_USAGE, delta.tool_usage)
        item = self._calls.pop(delta.key)
        self._item = None if self._item is item else self._item
        self._last = item.close(delta.status, **delta.result)

    def _close(self, status: str = "completed", **result: Any) -> None:
        """The item that was written is over; of a call that runs here, all has been said."""
        item, self._item = self._item, None
        if item in self._calls.values():
            if isinstance(item, ItemWriter):
                item.seal()
        elif isinstance(item, ItemWriter):
            value = replace(item.value, **result) if result else item.value
            self._last = item.close(status, **{**result, **self._besides(value)})


def _sum_numbers(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Add two nested mappings, number by number. Values that are no numbers are left out."""
    total = dict(one)
    for name, value in other.items():
        if isinstance(value, Mapping):
            nested = total.get(name)
            total[name] = _sum_numbers(nested if isinstance(nested, Mapping) else {}, value)
        elif isinstance(value, int):
            total[name] = total.get(name, 0) + value
    return total
