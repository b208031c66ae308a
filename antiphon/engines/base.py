"""The interface of an engine. An engine gets a prompt as token ids and generates the next tokens.

Before the engine is called, a dialect renders messages and tools to token ids. A dialect is the
prompt syntax of one model family.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from msgspec import Struct
from msgspec.structs import replace

from antiphon.inference.sampling import SamplingOptions, SessionSignal
from antiphon.inference.tokens import Chunk, Constraint, EncodedImage, ModelCard, Prompt, Tokenizer

__all__ = [
    "DEFAULT_LOAD_OPTIONS",
    "CachingEngine",
    "Capabilities",
    "DiskCache",
    "Engine",
    "ImageMeasurer",
    "LoadOptions",
    "PrefixCacheCounts",
    "Sampling",
    "SessionObserver",
]


class Sampling(SamplingOptions, frozen=True, kw_only=True):
    """How to continue a prompt.

    ``max_tokens``: the maximum number of tokens to sample. ``stop_ids``: token ids that end the
    continuation. The engine yields such an id as the last id. It does not yield the text of a
    ``stop`` string. ``constraint``: the grammar that the engine enforces. ``is_matched``: whether
    the caller itself matches the continuation to a grammar. ``session_key``: identifies the
    conversation, as the key of ``session`` does. An engine in this server needs no ``session``.
    ``owner``: as in ``Session``. If it is not None, the state may be kept on disk. ``retry``: if
    the prompt ends with tokens of a generation that broke off, what the engine gave with its
    ``EngineLost``.

    An engine may have extra samplers, such as a penalty for repeated text. It uses them only if the
    output may be any text: ``is_matched`` is False, and there is no constraint or the constraint
    has ``free_text``.
    """

    max_tokens: int
    stop_ids: tuple[int, ...] = ()
    constraint: Constraint | None = None
    is_matched: bool = False
    session_key: str | None = None
    owner: str | None = None
    retry: object = None

    def after(self, sampled: Sequence[int]) -> Sampling:
        """Return the options for the rest of a generation after its first ids ``sampled``. A seed
        is changed, because the same one would begin the same random numbers again."""
        seed = None if self.seed is None else self.seed + len(sampled)
        return replace(self, max_tokens=self.max_tokens - len(sampled), seed=seed)


class DiskCache(Struct, frozen=True, kw_only=True):
    """Where an engine keeps states of prompts that shall outlive the process. ``folder``: for all
    models; each model makes a folder in it. ``max_mb``: MiB of one model's states. ``secret``:
    encrypts the files; None for plain files. ``max_age_s``: seconds after its last use at which a
    state is deleted; None for never."""

    folder: Path
    max_mb: int
    secret: bytes | None = None
    max_age_s: float | None = None


class LoadOptions(Struct, frozen=True, kw_only=True):
    """How an engine loads a model. An engine ignores the fields that it does not support.

    - ``name``: the model's name in its ``ModelCard``. The default is the name of the model's file
      or folder.
    - ``threads``: number of CPU threads.
    - ``context_size``: maximum tokens of one generation, prompt and output together. The upper
      limit is the size that the model was trained for. This size is also the default, except for
      engines with a lower default.
    - ``parallel``: the largest number of generations in one batch.
    - ``gpu_layers``: number of layers computed on the GPU. The value -1 means as many layers as
      fit.
    - ``projector``: the GGUF file of the model's image encoder.
    - ``adapters``: the LoRA adapters. Each key is the name of an adapter in Antiphon. The value is
      the file or folder of the adapter. For a model on a remote server, the value is the adapter's
      name on that server.
    - ``separate_caches``: whether requests will have different values of ``Sampling.cache_scope``.
      If so, the engine uses no cache that it cannot divide among these scopes.
    - ``prompt_cache_mb``: MiB of main memory for the states of prompts that are kept although
      other prompts run. The default depends on the memory of the machine.
    - ``disk_cache``: where such states are kept on disk, too; None to keep none there.
    - ``engine_options``: options of this engine, under the engine's own names. They override the
      other fields.
    - ``progress``: callback for the loading progress. Its arguments are a name for what is loaded,
      the bytes read so far, and the total bytes or None. It may be called from any thread.
    """

    name: str | None = None
    threads: int | None = None
    context_size: int | None = None
    parallel: int = 4
    gpu_layers: int = -1
    projector: Path | None = None
    adapters: Mapping[str, str] = {}
    separate_caches: bool = False
    prompt_cache_mb: int | None = None
    disk_cache: DiskCache | None = None
    engine_options: Mapping[str, Any] = {}
    progress: Callable[[str, int, int | None], None] | None = None


DEFAULT_LOAD_OPTIONS = LoadOptions()


class Capabilities(Struct, frozen=True, kw_only=True):
    """What an engine supports. A request that needs another feature is refused before its
    generation starts.

    - ``max_logprobs``: the largest number of alternatives per token; None if the engine reports no
      log-probabilities.
    - ``constraints``: the engine enforces any Lark grammar.
    - ``grammars``: for an engine that enforces only some Lark grammars, a function that returns
      whether it enforces a given grammar.
    - ``masks_delay_others``: the engine computes the masks of constraints in the loop that computes
      the tokens of all generations.
    - ``images``: how the engine accepts images. There are three values: ``apart`` (images are
      inserted between token ids), ``template`` (images replace the placeholders that the chat
      template writes), and None (the engine accepts no images).
    - ``schemas``: the engine enforces JSON schemas (``Constraint.schema``).
    - ``separates_caches``: requests with different values of ``Sampling.cache_scope`` share no
      cached prefix. If False, Antiphon reports no cached tokens for a request with a scope, because
      another tenant may have cached them.
    - ``uses_heads``: the engine cannot cut the state of a prompt at any token, so it wants to know
      where later prompts will differ (``Prompt.head``, ``Prompt.past``).
    - ``adapters``: names of the LoRA adapters.
    - ``extra``: names allowed in ``Sampling.extra``; None if all names are allowed.
    - ``may_refuse``: the engine calls a remote server, which may reject a request that passed all
      checks in Antiphon.
    """

    max_logprobs: int | None = None
    constraints: bool = False
    grammars: Callable[[str], bool] | None = None
    masks_delay_others: bool = False
    images: Literal["apart", "template"] | None = None
    cached_tokens: bool = False
    seed: bool = False
    logit_bias: bool = False
    penalties: bool = False
    schemas: bool = False
    priority: bool = False
    cache_salt: bool = False
    separates_caches: bool = False
    uses_heads: bool = False
    adapters: frozenset[str] = frozenset()
    extra: frozenset[str] | None = frozenset()
    may_refuse: bool = False


class Engine(Protocol):
    """Generates the next tokens after the token ids of a prompt. The caller that creates an engine
    must close it once."""

    @property
    def card(self) -> ModelCard: ...

    @property
    def capabilities(self) -> Capabilities: ...

    @property
    def tokenizer(self) -> Tokenizer: ...

    def generate(self, prompt: Prompt, sampling: Sampling) -> AsyncGenerator[Chunk, None]:
        """Generate the tokens after ``prompt``. Each chunk is yielded as soon as its tokens exist.

        The last chunk has ``finish``. If the engine reports a sampled end token, this token is
        yielded as the last id. Closing the iterator (``aclose``) aborts the generation after at
        most one more token. Raises ``BackendError`` when the engine fails. Raises
        ``InvalidRequest`` when the engine does not support the constraint.
        """

    async def close(self) -> None:
        """Stop all generations and free the model."""


class PrefixCacheCounts(Struct, frozen=True, kw_only=True):
    """What an engine's cache of prefixes holds and has done.

    ``states``: the kept states, of ``bytes`` bytes in memory and ``disk_bytes`` bytes on disk.
    ``limit_bytes``: the budget of the memory. ``hits``:
    prompts that continued the state of an earlier one. ``misses``: other prompts. ``evictions``:
    states that were deleted because of the budget.
    """

    states: int = 0
    bytes: int = 0
    limit_bytes: int = 0
    disk_bytes: int = 0
    hits: int = 0
    misses: int = 0
    evictions: int = 0


@runtime_checkable
class CachingEngine(Protocol):
    """An engine whose cache of prefixes and number of threads can be observed."""

    @property
    def threads(self) -> int | None:
        """Number of CPU threads that compute a token; None if it cannot be told."""

    @property
    def prefix_cache(self) -> PrefixCacheCounts | None:
        """What the cache holds and has done; None if it cannot be told."""


@runtime_checkable
class SessionObserver(Protocol):
    """An engine that uses what happens to conversations."""

    async def on_session(self, signal: SessionSignal) -> None:
        """Take note of a signal. Signals are hints: they may be missing or come late."""


@runtime_checkable
class ImageMeasurer(Protocol):
    """An engine that can tell how many tokens an image takes."""

    async def image_tokens(self, image: EncodedImage) -> int:
        """Return how many tokens of the context the image takes, in addition to the prompt's ids.

        Raises ``InvalidRequest`` if the image cannot be read.
        """
