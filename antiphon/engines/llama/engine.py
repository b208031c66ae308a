"""The embedded engine: it runs llama.cpp in this process, with many generations in one batch.

llama.cpp's server loop runs on its own thread and is controlled by function calls. llama.cpp also
opens an HTTP listener, which is bound to a private socket file. The file is removed immediately, so
no process can connect to the socket. But if the model has an image encoder, the file is kept,
because requests with images are sent through the socket (``socket_client``).
"""

from __future__ import annotations

import asyncio
import os
import secrets
import tempfile
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from antiphon.engines.base import DEFAULT_LOAD_OPTIONS, Capabilities, LoadOptions, Sampling
from antiphon.engines.common.image_token_cache import ImageTokenCache
from antiphon.engines.common.request_checks import check_request, images_unsupported_error
from antiphon.engines.gguf.model_card import gguf_card
from antiphon.engines.gguf.reader import GgufHeader, read_gguf
from antiphon.errors import BackendError, InvalidRequest, SetupError, UnreadableImage
from antiphon.inference.tokens import Chunk, Constraint, EncodedImage, ModelCard, Prompt
from antiphon.support.installation import needs_extra

from .images import PromptDetokenizer, check_image_positions, measuring_prompt
from .options import Speculation, parse_engine_options
from .partial_tokens import PartialTokens
from .slots import Slot, Slots
from .socket_client import LlamaSocket
from .stream import LlamaStream
from .tokenizer import LlamaTokenizer, require_llama

__all__ = ["LlamaEngine", "load", "start_server"]

DEFAULT_CONTEXT = 8192
#: If a slot and a prompt are less similar than this, llama.cpp saves the slot's state before it
#: overwrites the state, and searches its saved states for a longer common prefix.
SIMILARITY = 0.999
MAX_LOGPROBS = 20
#: Value of ``gpu_layers`` that puts as many layers on the GPU as fit.
ALL_THAT_FIT = -1
RANDOM_SEED = 0xFFFFFFFF  # llama.cpp replaces this value by a random seed

#: Field of ``Sampling`` → field of the binding's request. A field with the value None is left out.
#: Then the default of the model (``general.sampling.*`` of the file) or of llama.cpp applies.
REQUEST_FIELDS: Mapping[str, str] = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "repetition_penalty": "repeat_penalty",
}


async def load(
    path: Path,
    options: LoadOptions = DEFAULT_LOAD_OPTIONS,
    *,
    batch: int = 256,
    prompt_cache_mib: int = 512,
) -> LlamaEngine:
    """Load the GGUF file at ``path``.

    ``options.threads``: number of CPU threads. The default is the number of cores minus one. ggml's
    threads wait in a busy loop, so they become very slow when they share a core with other threads.

    ``options.context_size``: maximum tokens of each of the ``parallel`` generations. The default is
    8192; the limit is the size that the model was trained for. ``load`` allocates the memory for
    all generations at once. After loading, ``antiphon serve`` returns the memory that is still
    unused to the operating system (``zero_pages``).

    ``options.gpu_layers``: the number of layers to load into the GPU's memory. ``ALL_THAT_FIT``
    loads as many layers as fit. Layers run on a GPU only if the installed build of llama.cpp's
    Python binding supports the GPU. ``options.adapters``: name of a LoRA adapter → its GGUF file.
    All adapters are loaded; a generation uses the adapter that it names.
    ``options.engine_options``: see ``parse_engine_options``.

    ``batch``: number of prompt tokens that are computed in one pass of the model. A GPU runs faster
    with a larger value, but other generations and an abort wait until the pass ends.

    ``prompt_cache_mib``: size, in MiB, of a cache in main memory. When a conversation overwrites
    the state of another conversation in a slot, the old state is copied to this cache. The cache is
    not used with ``options.separate_caches`` or with adapters.

    Raises ``SetupError`` if llama.cpp's Python binding is not installed, if a file is missing or
    unusable, or if an option is unknown.
    """
    require_llama()
    engine_options = parse_engine_options(options.engine_options)
    speculation = engine_options.speculation
    head, tokenizer = await asyncio.to_thread(_read_model, path)
    projector, parallel = options.projector, options.parallel
    adapters = {name: Path(file).expanduser() for name, file in options.adapters.items()}
    for file in _other_files(projector, speculation, adapters.values()):
        await asyncio.to_thread(read_gguf, file)
    wanted = options.context_size or DEFAULT_CONTEXT
    context = min(wanted, int(head.architecture_value("context_length") or wanted))
    fields = {
        "n_ctx": context * parallel,
        "n_parallel": parallel,
        "n_batch": batch,
        "n_ubatch": batch,
        "n_gpu_layers": options.gpu_layers,
        # llama.cpp finds saved states by their ids only. But the same ids have another state under
        # an adapter, and a tenant must not find the state of another tenant.
        "cache_ram_mib": 0 if adapters or options.separate_caches else prompt_cache_mib,
    }
    if not options.gpu_layers:
        # On CPUs, ggml's plain attention is twice as fast as its fused attention for long contexts.
        fields["flash_attn_type"] = 0
    threads = options.threads or max(1, (os.cpu_count() or 2) - 1)
    server = await asyncio.to_thread(
        start_server, path, threads, fields, projector, list(adapters.values()), speculation
    )
    card = gguf_card(options.name or path.stem, context, head, tokenizer)
    return LlamaEngine(
        server,
        tokenizer,
        card,
        parallel,
        tuple(adapters),
        separates_caches=bool(adapters) or options.separate_caches or not prompt_cache_mib,
        samplers=engine_options.samplers,
        # llama.cpp reports no log-probabilities for proposed tokens that it accepted.
        max_logprobs=MAX_LOGPROBS if speculation is None else None,
    )


