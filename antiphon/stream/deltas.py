"""Deltas: the interface between backends and runs.

A backend turns what a model writes into a sequence of deltas: items opened one after another, text
written into them, items closed. ``Finish`` comes exactly once, last. Deltas carry no event names,
item ids or indexes: the writer adds those."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct

from antiphon.wire.items import Annotation, Item, Logprob
from antiphon.wire.response import Usage

__all__ = [
    "Annotate",
    "Channel",
    "Checkpoint",
    "Close",
    "Delta",
    "Finish",
    "FinishReason",
    "NewPrompt",
    "Open",
    "Progress",
    "SampledTokens",
    "Summary",
    "Text",
]

#: The text of the open item that a delta extends: the answer (or reasoning, arguments, input), a
#: refusal, or a summary of the reasoning.
Channel = Literal["text", "refusal", "summary"]

#: Why a model stopped. ``stop``: it finished; ``length``: a token or context limit was reached;
#: ``turns``: the limit of turns was reached before it answered.
FinishReason = Literal["stop", "length", "content_filter", "turns"]


class Open(Struct, frozen=True):
    """Open a new item; an item that is still open is closed first.

    ``item`` is the shell: type, name, call id, but no id and no text. An item with a ``key`` is the
    call of a tool that runs in this server. Its arguments are complete when the next item opens
    or a
    ``Close`` without key comes, but it stays open until a ``Close`` with its key."""

    item: Item
    key: str = ""


class Text(Struct, frozen=True):
    """More text of the open item: answer, reasoning, arguments or input, depending on its type."""

    text: str
    logprobs: tuple[Logprob, ...] = ()
    channel: Channel = "text"


class Summary(Struct, frozen=True):
    """Add a whole part to the summary of the open reasoning item, whose text stays open."""

    text: str


class Annotate(Struct, frozen=True):
    """Add a citation of text that was already written into the open part."""

    annotation: Annotation


class Progress(Struct, frozen=True):
    """Report a step of the tool behind an item: the one with the ``key``, or else the open one.

    ``name`` is the step's name in ``KINDS``; ``fields`` are further fields of its event."""

    name: str
    key: str = ""
    fields: Mapping[str, Any] = {}


class Close(Struct, frozen=True):
    """Close an item: the one with the ``key``, whose tool has finished, or else the open one.

    ``result`` are fields of the item that the tool found; ``status`` may be ``failed``.
    ``tool_usage``
    is what the tool used, in the form of the response's ``tool_usage``."""

    result: Mapping[str, Any] = {}
    key: str = ""
    status: str = "completed"
    tool_usage: Mapping[str, Any] = {}


class SampledTokens(Struct, frozen=True):
    """The token ids behind the deltas that follow, as the model sampled them."""

    ids: tuple[int, ...]


class NewPrompt(Struct, frozen=True):
    """The model continues from a new prompt with these token ids, because tools have run.

    The tokens sampled before are part of the prompt, or the model no longer sees them."""

    ids: tuple[int, ...]


class Checkpoint(Struct, frozen=True):
    """The next step cannot be undone: everything up to here must be persisted before it happens."""


class Finish(Struct, frozen=True):
    """The reply ends. An item that is still open was cut off: it is closed with the matching
    status.

    ``stop_text``: the stop string of the request that ended the reply. ``is_answer``: false for a
    reply that was not meant to say anything, such as a warm-up."""

    reason: FinishReason
    usage: Usage
    stop_text: str | None = None
    is_answer: bool = True


Delta = (
    Open
    | Text
    | Summary
    | Annotate
    | Progress
    | Close
    | SampledTokens
    | NewPrompt
    | Checkpoint
    | Finish
)
