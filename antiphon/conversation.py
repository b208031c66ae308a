"""What the model will see, and what is asked of it: the values a run hands to a backend.

Immutable. Assembled from the request and the store by ``runs``; it knows neither.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

from antiphon.wire.extensions import Guide
from antiphon.wire.items import Item, Program, ProgramCaller, ProgramOutput
from antiphon.wire.response import ReasoningConfig, TextConfig
from antiphon.wire.tools import Tool, ToolChoice

__all__ = [
    "Conversation",
    "Options",
    "PromptTokens",
    "ResumePoint",
    "caller_program_id",
    "open_programs",
]


class ResumePoint(Struct, frozen=True):
    """A reply that was interrupted: the prompt as it was then, and the token ids sampled since; the
    items that were done by then, and those that were open. ``turns``: tokens read and sampled by
    each turn of the model so far."""

    prompt: tuple[int, ...]
    sampled: tuple[int, ...]
    items: tuple[Item, ...] = ()
    open: tuple[Item, ...] = ()
    turns: tuple[tuple[int, int], ...] = ()


class PromptTokens(Struct, frozen=True):
    """The token ids a model last saw and wrote in this conversation, to be extended by the next
    turn. ``fingerprint`` names the tokenizer they belong to."""

    ids: tuple[int, ...]
    fingerprint: str


class Conversation(Struct, frozen=True):
    """What the model will see: items, oldest first, with the instructions of this request.

    Resolved: a backend that sees images finds each as a ``data:`` URL in ``image_url``, checked;
    files are text. In the place of what can no longer be had stands a note.

    ``past``: how many of the items were there before; the rest are the request's ``input``.
    """

    items: tuple[Item, ...]
    instructions: str | None = None
    kept: PromptTokens | None = None
    past: int = 0


class Options(Struct, frozen=True, kw_only=True):
    """What a request asks of the model. ``tools`` are those the model is to see.

    ``logprobs``: None = none, 0 = of the sampled token, n = with n alternatives.
    ``strays``: whoever asks sees to calls of tools that may not be called.
    ``truncate``: drop the oldest items rather than refuse a conversation that is too long.
    ``template`` goes to the chat template as it is. ``thinking_budget``: the most tokens of
    thinking. ``guide``: a grammar the answer obeys, in place of a format. ``stop_shown``: the stop
    string that ends an answer is part of it. ``priority``, ``cache_salt``, ``adapter``, ``trace``
    and ``extra`` are for the engine (``engines.base.Sampling``).
    """

    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = "auto"
    strays: bool = False
    parallel_tool_calls: bool = True
    text: TextConfig = TextConfig()
    guide: Guide | None = None
    reasoning: ReasoningConfig | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: Mapping[int, float] = {}
    logprobs: int | None = None
    truncate: bool = False
    cache_key: str | None = None
    template: Mapping[str, Any] = {}
    thinking_budget: int | None = None
    ignore_eos: bool = False
    stop_shown: bool = False
    cache_salt: str | None = None
    priority: int | None = None
    adapter: str | None = None
    trace: Mapping[str, str] = {}
    extra: Mapping[str, Any] = {}


def caller_program_id(item: Item) -> str | None:
    """The ``call_id`` of the program that made a call, or that its output goes to; None if that is
    the model. The model sees neither."""
    caller = getattr(item, "caller", None)
    return caller.caller_id if isinstance(caller, ProgramCaller) else None


def open_programs(items: Iterable[Item]) -> tuple[Program, ...]:
    """Programs that were handed out to be run and are not over: they wait for the client, or were
    interrupted."""
    known = tuple(items)
    over = {item.call_id for item in known if isinstance(item, ProgramOutput)}
    return tuple(
        item
        for item in known
        if isinstance(item, Program) and item.fingerprint and item.call_id not in over
    )