def _read_model(path: Path) -> tuple[GgufHeader, LlamaTokenizer]:
    """Return the header of a model file, and its tokenizer."""
    return read_gguf(path), LlamaTokenizer(path)


def start_server(
    path: Path,
    threads: int,
    fields: Mapping[str, Any],
    projector: Path | None = None,
    adapters: Sequence[Path] = (),
    speculation: Speculation | None = None,
) -> Any:
    """Start llama.cpp's server loop, reachable only from this process and without log output.

    ``fields``: fields of ``CommonParams``, which is llama.cpp's configuration. ``projector``: the
    GGUF file of the image encoder. Returns the server object of llama.cpp's Python binding, or a
    ``LlamaSocket`` if there is a projector. Raises ``SetupError`` if llama.cpp cannot load the
    files.
    """
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    params.slot_prompt_similarity = SIMILARITY
    params.verbosity = -1
    params.warmup = params.use_jinja = False
    # Fitting the layers loads the model twice, so do it only if there is a GPU.
    params.fit_params = fields["n_gpu_layers"] == ALL_THAT_FIT and _has_gpu()
    params.ui = params.endpoint_slots = False
    key = secrets.token_urlsafe(32)
    params.api_keys = [key]
    params.lora_adapters = [
        _inactive_adapter(xllamacpp.CommonAdapterLoraInfo(), file) for file in adapters
    ]
    if projector is not None:
        params.mmproj.path = str(projector)
        params.mmproj_use_gpu = bool(fields["n_gpu_layers"])
    for field, value in fields.items():
        setattr(params, field, value)
    if speculation is not None:
        speculation.apply(params)
    with ExitStack() as opened:
        private = tempfile.TemporaryDirectory(prefix="antiphon-")
        opened.callback(private.cleanup)
        socket_path = os.path.join(private.name, "llama.sock" if projector is None else "kept.sock")
        params.hostnames = [socket_path]
        try:
            server = xllamacpp.Server(params)
        except RuntimeError:
            others = ", ".join(map(str, _other_files(projector, speculation, adapters)))
            raise SetupError(
                f"llama.cpp cannot load {path}{' with ' if others else ''}{others}: too little"
                f" memory for a context of {params.n_ctx} tokens, or an unsupported model."
            ) from None
        if projector is None:
            return server
        opened.pop_all()
        return LlamaSocket(server, private, socket_path, key)


def _other_files(
    projector: Path | None, speculation: Speculation | None, adapters: Iterable[Path]
) -> tuple[Path, ...]:
    """Return the files that are loaded in addition to the model's file."""
    draft_model = None if speculation is None else speculation.draft_model
    return tuple(file for file in (projector, draft_model, *adapters) if file is not None)


def _has_gpu() -> bool:
    """Whether this build of llama.cpp finds a GPU."""
    import xllamacpp

    return any("GPU" in device["type"].name for device in xllamacpp.get_device_info())


