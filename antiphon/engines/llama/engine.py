"""The embedded engine: it runs llama.cpp in a child process, with many generations in one batch.

The child process runs llama.cpp's own HTTP server on a private Unix socket (``server_program``).
So loading or freeing a model, and a crash of llama.cpp, affect no other work of this process.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import structlog
from msgspec import Struct
from msgspec.structs import replace

from antiphon.engines.base import (
    DEFAULT_LOAD_OPTIONS,
    Capabilities,
    LoadOptions,
    PrefixCacheCounts,
    Sampling,
)
from antiphon.engines.common.image_token_cache import ImageTokenCache
from antiphon.engines.common.request_checks import (
    check_constraint,
    check_request,
    images_unsupported_error,
)
from antiphon.engines.gguf.model_card import gguf_card
from antiphon.engines.gguf.reader import read_gguf
from antiphon.errors import (
    BackendError,
    EngineLost,
    LoadInterrupted,
    SetupError,
    UnreadableImage,
)
from antiphon.inference.sampling import SessionSignal
from antiphon.inference.tokens import Chunk, EncodedImage, ModelCard, Prompt
from antiphon.support.tasks import BackgroundTasks, running

from .client import LlamaClient
from .completion import completion_fields
from .disk_states import DiskStates, model_identity
from .images import PromptDetokenizer, check_image_positions, measuring_prompt
from .kept_states import KeptStates, StateGroup, default_cache_mb
from .options import parse_engine_options
from .partial_tokens import PartialTokens
from .process import LlamaProcess
from .server_program import ServerSetup
from .slots import Slot, Slots
from .state_copier import LlamaStateCopier, lora_scales
from .state_files import StateFiles
from .stream import LlamaStream
from .threads import model_matrices
from .tokenizer import LlamaTokenizer, require_llama

_log = structlog.get_logger(__name__)

DEFAULT_CONTEXT = 8192
MAX_LOGPROBS = 20
#: Without a GPU, and for up to this many generations at a time, plain attention is cheaper: fused
#: attention is slow after a long cached prefix. For more generations, llama.cpp's own choice is.
_MAX_PLAIN_ATTENTION = 4
#: Seconds that the engine waits, when it is closed, until states are written to the disk.
_WRITE_S = 10.0

#: Fields of a GGUF header of models with sliding windows or recurrent layers. llama.cpp can cut
#: their states at few tokens only: where it has made a checkpoint, which is at the end of a prompt.
_UNCUTTABLE = ("attention.sliding_window", "ssm.state_size", "shortconv.l_cache", "wkv.head_size")
#: Fields of a request that also apply to a request for the head of its prompt.
_HEAD_FIELDS = ("stream", "cache_prompt", "id_slot", "return_progress", "lora")
#: Fields of llama.cpp's last event that are read.
_RESPONSE_FIELDS = ("content", "tokens", "stop", "stop_type", "tokens_predicted")


async def load(
    path: Path,
    options: LoadOptions = DEFAULT_LOAD_OPTIONS,
    *,
    batch: int = 256,
) -> LlamaEngine:
    """Load the GGUF file at ``path``.

    ``options.threads``: number of CPU threads. By default, it is measured (``threads``).

    ``options.context_size``: maximum tokens of each of the ``parallel`` generations. The default is
    8192; the limit is the size that the model was trained for. ``load`` allocates the memory for
    all generations at once, but only the memory of used parts is really taken (``zero_pages``).

    ``options.gpu_layers``: the number of layers to load into the GPU's memory. ``ALL_THAT_FIT``
    loads as many layers as fit. Layers run on a GPU only if the installed build of llama.cpp's
    Python binding supports the GPU. ``options.adapters``: name of a LoRA adapter → its GGUF file.
    All adapters are loaded; a generation uses the adapter that it names.
    ``options.engine_options``: see ``parse_engine_options``. ``options.prompt_cache_mb``: see
    ``KeptStates``.

    ``batch``: number of prompt tokens that are computed in one pass of the model. A GPU runs faster
    with a larger value, but other generations and an abort wait until the pass ends.

    Raises ``SetupError`` if llama.cpp's Python binding is not installed, if a file is missing or
    unusable, or if an option is unknown.
    """
    require_llama()
    engine_options = parse_engine_options(options.engine_options)
    head = await asyncio.to_thread(read_gguf, path)
    speculation = engine_options.speculation
    draft_model = None if speculation is None else speculation.draft_model
    await _check_files(options.projector, draft_model, *options.adapters.values())
    wanted = options.context_size or DEFAULT_CONTEXT
    context = min(wanted, int(head.architecture_value("context_length") or wanted))
    setup = _server_setup(path, options, context, batch)
    setup = replace(setup, speculation=speculation, matrices=model_matrices(head))
    cache_mb = options.prompt_cache_mb
    cache_mb = default_cache_mb() if cache_mb is None else cache_mb
    if draft_model is not None:
        setup = _with_own_cache(setup, options, cache_mb)
    disk = await _open_disk(path, options, setup) if draft_model is None else None
    files = StateFiles()
    process = LlamaProcess(replace(setup, states=files.prefix))
    try:
        # The process loads the model while this process reads the vocabulary.
        async with running(process.start()) as starting:
            tokenizer = await asyncio.to_thread(LlamaTokenizer, path)
            states = None
            if draft_model is None:
                states = KeptStates(cache_mb << 20, files, disk)
                await states.load()
            await starting
        detokenizer = None
        if options.projector is not None:
            detokenizer = await _create_detokenizer(process, tokenizer)
    except BaseException:
        await process.close()
        files.close()
        raise
    return LlamaEngine(
        process,
        tokenizer,
        gguf_card(options.name or path.stem, context, head, tokenizer),
        options.parallel,
        tuple(options.adapters),
        files=files,
        states=states,
        disk=disk,
        detokenizer=detokenizer,
        separates_caches=draft_model is None or not setup.fields["cache_ram_mib"],
        samplers=engine_options.samplers,
        batch=batch,
        uses_heads=any(map(head.architecture_value, _UNCUTTABLE)),
        # llama.cpp reports no log-probabilities for proposed tokens that it accepted.
        max_logprobs=MAX_LOGPROBS if speculation is None else None,
    )


async def _check_files(*files: Path | str | None) -> None:
    """Raise ``SetupError`` if a GGUF file, other than the model's, cannot be read."""
    for file in files:
        if file is not None:
            await asyncio.to_thread(read_gguf, Path(file).expanduser())


