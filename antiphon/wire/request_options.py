"""The objects in the fields of a request that say how a response is made: caching, background work
and OpenAI's programs. Source of the fields: the types of the ``openai`` SDK, version 3.57."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

__all__ = [
    "AccessPrograms",
    "BackgroundOptions",
    "CacheHit",
    "CacheMiss",
    "CacheMissReason",
    "ComparisonNotFound",
    "ComparisonUnavailable",
    "ImageOptions",
    "ModerationConfig",
    "ModerationPolicy",
    "ModerationStep",
    "MultiAgent",
    "PromptCacheDiagnostics",
    "PromptCacheOptions",
    "PromptCacheRequest",
]

_Key = Annotated[str, Meta(max_length=256)]
_Ttl = Literal["30m", "12h"]


class PromptCacheOptions(Struct, frozen=True, kw_only=True):
    """How a prompt is cached. ``comparison_response_id``: the response whose prompt is compared
    with this one."""

    mode: Literal["implicit", "explicit"] = "implicit"
    ttl: _Ttl = "30m"
    comparison_response_id: _Key | UnsetType = UNSET


class PromptCacheRequest(PromptCacheOptions, frozen=True, kw_only=True):
    """How a request wants its prompt to be cached. ``prewarm``: only cache the prompt, and generate
    no output."""

    prewarm: bool = False

    @property
    def effective(self) -> PromptCacheOptions:
        """The options as the response shows them."""
        return PromptCacheOptions(
            mode=self.mode, ttl=self.ttl, comparison_response_id=self.comparison_response_id
        )


CacheMissReason = Literal[
    "model_changed",
    "prompt_cache_key_changed",
    "tools_changed",
    "text_format_changed",
    "reasoning_effort_changed",
    "verbosity_changed",
    "context_compacted",
    "input_changed",
    "service_tier_changed",
]


class CacheHit(Struct, frozen=True, kw_only=True, tag_field="type", tag="cache_hit"):
    """The prompt continues the prompt of the compared response."""


class CacheMiss(Struct, frozen=True, kw_only=True, tag_field="type", tag="cache_miss"):
    """The prompt differs from the beginning of the compared response.

    ``cache_missed_tokens``: how many tokens of the compared prompt follow the first difference.
    ``comparison_reusable_tokens``: how many precede it; UNSET if the token ids are unknown.
    ``instructions_changed``: set if they differ. OpenAI's API does not have this field, because
    there it is a changed input.
    """

    reason: CacheMissReason
    cache_missed_tokens: int
    comparison_reusable_tokens: int | UnsetType = UNSET
    instructions_changed: Literal[True] | UnsetType = UNSET


class ComparisonNotFound(
    Struct, frozen=True, kw_only=True, tag_field="type", tag="comparison_response_not_found"
):
    """The compared response is unknown, deleted, not stored, or belongs to another tenant."""


class ComparisonUnavailable(Struct, frozen=True, kw_only=True, tag_field="type", tag="unavailable"):
    """The server cannot tell, because the compared response did not use the cache."""


PromptCacheDiagnostics = CacheHit | CacheMiss | ComparisonNotFound | ComparisonUnavailable


class BackgroundOptions(Struct, frozen=True, kw_only=True):
    """How urgent a background response is. ``completion_window``: how long the client can wait for
    it. ``continuation_id``: an opaque name of the job to which the response belongs."""

    completion_window: Literal["soonest", "2h", "8h"] = "soonest"
    continuation_id: _Key | UnsetType = UNSET


class AccessPrograms(Struct, frozen=True, kw_only=True):
    """The access programs of the client at OpenAI. They concern only OpenAI's own models, so this
    server ignores them."""

    cyber: Literal["standard", "daybreak_blue", "daybreak_red"] | None = None


class ImageOptions(Struct, frozen=True, kw_only=True):
    """``context_compression``: whether images of the conversation are compressed. The server does
    not compress them, so it refuses ``enabled``."""

    context_compression: Literal["auto", "enabled", "disabled"] = "auto"


class ModerationStep(Struct, frozen=True, kw_only=True):
    """``mode``: only report scores, or also block."""

    mode: Literal["score", "block"]


class ModerationPolicy(Struct, frozen=True, kw_only=True):
    """What to do with the input and with the output."""

    input: ModerationStep | None = None
    output: ModerationStep | None = None


class ModerationConfig(Struct, frozen=True, kw_only=True):
    """A request to moderate the response with the model ``model``."""

    model: _Key
    policy: ModerationPolicy | None = None


class MultiAgent(Struct, frozen=True, kw_only=True):
    """OpenAI's hosted sub-agents (beta)."""

    enabled: bool = False
    max_concurrent_subagents: Annotated[int, Meta(ge=1)] | None = None
