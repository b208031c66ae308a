"""``Transcriber`` for a model that another process of the same Antiphon server has loaded."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from antiphon.ipc.client import CallClient

from .base import RecordingFacts, TranscriptionTask, TranscriptPiece


class HostedTranscriber:
    """``Transcriber`` for a model that another process has loaded. ``name``: the model's name.
    ``calls``: the client that sends RPC calls to that process."""

    def __init__(self, name: str, calls: CallClient) -> None:
        self._name = name
        self._calls = calls

    async def transcribe(
        self, task: TranscriptionTask, *, tenant: str = ""
    ) -> AsyncGenerator[TranscriptPiece | RecordingFacts, None]:
        parts = self._calls.stream(
            "transcribe", self._name, task, tenant, returns=TranscriptPiece | RecordingFacts
        )
        async with aclosing(parts):
            async for part in parts:
                yield part

    async def close(self) -> None:
        """Do nothing. The model stays loaded, because the process that loaded it also unloads
        it."""
