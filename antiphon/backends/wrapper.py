"""Base classes for wrappers of backends and replies. They delegate all methods to the wrapped
object. A subclass changes some of the methods."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import Any

from antiphon.inference.conversation import Conversation, Options, PromptTokens, ResumePoint
from antiphon.inference.sampling import SessionSignal
from antiphon.wire.items import Item

from .base import Backend, BackendCapabilities, DeltaSink, Reply, Status


class BackendWrapper(Backend):
    """``Backend`` that delegates all methods to the backend ``inner``, except ``close``. The owner
    of ``inner`` closes ``inner``."""

    def __init__(self, inner: Backend) -> None:
        self._inner = inner

    @property
    def context_size(self) -> int | None:
        return self._inner.context_size

    @property
    def recommended_options(self) -> Mapping[str, Any]:
        return self._inner.recommended_options

    @property
    def capabilities(self) -> BackendCapabilities:
        return self._inner.capabilities

    @property
    def status(self) -> Status:
        return self._inner.status

    async def on_session(self, signal: SessionSignal) -> None:
        await self._inner.on_session(signal)

    async def ready(self) -> bool:
        return await self._inner.ready()

    async def prepare(self, conversation: Conversation, options: Options) -> Reply:
        return await self._inner.prepare(conversation, options)

    async def complete(self, prompt: str | tuple[int, ...], options: Options) -> Reply:
        return await self._inner.complete(prompt, options)

    def detokenize(self, ids: Sequence[int]) -> str:
        return self._inner.detokenize(ids)

    def split_messages(self, ids: Sequence[int]) -> list[tuple[Sequence[int], Mapping[str, Any]]]:
        return self._inner.split_messages(ids)

    async def close(self) -> None:
        """Do nothing, because the owner of ``inner`` closes ``inner``."""


class ReplyWrapper(Reply):
    """``Reply`` that delegates all methods to ``reply``."""

    def __init__(self, reply: Reply) -> None:
        self._reply = reply

    @property
    def input_tokens(self) -> int:
        return self._reply.input_tokens

    @property
    def prompt_tokens(self) -> PromptTokens | None:
        return self._reply.prompt_tokens

    @property
    def reports_tokens(self) -> bool:
        return self._reply.reports_tokens

    @property
    def dropped_ids(self) -> tuple[str, ...]:
        return self._reply.dropped_ids

    @property
    def may_fail_early(self) -> bool:
        return self._reply.may_fail_early

    def resume(self, point: ResumePoint) -> Reply:
        return self._reply.resume(point)

    async def pump(self, sink: DeltaSink) -> None:
        await self._reply.pump(sink)

    def stop(self) -> None:
        self._reply.stop()

    def initial_fields(self) -> Mapping[str, Any]:
        return self._reply.initial_fields()

    def final_fields(self, sampled: array[int], output: tuple[Item, ...]) -> Mapping[str, Any]:
        return self._reply.final_fields(sampled, output)
