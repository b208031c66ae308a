"""Compares the prompt of a request with the prompt of an earlier response, so that clients see why
a prompt cache did not help them (``prompt_cache_options.comparison_response_id``)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
from msgspec import UNSET, Struct
from msgspec.structs import replace

from antiphon.inference.conversation import PromptTokens
from antiphon.inference.encoded_items import EncodedItems, select
from antiphon.inference.tokens import common_prefix_length
from antiphon.runs.history.chain_cache import Chain, chain_items
from antiphon.runs.history.context import ConversationContext
from antiphon.stream.kinds import parts_of
from antiphon.wire.items import Item, ItemBase
from antiphon.wire.request import CreateResponse
from antiphon.wire.request_options import (
    CacheHit,
    CacheMiss,
    CacheMissReason,
    ComparisonUnavailable,
    PromptCacheDiagnostics,
)
from antiphon.wire.response import Response

#: A prompt ends with the start of an answer. Once the answer is known, a template may write this
#: start differently, in at most this many tokens.
_ANSWER_START = 16
#: OpenAI's limit: the number of breakpoints of a conversation, the newest, that can match.
_MAX_BREAKPOINTS = 80

_encode = msgspec.json.Encoder(order="deterministic").encode


class CacheComparison(Struct, frozen=True, kw_only=True):
    """The earlier response: the chain that ends with it, and the token ids of its prompt and
    output. ``same_model``: whether the request has the same model, perhaps under an alias."""

    chain: Chain
    tokens: PromptTokens | None
    same_model: bool

    @property
    def response(self) -> Response:
        return self.chain[-1].response

    @property
    def items(self) -> tuple[Item, ...]:
        """The input items of the response, with those of the responses that it continues."""
        return (*chain_items(self.chain[:-1]), *self.chain[-1].input)


def compare_prompts(
    comparison: CacheComparison,
    response: Response,
    context: ConversationContext,
    prompt: PromptTokens | None,
) -> PromptCacheDiagnostics:
    """Return whether the prompt of a request continues the prompt of an earlier response, and if
    not, why. ``response``: the new response before anything is generated. ``prompt``: its prompt,
    if the token ids are known; otherwise the items are compared."""
    earlier = comparison.response
    cache = earlier.prompt_cache_options
    if cache.mode == "explicit" and not count_breakpoints(comparison.items):
        return ComparisonUnavailable()
    unchanged = _unchanged_items(comparison.items, context.items)
    reason = _changed_setting(comparison, response, context)
    old = comparison.tokens
    if old is None or prompt is None or old.fingerprint != prompt.fingerprint:
        return _compare_items(comparison, reason, unchanged, response)
    output_tokens = earlier.usage.output_tokens if earlier.usage is not None else 0
    length = max(len(old.ids) - output_tokens, 1)
    common = min(common_prefix_length(old.ids, prompt.ids), length)
    continues = unchanged == len(comparison.items)
    if common == length or (continues and length - common <= _ANSWER_START):
        return CacheHit()
    miss = _miss(reason, earlier, response)
    return replace(miss, cache_missed_tokens=length - common, comparison_reusable_tokens=common)


def _miss(reason: CacheMissReason | None, earlier: Response, response: Response) -> CacheMiss:
    """Return why the prompts differ, without the number of tokens. ``reason``: None if only the
    input or the instructions can differ."""
    has_changed = reason is None and earlier.instructions != response.instructions
    return CacheMiss(
        reason=reason or "input_changed",
        cache_missed_tokens=0,
        instructions_changed=True if has_changed else UNSET,
    )


def count_breakpoints(items: Iterable[Item]) -> int:
    """Return how many breakpoints of the items can match a cache."""
    breakpoints = (part for item in items for part in filter(_is_breakpoint, parts_of(item)))
    return min(sum(1 for _ in breakpoints), _MAX_BREAKPOINTS)


def _has_breakpoint(item: Item) -> bool:
    return any(map(_is_breakpoint, parts_of(item)))


def _is_breakpoint(part: object) -> bool:
    return getattr(part, "prompt_cache_breakpoint", UNSET) is not UNSET


def written_share(
    request: CreateResponse, items: Sequence[Item], known: EncodedItems | None = None
) -> float:
    """Return which share of a prompt a cache keeps for later requests: all of it in the implicit
    mode, and in the explicit mode what precedes the newest breakpoint, estimated from the sizes of
    the items. The share is 0 if the request says nothing about caching. ``known``: what is known
    about the items of the chain."""
    options = request.prompt_cache_options
    if options is None and not select(items, _has_breakpoint, known):
        return 0.0
    if options is None or options.mode == "implicit":
        return 1.0
    size = len(_encode((request.instructions, request.tools)))
    kept = 0
    for item in items:
        for part in parts_of(item) or (item,):
            size += len(_encode(part))
            kept = size if _is_breakpoint(part) else kept
    return kept / size


def _compare_items(
    comparison: CacheComparison, reason: CacheMissReason | None, unchanged: int, response: Response
) -> PromptCacheDiagnostics:
    """Compare the prompts without their token ids: an upstream keeps them to itself."""
    earlier, items = comparison.response, comparison.items
    key_changed = earlier.prompt_cache_key != response.prompt_cache_key
    if reason is None and key_changed:  # the upstream chooses its cache by the key
        reason = "prompt_cache_key_changed"
    if reason is None and unchanged == len(items) and earlier.instructions == response.instructions:
        return CacheHit()
    tokens = earlier.usage.input_tokens if earlier.usage is not None else 0
    if reason is None and items:
        sizes = [len(_encode(item)) for item in items]
        tokens = round(tokens * sum(sizes[unchanged:]) / sum(sizes)) or tokens
    return replace(_miss(reason, earlier, response), cache_missed_tokens=tokens)


def _changed_setting(
    comparison: CacheComparison, response: Response, context: ConversationContext
) -> CacheMissReason | None:
    """Return the first setting that differs and that a prompt shows. Return None if only the input
    can differ."""
    earlier = comparison.response
    effort, earlier_effort = (
        each.reasoning.effort if each.reasoning is not None else None
        for each in (response, earlier)
    )
    changes: tuple[tuple[CacheMissReason, bool], ...] = (
        ("model_changed", not comparison.same_model),
        ("tools_changed", _tools(earlier) != _tools(response)),
        ("text_format_changed", earlier.text.format != response.text.format),
        ("reasoning_effort_changed", earlier_effort != effort),
        ("verbosity_changed", earlier.text.verbosity != response.text.verbosity),
        ("context_compacted", context.visible.compaction is not None),
    )
    return next((reason for reason, has_changed in changes if has_changed), None)


def _tools(response: Response) -> bytes:
    """Return the tools that the model sees, in a form that can be compared."""
    return b"" if response.tool_choice == "none" else _encode(response.tools)


def _unchanged_items(earlier: Sequence[Item], items: Sequence[Item]) -> int:
    """Return how many items are the same at the start of both sequences, whatever their ids."""
    pairs = zip(earlier, items, strict=False)
    return next(
        (at for at, pair in enumerate(pairs) if not _equal(*pair)), min(len(earlier), len(items))
    )


def _equal(one: ItemBase, other: ItemBase) -> bool:
    return one is other or replace(one, id="") == replace(other, id="")
