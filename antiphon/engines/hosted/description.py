"""The constant properties of a hosted engine, as they are sent to the processes that call it."""

from __future__ import annotations

import asyncio

from msgspec import Struct

from antiphon.engines.base import Capabilities, Engine, ImageMeasurer
from antiphon.inference.tokens import ModelCard


class EngineCapabilities(Capabilities, frozen=True, kw_only=True):
    """The capabilities of an engine, in the form in which they are sent to another process.
    ``grammars`` is always None, because a function cannot be sent."""

    grammars: None = None


class EngineDescription(Struct, frozen=True, kw_only=True):
    """The constant properties of one engine.

    ``checks_grammars``: whether ``Capabilities.grammars`` of the engine is a function. If so,
    ``HostedEngine`` calls this function in the engine's process. ``measures_images``: whether the
    engine implements ``ImageMeasurer``. ``special``: text of a control token → its id. ``end_ids``:
    ids of the tokens that end an output. ``pieces``: the bytes of each token, in the order of the
    ids.
    """

    card: ModelCard
    capabilities: EngineCapabilities
    checks_grammars: bool
    measures_images: bool
    special: dict[str, int]
    end_ids: frozenset[int]
    pieces: tuple[bytes, ...]


async def describe_engine(engine: Engine) -> EngineDescription:
    """Read the constant properties of an engine, and return them as one object."""
    capabilities = engine.capabilities
    known = {name: getattr(capabilities, name) for name in Capabilities.__struct_fields__}
    tokenizer = engine.tokenizer
    return EngineDescription(
        card=engine.card,
        capabilities=EngineCapabilities(**{**known, "grammars": None}),
        checks_grammars=capabilities.grammars is not None,
        measures_images=isinstance(engine, ImageMeasurer),
        special=dict(tokenizer.special),
        end_ids=tokenizer.end_ids,
        pieces=await asyncio.to_thread(lambda: tuple(map(tokenizer.piece, range(tokenizer.size)))),
    )
