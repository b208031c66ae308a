"""A service over one scripted model, with counted ids and a fixed clock."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from antiphon.backends.base import Backend
from antiphon.errors import NotFound
from antiphon.resources.prompts import Prompts
from antiphon.runs.dependencies import OptionalFeatures, RunDependencies
from antiphon.runs.execution.run import EventSink, Run
from antiphon.runs.policy import Policy
from antiphon.runs.service import Service
from antiphon.security.encryption import EncryptionKey, Encryptor
from antiphon.store.base import Store
from antiphon.testing.memory_store.store import MemoryStore
from antiphon.tools.base import AnyToolProvider
from antiphon.wire.events import Event
from antiphon.wire.parsing.requests import parse_create_response

NOW = 1_700_000_000


class OneModel(Struct):
    """A catalog with one model."""

    backend: Backend
    name: str = "scripted"
    aliases: tuple[str, ...] = ("gpt-5.5",)
    created: int = NOW
    instructions: str | None = None
    defaults: Mapping[str, Any] = {}
    thinking_budgets: Mapping[str, int] = {}

    def find(self, name: str | None) -> OneModel:
        if name in (None, self.name, *self.aliases):
            return self
        raise NotFound(f"no {name}", param="model", code="model_not_found")

    def all(self) -> tuple[OneModel, ...]:
        return (self,)


def make_service(
    backend: Backend,
    store: Store | None = None,
    *,
    seal: Encryptor | None = None,
    prompts: Prompts | None = None,
    providers: Mapping[str, AnyToolProvider] = {},
    first_id: int = 1,
    **policy: Any,
) -> Service:
    numbers = itertools.count(first_id)
    return Service(
        RunDependencies(
            models=OneModel(backend),
            store=store if store is not None else MemoryStore(),
            clock=lambda: NOW,
            ids=lambda prefix: f"{prefix}_{next(numbers)}",
            policy=Policy(**{"keepalive_s": 0, **policy}),
            seal=seal or Encryptor((EncryptionKey.generate(),)),
        ),
        OptionalFeatures(prompts=prompts or Prompts(), providers=providers),
    )


async def create(service: Service, tenant: str = "t", **fields: Any) -> Run:
    """Start the run of a request; ``input`` is "hi" unless given."""
    body = {"model": "scripted", "input": "hi", **fields}
    request = parse_create_response(json.dumps(body).encode())
    return await service.create(tenant, request)


class RecordingSink(EventSink):
    """Records the events and calls ``on_write`` after each write."""

    def __init__(self, on_write: Callable[[RecordingSink], object] = lambda _: None) -> None:
        self.events: list[Event] = []
        self._on_write = on_write

    async def write(self, events: tuple[Event, ...]) -> None:
        self.events += events
        self._on_write(self)


async def events_of(run: Run) -> list[Event]:
    sink = RecordingSink()
    await run.drive(sink)
    return sink.events