def _with_own_cache(setup: ServerSetup, options: LoadOptions, cache_mb: int) -> ServerSetup:
    """Let llama.cpp use its own cache of states, because copies of states lack the state of the
    draft model. llama.cpp finds the states of its cache by their ids only. But the same ids have
    another state under an adapter, and a tenant must not find the state of another tenant."""
    is_shared = not (options.adapters or options.separate_caches)
    return replace(setup, fields={**setup.fields, "cache_ram_mib": cache_mb * is_shared})


async def _open_disk(path: Path, options: LoadOptions, setup: ServerSetup) -> DiskStates | None:
    """Return the model's states on disk; None if none are kept there."""
    cache = options.disk_cache
    if cache is None or not cache.max_mb or options.prompt_cache_mb == 0:
        return None
    files = [path, *(Path(file).expanduser() for file in options.adapters.values())]
    if options.projector is not None:
        files.append(options.projector)
    variable = ("n_ctx", "n_parallel", "n_gpu_layers")  # states do not depend on them
    used = {**setup.cpu_fields, **setup.fields, "adapters": list(options.adapters)}
    fields = {name: value for name, value in used.items() if name not in variable}
    name = hashlib.sha256((options.name or path.stem).encode()).hexdigest()[:16]
    folder = cache.folder.expanduser() / name
    try:
        identity = await asyncio.to_thread(model_identity, files, fields, folder)
    except OSError as error:
        _log.warning("no states are kept on disk", reason=str(error))
        return None
    return DiskStates(folder / identity, cache.max_mb << 20, cache.secret, cache.max_age_s)


def _server_setup(path: Path, options: LoadOptions, context: int, batch: int) -> ServerSetup:
    """Return what llama.cpp needs to load the model. ``context``: tokens per generation."""
    fields: dict[str, int | bool] = {
        "n_ctx": context * options.parallel,
        "n_parallel": options.parallel,
        "n_batch": batch,
        "n_ubatch": batch,
        "n_gpu_layers": options.gpu_layers,
        # llama.cpp's own cache of states, which ``KeptStates`` replaces.
        "cache_ram_mib": 0,
    }
    return ServerSetup(
        model=str(path),
        threads=options.threads,
        fields=fields,
        cpu_fields={"flash_attn_type": 0} if options.parallel <= _MAX_PLAIN_ATTENTION else {},
        projector=None if options.projector is None else str(options.projector),
        adapters=tuple(str(Path(file).expanduser()) for file in options.adapters.values()),
    )