def _inactive_adapter(adapter: Any, file: Path) -> Any:
    """Fill in ``adapter``, which is llama.cpp's description of a LoRA adapter, and return it. Its
    scale is 0, so the adapter has no effect on requests that do not set another scale."""
    adapter.path, adapter.scale = str(file), 0.0
    return adapter


class LlamaEngine:
    """``Engine`` that runs llama.cpp. ``load`` creates it. Use it on one event loop only.

    ``server``: a result of ``start_server``. ``parallel``: number of llama.cpp's slots.
    ``adapters``: names of the LoRA adapters, in the order in which they were loaded. llama.cpp
    identifies an adapter by its index in this order. ``samplers``: options of llama.cpp's own
    samplers, for requests whose answer need not have a particular format.
    """

    def __init__(
        self,
        server: Any,
        tokenizer: LlamaTokenizer,
        card: ModelCard,
        parallel: int,
        adapters: Sequence[str] = (),
        *,
        separates_caches: bool = False,
        samplers: Mapping[str, float] = {},
        max_logprobs: int | None = MAX_LOGPROBS,
    ) -> None:
        self._server = server
        self._samplers = samplers
        self._adapters = tuple(adapters)
        self._bos = tokenizer.special.get(tokenizer.bos or "") if tokenizer.add_bos else None
        self._detokenizer: PromptDetokenizer | None = None
        if isinstance(server, LlamaSocket):
            self._detokenizer = PromptDetokenizer(tokenizer, server.marker, self._bos)
        self._image_tokens = ImageTokenCache()
        self.tokenizer = tokenizer
        self._partial_tokens = PartialTokens(tokenizer)
        self.card = card
        self._slots = Slots(parallel)
        self._threads = ThreadPoolExecutor(parallel, thread_name_prefix="llama")
        self._running: dict[LlamaStream, asyncio.Future[None]] = {}
        self._closed = False
        self.capabilities = Capabilities(
            max_logprobs=max_logprobs,
            constraints=True,
            cached_tokens=True,
            separates_caches=separates_caches,
            seed=True,
            logit_bias=True,
            penalties=True,
            images="apart" if self._detokenizer is not None else None,
            adapters=frozenset(self._adapters),
        )

    async def generate(self, prompt: Prompt, sampling: Sampling) -> AsyncGenerator[Chunk, None]:
        self._check(prompt, sampling)
        slot = await self._slots.acquire(
            self._slot_contents(prompt, sampling), sampling.prefix_salt, tenant=sampling.tenant
        )
        stream = self._start(prompt, sampling, slot)
        try:
            async for chunk in stream:
                yield chunk
        finally:
            stream.abort()
            # The conversation's next turn often follows at once, before the thread has ended.
            if stream.started and stream in self._running:
                self._slots.expect_release(slot, self._computed_ids(prompt, sampling, stream))

    def _start(self, prompt: Prompt, sampling: Sampling, slot: Slot) -> LlamaStream:
        """Start the generation on a thread. The slot is released when the thread ends."""
        loop = asyncio.get_running_loop()
        stream = LlamaStream(loop, self.tokenizer, self._partial_tokens, sampling)
        if self._closed:
            self._slots.release(slot, (), is_started=False)
            raise BackendError("The engine is closed.")
        request = partial(self._request, prompt, sampling, slot)
        running = loop.run_in_executor(self._threads, stream.run, self._server, request)
        self._running[stream] = running

        def done(_: asyncio.Future[None]) -> None:
            del self._running[stream]
            ids = self._computed_ids(prompt, sampling, stream)
            self._slots.release(slot, ids, is_started=stream.started)

        running.add_done_callback(done)
        return stream

    def _computed_ids(
        self, prompt: Prompt, sampling: Sampling, stream: LlamaStream
    ) -> tuple[int, ...]:
        """Return the ids by which ``Slots`` recognizes the state that the generation leaves."""
        return (*self._slot_contents(prompt, sampling), *stream.sampled)

    def _slot_contents(self, prompt: Prompt, sampling: Sampling) -> tuple[int, ...]:
        """Return the ids by which ``Slots`` recognizes the state of this prompt in a slot. They are
        the token ids of the prompt. If the prompt uses an adapter, a negative number that stands
        for the adapter precedes the token ids. So a prompt never continues a state that was
        computed with another adapter."""
        if sampling.adapter is None:
            return prompt.ids
        return (-1 - self._adapters.index(sampling.adapter), *prompt.ids)

    def _request(self, prompt: Prompt, sampling: Sampling, slot: Slot) -> bytes:
        request = _request(prompt, sampling, slot)
        # These samplers punish repetition, but text in a format must repeat itself.
        constraint = sampling.constraint
        if not sampling.is_matched and (constraint is None or constraint.free_text):
            request |= self._samplers
        if prompt.images and self._detokenizer is not None:
            request["prompt"] = self._detokenizer.request_prompt(prompt)
        request["lora"] = [
            {"id": number, "scale": float(name == sampling.adapter)}
            for number, name in enumerate(self._adapters)
        ]
        return msgspec.json.encode(request)

    async def image_tokens(self, image: EncodedImage) -> int:
        """Return how many tokens of the context the image takes. llama.cpp measures each image
        once. See ``ImageMeasurer``."""
        if self._detokenizer is None:
            raise images_unsupported_error()
        return await self._image_tokens.get_or_measure(
            image, partial(self._measure_image, self._detokenizer)
        )

    async def _measure_image(self, detokenizer: PromptDetokenizer, image: EncodedImage) -> int:
        try:
            return await asyncio.to_thread(self._count_image_tokens, detokenizer, image)
        except BackendError as error:
            raise UnreadableImage(error.message.rstrip("."), image.content) from None

    def _count_image_tokens(self, detokenizer: PromptDetokenizer, image: EncodedImage) -> int:
        prompt = measuring_prompt(image, self.tokenizer, self._bos)
        return int(self._server.prompt_tokens(detokenizer.request_prompt(prompt))) - len(prompt.ids)

    def _check(self, prompt: Prompt, sampling: Sampling) -> None:
        accepts_images = self._detokenizer is not None
        check_request(prompt, sampling, self.card, self.tokenizer, accepts_images=accepts_images)
        if sampling.constraint is not None:
            _check_constraint(sampling.constraint)
        if sampling.adapter is not None and sampling.adapter not in self._adapters:
            raise InvalidRequest(f"There is no adapter {sampling.adapter!r}.", param="model")
        check_image_positions(prompt)

    async def close(self) -> None:
        self._closed = True
        for stream in self._running:
            stream.abort()
        if self._running:
            await asyncio.wait(list(self._running.values()))
        self._threads.shutdown(wait=True)
        if isinstance(self._server, LlamaSocket):
            await asyncio.to_thread(self._server.close)
        # Frees the model. Only the destructor of the binding can do this. It holds the GIL for 50
        # to 200 ms, so the event loop is blocked for this time, even if another thread does it.
        self._server = None


