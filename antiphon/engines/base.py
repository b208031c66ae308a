"""The contract of an engine: token ids in, token ids out.

Messages and tools are rendered to ids by dialects.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from msgspec import Struct

from antiphon.sampling import SamplingOptions
from antiphon.tokens import Chunk, Constraint, EncodedImage, ModelCard, Prompt, Tokenizer

__all__ = [
    "DEFAULT_LOAD_OPTIONS",
    "Capabilities",
    "Engine",
    "LoadOptions",
    "MeasuresImages",
    "Sampling",
]


class Sampling(SamplingOptions, frozen=True, kw_only=True):
    """How to continue a prompt.

    ``max_tokens``: the most tokens to sample.
    ``stop_ids``: ids that end the continuation. Unlike ``stop`` strings, the id itself is yielded,
    as the end-of-turn token is.
    ``constraint``: the grammar that the continuation obeys.
    ``is_matched``: the caller matches the continuation to a grammar, so samplers that an engine
    adds of its own are left out as for a constraint.
    """

    max_tokens: int
    stop_ids: tuple[int, ...] = ()
    constraint: Constraint | None = None
    is_matched: bool = False


class LoadOptions(Struct, frozen=True, kw_only=True):
    """How an engine loads a model. An engine ignores the fields that it does not support.

    ``name``: the model's name on its card, by default that of its file or folder.
    ``threads``: CPU threads. ``context_size``: tokens of one generation, prompt and output
    together; at most and by default what the model was trained for, if the engine has no lower
    default. ``parallel``: the largest number of generations in one batch. ``gpu_layers``: layers
    computed on the GPU, -1 for as many as fit. ``projector``: the GGUF file of the model's image
    encoder. ``adapters``: name of a LoRA adapter → its file or folder, or the upstream's name for
    it.
    ``separate_caches``: requests have different ``Sampling.cache_scope``. A cache that cannot be
    divided among them is not used.
    ``engine_options``: the engine's own options by their own names; they override the other fields.
    ``progress``: called with a name, the bytes read so far and, if known, the bytes in all; from
    any thread.
    """

    name: str | None = None
    threads: int | None = None
    context_size: int | None = None
    parallel: int = 4
    gpu_layers: int = -1
    projector: Path | None = None
    adapters: Mapping[str, str] = {}
    separate_caches: bool = False
    engine_options: Mapping[str, Any] = {}
    progress: Callable[[str, int, int | None], None] | None = None


DEFAULT_LOAD_OPTIONS = LoadOptions()


class Capabilities(Struct, frozen=True, kw_only=True):
    """What an engine supports. A request that needs more is refused before its run starts.

    ``max_logprobs``: the largest number of alternatives per token; None: no log-probabilities.
    ``constraints``: any Lark grammar. ``grammars``: returns whether one Lark grammar is supported,
    for an engine that supports some. ``schemas``: JSON schemas (``Constraint.schema``), limited to
    ``schema_keywords`` (None: any). ``images``: ``apart``: images are inserted between ids;
    ``template``: they replace the chat template's placeholder; None: no images. ``adapters``: names
    of the LoRA adapters. ``separates_caches``: requests of different ``Sampling.cache_scope`` share
    no cached prefix; without it, scoped requests report no cached tokens. ``extra``: names allowed
    in ``Sampling.extra``; None: any. ``may_refuse``: a remote engine may reject a request that
    passed all checks here.
    """

    max_logprobs: int | None = None
    constraints: bool = False
    grammars: Callable[[str], bool] | None = None
    images: Literal["apart", "template"] | None = None
    cached_tokens: bool = False
    seed: bool = False
    logit_bias: bool = False
    penalties: bool = False
    schemas: bool = False
    schema_keywords: frozenset[str] | None = None
    priority: bool = False
    cache_salt: bool = False
    separates_caches: bool = False
    adapters: frozenset[str] = frozenset()
    extra: frozenset[str] | None = frozenset()
    may_refuse: bool = False


class Engine(Protocol):
    """Continues token ids. Created by a factory; closed once."""

    @property
    def card(self) -> ModelCard: ...

    @property
    def capabilities(self) -> Capabilities: ...

    @property
    def tokenizer(self) -> Tokenizer: ...

    def generate(self, prompt: Prompt, sampling: Sampling) -> AsyncGenerator[Chunk, None]:
        """Continue ``prompt``. Closing the iterator (``aclose``) aborts within one token.

        Each chunk is yielded as soon as its tokens exist; the last one has ``finish``. A sampled
        end token is yielded as the last id if the engine reports it. Raises ``BackendError`` when
        the engine fails, ``InvalidRequest`` when it does not support the constraint.
        """

    async def close(self) -> None:
        """Stop all generations and free the model."""


@runtime_checkable
class MeasuresImages(Protocol):
    """An engine that can tell how many tokens an image takes."""

    async def image_tokens(self, image: EncodedImage) -> int:
        """Return the tokens of context that the image takes besides the prompt's ids.

        Raises ``InvalidRequest`` if the image cannot be read.
        """
