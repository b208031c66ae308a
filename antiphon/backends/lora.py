"""A model with one of its LoRA adapters, as a backend of its own name. It owns nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from antiphon.backends.base import (
    Backend,
    Detokenizes,
    Reply,
    TextCompletion,
    recall_of,
    spells,
    tools_of,
)
from antiphon.backends.local.text_completion import cannot_continue
from antiphon.conversation import Conversation, Options
from antiphon.dialects.base import ReasoningRetention
from antiphon.errors import BackendError

__all__ = ["LoraBackend"]


class LoraBackend:
    """``Backend`` that asks ``inner`` with ``adapter``, whatever the request says of adapters."""

    def __init__(self, inner: Backend, adapter: str) -> None:
        self.inner = inner
        self._adapter = adapter

    @property
    def context_size(self) -> int | None:
        return self.inner.context_size

    @property
    def recommended(self) -> Mapping[str, Any]:
        return self.inner.recommended

    @property
    def sees_images(self) -> bool:
        return self.inner.sees_images

    def reasoning_retention(self, options: Options) -> ReasoningRetention | None:
        return recall_of(self.inner, options)

    @property
    def tool_types(self) -> frozenset[str]:
        return tools_of(self.inner)

    async def prepare(self, conversation: Conversation, options: Options) -> Reply:
        return await self.inner.prepare(conversation, replace(options, adapter=self._adapter))

    async def complete(self, prompt: str | tuple[int, ...], options: Options) -> Reply:
        if not isinstance(self.inner, TextCompletion):
            raise cannot_continue(self._adapter)
        return await self.inner.complete(prompt, replace(options, adapter=self._adapter))

    @property
    def spells(self) -> bool:
        return spells(self.inner)

    def spell(self, ids: Sequence[int]) -> str:
        if not isinstance(self.inner, Detokenizes):
            raise BackendError("The tokens of this model are not known here.")
        return self.inner.spell(ids)

    async def close(self) -> None:
        """What it adapts is closed by its owner."""
