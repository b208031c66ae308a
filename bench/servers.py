"""The measured servers, each in its own process.

Ours over a scripted model or the real model, and a bare ASGI app that sends the same bytes under
the same uvicorn settings. ``python -m bench.servers KIND`` prints its port and serves until it is
terminated.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from .process import CONTEXT, WORDS


async def _scripted(words: int, wait_s: float) -> None:
    from antiphon.backends.scripted_backend import ScriptedBackend
    from antiphon.models.catalog import Catalog, ServedModel
    from antiphon.store import open_store

    backend = ScriptedBackend([" ".join(["word"] * words)], wait_s=wait_s)
    models = Catalog((ServedModel(name="scripted", backend=backend, created=0),))
    with tempfile.TemporaryDirectory() as folder:
        store = await open_store(f"sqlite:{folder}/bench.db")
        await _serve(models, store)
        await store.close()


async def _replica(store_url: str, places: int, words: int, wait_s: float) -> None:
    """One of several servers over a store. Its model writes the current time, so that readers can
    compute the age of each event."""
    from antiphon.backends.scripted_backend import ScriptedBackend, ScriptedReply
    from antiphon.models.catalog import Catalog, ServedModel
    from antiphon.runs.background.worker import LeaseConfig
    from antiphon.store import open_store
    from antiphon.stream.deltas import Close, Delta, Open, SampledTokens, Text
    from antiphon.wire.items import Message

    class ClockScript(Sequence[tuple[Delta, ...]]):
        """A script whose text is the time at which it is played."""

        def __len__(self) -> int:
            return words + 2

        def __getitem__(self, at: Any) -> Any:
            if isinstance(at, slice):
                return [self[each] for each in range(*at.indices(len(self)))]
            if at == len(self):
                raise IndexError
            delta: Delta = Text(f"{time.monotonic():.6f} ")
            if at == 0:
                delta = Open(Message(role="assistant", content=()))
            elif at == words + 1:
                delta = Close()
            return (SampledTokens((at,)), delta)

    class ClockBackend(ScriptedBackend):
        async def prepare(self, conversation: Any, options: Any) -> Any:
            return ScriptedReply(self, ClockScript(), 1, words, wait_s)

    backend = ClockBackend([()], wait_s=wait_s)
    models = Catalog((ServedModel(name="scripted", backend=backend, created=0),))
    store = await open_store(store_url)
    await _serve(models, store, lease=LeaseConfig(lease_s=1.0, max_runs=places))
    await store.close()


async def _serve(
    models: Any,
    store: Any,
    *,
    lease: Any = None,
    providers: Any = None,
    embeddings: str | None = None,
) -> None:
    """Run the whole server without its settings: app, guard, log, metrics, runs, store."""
    from antiphon.http.app import create_app
    from antiphon.http.server.listening import bind
    from antiphon.http.server.serve import serve
    from antiphon.limits.requests import RequestLimits
    from antiphon.runs.dependencies import OptionalFeatures, RunDependencies
    from antiphon.runs.policy import Policy
    from antiphon.runs.service import Service
    from antiphon.support.logs import open_log
    from antiphon.wire.object_ids import IdMaker

    ids = IdMaker(time.time)
    policy = Policy(file_search_embeddings=embeddings)
    if lease is not None:
        policy = replace(policy, lease=lease)
    service = Service(
        RunDependencies(models=models, store=store, clock=time.time, ids=ids, policy=policy),
        OptionalFeatures(providers=providers or {}),
    )
    service.start()
    log = open_log(open(os.devnull, "w"))
    app = create_app(service, limits=RequestLimits(max_concurrent_requests=1024), ids=ids, log=log)
    sockets = bind("127.0.0.1", 0)
    print(sockets[0].getsockname()[1], flush=True)
    await serve(app, sockets, drain=service.drain, grace_s=1)


async def _bare(wait_s: float) -> None:
    """The baseline: a minimal app that sends the bytes of one stream, event by event."""
    from antiphon.http.server.listening import bind
    from antiphon.http.server.serve import serve
    from antiphon.http.streaming import sse
    from antiphon.stream.writer import ResponseWriter
    from antiphon.wire.items import Message
    from antiphon.wire.response import Response, Usage

    out = ResponseWriter(
        Response(id=f"resp_{0:048x}", created_at=1, model="scripted"),
        ids=lambda prefix: f"{prefix}_{0:048x}",
    )
    out.create()
    out.start()
    item = out.open(Message(role="assistant", content=()))
    for _ in range(WORDS):
        item.write(" word")
    item.close()
    out.finalize("completed", at=2, usage=Usage())
    out.emit_terminal()
    frames = [sse.frame_events([event]) for event in out.take()]

    async def app(scope: Any, receive: Any, send: Any) -> None:
        while (await receive()).get("more_body"):
            pass
        headers = [*sse.HEADERS]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for frame in frames:
            await send({"type": "http.response.body", "body": frame, "more_body": True})
            await asyncio.sleep(wait_s)
        await send({"type": "http.response.body", "body": sse.DONE})

    async def drain(grace_s: float) -> None: ...

    sockets = bind("127.0.0.1", 0)
    print(sockets[0].getsockname()[1], flush=True)
    await serve(app, sockets, drain=drain, grace_s=1)


async def _chat(url: str) -> None:
    """Our server in front of a Chat Completions upstream."""
    from antiphon.backends.remote.factory import create_chat_backend
    from antiphon.models.catalog import Catalog, ServedModel
    from antiphon.store import open_store

    backend = await create_chat_backend("chat", url)
    models = Catalog((ServedModel(name="chat", backend=backend, created=0),))
    with tempfile.TemporaryDirectory() as folder:
        store = await open_store(f"sqlite:{folder}/bench.db")
        await _serve(models, store)
        await store.close()
    await backend.close()


async def _ids(url: str) -> None:
    """Our server in front of a token-id upstream."""
    from antiphon.backends.local.backend import LocalBackend
    from antiphon.dialects.chat.dialect import ChatDialect
    from antiphon.engines.base import LoadOptions
    from antiphon.engines.completions.engine import load
    from antiphon.models.catalog import Catalog, ServedModel
    from antiphon.store import open_store

    engine = await load(url, LoadOptions(name="ids"))
    backend = LocalBackend(engine, ChatDialect(engine.card, engine.tokenizer))
    models = Catalog((ServedModel(name="ids", backend=backend, created=0),))
    store = await open_store("memory:")
    await _serve(models, store)
    await store.close()
    await backend.close()


async def _model(parallel: int) -> None:
    from antiphon.backends.local.backend import LocalBackend
    from antiphon.dialects.chat.dialect import ChatDialect
    from antiphon.engines.base import LoadOptions
    from antiphon.engines.llama.engine import load
    from antiphon.models.catalog import Catalog, ServedModel
    from antiphon.store import open_store
    from tests.real.embedded_model import smollm2

    path = await asyncio.to_thread(smollm2)
    engine = await load(path, LoadOptions(threads=1, parallel=parallel, context_size=CONTEXT))
    backend = LocalBackend(engine, ChatDialect(engine.card, engine.tokenizer))
    models = Catalog((ServedModel(name="model", backend=backend, created=0),))
    with tempfile.TemporaryDirectory() as folder:
        store = await open_store(f"sqlite:{folder}/bench.db")
        await _serve(models, store)
        await store.close()
    await backend.close()


async def _tools(kind: str) -> None:
    """Our server with a tool that it executes."""
    from antiphon.models.catalog import Catalog, ServedModel
    from antiphon.store import open_store

    from .tools import backend, provider

    created = await backend(kind)
    name = "model" if created.context_size else "scripted"
    models = Catalog((ServedModel(name=name, backend=created, created=0),))
    store = await open_store("memory:")
    await _serve(models, store, providers={"mcp": provider(kind)})
    await store.close()
    await created.close()


async def _growth() -> None:
    """Our server with an engine that costs nothing."""
    from antiphon.store import open_store

    from .growth import DOCUMENTS, models

    with tempfile.TemporaryDirectory() as folder:
        store = await open_store(f"sqlite:{folder}/bench.db")
        await _serve(await models(), store, embeddings=DOCUMENTS)
        await store.close()


async def _engine(name: str, parallel: int) -> None:
    from antiphon.models.catalog import Catalog, ServedModel
    from antiphon.store import open_store

    from .engines import backend

    created = await backend(name, parallel)
    models = Catalog((ServedModel(name="model", backend=created, created=0),))
    store = await open_store("memory:")
    await _serve(models, store)
    await store.close()
    await created.close()


def main() -> None:
    from antiphon.http.server.serve import run

    kind, *arguments = sys.argv[1:]
    if kind == "scripted":
        run(_scripted(int(arguments[0]), float(arguments[1])))
    elif kind == "bare":
        run(_bare(float(arguments[0])))
    elif kind == "replica":
        url, places, words, wait_s = arguments
        run(_replica(url, int(places), int(words), float(wait_s)))
    elif kind == "chat":
        run(_chat(arguments[0]))
    elif kind == "ids":
        run(_ids(arguments[0]))
    elif kind == "upstream":
        from .upstreams import play

        run(play())
    elif kind == "model":
        run(_model(int(arguments[0])))
    elif kind == "tools":
        run(_tools(arguments[0]))
    elif kind == "growth":
        run(_growth())
    elif kind == "engine":
        run(_engine(arguments[0], int(arguments[1])))
    else:
        raise SystemExit(json.dumps({"unknown": kind}))


if __name__ == "__main__":
    main()
