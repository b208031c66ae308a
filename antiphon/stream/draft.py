"""An item in the making: its shell and the text so far. Shared by the writer, which makes events,
and the fold, which reads them, so that both build the same item. Text is joined once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from antiphon.wire.events import Event
from antiphon.wire.items import Annotation, Item, Logprob, OutputText

from .kinds import TextChannel

__all__ = ["Draft", "PartDraft"]


class PartDraft:
    """One text being written: a part, or the whole text of a kind without parts."""

    __slots__ = ("annotations", "delta", "index", "logprobs", "stem", "texts")

    def __init__(self, stem: TextChannel, index: int) -> None:
        self.stem = stem
        self.index = index
        #: Makes a delta of this text, given its number, the text and its logprobs.
        self.delta: Callable[[int, str, tuple[Logprob, ...]], Event]
        self.texts: list[str] = []
        self.logprobs: list[Logprob] = []
        self.annotations: list[Annotation] = []

    def text(self) -> str:
        """All of it. Joined in place, so that asking again costs nothing."""
        if len(self.texts) > 1:
            self.texts = ["".join(self.texts)]
        return self.texts[0] if self.texts else ""

    def part(self) -> Struct:
        """The part as it stands now."""
        assert self.stem.part is not None
        fields: dict[str, Any] = {self.stem.field: self.text()}
        if self.stem.part is OutputText:
            fields["annotations"] = tuple(self.annotations)
            fields["logprobs"] = tuple(self.logprobs)
        return self.stem.part(**fields)


class Draft:
    """The shell of an item and what has been written into it."""

    __slots__ = ("fields", "gathered", "item_id", "parts", "shell", "whole")

    def __init__(self, shell: Item) -> None:
        self.shell = shell
        self.item_id = shell.id
        self.fields: frozenset[str] = frozenset(shell.__struct_fields__)
        self.parts: dict[str, list[PartDraft]] = {}
        self.whole: PartDraft | None = None
        #: Fields that grow, as far as they have.
        self.gathered: dict[str, tuple[Any, ...]] = {}

    def gather(self, field: str, more: tuple[Any, ...]) -> None:
        """More of a field."""
        self.gathered[field] = (*self.gathered.get(field, ()), *more)

    def begin(self, stem: TextChannel) -> PartDraft:
        """A new text of this kind begins; returns where to write it."""
        if stem.part is None:
            self.whole = PartDraft(stem, 0)
            return self.whole
        listed = self.parts.setdefault(stem.listed, [])
        part = PartDraft(stem, len(listed))
        listed.append(part)
        return part

    def item(self, status: str, **result: Any) -> Item:
        """The item as it stands now. ``result`` fills further fields (a tool's outcome)."""
        changed: dict[str, Any] = dict(self.gathered)
        changed |= {name: tuple(part.part() for part in made) for name, made in self.parts.items()}
        if self.whole is not None:
            changed[self.whole.stem.field] = self.whole.text()
        if "status" in self.fields:
            changed["status"] = status
        return replace(self.shell, **(changed | result))
