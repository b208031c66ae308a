"""The interface of a backend. A backend gets a conversation and gives the answer as deltas."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeAlias

from msgspec import Struct

from antiphon.dialects.base import ReasoningRetention
from antiphon.engines.base import PrefixCacheCounts
from antiphon.errors import BackendError, InvalidRequest, unsupported_model
from antiphon.inference.conversation import Conversation, Options, PromptTokens, ResumePoint
from antiphon.inference.sampling import SessionSignal
from antiphon.stream.deltas import Delta, Finish, Open, Text
from antiphon.support.push import Sink
from antiphon.upstream.retries import RetryState, track_retries
from antiphon.wire.items import Item
from antiphon.wire.response import InputTokensDetails, OutputTokensDetails, Usage

__all__ = [
    "ASSUMED_CONTEXT_SIZE",
    "Backend",
    "BackendCapabilities",
    "DeltaSink",
    "Reply",
    "RetryState",
    "Status",
    "Task",
    "read_text",
    "text_completion_unsupported_error",
    "track_retries",
    "upstream_usage",
]

#: The context size in tokens that is assumed where ``Backend.context_size`` is None.
ASSUMED_CONTEXT_SIZE = 32_768
#: Upper bound for token counts reported by an upstream.
_MAX_TOKENS = 2**40


#: The task of a model that does not answer conversations.
Task: TypeAlias = Literal["embeddings", "moderation", "reranking", "transcription", "speech"]

#: Takes the deltas of a reply that become known at the same time. In the tuple, the ids of sampled
#: tokens come before the deltas that result from them. A tuple may be empty.
DeltaSink = Sink[tuple[Delta, ...]]


class BackendCapabilities(Struct, frozen=True, kw_only=True):
    """What a backend can do.

    - ``images``: the backend accepts images. If False, Antiphon does not fetch or check images. The
      backend gets them as the client sent them. It replaces each image by a note or rejects the
      request.
    - ``audio_video``: the backend accepts audio and video.
    - ``hears``: recordings of requests go to the backend, and no other model writes them down.
    - ``hosted_tools``: types of the tools that the upstream runs, such as ``web_search``. The reply
      contains the items of these tools.
    - ``completes_text``: the backend implements ``complete``.
    - ``detokenizes``: the backend implements ``detokenize``.
    - ``summarizes_reasoning``: the backend may summarize its reasoning if a request asks for a
      summary.
    - ``thinks``: whether the model can reason before it answers; None if this is unknown.
    - ``template``: the source of the model's chat template; "" if it has none or it is unknown.
    - ``reasoning_retention``: function that returns, for the options of a request, which reasoning
      of earlier turns the model sees again. None if the backend does not know this.
    """

    images: bool = False
    audio_video: bool = False
    hears: bool = False
    hosted_tools: frozenset[str] = frozenset()
    completes_text: bool = False
    detokenizes: bool = False
    summarizes_reasoning: bool = False
    thinks: bool | None = None
    template: str = ""
    reasoning_retention: Callable[[Options], ReasoningRetention] | None = None


class Reply(Protocol):
    """One model call. The request is already checked and the prompt is rendered. The model starts
    when ``pump`` is awaited.

    Classes of replies may subclass this protocol to inherit its default methods.
    """

    @property
    def input_tokens(self) -> int:
        """Number of tokens of the prompt. If the token ids are not known (``prompt_tokens`` is
        None), for example because an upstream tokenizes the prompt, this may be an estimate."""

    @property
    def prompt_tokens(self) -> PromptTokens | None:
        """The prompt as token ids, or None if they are unknown. The prompt of the next turn begins
        with these ids, followed by the ids of the tokens that the model generated in this reply."""
        return None

    @property
    def reports_tokens(self) -> bool:
        """Whether the deltas may include the ids of the sampled tokens. If False, they never
        include ids. If True, they include ids only if the backend knows them."""
        return True

    @property
    def dropped_ids(self) -> tuple[str, ...]:
        """Ids of the items that truncation left out."""
        return ()

    @property
    def may_fail_early(self) -> bool:
        """Whether an upstream may still reject the request before the first delta. If True, the
        caller should wait for the first delta, so the client gets the rejection as an HTTP
        error."""
        return False

    def resume(self, point: ResumePoint) -> Reply:
        """Return a reply that continues this reply after an interruption.

        The deltas of the returned reply begin after the tokens that were sampled before the
        interruption. The usage of the returned reply includes these tokens. Raises
        ``CannotContinue`` if this reply cannot be continued.
        """

    async def pump(self, sink: DeltaSink) -> None:
        """Generate the reply, and give its deltas to ``sink`` as soon as they exist (see
        ``support.push``).

        The caller stores and sends the deltas of a tuple together. If the caller is cancelled or
        the sink raises, the model stops after at most one more token. Raises ``RunError`` if the
        generation fails.
        """

    def stop(self) -> None:
        """End the reply early, because the caller needs no more deltas. Call this in the sink of
        ``pump``.

        The model stops, and the deltas soon end with a ``Finish`` whose reason is ``length``. The
        usage in this ``Finish`` is exact if Antiphon counts the tokens. If only the upstream counts
        them, the usage is an estimate. If a reply is buffered or short, it may ignore this call and
        end as usual. The default implementation does nothing.
        """
        return

    def initial_fields(self) -> Mapping[str, Any]:
        """Return additional fields for the response before the model starts."""
        return {}

    def final_fields(self, sampled: array[int], output: tuple[Item, ...]) -> Mapping[str, Any]:
        """Return additional fields for the finished response.

        ``sampled``: the token ids of the output. ``output``: the items of the output. Raises
        ``RunError`` if a requested field cannot be provided.
        """
        return {}


async def read_text(reply: Reply) -> tuple[str, Usage]:
    """Execute a model call. Return the text of its messages, which may be empty, and its usage."""
    texts: list[str] = []
    usage = Usage()
    in_message = False

    def read(batch: tuple[Delta, ...]) -> None:
        nonlocal usage, in_message
        for delta in batch:
            match delta:
                case Open():
                    in_message = delta.item.is_message
                case Text() if in_message:
                    texts.append(delta.text)
                case Finish():
                    usage = delta.usage

    await reply.pump(read)
    return "".join(texts), usage


class Status(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The state of a model: whether it can answer immediately. This object is sent to clients.

    ``value``: ``loaded``, ``loading``, ``unloading``, ``unloaded``, or ``failed`` after a failed
    load. While the model loads, ``stage`` names the current part of the work, ``bytes`` is the
    number of bytes loaded so far, and ``total_bytes`` is the total number of bytes, or None if it
    is unknown. ``prefix_cache``: what the cache of a loaded model holds. ``threads``: number of CPU
    threads of a loaded model. Only operators see these two.
    """

    value: str
    stage: str = ""
    bytes: int = 0
    total_bytes: int | None = None
    prefix_cache: PrefixCacheCounts | None = None
    threads: int | None = None


