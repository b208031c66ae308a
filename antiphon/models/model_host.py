"""The host process of models. It runs the models for the worker processes of the same server."""

from __future__ import annotations

import asyncio
import sys
from array import array
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager

import msgspec

from antiphon.audio.base import RecordingFacts, TranscriptionTask, TranscriptPiece
from antiphon.backends.base import Status
from antiphon.backends.local.backend import LocalBackend
from antiphon.backends.reading import EmbeddingBackend, TranscriptionBackend
from antiphon.embeddings.base import Embedder, Role
from antiphon.embeddings.hosted import EmbedderDescription, PackedEmbeddings
from antiphon.engines.base import Engine, ImageMeasurer, Sampling
from antiphon.engines.hosted.engine import EngineDescription, describe_engine
from antiphon.errors import SetupError
from antiphon.inference.sampling import SessionSignal
from antiphon.inference.tokens import Chunk, Constraint, EncodedImage, Prompt
from antiphon.support.encoding_work import encode_in_thread
from antiphon.wire.admin.managed_models import ManagedModel, ManagedModelList, PullEvent

from .catalog import Catalog
from .manager import ManagingAction, ModelManager

#: Seconds between two checks of the models' states.
_STATUS_S = 0.25
#: Maximum number of characters of a text that is encoded in the event loop. Longer texts are
#: encoded in a thread.
_SHORT_TEXT = 2_000


class ModelHostSession:
    """The methods that worker processes may call (RPC) in the process that runs the models.
    ``catalog``: a future that is done when the models are loaded."""

    def __init__(self, catalog: asyncio.Future[Catalog]) -> None:
        self._catalog = catalog

    async def _manager(self) -> ModelManager:
        manager = (await asyncio.shield(self._catalog)).manager
        assert isinstance(manager, ModelManager)
        return manager

    @asynccontextmanager
    async def _engine(self, name: str) -> AsyncIterator[Engine]:
        async with (await self._manager()).on_demand(name).use() as backend:
            if not isinstance(backend, LocalBackend):
                raise SetupError(
                    f"model {name}: several workers cannot share its engine: set workers to 1"
                )
            yield backend.engine

    @asynccontextmanager
    async def _embedder(self, name: str) -> AsyncIterator[Embedder]:
        async with (await self._manager()).on_demand(name).use() as backend:
            if not isinstance(backend, EmbeddingBackend):
                raise SetupError(f"model {name} does not produce embeddings")
            async with backend.use() as embedder:
                yield embedder

    # --- engines ---------------------------------------------------------------------------------

    async def describe_engine(self, name: str) -> EngineDescription:
        """Load a model and return the description of its engine: the properties that never
        change."""
        await (await self._manager()).on_demand(name).load()
        async with self._engine(name) as engine:
            return await describe_engine(engine)

    async def generate(
        self, name: str, prompt: Prompt, sampling: Sampling, constraint: bytes
    ) -> AsyncGenerator[Chunk, None]:
        """Generate tokens with a model. See ``Engine.generate``. ``constraint``: the value of
        ``sampling.constraint`` as JSON, because ``sampling`` itself is sent without it."""
        parsed = msgspec.json.decode(constraint, type=Constraint | None)
        complete = msgspec.structs.replace(sampling, constraint=parsed)
        async with self._engine(name) as engine:
            async with aclosing(engine.generate(prompt, complete)) as chunks:
                async for chunk in chunks:
                    yield chunk

    async def image_tokens(self, name: str, image: EncodedImage) -> int:
        """Return how many tokens of the context an image takes. The model's engine must be an
        ``ImageMeasurer``."""
        async with self._engine(name) as engine:
            assert isinstance(engine, ImageMeasurer)
            return await engine.image_tokens(image)

    async def encode(self, name: str, text: str, special: bool) -> bytes:
        """Return the token ids of a text, packed as little-endian 32-bit numbers. ``special``:
        whether a name such as ``<|im_end|>`` in the text becomes the special token with this
        name."""
        async with self._engine(name) as engine:
            encode = engine.tokenizer.encode
            if len(text) <= _SHORT_TEXT:
                ids = encode(text, special=special)
            else:
                ids = await encode_in_thread(encode, text, special=special)
        packed = array("I", ids)
        if sys.byteorder == "big":
            packed.byteswap()
        return packed.tobytes()

    async def accepts_grammar(self, name: str, lark: str) -> bool:
        """Return whether the engine of a model supports a grammar in Lark's syntax."""
        async with self._engine(name) as engine:
            accepts = engine.capabilities.grammars
            return accepts is not None and await asyncio.to_thread(accepts, lark)

    # --- embedders -------------------------------------------------------------------------------

    async def describe_embedder(self, name: str) -> EmbedderDescription:
        """Load a model and return the description of its embedder: the properties that never
        change."""
        await (await self._manager()).on_demand(name).load()
        async with self._embedder(name) as embedder:
            return EmbedderDescription(embedder.dimensions, embedder.vocabulary_size)

    async def embed(
        self, name: str, texts: list[str | list[int]], role: Role, tenant: str
    ) -> PackedEmbeddings:
        """Return the vectors that an embedding model computes for texts. ``role``: whether the
        texts are queries or passages. ``tenant``: for whom they are computed."""
        async with self._embedder(name) as embedder:
            made = await embedder.embed(texts, role, tenant=tenant)
        return PackedEmbeddings(tuple(each.tobytes() for each in made.vectors), made.tokens)

    # --- transcribers ----------------------------------------------------------------------------

    async def transcribe(
        self, name: str, task: TranscriptionTask, tenant: str
    ) -> AsyncGenerator[TranscriptPiece | RecordingFacts, None]:
        """Write down a recording with a model. See ``Transcriber.transcribe``."""
        async with (await self._manager()).on_demand(name).use() as backend:
            if not isinstance(backend, TranscriptionBackend):
                raise SetupError(f"model {name} does not write down speech")
            async with (
                backend.use() as transcriber,
                aclosing(transcriber.transcribe(task, tenant=tenant)) as parts,
            ):
                async for part in parts:
                    yield part

    # --- managing --------------------------------------------------------------------------------

    async def on_session(self, name: str, signal: SessionSignal) -> None:
        """Tell the engine of a model what has happened to a conversation. See
        ``Backend.on_session``."""
        await (await self._manager()).on_demand(name).on_session(signal)

    async def ready(self, name: str) -> bool:
        """Start loading a model, and wait a short time for it. Return whether the model is loaded
        now. See ``Backend.ready``."""
        return await (await self._manager()).on_demand(name).ready()

    async def statuses(self) -> AsyncGenerator[dict[str, Status], None]:
        """Yield the states of all models by name, now and after each change."""
        shown: dict[str, Status] = {}
        while True:
            models = self._catalog.result().all() if self._catalog.done() else ()
            found = {model.name: model.backend.status for model in models}
            if found != shown:
                shown = found
                yield found
            await asyncio.sleep(_STATUS_S)

    async def list_models(self) -> ManagedModelList:
        """Return all models with their states. See ``ModelManager.list``."""
        return await (await self._manager()).list()

    async def manage_model(self, action: ManagingAction, name: str) -> ManagedModel:
        """Do something with one model, and return its state. See ``ModelManager``."""
        act = getattr(await self._manager(), action)
        done: ManagedModel = await act(name)
        return done

    async def pull_model(self, name: str) -> AsyncGenerator[PullEvent, None]:
        """Download the files of a model, and yield the progress. See ``ModelManager.pull``."""
        async with aclosing((await self._manager()).pull(name)) as steps:
            async for step in steps:
                yield step
