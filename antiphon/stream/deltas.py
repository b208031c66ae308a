"""What a model means: the one language every backend speaks, and all a run has to understand.

A reply is a sequence of deltas: items opened one after another, text written into them, items
closed; ``Finish`` comes last and once. Nothing here knows of events, ids or positions.
"""

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
    "NewPrompt",
    "Open",
    "Progress",
    "Reason",
    "SampledTokens",
    "Text",
]

#: Into which kind of part of the open item text goes: an answer, a refusal, a summary of thinking.
Channel = Literal["text", "refusal", "summary"]

#: Why a model stopped. ``stop``: it was done; ``length``: a token or context limit cut it;
#: ``turns``: it may not be asked again, and has not answered.
Reason = Literal["stop", "length", "content_filter", "turns"]


class Open(Struct, frozen=True):
    """A new item begins. ``item`` is its shell: type, name, call id; no id and no text yet.

    An item still open is closed first. One with a ``key`` is the call of a tool that runs here: all
    of it has been said when the next item opens or a plain ``Close`` comes, but it stays open
    until it is closed by its key.
    """

    item: Item
    key: str = ""


class Text(Struct, frozen=True):
    """More of the open item: answer, thinking, arguments or input, by its type."""

    text: str
    logprobs: tuple[Logprob, ...] = ()
    channel: Channel = "text"


class Annotate(Struct, frozen=True):
    """A citation of text already written into the open part."""

    annotation: Annotation


class Progress(Struct, frozen=True):
    """A step of the work behind the open item, or the one with that key, by its name in the table
    of kinds. ``fields``: what the event tells besides."""

    name: str
    key: str = ""
    fields: Mapping[str, Any] = {}


class Close(Struct, frozen=True):
    """All of the open item has been said, or the tool behind the one with that key is done.
    ``result`` are fields of it that were found, not said; ``status`` may be ``failed``; ``used``:
    what its tool used, as ``tool_usage`` of the response tells it."""

    result: Mapping[str, Any] = {}
    key: str = ""
    status: str = "completed"
    used: Mapping[str, Any] = {}


class SampledTokens(Struct, frozen=True):
    """The token ids behind the deltas that follow, as the model sampled them."""

    ids: tuple[int, ...]


class NewPrompt(Struct, frozen=True):
    """The model is asked anew, with these ids: tools have run. What it sampled before is part of
    them or gone."""

    ids: tuple[int, ...]


class Checkpoint(Struct, frozen=True):
    """What comes next cannot be undone: what was said so far is to last before it happens."""


class Finish(Struct, frozen=True):
    """The reply is over. An item open here was cut: it is closed with the matching status.
    ``stopped``: a stop string of the request ended it."""

    reason: Reason
    usage: Usage
    stopped: bool = False


Delta = Open | Text | Annotate | Progress | Close | SampledTokens | NewPrompt | Checkpoint | Finish