async def _create_detokenizer(
    process: LlamaProcess, tokenizer: LlamaTokenizer
) -> PromptDetokenizer:
    """Return the detokenizer for prompts with images. It depends on the process, because each
    process of llama.cpp chooses a random text that stands for an image."""
    try:
        marker = str((await process.client.get("/props"))["media_marker"])
    except OSError:
        raise SetupError("llama.cpp has ended.") from None
    return PromptDetokenizer(tokenizer, marker, _added_bos(tokenizer))


def _added_bos(tokenizer: LlamaTokenizer) -> int | None:
    """Return the id that llama.cpp adds before every text; None if it adds no id."""
    return tokenizer.special.get(tokenizer.bos or "") if tokenizer.add_bos else None


class _Generation(Struct, eq=False):
    """A generation. ``marks``: see ``_prompt_marks``. ``slot``: its slot, or its last one if it has
    none, because it is paused."""

    prompt: Prompt
    sampling: Sampling
    marks: tuple[int, ...]
    stream: LlamaStream
    slot: Slot
    has_slot: bool = True
    is_paused: bool = False

    @property
    def ids(self) -> tuple[int, ...]:
        """The ids of its prompt and its output."""
        return (*self.marks, *self.stream.sampled)

    @property
    def computed(self) -> tuple[int, ...]:
        """The ids that were computed in its slot."""
        is_whole = self.stream.new_tokens or self.prompt.images
        return self.ids if is_whole else self.ids[: self.stream.processed]


