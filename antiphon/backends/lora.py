"""Serve a model with one of its LoRA adapters as a model with its own name."""

from __future__ import annotations

from msgspec.structs import replace

from antiphon.backends.base import Backend, Reply
from antiphon.backends.wrapper import BackendWrapper
from antiphon.conversation import Conversation, Options

__all__ = ["LoraBackend"]


class LoraBackend(BackendWrapper):
    """``Backend`` that sets the option ``adapter`` of every request to the name ``adapter``. A
    request cannot choose another adapter."""

    def __init__(self, inner: Backend, adapter: str) -> None:
        super().__init__(inner)
        self._adapter = adapter

    async def prepare(self, conversation: Conversation, options: Options) -> Reply:
        return await super().prepare(conversation, replace(options, adapter=self._adapter))

    async def complete(self, prompt: str | tuple[int, ...], options: Options) -> Reply:
        return await super().complete(prompt, replace(options, adapter=self._adapter))
