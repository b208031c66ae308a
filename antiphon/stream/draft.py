"""Drafts: output items that are still being written. A draft consists of a shell and the text so
far. The shell is the item as it was opened, without text.

``ResponseWriter`` builds drafts while it creates events. ``Fold`` builds drafts from the events of
a log, to rebuild the response. Both use the same classes, so both get the same items.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from antiphon.wire.events import Event
from antiphon.wire.items import Annotation, Item, Logprob, OutputText

from .kinds import TextChannel

#: The pieces of a text are joined at this number. One string per token takes ten times the memory
#: of the text.
MAX_PIECES = 1024


class PartDraft:
    """A text that is being written. It is a part of an item, or the whole text of an item without
    parts. ``index``: the index of the part in its list."""

    __slots__ = (
        "annotations",
        "channel",
        "final_part",
        "index",
        "joined_texts",
        "logprobs",
        "make_delta",
        "texts",
    )

    def __init__(self, channel: TextChannel, index: int) -> None:
        self.channel = channel
        self.index = index
        #: Makes a delta event from the sequence number, the text and its logprobs.
        self.make_delta: Callable[[int, str, tuple[Logprob, ...]], Event]
        #: The newest pieces. Code that adds a piece calls ``join_pieces`` at ``MAX_PIECES``.
        self.texts: list[str] = []
        #: The text before ``texts``, in long pieces.
        self.joined_texts: list[str] = []
        self.logprobs: list[Logprob] = []
        self.annotations: list[Annotation] = []
        #: The final part. None until ``close`` is called.
        self.final_part: Struct | None = None

    def text(self) -> str:
        """Return the whole text so far. The pieces are joined in place, so a second call is
        cheap."""
        if self.texts:
            self.join_pieces()
        if len(self.joined_texts) > 1:
            self.joined_texts = ["".join(self.joined_texts)]
        return self.joined_texts[0] if self.joined_texts else ""

    def join_pieces(self) -> None:
        """Join the pieces in ``texts`` into one piece, and move this piece to ``joined_texts``."""
        self.joined_texts.append("".join(self.texts))
        self.texts.clear()

    def part(self) -> Struct:
        """Return the part with the text so far."""
        assert self.channel.part is not None
        fields: dict[str, Any] = {self.channel.field: self.text()}
        if self.channel.part is OutputText:
            fields["annotations"] = tuple(self.annotations)
            fields["logprobs"] = tuple(self.logprobs)
        return self.channel.part(**fields)

    def close(self) -> Struct:
        """Build the final part, store it in ``final_part`` and return it. The finished item
        contains the same object."""
        self.final_part = self.part()
        return self.final_part


class Draft:
    """An item that is still being written. It consists of the shell, i.e. the item as it was
    opened, and of the text so far."""

    __slots__ = ("appended_values", "item_id", "part_drafts", "shell", "whole_text")

    def __init__(self, shell: Item) -> None:
        self.shell = shell
        self.item_id = shell.id
        self.part_drafts: dict[str, list[PartDraft]] = {}
        self.whole_text: PartDraft | None = None
        #: List fields to which events append values → the values so far.
        self.appended_values: dict[str, tuple[Any, ...]] = {}

    def append_field(self, field: str, values: tuple[object, ...]) -> None:
        """Append values to a list field of the item."""
        self.appended_values[field] = (*self.appended_values.get(field, ()), *values)

    def open_part(self, channel: TextChannel) -> PartDraft:
        """Start a new text and return it. ``channel``: the kind of the text, such as the answer or
        a refusal."""
        if channel.part is None:
            self.whole_text = PartDraft(channel, 0)
            return self.whole_text
        drafts = self.part_drafts.setdefault(channel.list_field, [])
        part = PartDraft(channel, len(drafts))
        drafts.append(part)
        return part

    def item(self, status: str, **result: object) -> Item:
        """Return the item with the text so far. ``status``: the status to set, if items of this
        type have a status. ``result``: further fields to set, such as the result of a tool."""
        changed: dict[str, Any] = dict(self.appended_values)
        for name, drafts in self.part_drafts.items():
            changed[name] = tuple(draft.final_part or draft.part() for draft in drafts)
        if self.whole_text is not None:
            changed[self.whole_text.channel.field] = self.whole_text.text()
        if "status" in self.shell.__struct_fields__:
            changed["status"] = status
        return replace(self.shell, **(changed | result))
