"""The answers of ``/v1/organization/usage``. They report numbers of requests and tokens in the
format of OpenAI's API.

What the format calls a project is a tenant in Antiphon. An API key is identified by its name.
``num_failed_requests`` and the fields after it are extensions.
"""

from __future__ import annotations

from typing import Generic, Literal, TypeVar

from msgspec import Struct

_T = TypeVar("_T")


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


class CostAmount(Struct, frozen=True, kw_only=True):
    value: float
    currency: Literal["usd"] = "usd"


class Costs(Struct, frozen=True, kw_only=True):
    """The costs of tokens and tool calls. ``project_id``, ``api_key_id`` and ``line_item`` are set
    only if the costs are grouped by that field. If ``line_item`` is a model, ``quantity`` is the
    number of its tokens in millions. If it is the type of a tool, ``quantity`` is the number of
    calls."""

    object: Literal["organization.costs.result"] = "organization.costs.result"
    amount: CostAmount
    project_id: str | None = None
    api_key_id: str | None = None
    line_item: str | None = None
    quantity: float | None = None


class AudioTranscriptionsUsage(Struct, frozen=True, kw_only=True):
    """The usage of ``/v1/audio/transcriptions`` and ``/v1/audio/translations``."""

    object: Literal["organization.usage.audio_transcriptions.result"] = (
        "organization.usage.audio_transcriptions.result"
    )
    seconds: int
    num_model_requests: int
    project_id: str | None = None
    user_id: None = None
    api_key_id: str | None = None
    model: str | None = None


class AudioSpeechesUsage(Struct, frozen=True, kw_only=True):
    """The usage of ``/v1/audio/speech``."""

    object: Literal["organization.usage.audio_speeches.result"] = (
        "organization.usage.audio_speeches.result"
    )
    characters: int
    num_model_requests: int
    project_id: str | None = None
    user_id: None = None
    api_key_id: str | None = None
    model: str | None = None


class FileSearchesUsage(Struct, frozen=True, kw_only=True):
    """The calls of the tool ``file_search``."""

    object: Literal["organization.usage.file_searches.result"] = (
        "organization.usage.file_searches.result"
    )
    num_requests: int
    project_id: str | None = None
    user_id: None = None
    api_key_id: str | None = None
    vector_store_id: None = None


class WebSearchesUsage(Struct, frozen=True, kw_only=True):
    """The calls of the tool ``web_search``. ``num_model_requests``: the same number."""

    object: Literal["organization.usage.web_searches.result"] = (
        "organization.usage.web_searches.result"
    )
    num_requests: int
    num_model_requests: int
    project_id: str | None = None
    user_id: None = None
    api_key_id: str | None = None
    model: str | None = None


class CodeInterpreterUsage(Struct, frozen=True, kw_only=True):
    """The calls of the tool ``code_interpreter``."""

    object: Literal["organization.usage.code_interpreter_sessions.result"] = (
        "organization.usage.code_interpreter_sessions.result"
    )
    num_sessions: int
    project_id: str | None = None
    api_key_id: str | None = None


class UsageBucket(Struct, Generic[_T], frozen=True, kw_only=True):
    """The sums of one period. It begins at ``start_time`` and ends before ``end_time``, in Unix
    seconds. ``results`` is empty if there were no requests."""

    object: Literal["bucket"] = "bucket"
    start_time: int
    end_time: int
    results: tuple[_T, ...]


class UsagePage(Struct, Generic[_T], frozen=True, kw_only=True):
    """One page of sums, in buckets (periods of time), ordered by time. ``next_page``: the value of
    ``page`` for the request of the next page."""

    object: Literal["page"] = "page"
    data: tuple[UsageBucket[_T], ...]
    has_more: bool
    next_page: str | None = None