class LlamaEngine:
    """``Engine`` that runs llama.cpp. ``load`` creates it. Use it on one event loop only.

    ``parallel``: number of llama.cpp's slots. ``adapters``: names of the LoRA adapters, in the
    order in which they were loaded. llama.cpp identifies an adapter by its index in this order.
    ``files``, ``states``, ``disk``: where states are kept; ``states`` is None if none are kept,
    and ``disk`` if none are kept on disk.
    ``detokenizer``: for a model that accepts images. ``samplers``: options of llama.cpp's own
    samplers, for requests whose answer need not have a particular format. ``batch``: the most
    tokens of a prompt that are computed in one pass of the model.
    """

    def __init__(
        self,
        process: LlamaProcess,
        tokenizer: LlamaTokenizer,
        card: ModelCard,
        parallel: int,
        adapters: Sequence[str] = (),
        *,
        files: StateFiles,
        states: KeptStates | None,
        disk: DiskStates | None = None,
        detokenizer: PromptDetokenizer | None = None,
        separates_caches: bool = True,
        samplers: Mapping[str, float] = {},
        batch: int = 256,
        uses_heads: bool = False,
        max_logprobs: int | None = MAX_LOGPROBS,
    ) -> None:
        self._process = process
        self._samplers = samplers
        self._batch = batch
        self._adapters = tuple(adapters)
        self._detokenizer = detokenizer
        self._image_tokens = ImageTokenCache()
        self.tokenizer = tokenizer
        self._partial_tokens = PartialTokens(tokenizer)
        self.card = card
        self._files = files
        self._states = states
        copier = LlamaStateCopier(process, files, self._adapters, can_cut=not uses_heads)
        self._slots = Slots(parallel, states, copier)
        self._running: dict[_Generation, asyncio.Task[None]] = {}
        #: Tasks that write states to the disk.
        self._writing = BackgroundTasks("write of a state")
        self._disk = disk
        self._closed = False
        self.capabilities = Capabilities(
            max_logprobs=max_logprobs,
            constraints=True,
            masks_delay_others=True,
            cached_tokens=True,
            separates_caches=separates_caches,
            uses_heads=uses_heads,
            seed=True,
            logit_bias=True,
            penalties=True,
            images="apart" if detokenizer is not None else None,
            adapters=frozenset(self._adapters),
        )

    async def generate(self, prompt: Prompt, sampling: Sampling) -> AsyncGenerator[Chunk, None]:
        check_request(self, prompt, sampling)
        check_constraint(sampling.constraint)
        check_image_positions(prompt)
        await self._start_process()
        marks = _prompt_marks(prompt)
        group = StateGroup(sampling.prefix_salt, sampling.adapter)
        is_durable = sampling.owner is not None and self._disk is not None
        states = self._slots.states
        owner = states.owners.get(sampling.session_key, sampling.tenant, sampling.owner, is_durable)
        if owner.session is not None:
            states.wait(owner.session, False)
        slot = await self._slots.acquire(marks, group, owner, prompt.head, prompt.past)
        stream = LlamaStream(self.tokenizer, self._partial_tokens, sampling)
        generation = _Generation(prompt, sampling, marks, stream, slot)
        # Not owned by the block: the next turn may start before the task has ended.
        running = asyncio.create_task(self._run(generation))
        self._running[generation] = running
        running.add_done_callback(partial(self._on_done, generation))
        try:
            async for chunk in stream:
                yield chunk
        finally:
            stream.abort()
            running.cancel()
            # The conversation's next turn often follows at once, before the task has ended.
            if generation in self._running and generation.has_slot:
                self._slots.expect_release(generation.slot, generation.computed)

    async def _start_process(self) -> None:
        """Start llama.cpp if its process has ended. Raises ``BackendError`` if it cannot start, and
        ``EngineLost`` if the new process ends before the model is loaded."""
        if self._closed:
            raise BackendError("The engine is closed.")
        if self._process.pid is not None:
            return
        try:
            await self._process.start()
            if self._detokenizer is not None:
                self._detokenizer = await _create_detokenizer(self._process, self.tokenizer)
        except LoadInterrupted:
            raise EngineLost from None
        except SetupError as error:
            raise BackendError(f"The engine cannot start: {error}") from None
        self._slots.forget()

    async def _run(self, generation: _Generation) -> None:
        """Run a generation. If this task is cancelled, the connection is closed, and llama.cpp
        stops after at most one more token."""
        stream, prompt = generation.stream, generation.prompt
        try:
            await self._run_turn(generation, self._process.client)
            while generation.is_paused:
                self._release(generation)
                slot = generation.slot
                generation.slot = await self._slots.acquire(
                    generation.ids, slot.group, slot.owner, prompt.head, prompt.past, is_paused=True
                )
                generation.has_slot, generation.is_paused = True, False
                stream.resume()
                await self._run_turn(generation, self._process.client)
            stream.end()
        except Exception as error:
            stream.end(error)

    async def _run_turn(self, generation: _Generation, client: LlamaClient) -> None:
        """Run a generation in its slot, until it ends or is paused."""
        stream, slot = generation.stream, generation.slot
        feed = partial(self._feed, generation)
        build = partial(self._request, generation)
        request = await asyncio.to_thread(build) if generation.prompt.images else build()
        if generation.prompt.images:
            self._slots.end_prefill(slot)
        first = 0
        try:
            while True:
                await self._share_head(generation, client, request, first)
                if not generation.is_paused:
                    await client.generate(msgspec.json.encode(request), feed)
                if generation.is_paused or stream.new_tokens or self._slots.wanted(slot) is None:
                    return
                # The batch that is being computed may already go further.
                first = stream.processed + self._batch
        except OSError as error:
            await self._process.end(client)
            raise EngineLost from error

    def _feed(self, generation: _Generation, event: bytes) -> bool:
        stream, slot = generation.stream, generation.slot
        if not stream.new_tokens and stream.started and self._slots.wanted(slot) is not None:
            return True
        is_done = stream.feed(event)
        if stream.new_tokens:
            self._slots.end_prefill(slot)
        return is_done or self._gives_way(generation)

    def _gives_way(self, generation: _Generation) -> bool:
        """Return whether a generation is paused, because other tenants wait."""
        stream, slot = generation.stream, generation.slot
        if generation.is_paused or not self._slots.gives_way(slot, stream.size, stream.computed):
            return generation.is_paused
        if stream.size >= self.card.context_size:  # it is about to end
            return False
        if stream.sampled and generation.sampling.constraint is not None:
            stream.offer()
            return False
        generation.is_paused = True
        self._slots.expect_release(slot, generation.computed)
        return True

    async def _share_head(
        self, generation: _Generation, client: LlamaClient, request: dict[str, Any], first: int
    ) -> None:
        """Compute and keep the heads of the prompt for which other prompts wait. Then the request
        continues from them. ``first``: the least number of ids that can be computed."""
        stream, slot = generation.stream, generation.slot

        def feed(event: bytes) -> bool:
            return stream.feed_head(event) or self._gives_way(generation)

        while (wanted := self._slots.wanted(slot)) is not None:
            if stream.processed < wanted:
                wanted = min(max(wanted, first), len(request["prompt"]))
                head = {key: request[key] for key in _HEAD_FIELDS}
                head |= {"prompt": request["prompt"][:wanted], "n_predict": 1}
                await client.generate(msgspec.json.encode(head), feed)
            if stream.processed < wanted:  # llama.cpp has refused it, or the generation is paused
                self._slots.end_prefill(slot)
                return
            request["cache_prompt"] = True
            await self._slots.share(slot, stream.processed)

    def _on_done(self, generation: _Generation, running: asyncio.Task[None]) -> None:
        """Release the slot of a generation that has ended."""
        stream, slot = generation.stream, generation.slot
        stream.end()
        del self._running[generation]
        if generation.has_slot:
            self._release(generation)
            if slot.owner.is_durable and stream.started and not self._closed:
                self._writing.start(self._persist(slot))

    def _release(self, generation: _Generation) -> None:
        generation.has_slot = False
        sampling = generation.sampling
        self._slots.release(
            generation.slot,
            generation.computed,
            is_started=generation.stream.started,
            # Only the probabilities of the next token are wanted, so no conversation continues it.
            is_score=bool(sampling.logprobs and sampling.max_tokens == 1 and not sampling.owner),
        )

    async def _persist(self, slot: Slot) -> None:
        """Keep the state of a slot on disk."""
        if (state := await self._slots.keep(slot)) is not None:
            await self._slots.states.persist(state)

    def _request(self, generation: _Generation) -> dict[str, Any]:
        prompt, sampling, slot = generation.prompt, generation.sampling, generation.slot
        if sampled := generation.stream.sampled:  # it was paused
            prompt, sampling = prompt.followed_by(sampled), sampling.after(sampled)
        constraint = sampling.constraint
        request = {
            **completion_fields(sampling),
            "prompt": prompt.ids,
            "cache_prompt": slot.is_reusable,
            "id_slot": slot.number,
            "lora": lora_scales(self._adapters, sampling.adapter),
            # Otherwise the last event would repeat the prompt.
            "response_fields": _RESPONSE_FIELDS,
        }
        if constraint is not None:
            request["grammar"] = "%llguidance {}\n" + constraint.lark
        # These samplers punish repetition, but text in a format must repeat itself.
        if not sampling.is_matched and (constraint is None or constraint.free_text):
            request |= self._samplers
        if prompt.images and self._detokenizer is not None:
            request["prompt"] = self._detokenizer.request_prompt(prompt)
        return request

    async def image_tokens(self, image: EncodedImage) -> int:
        """Return how many tokens of the context the image takes. llama.cpp measures each image
        once. See ``ImageMeasurer``."""
        if self._detokenizer is None:
            raise images_unsupported_error()
        return await self._image_tokens.get_or_measure(
            image, partial(self._measure_image, self._detokenizer)
        )

    async def _measure_image(self, detokenizer: PromptDetokenizer, image: EncodedImage) -> int:
        await self._start_process()
        prompt = measuring_prompt(image, self.tokenizer, _added_bos(self.tokenizer))
        request = await asyncio.to_thread(detokenizer.request_prompt, prompt)
        try:
            return await self._process.client.count_tokens(request) - len(prompt.ids)
        except BackendError as error:
            raise UnreadableImage(error.message.rstrip("."), image.content) from None
        except OSError:
            raise EngineLost from None

    @property
    def threads(self) -> int:
        """Number of CPU threads. See ``CachingEngine``."""
        return self._process.threads

    @property
    def prefix_cache(self) -> PrefixCacheCounts | None:
        """What the kept states are. See ``CachingEngine``."""
        return None if self._states is None else self._states.counts

    async def on_session(self, signal: SessionSignal) -> None:
        """See ``SessionObserver``."""
        states = self._slots.states
        if signal.event == "deleted":
            states.owners.delete(signal.owner, signal.key, signal.tenant)
            for slot in await self._slots.delete_unneeded():
                if slot.owner.is_durable:
                    self._writing.start(self._persist(slot))
        if signal.key is not None:
            if signal.event == "waiting":
                states.wait(signal.key, True)
            else:
                states.end(signal.key)

    async def close(self) -> None:
        self._closed = True
        running = list(self._running.values())
        for each in running:
            each.cancel()
        if running:
            await asyncio.wait(running)
        await self._writing.wait(_WRITE_S)
        self._writing.cancel_all()
        await self._process.close()
        await self._writing.wait()
        self._slots.states.close()
        self._files.close()


def _prompt_marks(prompt: Prompt) -> tuple[int, ...]:
    """Return the ids by which ``Slots`` recognizes the state of a prompt: its token ids, and for
    each image a negative number that depends on the image."""
    if not prompt.images:
        return prompt.ids
    marks: list[int] = []
    start = 0
    for image in prompt.images:
        digest = hashlib.sha256(image.content).digest()
        marks += (*prompt.ids[start : image.position], -1 - int.from_bytes(digest[:7], "big"))
        start = image.position
    return (*marks, *prompt.ids[start:])
