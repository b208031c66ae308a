"""Serve the combination of a model and one of its LoRA adapters under a separate model name."""

from __future__ import annotations

from msgspec.structs import replace

from antiphon.backends.base import Backend, Reply
from antiphon.backends.wrapper import BackendWrapper
from antiphon.inference.conversation import Conversation, Options


class LoraBackend(BackendWrapper):
    """``Backend`` that serves all requests with one LoRA adapter of the model ``inner``.

    ``adapter``: the name of the LoRA adapter. It replaces the option ``adapter`` of each request.
    """

    def __init__(self, inner: Backend, adapter: str) -> None:
        super().__init__(inner)
        self._adapter = adapter

    async def prepare(self, conversation: Conversation, options: Options) -> Reply:
        return await super().prepare(conversation, replace(options, adapter=self._adapter))

    async def complete(self, prompt: str | tuple[int, ...], options: Options) -> Reply:
        return await super().complete(prompt, replace(options, adapter=self._adapter))
