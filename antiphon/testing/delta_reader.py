"""Collect the deltas of a reply and check their order. The contract checks of backends and dialects
use this."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct, field

from antiphon.stream.deltas import (
    Annotate,
    Channel,
    Checkpoint,
    Close,
    Delta,
    Finish,
    NewPrompt,
    Open,
    Progress,
    SampledTokens,
    Summary,
    Text,
)
from antiphon.wire.items import Item, Logprob

__all__ = ["ReplyItem", "ReplyRecord", "read_reply"]


class ReplyItem(Struct):
    """An output item, as the deltas of a reply have built it. ``item``: the item from the delta
    ``Open``, which starts an output item. ``text``: channel (such as ``summary``) → the text that
    later deltas have added."""

    item: Item
    text: dict[Channel, str] = field(default_factory=dict)
    logprobs: list[Logprob] = field(default_factory=list)
    closed: bool = False


class ReplyRecord(Struct):
    """All deltas of one reply, merged: the items with their texts, the sampled tokens and
    ``Finish``. Texts are merged, so two records of the same reply are equal even if the text
    arrived in different chunks."""

    items: list[ReplyItem] = field(default_factory=list)
    sampled_tokens: list[int] = field(default_factory=list)
    finish: Finish | None = None

    @property
    def text(self) -> str:
        return "".join(text for said in self.items for text in said.text.values())

    def add(self, delta: Delta) -> None:
        """Add the next delta. Raises ``AssertionError`` if this delta is not legal after the
        earlier deltas."""
        assert self.finish is None, f"a delta came after Finish: {delta}"
        match delta:
            case Open(item, key):
                assert not key, "an item of a model must not have a key"
                assert not item.id, f"an opened item must not have an id: {item}"
                self._close()
                self.items.append(ReplyItem(item))
            case Text(text, logprobs, channel):
                assert text or logprobs, "a Text delta has neither text nor logprobs"
                said = self._open(delta)
                said.text[channel] = said.text.get(channel, "") + text
                said.logprobs += logprobs
            case Summary(text):
                said = self._open(delta)
                said.text["summary"] = "\n\n".join(filter(None, (said.text.get("summary"), text)))
            case Annotate():
                assert self._open(delta).text, "an annotation came before any text"
            case Progress():
                self._open(delta)
            case Close():
                self._open(delta).closed = True
            case SampledTokens(ids):
                self.sampled_tokens += ids
            case NewPrompt() | Checkpoint():
                raise AssertionError("a reply must not contain a second prompt")
            case Finish(reason):
                is_open = bool(self.items) and not self.items[-1].closed
                assert not (is_open and reason == "stop"), "an item was open at the end"
                self.finish = delta

    def _open(self, delta: Delta) -> ReplyItem:
        assert self.items and not self.items[-1].closed, f"no item is open for {delta}"
        return self.items[-1]

    def _close(self) -> None:
        if self.items:
            self.items[-1].closed = True


def read_reply(deltas: Iterable[Delta]) -> ReplyRecord:
    """Collect all deltas of a reply. Raises ``AssertionError`` if their order is not legal."""
    record = ReplyRecord()
    for delta in deltas:
        record.add(delta)
    return record
