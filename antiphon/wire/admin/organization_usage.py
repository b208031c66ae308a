"""What requests used, in OpenAI's form of the usage of an organization.

Projects are tenants, API keys are known by their names. ``num_failed_requests`` and the fields
after it are extensions.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

__all__ = [
    "CompletionsUsage",
    "CompletionsUsageBucket",
    "CompletionsUsagePage",
    "EmbeddingsUsage",
    "EmbeddingsUsageBucket",
    "EmbeddingsUsagePage",
]


class EmbeddingsUsage(Struct, frozen=True, kw_only=True):
    """Sums of requests for embeddings. What is not grouped by is null."""

    object: Literal["organization.usage.embeddings.result"] = "organization.usage.embeddings.result"
    input_tokens: int
    num_model_requests: int
    project_id: str | None = None
    user_id: None = None
    api_key_id: str | None = None
    model: str | None = None
    latency_ms: int


class CompletionsUsage(Struct, frozen=True, kw_only=True):
    """Sums of responses, chat completions and completions. What is not grouped by is null.

    ``latency_ms``: sum over all requests, from the request to the end of its response.
    """

    object: Literal["organization.usage.completions.result"] = (
        "organization.usage.completions.result"
    )
    input_tokens: int
    input_cached_tokens: int
    output_tokens: int
    input_audio_tokens: int = 0
    output_audio_tokens: int = 0
    num_model_requests: int
    project_id: str | None = None
    user_id: None = None
    api_key_id: str | None = None
    model: str | None = None
    batch: None = None
    service_tier: None = None
    num_failed_requests: int
    num_cancelled_requests: int
    num_tool_calls: int
    output_reasoning_tokens: int
    latency_ms: int


class CompletionsUsageBucket(Struct, frozen=True, kw_only=True):
    """The sums of ``start_time`` ≤ time < ``end_time``, in unix seconds; none if nothing
    happened."""

    object: Literal["bucket"] = "bucket"
    start_time: int
    end_time: int
    results: tuple[CompletionsUsage, ...]


class EmbeddingsUsageBucket(Struct, frozen=True, kw_only=True):
    """As ``CompletionsUsageBucket``."""

    object: Literal["bucket"] = "bucket"
    start_time: int
    end_time: int
    results: tuple[EmbeddingsUsage, ...]


class CompletionsUsagePage(Struct, frozen=True, kw_only=True):
    """Buckets in order of time. ``next_page``: the ``page`` of the request that continues."""

    object: Literal["page"] = "page"
    data: tuple[CompletionsUsageBucket, ...]
    has_more: bool
    next_page: str | None = None


class EmbeddingsUsagePage(Struct, frozen=True, kw_only=True):
    """As ``CompletionsUsagePage``."""

    object: Literal["page"] = "page"
    data: tuple[EmbeddingsUsageBucket, ...]
    has_more: bool
    next_page: str | None = None