def _request(prompt: Prompt, sampling: Sampling, slot: Slot) -> dict[str, Any]:
    request: dict[str, Any] = {
        "prompt": prompt.ids,
        "max_tokens": sampling.max_tokens,
        "stream": True,
        "cache_prompt": slot.is_reusable,
        "id_slot": slot.number,
        # Adds the ids of new tokens. Probabilities contain the ids too, but they cost a pass over
        # the vocabulary for every token.
        "verbose": True,
        # Also makes the binding call back during prompt processing, which can then be aborted.
        "return_progress": True,
        "return_tokens": True,
        "ignore_eos": sampling.ignore_eos,
    }
    for field, key in REQUEST_FIELDS.items():
        if (value := getattr(sampling, field)) is not None:
            request[key] = value
    if sampling.seed is not None:
        request["seed"] = sampling.seed % RANDOM_SEED
    if sampling.logit_bias:
        request["logit_bias"] = list(sampling.logit_bias.items())
    if sampling.logprobs is not None:
        request["n_probs"] = max(1, sampling.logprobs)
    if sampling.constraint is not None:
        request["grammar"] = "%llguidance {}\n" + sampling.constraint.lark
    return request


def _check_constraint(constraint: Constraint) -> None:
    """Raise ``InvalidRequest`` if the constraint's grammar is unusable, because llama.cpp would
    silently ignore such a grammar. Raise ``SetupError`` if llguidance is not installed."""
    try:
        import llguidance
    except ImportError:
        raise SetupError(needs_extra("llguidance is not installed", "llama")) from None
    problem = llguidance.LLMatcher.validate_grammar(
        llguidance.grammar_from("lark", constraint.lark)
    )
    if problem:
        raise InvalidRequest(f"The grammar cannot be used: {problem}", code="invalid_grammar")
