"""What the model will see, and what is asked of it: the values a run hands to a backend.

Immutable. Assembled from the request and the store by ``runs``; it knows neither.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from msgspec import Struct

from antiphon.sampling import SamplingOptions
from antiphon.wire.extensions import Guide
from antiphon.wire.items import Item, Program, ProgramCaller, ProgramOutput
from antiphon.wire.response import ReasoningConfig, TextConfig
from antiphon.wire.tools import Choice, Tool

__all__ = [
    "NEUTRAL_VALUES",
    "Conversation",
    "Options",
    "PromptTokens",
    "ResumePoint",
    "ToolChoice",
    "ToolName",
    "caller_program_id",
    "open_programs",
]


class ResumePoint(Struct, frozen=True):
    """A reply that was interrupted: the prompt as it was then, and the token ids sampled since; the
    items that were done by then, and those that were open. ``turns``: tokens read and sampled by
    each turn of the model so far."""

    prompt_ids: tuple[int, ...]
    sampled_ids: tuple[int, ...]
    items: tuple[Item, ...] = ()
    open_items: tuple[Item, ...] = ()
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
    stored_tokens: PromptTokens | None = None
    past_count: int = 0


#: Name and namespace of a function or custom tool, as the wire has them.
ToolName = tuple[str, str | None]


class ToolChoice(Struct, frozen=True):
    """Which tools the model may call, resolved from the ``tool_choice`` of a request.

    ``mode``:

    - ``none``: no call, and no tools in the prompt.
    - ``auto``: the model decides.
    - ``required``: at least one call.
    - ``one``: a call of the tool that the request names. A server-side tool may consist of several
      functions. Once the call is made, the choice is ``auto``.

    ``allowed``: the functions that may be called; None: all that the model sees.
    ``hosted``: allowed tools that the upstream runs itself, as the request names them.
    """

    mode: Literal["none", "auto", "required", "one"] = "auto"
    allowed: frozenset[ToolName] | None = None
    hosted: tuple[Choice, ...] = ()

    @property
    def must_call(self) -> bool:
        return self.mode in ("required", "one")

    def allows(self, name: str, namespace: str | None) -> bool:
        """Whether the function may be called, if the model sees it."""
        if self.mode == "none":
            return False
        return self.allowed is None or (name, namespace) in self.allowed


class Options(SamplingOptions, frozen=True, kw_only=True):
    """What a request asks of the model.

    ``tools``: those that the model sees.
    ``strays``: calls of tools that may not be called are let through; the caller handles them.
    ``guide``: a grammar that the answer obeys, in place of ``text.format``.
    ``truncate``: drop the oldest items of a conversation that is too long instead of rejecting it.
    ``template``: arguments of the chat template, passed on as they are.
    ``thinking_budget``: the most tokens of reasoning.
    ``stop_shown``: the stop string that ends an answer is part of the answer.
    """

    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = ToolChoice()
    accept_stray_calls: bool = False
    parallel_tool_calls: bool = True
    text: TextConfig = TextConfig()
    guide: Guide | None = None
    reasoning: ReasoningConfig | None = None
    max_output_tokens: int | None = None
    truncate: bool = False
    template: Mapping[str, Any] = {}
    thinking_budget: int | None = None
    include_stop_text: bool = False

    def requests(self, option: str) -> bool:
        """Whether ``option``, a key of ``NEUTRAL_VALUES``, has an effect. A server that does not
        know the option has to reject the request then."""
        return getattr(self, option) not in NEUTRAL_VALUES[option]


#: Options that not every engine or server knows → their values that request nothing.
NEUTRAL_VALUES: Mapping[str, tuple[Any, ...]] = {
    "top_k": (None,),
    "min_p": (None,),
    "seed": (None,),
    "stop": ((),),
    "presence_penalty": (None, 0),
    "frequency_penalty": (None, 0),
    "repetition_penalty": (None, 1),
    "logit_bias": ({},),
    "thinking_budget": (None,),
    "ignore_eos": (False,),
    "include_stop_text": (False,),
    "cache_salt": (None,),
    "priority": (None,),
    "adapter": (None,),
}


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
