"""Deltas: the interface between backends and runs.

A backend turns the output of a model into a sequence of deltas. For example, a delta opens an
item, adds text to the open item, or closes it. The last delta is ``Finish``, which comes exactly
once. Deltas carry no event names, item ids or indexes, because ``ResponseWriter`` adds them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    "finish_of",
]

#: The text of the open item that a delta extends: the answer (or reasoning, arguments, input), a
#: refusal, or a summary of the reasoning.
Channel = Literal["text", "refusal", "summary"]

#: Why a model stopped. ``stop``: it finished; ``length``: a token or context limit was reached;
#: ``turns``: the limit of turns was reached before it answered.
FinishReason = Literal["stop", "length", "content_filter", "turns"]


class Open(Struct, frozen=True):
    """Open a new item. If an item without a ``key`` is open, that item is closed first.

    ``item``: the shell of the item. A shell has type, name and call id, but no item id and no text.
    ``key``: set only for the call of a tool that runs in this server; it identifies the call in
    later deltas. The arguments of such a call are complete when the next item opens, or when a
    ``Close`` without a key follows. The item itself stays open until a ``Close`` with its key.
    """

    item: Item
    key: str = ""


class Text(Struct, frozen=True, gc=False):
    """Add text to the open item. Depending on the type of the item, the text belongs to the answer,
    the reasoning, the arguments of a function call or the input of a custom tool call. ``channel``:
    ``refusal`` for the text of a refusal, ``summary`` for the text of a reasoning summary,
    otherwise ``text``."""

    text: str
    logprobs: tuple[Logprob, ...] = ()
    channel: Channel = "text"


class Summary(Struct, frozen=True):
    """Add a complete part to the summary of the open reasoning item. The reasoning text of the item
    stays open."""

    text: str


class Annotate(Struct, frozen=True):
    """Add an annotation, such as a citation, for text that was already written into the open
    part."""

    annotation: Annotation


class Progress(Struct, frozen=True):
    """Report progress of a server-side tool. Clients receive an event, for example
    ``response.web_search_call.searching``.

    - ``name``: which event it is, for example ``searching``. It must be in ``ItemKind.progress``.
    - ``key``: identifies the item of the tool call. Empty means the open item.
    - ``fields``: further fields of the event.
    """

    name: str
    key: str = ""
    fields: Mapping[str, Any] = {}


class Close(Struct, frozen=True):
    """Close an item.

    - ``key``: the key of a tool call whose tool has finished (see ``Open``). The item of this call
      is closed. If ``key`` is empty, the delta applies to the item that was opened last. If that
      item was opened without a key, it is closed. If it was opened with a key, its arguments end,
      but the item stays open until its tool has finished.
    - ``result``: fields of the item that the tool sets.
    - ``status``: the final status of the item, such as ``failed``.
    - ``tool_usage``: the usage of the tool, in the form of the response's ``tool_usage``.
    """

    result: Mapping[str, Any] = {}
    key: str = ""
    status: str = "completed"
    tool_usage: Mapping[str, Any] = {}


class SampledTokens(Struct, frozen=True, gc=False):
    """Token ids that the model has sampled. The deltas that follow contain the text of these
    tokens."""

    ids: tuple[int, ...]


class NewPrompt(Struct, frozen=True):
    """Start the next model call of the reply, for example after tools have run. ``ids``: all token
    ids of the prompt of this call. The prompt need not begin with the prompt and the sampled
    tokens of the previous call."""

    ids: tuple[int, ...]


class Checkpoint(Struct, frozen=True):
    """Tell the run to store everything that was recorded so far. This delta precedes an action that
    cannot be undone, such as running a tool."""


class Finish(Struct, frozen=True):
    """End the reply. If an item is still open, it is closed with a status that matches ``reason``.

    ``stop_text``: the stop string that ended the reply; None if no stop string of the request ended
    it. ``is_answer``: false for a reply that is not an answer, such as a warm-up.
    """

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


def finish_of(batch: Sequence[Delta]) -> Finish | None:
    """Return the ``Finish`` at the end of a batch of deltas, or None if the batch does not end with
    one. A batch may be empty."""
    last = batch[-1] if batch else None
    return last if isinstance(last, Finish) else None
