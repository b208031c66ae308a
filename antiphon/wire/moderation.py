"""The objects of moderation: of ``POST /moderations``, and of the field ``moderation`` of a
response."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

from msgspec import Meta, Struct

__all__ = [
    "CATEGORIES",
    "ModeratedPart",
    "Moderation",
    "ModerationFailure",
    "ModerationList",
    "ModerationRequest",
    "ModerationResult",
    "Verdict",
    "verdict",
]

#: OpenAI's categories. Results contain all of them.
CATEGORIES = (
    "harassment",
    "harassment/threatening",
    "hate",
    "hate/threatening",
    "illicit",
    "illicit/violent",
    "self-harm",
    "self-harm/instructions",
    "self-harm/intent",
    "sexual",
    "sexual/minors",
    "violence",
    "violence/graphic",
)
_MAX_INPUTS = 32


class Verdict(Struct, frozen=True, kw_only=True):
    """The answer of a guard model about a text.

    - ``flagged``: whether the text belongs to any category.
    - ``categories``: category → whether the text belongs to it.
    - ``category_scores``: category → a number from 0 to 1.
    - ``category_applied_input_types``: category → which kinds of input were read for it.
    """

    flagged: bool
    categories: dict[str, bool]
    category_scores: dict[str, float]
    category_applied_input_types: dict[str, tuple[Literal["text", "image"], ...]]


def verdict(found: Iterable[str]) -> Verdict:
    """Return the verdict about a text that belongs to the categories ``found``."""
    flagged = frozenset(found)
    names = (*CATEGORIES, *sorted(flagged.difference(CATEGORIES)))
    return Verdict(
        flagged=bool(flagged),
        categories={name: name in flagged for name in names},
        category_scores={name: float(name in flagged) for name in names},
        category_applied_input_types=dict.fromkeys(names, ("text",)),
    )


class ModerationResult(
    Verdict, frozen=True, kw_only=True, tag_field="type", tag="moderation_result"
):
    """The verdict about the input or the output of a response. ``model``: the model as the request
    names it."""

    model: str


class ModerationFailure(Struct, frozen=True, kw_only=True, tag_field="type", tag="error"):
    """Says why the input or the output of a response could not be moderated."""

    code: str
    message: str


class Moderation(Struct, frozen=True, kw_only=True):
    """The moderation of a response."""

    input: ModerationResult | ModerationFailure
    output: ModerationResult | ModerationFailure


class ModeratedPart(Struct, frozen=True, kw_only=True, tag_field="type", tag="text"):
    """A part of an input to moderate."""

    text: str


_Text = Annotated[str, Meta(min_length=1)]


class ModerationRequest(Struct, frozen=True, kw_only=True):
    """The body of ``POST /moderations``: texts, and the guard model that says to which categories
    each of them belongs. ``model``: by default, the first guard model of the server. ``input``: one
    text, or a list. Each string of a list is a text of its own, and all parts of a list together
    are one text."""

    input: (
        _Text
        | Annotated[tuple[_Text | ModeratedPart, ...], Meta(min_length=1, max_length=_MAX_INPUTS)]
    )
    model: Annotated[str, Meta(max_length=256)] | None = None

    @property
    def texts(self) -> tuple[str, ...]:
        """The inputs."""
        if isinstance(self.input, str):
            return (self.input,)
        parts = [part.text for part in self.input if isinstance(part, ModeratedPart)]
        texts = [part for part in self.input if isinstance(part, str)]
        return (*texts, "\n".join(parts)) if parts else tuple(texts)


class ModerationList(Struct, frozen=True, kw_only=True):
    """The answer to a ``ModerationRequest``, with one result for each input."""

    id: str
    model: str
    results: tuple[Verdict, ...]
