"""A model with one of its LoRA adapters, as a backend of its own name. It owns nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from antiphon.backends.base import Backend, Reply
from antiphon.conversation import Conversation, Options

__all__ = ["Adapted"]


class Adapted:
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

    async def prepare(self, conversation: Conversation, options: Options) -> Reply:
        return await self.inner.prepare(conversation, replace(options, adapter=self._adapter))

    async def close(self) -> None:
        """What it adapts is closed by its owner."""
