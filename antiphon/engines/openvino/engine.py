"""An engine that uses OpenVINO GenAI, which is fast on CPUs. The model runs in a worker process.

The engine reads model folders in OpenVINO's format, and GGUF files of a few architectures.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import secrets
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any

from antiphon.engines.base import DEFAULT_LOAD_OPTIONS, Capabilities, LoadOptions, Sampling
from antiphon.engines.common.request_checks import check_request, sampling_values
from antiphon.engines.common.stop_conditions import (
    EngineOutput,
    StopConditions,
    finish_reason,
)
from antiphon.engines.common.thread_channel import ChunkChannel
from antiphon.engines.gguf.reader import read_gguf
from antiphon.engines.huggingface.model_folder import read_folder
from antiphon.engines.xgrammar.ebnf import EbnfConverter
from antiphon.errors import BackendError, EngineLost, InvalidRequest, LoadInterrupted, SetupError
from antiphon.inference.tokens import Chunk, ModelCard, Prompt, Tokenizer, TokenLogprob
from antiphon.support.fair_limiter import FairLimiter
from antiphon.support.installation import require_package
from antiphon.support.machine import available_cpus

from .process import WorkerProcess
from .protocol import (
    GenerateRequest,
    GenerationEnd,
    GenerationFailed,
    SampledTokensMessage,
    ToParent,
)
from .worker import WorkerSetup

DEFAULT_CONTEXT = 8192
SEED_BITS = 31
#: Number of tokens in one block of OpenVINO's KV cache.
CACHE_BLOCK_TOKENS = 32
#: Architectures that OpenVINO's GGUF reader supports. Other architectures fail with an unclear
#: message or without a message.
ARCHITECTURES = frozenset({"llama", "qwen2", "qwen3"})

#: The engine option for speculative tokens that are copied from the context, and the defaults of
#: its values: how many tokens each step proposes, and the maximum number of tokens looked up.
PROMPT_LOOKUP = "prompt_lookup"
PROMPT_LOOKUP_DEFAULTS: Mapping[str, int] = {"num_assistant_tokens": 5, "max_ngram_size": 3}


async def load(source: Path, options: LoadOptions = DEFAULT_LOAD_OPTIONS) -> OpenvinoEngine:
    """Load a GGUF file, or a folder with ``openvino_model.xml`` and ``tokenizer.json``.

    ``options.context_size``: maximum tokens of each of the ``parallel`` generations. The default is
    8192; the limit is the size that the model was trained for.

    ``options.engine_options`` may contain these keys:

    - ``device``: the default is ``CPU``.
    - ``scheduler``: attributes of ``SchedulerConfig``.
    - ``prompt_lookup``: true, or a table with the keys of ``PROMPT_LOOKUP_DEFAULTS``. Either of
      them enables speculative decoding with tokens that are copied from the context.
    - Any other key is a property of the device.

    Raises ``SetupError`` if OpenVINO GenAI is not installed, an option is invalid, or the model
    cannot be loaded.
    """
    require_package("openvino_genai", "openvino-genai", "openvino")
    properties = dict(options.engine_options)
    device = str(properties.pop("device", "CPU"))
    scheduler_options = dict(properties.pop("scheduler", {}))
    lookup = _lookup_options(properties.pop(PROMPT_LOOKUP, False))
    if lookup:
        properties[PROMPT_LOOKUP] = True
    context = options.context_size or DEFAULT_CONTEXT
    tokenizer, card = await asyncio.to_thread(
        _read_tokenizer, source.expanduser(), options.name, context
    )
    blocks = (math.ceil(card.context_size / CACHE_BLOCK_TOKENS) + 1) * options.parallel
    scheduler = {
        "num_kv_blocks": blocks,
        "max_num_seqs": options.parallel,
        # Number of prompt tokens per step. Other generations wait until the step ends.
        "max_num_batched_tokens": 256,
        "enable_prefix_caching": True,
        **scheduler_options,
    }
    if device == "CPU":
        properties.setdefault("INFERENCE_NUM_THREADS", options.threads or available_cpus())
    worker = WorkerProcess(WorkerSetup(str(source.expanduser()), device, scheduler, properties))
    await worker.start()
    return OpenvinoEngine(worker, tokenizer, card, options.parallel, request_options=lookup)


def _lookup_options(value: object) -> Mapping[str, int]:
    """Return the settings of prompt lookup, or an empty mapping if prompt lookup is off. Prompt
    lookup is speculative decoding with tokens that are copied from the context. OpenVINO needs the
    settings in each request.

    ``value``: the value of the engine option ``prompt_lookup``. Raises ``SetupError`` if ``value``
    is invalid.
    """
    if isinstance(value, bool):
        return PROMPT_LOOKUP_DEFAULTS if value else {}
    if not isinstance(value, Mapping):
        raise SetupError(f"the engine option {PROMPT_LOOKUP} must be true, false or a table")
    for name, number in value.items():
        if name not in PROMPT_LOOKUP_DEFAULTS:
            known = ", ".join(PROMPT_LOOKUP_DEFAULTS)
            raise SetupError(f"{PROMPT_LOOKUP} has no option {name!r} (there are: {known})")
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise SetupError(f"{PROMPT_LOOKUP}.{name} must be a positive integer")
    return {**PROMPT_LOOKUP_DEFAULTS, **value}


def _read_tokenizer(source: Path, name: str | None, context: int) -> tuple[Tokenizer, ModelCard]:
    if source.suffix != ".gguf":
        folder = read_folder(source, name=name, context_size=context)
        return folder.tokenizer, folder.card
    from antiphon.engines.gguf.model_card import gguf_card
    from antiphon.engines.llama.tokenizer import LlamaTokenizer

    head = read_gguf(source)
    if head.architecture not in ARCHITECTURES:
        raise SetupError(
            f"OpenVINO does not read GGUF files of the architecture {head.architecture!r}, only of"
            f" {', '.join(sorted(ARCHITECTURES))}: use the engine 'llama'"
        )
    tokenizer = LlamaTokenizer(source)
    trained = int(head.architecture_value("context_length") or context)
    return tokenizer, gguf_card(name or source.stem, min(context, trained), head, tokenizer)


class OpenvinoEngine:
    """``Engine`` that uses one worker process. ``load`` creates it. It must be used on the event
    loop that called ``load``.

    ``request_options``: attributes of OpenVINO's ``GenerationConfig`` that the engine sets for
    every request.
    """

    def __init__(
        self,
        worker: WorkerProcess,
        tokenizer: Tokenizer,
        card: ModelCard,
        parallel: int,
        *,
        request_options: Mapping[str, int] = {},
    ) -> None:
        self._worker = worker
        self.tokenizer = tokenizer
        self.card = card
        # The KV cache holds ``parallel`` generations. Further requests wait here, where they can
        # be cancelled.
        self._capacity = FairLimiter(parallel)
        self._request_ids = itertools.count()
        self._request_options = request_options
        self._ebnf = EbnfConverter(tokenizer, has_token_rules=False)
        # OpenVINO reports log-probabilities only for the sampled tokens, without alternatives.
        self.capabilities = Capabilities(
            max_logprobs=0, penalties=True, seed=True, grammars=self._ebnf.accepts
        )

    async def generate(self, prompt: Prompt, sampling: Sampling) -> AsyncGenerator[Chunk, None]:
        check_request(self, prompt, sampling)
        context_left = self.card.context_size - len(prompt.ids)
        grammar = await self._grammar(sampling)
        async with self._capacity.slot(sampling.tenant):
            try:
                await self._worker.start()
            except LoadInterrupted:
                raise EngineLost from None
            except SetupError as error:
                raise BackendError(str(error)) from None
            listener = _ChunkBuilder(StopConditions(self.tokenizer, sampling, context_left))
            number = next(self._request_ids)
            self._worker.submit(
                self._request(number, prompt, sampling, context_left, grammar),
                listener.on_message,
            )
            try:
                async for chunk in listener.chunks:
                    yield chunk
            finally:
                self._worker.cancel(number)

    async def _grammar(self, sampling: Sampling) -> str | None:
        """Return the grammar of the constraint in xgrammar's EBNF, or None if there is no
        constraint.

        Raises ``InvalidRequest`` if the constraint cannot be enforced. Only grammars from
        ``EbnfConverter`` are used, because xgrammar can compile all of them. After a grammar that
        xgrammar cannot compile, every later step of OpenVINO's pipeline would fail.
        """
        if sampling.constraint is None:
            return None
        lark = sampling.constraint.lark
        grammar = await asyncio.to_thread(self._ebnf.convert, lark, sampling.stop_ids)
        if grammar is None:
            raise InvalidRequest(
                "The grammar cannot be used: this model does not support it.",
                code="invalid_grammar",
            )
        return grammar

    def _request(
        self,
        number: int,
        prompt: Prompt,
        sampling: Sampling,
        context_left: int,
        grammar: str | None,
    ) -> GenerateRequest:
        values = sampling_values(sampling, self.card)
        is_random = values.get("temperature") != 0
        # Here, zero means "off". OpenVINO rejects zero, so values of zero are left out.
        config: dict[str, Any] = {name: value for name, value in values.items() if value}
        config |= {
            "do_sample": is_random,
            "max_new_tokens": min(sampling.max_tokens, context_left),
            # ``StopConditions`` ends the generation, but a grammar ends with the end token.
            "ignore_eos": sampling.constraint is None,
            "logprobs": 0 if sampling.logprobs is None else 1,
            **self._request_options,
        }
        if is_random:
            # Without a seed, OpenVINO uses the seed of the last request.
            seed = secrets.randbits(SEED_BITS) if sampling.seed is None else sampling.seed
            config["rng_seed"] = seed % 2**SEED_BITS
        return GenerateRequest(number, list(prompt.ids), config, grammar)

    async def close(self) -> None:
        await self._worker.close()


class _ChunkBuilder:
    """Converts the worker's messages for one generation to chunks, and sends the chunks over the
    channel ``chunks``."""

    def __init__(self, stop_conditions: StopConditions) -> None:
        self._stop_conditions = stop_conditions
        self.chunks = ChunkChannel()

    def on_message(self, message: ToParent | BackendError) -> None:
        if self._stop_conditions.finished:
            return
        match message:
            case SampledTokensMessage(_, ids, logprobs):
                tokens = [*map(TokenLogprob, ids, (min(0.0, each) for each in logprobs))]
                self._take(EngineOutput(tokens))
            case GenerationEnd(_, "stop" | "length" as reason):
                self._take(EngineOutput(reason=finish_reason(reason)))
            case GenerationEnd(_, reason):
                self.chunks.send(
                    BackendError(f"The engine ended the generation: {reason.lower()}.")
                )
            case GenerationFailed(_, problem, True):
                self.chunks.send(InvalidRequest(f"The grammar cannot be used: {problem}"))
            case GenerationFailed(_, problem, _):
                self.chunks.send(BackendError(f"The engine failed: {problem}"))
            case BackendError():
                self.chunks.send(message)

    def _take(self, output: EngineOutput) -> None:
        if (chunk := self._stop_conditions.take(output)) is not None:
            self.chunks.send(chunk)