class Backend(Protocol):
    """Answers conversations. Each served model has one backend.

    Classes of backends may subclass this protocol to inherit its default methods.
    """

    @property
    def context_size(self) -> int | None:
        """Maximum number of tokens of prompt and answer together, or None if only an upstream knows
        this number."""

    @property
    def recommended_options(self) -> Mapping[str, Any]:
        """Sampling values that the model's makers recommend, keyed by the field names of
        ``Options``."""

    @property
    def capabilities(self) -> BackendCapabilities:
        """The features that the backend supports. They may change when the model is loaded or
        unloaded."""
        return BackendCapabilities()

    @property
    def task(self) -> Task | None:
        """The only task of the model. It is None for a model that answers conversations."""
        return None

    @property
    def status(self) -> Status:
        """The state of the model: whether it can answer immediately."""
        return Status(value="loaded")

    async def on_session(self, signal: SessionSignal) -> None:
        """Tell the engine what has happened to a conversation."""
        return

    async def ready(self) -> bool:
        """Start loading the model if it is not loaded. Wait until the model is loaded or a short
        time limit is reached. Return whether the model is loaded. Raises ``Overloaded`` if the
        model cannot be loaded."""
        return True

    async def prepare(self, conversation: Conversation, options: Options) -> Reply:
        """Check the request and render the prompt.

        Raises ``InvalidRequest``, with the path of the field, if the backend cannot fulfil the
        request. If the conversation is too long, the error has the code
        ``context_length_exceeded``.
        """

    async def complete(self, prompt: str | tuple[int, ...], options: Options) -> Reply:
        """Prepare a text completion: the model continues ``prompt`` without a chat template.

        ``prompt``: the text as a string or as token ids. The reply consists of one message. Options
        that concern conversations are ignored. Raises ``InvalidRequest`` if the backend cannot
        fulfil the request. If the text is invalid, the error's ``param`` is ``input``.
        """
        raise text_completion_unsupported_error()

    def detokenize(self, ids: Sequence[int]) -> str:
        """Return the text of token ids. A control token is returned as its text. Raises
        ``BackendError`` if the backend does not know the tokens."""
        raise BackendError("This server does not know the tokens of this model.")

    def split_messages(self, ids: Sequence[int]) -> list[tuple[Sequence[int], Mapping[str, Any]]]:
        """Divide the ids of a prompt or of a reply into the messages of the model's format. Returns
        the ids of each message, and its fields. A format without messages gives one message, which
        has no fields."""
        return [(ids, {})]

    async def close(self) -> None:
        """Close the backend and free the resources of its model. Does nothing by default."""
        return


def text_completion_unsupported_error(name: str | None = None) -> InvalidRequest:
    """Return the error for a text completion with a model that supports only conversations.
    ``name``: the name of the model, or None."""
    model = "This model" if name is None else f"The model '{name}'"
    return unsupported_model(
        f"{model} does not support text completion. Use /v1/responses or /v1/chat/completions."
    )


def upstream_usage(
    input_tokens: int, output_tokens: int, *, cached_tokens: int = 0, reasoning_tokens: int = 0
) -> Usage:
    """Return the token usage that an upstream reports, with each number clamped to a sane value.

    ``cached_tokens`` are a part of ``input_tokens``, and ``reasoning_tokens`` are a part of
    ``output_tokens``.
    """
    input_tokens, output_tokens = _clamp(input_tokens), _clamp(output_tokens)
    return Usage(
        input_tokens=input_tokens,
        input_tokens_details=InputTokensDetails(cached_tokens=_clamp(cached_tokens, input_tokens)),
        output_tokens=output_tokens,
        output_tokens_details=OutputTokensDetails(
            reasoning_tokens=_clamp(reasoning_tokens, output_tokens)
        ),
        total_tokens=input_tokens + output_tokens,
    )


def _clamp(count: int, limit: int = _MAX_TOKENS) -> int:
    return count if 0 <= count <= limit else max(0, min(count, limit))
