"""An ``Engine`` that calls a hosted engine: an engine in another process of the same server.

The requests go over a Unix socket. This process renders prompts to token ids and parses the output.
The other process gets the token ids of a prompt and generates the next tokens.
"""

from __future__ import annotations

import asyncio
import sys
from array import array
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

import msgspec
from msgspec import Struct
from msgspec.structs import asdict, replace

from antiphon.engines.base import Capabilities, Engine, ImageMeasurer, Sampling
from antiphon.errors import BackendError
from antiphon.inference.sampling import SessionSignal
from antiphon.inference.tokens import Chunk, EncodedImage, ModelCard, Prompt
from antiphon.ipc.blocking_client import BlockingClient
from antiphon.ipc.client import CallClient


class HostedTokenizer:
    """``Tokenizer`` of a hosted engine. To encode a text, it calls the engine's process. To return
    the bytes of a token, it needs no call, because this process stores the bytes of all tokens."""

    def __init__(self, name: str, description: EngineDescription, host: BlockingClient) -> None:
        self._name = name
        self._host = host
        self._pieces = description.pieces
        self.special: Mapping[str, int] = description.special
        self.end_ids = description.end_ids
        self.size = len(description.pieces)

    def encode(self, text: str, *, special: bool) -> list[int]:
        if not text:
            return []
        packed: bytes = self._host.call("encode", self._name, text, special, returns=bytes)
        return unpack_ids(packed).tolist()

    def piece(self, token: int) -> bytes:
        return self._pieces[token] if 0 <= token < self.size else b""


class HostedEngine:
    """``Engine`` for the model ``name``, which is loaded in another process.

    ``calls`` and ``host`` are RPC clients for that other process. ``calls`` is asynchronous, and
    ``host`` is blocking.
    """

    def __init__(
        self, name: str, description: EngineDescription, calls: CallClient, host: BlockingClient
    ) -> None:
        self._name = name
        self._calls = calls
        self._is_closed = False
        self.card: ModelCard = description.card
        self.tokenizer = HostedTokenizer(name, description, host)
        self.capabilities = Capabilities(**asdict(description.capabilities))
        if description.checks_grammars:

            def accepts(lark: str) -> bool:
                found: bool = host.call("accepts_grammar", name, lark, returns=bool)
                return found

            self.capabilities = replace(self.capabilities, grammars=accepts)

    async def generate(self, prompt: Prompt, sampling: Sampling) -> AsyncGenerator[Chunk, None]:
        if self._is_closed:
            raise BackendError("The engine is closed.")
        # A schema may contain integers of more than 64 bits, which MessagePack does not have.
        constraint = msgspec.json.encode(sampling.constraint)
        # The session is for routers in front of several engines. It has a key that must stay here.
        plain = replace(sampling, constraint=None, session=None)
        arguments = (self._name, prompt, plain, constraint)
        async with aclosing(self._calls.stream("generate", *arguments, returns=Chunk)) as chunks:
            async for chunk in chunks:
                if self._is_closed:
                    raise BackendError("The engine is closed.")
                yield chunk

    async def on_session(self, signal: SessionSignal) -> None:
        """Tell the engine in the other process. See ``SessionObserver``."""
        self._calls.notify("on_session", self._name, signal)

    async def close(self) -> None:
        """Refuse later generations, and end each running generation with a ``BackendError`` at its
        next chunk. The model stays loaded in the process of the hosted engine."""
        self._is_closed = True


class _MeasuringEngine(HostedEngine):
    """A hosted engine that can tell how many tokens an image takes."""

    async def image_tokens(self, image: EncodedImage) -> int:
        count: int = await self._calls.call("image_tokens", self._name, image, returns=int)
        return count


def hosted_engine(
    name: str, description: EngineDescription, calls: CallClient, host: BlockingClient
) -> HostedEngine:
    """Create a ``HostedEngine`` that calls the engine ``name`` in another process.
    ``description``: the properties of that engine. The ``HostedEngine`` implements
    ``ImageMeasurer`` if that engine implements it."""
    kind = _MeasuringEngine if description.measures_images else HostedEngine
    return kind(name, description, calls, host)


def unpack_ids(packed: bytes) -> array[int]:
    """Return token ids that are packed as little-endian 32-bit numbers."""
    ids = array("I", packed)
    if sys.byteorder == "big":
        ids.byteswap()
    return ids


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
