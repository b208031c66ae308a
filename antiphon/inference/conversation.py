"""The values that a run passes to a backend: the conversation, and the options of the answer.

They are immutable. ``runs`` builds them from the request and the store.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, Literal, Protocol, TypeVar

from msgspec import Raw, Struct, UnsetType
from msgspec.structs import replace

from antiphon.inference.encoded_items import EncodedItems
from antiphon.inference.sampling import SamplingOptions
from antiphon.wire.extensions import Guide
from antiphon.wire.items import Caller, Item, Program, ProgramCaller, ProgramOutput, of_type
from antiphon.wire.request_shapes import RequestShape
from antiphon.wire.response import ReasoningConfig, TextConfig
from antiphon.wire.tools import Tool, ToolChoiceObject

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

_T = TypeVar("_T")


class ResumePoint(Struct, frozen=True):
    """The state from which an interrupted reply continues.

    - ``prompt_ids``: token ids of the prompt.
    - ``sampled_ids``: token ids that the model has sampled after the prompt.
    - ``items``: the completed items.
    - ``open_items``: the unfinished items.
    - ``turns``: one pair for each model call so far: the number of prompt tokens, and the number of
      sampled tokens.
    """

    prompt_ids: tuple[int, ...]
    sampled_ids: tuple[int, ...]
    items: tuple[Item, ...] = ()
    open_items: tuple[Item, ...] = ()
    turns: tuple[tuple[int, int], ...] = ()


class PromptTokens(Struct, frozen=True):
    """The token ids of the conversation up to the end of the model's last answer. The next prompt
    begins with these ids. ``fingerprint``: identifies the tokenizer that gives the ids their
    meaning."""

    ids: tuple[int, ...]
    fingerprint: str


class Conversation(Struct, frozen=True):
    """The conversation that the model will see: items, oldest first, and the instructions of this
    request.

    The items contain no references: images are validated ``data:`` URLs in ``image_url``, and files
    are text. If a content is no longer available, a note replaces it.

    ``stored_tokens``: the token ids of the conversation up to the end of the model's last turn;
    None if they are unknown. ``past_count``: number of items from earlier requests. The items after
    them are the ``input`` of this request. ``past_tokens``: number of tokens that the model counted
    for the past items together with the same instructions and tools; None if it is unknown.
    ``encoded``: what backends have made of the past items in earlier turns.
    """

    items: tuple[Item, ...]
    instructions: str | None = None
    stored_tokens: PromptTokens | None = None
    past_count: int = 0
    past_tokens: int | None = None
    encoded: EncodedItems | None = None


#: Name and namespace of a function or custom tool, as the wire has them.
ToolName = tuple[str, str | None]


class ToolChoice(Struct, frozen=True):
    """Which tools the model may call. Derived from the ``tool_choice`` of a request.

    ``mode``:

    - ``none``: no call, and no tools in the prompt.
    - ``auto``: the model decides.
    - ``required``: at least one call.
    - ``one``: a call of the tool that the request names. If this is a server-side tool with several
      functions, the model may call any of them. After the call, the mode is ``auto``.

    ``allowed``: the functions that may be called; None allows all functions that the model sees.
    ``hosted``: allowed tools that the upstream server runs itself. Each entry has the format of
    ``tool_choice``.
    """

    mode: Literal["none", "auto", "required", "one"] = "auto"
    allowed: frozenset[ToolName] | None = None
    hosted: tuple[ToolChoiceObject, ...] = ()

    @property
    def must_call(self) -> bool:
        return self.mode in ("required", "one")

    def allows(self, name: str, namespace: str | None) -> bool:
        """Whether ``tool_choice`` allows a call of this function. This method does not check
        whether the model sees the function."""
        if self.mode == "none":
            return False
        return self.allowed is None or (name, namespace) in self.allowed


class Options(SamplingOptions, frozen=True, kw_only=True):
    """The options of an answer.

    - ``tools``: the tools that the model sees.
    - ``accept_stray_calls``: accept a reply that calls tools that ``tool_choice`` excludes. The
      tool loop then rejects these calls.
    - ``checks_calls``: the tool loop rejects calls of functions that are not in ``tools``. So
      remote backends pass such calls on and do not filter them out.
    - ``guide``: a grammar for the answer, instead of ``text.format``.
    - ``truncate``: if the conversation is too long, drop its oldest items instead of rejecting it.
    - ``template``: arguments of the chat template.
    - ``thinking_budget``: maximum number of reasoning tokens.
    - ``include_stop_text``: keep the stop string at the end of the answer.
    - ``logprob_token_ids``: log probabilities show the ids of tokens, not their text.
    - ``describes_media``: a note replaces a part that the model cannot read, because a tool can
      read the part.
    - ``stated``: the options of the request, if items of the conversation have changed some of
      them. See ``at_start``.
    - ``hints``: options that a backend ignores if it does not support them.
    - ``shape``: the shape of the request, for values that follow from ``tools`` and other options
      alone.
    """

    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = ToolChoice()
    accept_stray_calls: bool = False
    checks_calls: bool = False
    parallel_tool_calls: bool = True
    text: TextConfig = TextConfig()
    guide: Guide | None = None
    reasoning: ReasoningConfig | None = None
    max_output_tokens: int | None = None
    truncate: bool = False
    template: Mapping[str, Any] = {}
    thinking_budget: int | None = None
    include_stop_text: bool = False
    logprob_token_ids: bool = False
    describes_media: bool = False
    stated: Options | None = None
    hints: tuple[str, ...] = ()
    shape: RequestShape | None = None

    @property
    def at_start(self) -> Options:
        """The options as the beginning of the prompt states them. They do not change when an item
        of the conversation changes a setting, so that the beginning stays in the cache. A message
        at the place of this item states the change."""
        if self.stated is None:
            return self
        stated = self.stated
        return replace(
            self,
            reasoning=stated.reasoning,
            text=stated.text,
            guide=stated.guide,
            thinking_budget=stated.thinking_budget,
            stated=None,
        )

    @property
    def rejects_unknown_calls(self) -> bool:
        """Whether the tool loop or the validation of the reply rejects calls of functions that were
        not offered. Parsers then report such calls, which are text otherwise."""
        choice = self.tool_choice
        return self.checks_calls or choice.must_call or choice.allowed is not None

    @property
    def allows_parallel_calls(self) -> bool:
        """Whether the model may make several tool calls in one answer.

        It may not if the request forbids parallel calls. It also may not if ``tool_choice`` names a
        single tool, because this tool is called exactly once (OpenAI's guide to function calling).
        If the upstream server runs the named tool, the upstream decides how often it is called.
        """
        is_named = self.tool_choice.mode == "one" and not self.tool_choice.hosted
        return self.parallel_tool_calls and not is_named

    def __hash__(self) -> int:
        # Some of the other fields are dicts, which have no hash.
        return hash((self.max_output_tokens, self.temperature, self.tool_choice.mode))

    @property
    def shared(self) -> Options:
        """The options without those that belong to one request. They are equal for most requests of
        a shape."""
        return replace(
            self, cache_key=None, cache_scope=None, tenant="", session=None, trace={}, shape=None
        )

    def encoded(self, text: str) -> str | Raw:
        """Return the JSON of a text if it is that of the instructions of all requests of the same
        shape. Return other texts unchanged."""
        shared = None if self.shape is None else self.shape.instructions
        return text if shared is None or shared.text is not text else shared.json

    def derive(
        self, function: Callable[..., _T], objects: tuple[object, ...], *arguments: Hashable
    ) -> _T:
        """Return ``function(*objects, *arguments)``, which is computed once for all requests of
        the same shape (``RequestShape.derive``)."""
        if self.shape is None:
            return function(*objects, *arguments)
        return self.shape.derive(function, objects, *arguments)

    def requests(self, option: str) -> bool:
        """Return whether the request insists on ``option``: it sets the option to a value that has
        an effect, and the option is not a hint. If so, a backend that does not support the option
        must reject the request. ``option``: a key of ``NEUTRAL_VALUES``."""
        return option not in self.hints and getattr(self, option) not in NEUTRAL_VALUES[option]


#: Options that some engines and servers do not support → the values that have no effect.
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
    "logprob_token_ids": (False,),
    "cache_salt": (None,),
    "priority": (None,),
    "adapter": (None,),
}


class _Called(Protocol):
    @property
    def caller(self) -> Caller | UnsetType | None: ...


def caller_program_id(item: _Called) -> str | None:
    """Return the ``call_id`` of the program that made a tool call. Return None if the model itself
    made the call. ``item``: the call, or the output of the call.

    A program is code that the model writes and that calls tools. The model sees neither the calls
    of a program nor their outputs.
    """
    caller = item.caller
    return caller.caller_id if isinstance(caller, ProgramCaller) else None


_PROGRAMS: frozenset[type[Any]] = frozenset((Program, ProgramOutput))


def open_programs(items: Iterable[Item]) -> tuple[Program, ...]:
    """Return the programs that have no output yet. A program is code that the model wrote and that
    calls tools. A program without output waits for tool results from the client, or was
    interrupted. A program with an empty ``fingerprint`` is left out, because Antiphon continues a
    program only after a check of its fingerprint."""
    items = tuple(items)
    if _PROGRAMS.isdisjoint(map(type, items)):
        return ()
    over = {item.call_id for item in of_type(items, ProgramOutput)}
    return tuple(
        item for item in of_type(items, Program) if item.fingerprint and item.call_id not in over
    )
