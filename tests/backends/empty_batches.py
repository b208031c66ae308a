"""A backend whose replies contain empty batches."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from antiphon.backends.base import DeltaSink, Reply
from antiphon.backends.wrapper import BackendWrapper, ReplyWrapper
from antiphon.inference.conversation import Conversation, Options
from antiphon.stream.deltas import Delta
from antiphon.testing.replies import batches_of, push_all


class EmptyBatches(BackendWrapper):
    """Each batch of a reply follows an empty batch, as after a model was loaded for the reply."""

    async def prepare(self, conversation: Conversation, options: Options) -> Reply:
        return _PaddedReply(await super().prepare(conversation, options))


class _PaddedReply(ReplyWrapper):
    async def pump(self, sink: DeltaSink) -> None:
        await push_all(self.deltas(), sink)

    async def deltas(self) -> AsyncGenerator[tuple[Delta, ...], None]:
        async for batch in batches_of(self._reply):
            yield ()
            yield batch
