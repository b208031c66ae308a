"""The recorder: what a model means, written down as items. It keeps the sampled token ids too.

Deltas in, calls on the writer out; it knows no events, no engine and no time.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from typing import Any

from antiphon.errors import BackendError
from antiphon.stream.deltas import (
    Annotate,
    Close,
    Delta,
    Finish,
    Open,
    Progress,
    Reason,
    Sampled,
    Text,
)
from antiphon.stream.writer import ItemWriter, ResponseWriter
from antiphon.wire.items import CustomToolCall, FunctionCall, Item
from antiphon.wire.response import Usage

__all__ = ["Besides", "Recorder"]


#: Fields that an item gets when it is closed, besides what was said.
Besides = Callable[[Item], Mapping[str, Any]]


class Recorder:
    """Records the replies of one run into a response. ``sampled``: the token ids behind what has
    been written so far, by a run that was interrupted."""

    def __init__(
        self,
        out: ResponseWriter,
        sampled: array[int] | None = None,
        *,
        besides: Besides = lambda item: {},
    ) -> None:
        self._out = out
        self._besides = besides
        self._item: ItemWriter | None = next(iter(out.open_items), None)
        self._last: Item | None = next(reversed(out.items), None)
        self.sampled = array("I") if sampled is None else sampled
        self.reason: Reason | None = None
        self.usage: Usage | None = None

    def take(self, delta: Delta) -> None:
        """Record the next delta. Raises ``BackendError`` for one that cannot come here."""
        match delta:  # without fields in the patterns: this runs for every token
            case Text():
                item = self._item or self._open_item()
                item.write(delta.text, delta.logprobs, delta.channel)
            case Sampled():
                self.sampled.extend(delta.ids)
            case Open():
                self._close()
                self._item = self._out.open(delta.item)
            case Close():
                self._close(**delta.result)
            case Annotate():
                self._open_item().annotate(delta.annotation)
            case Progress():
                self._open_item().progress(delta.name)
            case Finish():
                self.reason, self.usage = delta.reason, delta.usage
                self._close("completed" if delta.reason == "stop" else "incomplete")

    @property
    def cut(self) -> bool:
        """A limit cut the reply where that matters. After a call that is whole nothing is missing,
        and clients drop the calls of an incomplete response."""
        if self.reason != "length":
            return False
        last = self._last
        return not isinstance(last, FunctionCall | CustomToolCall) or last.status == "incomplete"

    def _open_item(self) -> ItemWriter:
        if self._item is None:
            raise BackendError("The model's reply could not be read.")
        return self._item

    def _close(self, status: str = "completed", **result: Any) -> None:
        if (item := self._item) is not None:
            self._last = item.close(status, **self._besides(item.value), **result)
            self._item = None
