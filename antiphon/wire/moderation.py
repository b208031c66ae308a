"""The objects of moderation: of ``POST /moderations``, and of the field ``moderation`` of a
response."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, ValidationError, convert

from .parts import InputImage, InputText

__all__ = [
    "CATEGORIES",
    "ModeratedImage",
    "ModeratedPart",
    "ModeratedUrl",
    "Moderation",
    "ModerationFailure",
    "ModerationList",
    "ModerationRequest",
    "ModerationResult",
    "Verdict",
    "read_verdict",
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
_Kinds = tuple[Literal["text", "image"], ...]


class Verdict(Struct, frozen=True, kw_only=True):
    """The answer of a moderator about an input.

    - ``flagged``: whether the input belongs to any category.
    - ``categories``: category → whether the input belongs to it.
    - ``category_scores``: category → a number from 0 to 1.
    - ``category_applied_input_types``: category → which kinds of input were read for it.
    """

    flagged: bool
    categories: dict[str, bool]
    category_scores: dict[str, float]
    category_applied_input_types: dict[str, _Kinds]


def verdict(found: Iterable[str], kinds: _Kinds = ("text",)) -> Verdict:
    """Return the verdict about an input that belongs to the categories ``found``. ``kinds``: what
    the input consists of."""
    flagged = frozenset(found)
    names = (*CATEGORIES, *sorted(flagged.difference(CATEGORIES)))
    return Verdict(
        flagged=bool(flagged),
        categories={name: name in flagged for name in names},
        category_scores={name: float(name in flagged) for name in names},
        category_applied_input_types=dict.fromkeys(names, kinds),
    )


class _Judgement(Struct, frozen=True):
    """A verdict of another server, which may have categories of its own, and no scores."""

    flagged: bool | None = None
    categories: dict[str, bool | None] = {}
    category_scores: dict[str, float | None] = {}
    category_applied_input_types: dict[str, _Kinds] = {}


def read_verdict(answer: Any) -> Verdict:
    """Return the verdict in an answer of the form of ``ModerationList``, or in one entry of its
    ``results``. Raises ``ValueError``."""
    try:
        if isinstance(answer, dict) and "results" in answer:
            (answer,) = answer["results"]
        found = convert(answer, _Judgement)
    except (ValidationError, TypeError) as error:
        raise ValueError(str(error)) from None
    if found.flagged is None and not found.categories:
        raise ValueError("it has neither 'flagged' nor 'categories'")
    own = verdict(name for name, is_found in found.categories.items() if is_found)
    scores = {name: score for name, score in found.category_scores.items() if score is not None}
    return Verdict(
        flagged=own.flagged if found.flagged is None else found.flagged,
        categories={**dict.fromkeys(scores, False), **own.categories},
        category_scores={**own.category_scores, **scores},
        category_applied_input_types={
            **dict.fromkeys(scores, ("text",)),
            **own.category_applied_input_types,
            **found.category_applied_input_types,
        },
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
    """A text in an input to moderate."""

    text: str


class ModeratedUrl(Struct, frozen=True, kw_only=True):
    """The URL of an image, or its bytes as a data URL."""

    url: Annotated[str, Meta(min_length=1)]


class ModeratedImage(Struct, frozen=True, kw_only=True, tag_field="type", tag="image_url"):
    """An image in an input to moderate."""

    image_url: ModeratedUrl


_Text = Annotated[str, Meta(min_length=1)]


class ModerationRequest(Struct, frozen=True, kw_only=True):
    """The body of ``POST /moderations``: texts and images, and the moderator that says to which
    categories each of them belongs. ``model``: by default, the first moderator of the server.
    ``input``: one text, or a list. Each string of a list is an input of its own, and all parts of a
    list together are one input."""

    input: (
        _Text
        | Annotated[
            tuple[_Text | ModeratedPart | ModeratedImage, ...],
            Meta(min_length=1, max_length=_MAX_INPUTS),
        ]
    )
    model: Annotated[str, Meta(max_length=256)] | None = None

    @property
    def inputs(self) -> tuple[tuple[InputText | InputImage, ...], ...]:
        """The inputs. Each of them is a text, or texts and images."""
        if isinstance(self.input, str):
            return ((InputText(text=self.input),),)
        texts = ((InputText(text=part),) for part in self.input if isinstance(part, str))
        parts = tuple(
            InputText(text=part.text)
            if isinstance(part, ModeratedPart)
            else InputImage(image_url=part.image_url.url)
            for part in self.input
            if not isinstance(part, str)
        )
        return (*texts, parts) if parts else tuple(texts)


class ModerationList(Struct, frozen=True, kw_only=True):
    """The answer to a ``ModerationRequest``, with one result for each input."""

    id: str
    model: str
    results: tuple[Verdict, ...]
