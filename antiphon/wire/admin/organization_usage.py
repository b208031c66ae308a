"""The answers of ``/v1/organization/usage``. They report numbers of requests and tokens in the
format of OpenAI's API.

What the format calls a project is a tenant in Antiphon. An API key is identified by its name.
``num_failed_requests`` and the fields after it are extensions.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct


class EmbeddingsUsage(Struct, frozen=True, kw_only=True):
    """Usage, summed over embeddings requests. ``project_id``, ``api_key_id`` and ``model`` are
    set only if the sums are grouped by that field; otherwise they are null."""

    object: Literal["organization.usage.embeddings.result"] = "organization.usage.embeddings.result"
    input_tokens: int
    num_model_requests: int
    project_id: str | None = None
    user_id: None = None
    api_key_id: str | None = None
    model: str | None = None
    latency_ms: int


class CompletionsUsage(Struct, frozen=True, kw_only=True):
    """Usage, summed over responses, chat completions and completions. ``project_id``,
    ``api_key_id`` and ``model`` are set only if the sums are grouped by that field; otherwise they
    are null.

    ``latency_ms``: total time of all requests in milliseconds. The time of a request ends with the
    end of its response.
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
    """The usage in one period, summed over responses, chat completions and completions. The period
    begins at ``start_time`` and ends before ``end_time``, in Unix seconds. ``results`` is empty if
    there were no requests."""

    object: Literal["bucket"] = "bucket"
    start_time: int
    end_time: int
    results: tuple[CompletionsUsage, ...]


class EmbeddingsUsageBucket(Struct, frozen=True, kw_only=True):
    """The usage in one period, summed over embeddings requests. The period begins at ``start_time``
    and ends before ``end_time``, in Unix seconds. ``results`` is empty if there were no
    requests."""

    object: Literal["bucket"] = "bucket"
    start_time: int
    end_time: int
    results: tuple[EmbeddingsUsage, ...]


class CompletionsUsagePage(Struct, frozen=True, kw_only=True):
    """One page of the usage of responses and completions, in buckets (periods of time). The buckets
    are ordered by time. ``next_page``: the value of ``page`` for the request of the next page."""

    object: Literal["page"] = "page"
    data: tuple[CompletionsUsageBucket, ...]
    has_more: bool
    next_page: str | None = None


class CostAmount(Struct, frozen=True, kw_only=True):
    value: float
    currency: Literal["usd"] = "usd"


class Costs(Struct, frozen=True, kw_only=True):
    """The costs of the tokens of all requests, by the prices in the settings. ``project_id``,
    ``api_key_id`` and ``line_item`` are set only if the costs are grouped by that field. A line
    item is a model; ``quantity`` is the number of its tokens in millions."""

    object: Literal["organization.costs.result"] = "organization.costs.result"
    amount: CostAmount
    project_id: str | None = None
    api_key_id: str | None = None
    line_item: str | None = None
    quantity: float | None = None


class CostsBucket(Struct, frozen=True, kw_only=True):
    """The costs of one day. ``results`` is empty if there were no requests."""

    object: Literal["bucket"] = "bucket"
    start_time: int
    end_time: int
    results: tuple[Costs, ...]


class CostsPage(Struct, frozen=True, kw_only=True):
    """One page of costs, by days."""

    object: Literal["page"] = "page"
    data: tuple[CostsBucket, ...]
    has_more: bool
    next_page: str | None = None


class EmbeddingsUsagePage(Struct, frozen=True, kw_only=True):
    """One page of the usage of embeddings requests, in buckets (periods of time). The buckets are
    ordered by time. ``next_page``: the value of ``page`` for the request of the next page."""

    object: Literal["page"] = "page"
    data: tuple[EmbeddingsUsageBucket, ...]
    has_more: bool
    next_page: str | None = None
