"""The engine that is somewhere else: token ids in and out over HTTP.

vLLM, SGLang, TensorRT-LLM, llama-server: what each is asked stands in the table of flavours. The
prompt is written here, so the model's tokenizer has to be on this machine. It knows no messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from antiphon.engines.base import DEFAULT_LOAD_OPTIONS, LoadOptions, Sampling
from antiphon.engines.common.image_token_cache import ImageSizes
from antiphon.engines.common.request_checks import cannot_see, check_request
from antiphon.engines.common.stop_conditions import StopConditions
from antiphon.engines.gguf.reader import read_gguf
from antiphon.engines.huggingface.model_folder import DEFAULT_CONTEXT, read_folder
from antiphon.engines.llama.partial_tokens import PartialTokens
from antiphon.errors import BackendError, SetupError, UnreadableImage
from antiphon.tokens import Chunk, Image, ModelCard, Prompt, Tokenizer
from antiphon.upstream.client import RetryPolicy, Upstream
from antiphon.upstream.endpoint import entries, listing, only_model, reach

from .constraints import WORDS, ConstraintEncoder, ConstraintSyntax, probe_constraints
from .images import ImagePrompt, Question, eyes_of
from .servers import FLAVOURS, Flavour
from .stream_parser import CompletionsStreamParser, Piece, StreamRequest

__all__ = ["Completions", "load"]

_encode = msgspec.json.Encoder().encode


async def load(
    url: str,
    options: LoadOptions = DEFAULT_LOAD_OPTIONS,
    *,
    key: str | None = None,
    model: str | None = None,
) -> Completions:
    """Connect to the model that the server at ``url`` calls ``model``, or to its first one.

    ``options.name``: the name of the model here, by default ``url``. ``options.context_size``:
    tokens, if the server does not report them. ``options.adapters``: name here → name on the
    server. ``options.engine_options``: see ``EndpointOptions``; ``tokenizer`` is a Hugging Face
    folder, a ``tokenizer.json`` or a GGUF file, and is optional if the server names one that is on
    this machine. ``key``: the API key of the server.

    Raises ``SetupError``: the server does not answer or is of an unknown kind, its tokenizer is not
    on this machine, or the extra is not installed.
    """
    name, adapters = options.name or url, options.adapters
    upstream, told = reach(name, url, key, options.engine_options)
    try:
        listed = await listing(upstream)
        kind, flavour = _flavour(name, upstream, told.flavour, listed)
        called = model or only_model(name, upstream, listed)
        entry = next((each for each in entries(listed) if each.get("id") == called), {})
        facts = await _facts(upstream, kind)
        if adapters and not flavour.adapts:
            raise SetupError(f"model {name}: over token ids {kind} takes no adapters")
        source = told.tokenizer or _tokenizer_of(entry, facts)
        if source is None:
            raise SetupError(
                f"model {name}: the tokenizer of {called} is not on this machine: set"
                f" models.{name}.engine_options.tokenizer to its Hugging Face folder or GGUF file"
            )
        size = options.context_size or _context_of(entry, facts)
        tokenizer, card = await asyncio.to_thread(_described, Path(source), name, size)
        eyes = await eyes_of(kind, upstream, called, tokenizer, facts)
        can = replace(
            flavour.can,
            images=None if eyes is None else eyes.told,
            seed=flavour.can.seed or facts.get("enable_deterministic_inference") is True,
            adapters=_adapters(flavour, listed) | frozenset(adapters),
        )
        flavour = replace(flavour, can=can)
        made = partial(Completions, upstream, called, flavour, tokenizer, card, body=told.body)
        for words in WORDS[kind]:
            if await probe_constraints(made(words=words)):
                return made(words=words, adapters=adapters, eyes=eyes)
        return made(adapters=adapters, eyes=eyes)
    except BaseException:
        await upstream.close()
        raise


class Completions:
    """``Engine`` over one model of an upstream, which it owns. ``body``: fields that every request
    gets besides, over ours. ``eyes``: of a model that sees. ``words``: in which constraints are
    said to it."""

    def __init__(
        self,
        upstream: Upstream,
        model: str,
        flavour: Flavour,
        tokenizer: Tokenizer,
        card: ModelCard,
        *,
        body: Mapping[str, Any] | None = None,
        adapters: Mapping[str, str] | None = None,
        eyes: ImagePrompt | None = None,
        words: ConstraintSyntax | None = None,
    ) -> None:
        self._worded = ConstraintEncoder(words, tokenizer)
        self.capabilities = self._worded.told(flavour.can)
        self._adapters = adapters or {}
        self._eyes = eyes
        self._sizes = ImageSizes()
        self._upstream = upstream
        self._model = model
        self._flavour = flavour
        self._tokenizer = tokenizer
        self._card = card
        self._withheld = PartialTokens(tokenizer)
        self._body = body or {}
        base = upstream.versioned if flavour.versioned else upstream.root
        self._url = f"{base}/{flavour.path}"

    @property
    def card(self) -> ModelCard:
        return self._card

    @property
    def tokenizer(self) -> Tokenizer:
        return self._tokenizer

    async def generate(self, prompt: Prompt, sampling: Sampling) -> AsyncGenerator[Chunk, None]:
        sees = self._eyes is not None
        check_request(prompt, sampling, self._card, self._tokenizer, sees=sees)
        patience, begun = self._upstream.patience(), False
        while True:
            try:
                async with aclosing(self._generated(prompt, sampling, patience)) as chunks:
                    async for chunk in chunks:
                        begun = True
                        yield chunk
                return
            except BackendError as error:
                if begun:
                    raise
                await patience.again(error)

    async def _generated(
        self, prompt: Prompt, sampling: Sampling, patience: RetryPolicy
    ) -> AsyncGenerator[Chunk, None]:
        room = self._card.context_size - len(prompt.ids)
        # SGLang refuses what would not fit
        sampling = replace(sampling, max_tokens=min(sampling.max_tokens, room))
        question = await self._question(prompt, sampling)
        endings = StopConditions(self._tokenizer, sampling, room)
        last: Chunk | None = None
        cached: int | None = None
        async with aclosing(self._answer(question, sampling, patience)) as batches:
            async for payloads in batches:
                piece, error = _read(question.pieces, payloads)
                self._check(piece)
                cached = piece.cached if piece.cached is not None else cached
                if last is not None:
                    continue  # only what was used can still come
                chunk = _ended(endings, piece)
                if chunk is None or chunk.finish is None:
                    if chunk is not None:
                        yield replace(chunk, cached_tokens=cached)
                    if error is not None:
                        raise error
                    continue
                last = chunk
                # A stop string ends it here alone: the upstream would go on.
                if not self._flavour.late or piece.reason is None:
                    break
        if last is None:
            raise BackendError("The upstream's answer broke off.")
        yield replace(last, cached_tokens=cached)

    def _check(self, piece: Piece) -> None:
        """Ids that nobody here knows would be kept, and asked with."""
        if any(token.id >= self._tokenizer.size for token in piece.tokens):
            raise BackendError("The upstream's tokens are of another vocabulary.", lasting=True)

    async def image_tokens(self, image: Image) -> int:
        """``MeasuresImages``: the upstream is asked once for each image, and no longer than until
        it tells."""
        if self._eyes is None:
            raise cannot_see()
        return await self._sizes.of(image, partial(self._measured, self._eyes))

    async def _measured(self, eyes: ImagePrompt, image: Image) -> int:
        try:
            return await self._besides(eyes.alone(image))
        except BackendError as error:
            if error.code != "invalid_prompt":
                raise
            raise UnreadableImage(error.message.rstrip("."), image.content) from None

    async def _besides(self, alone: Prompt) -> int:
        """What the upstream makes of a prompt besides its ids."""
        sampling = Sampling(max_tokens=1)
        question = await self._question(alone, sampling)
        async with aclosing(self._answer(question, sampling)) as batches:
            async for payloads in batches:
                piece, error = _read(question.pieces, payloads)
                if piece.prompt is not None:
                    return max(0, piece.prompt - len(alone.ids))
                if error is not None:
                    raise error
        raise BackendError("The upstream does not tell of how many tokens an image is.")

    async def _question(self, prompt: Prompt, sampling: Sampling) -> Question:
        if sampling.adapter is not None:
            there = self._adapters.get(sampling.adapter) or sampling.adapter
            sampling = replace(sampling, adapter=there)
        # to write a grammar anew takes longer than others should wait
        held = (
            {}
            if sampling.constraint is None
            else await asyncio.to_thread(self._worded.said, sampling)
        )
        asked = StreamRequest(
            model=self._model,
            prompt=prompt,
            sampling=sampling,
            tokenizer=self._tokenizer,
            withheld=self._withheld,
            held=held,
        )
        if prompt.images and self._eyes is not None:
            return await self._eyes.question(asked)
        flavour = self._flavour
        return Question(self._url, flavour.written(asked), flavour.pieces(asked))

    def _answer(
        self, question: Question, sampling: Sampling, patience: RetryPolicy | None = None
    ) -> AsyncGenerator[list[bytes], None]:
        body = _encode({**question.body, **self._body})
        return self._upstream.stream(question.url, body, sampling.trace, patience)

    async def close(self) -> None:
        await self._upstream.close()


def _read(
    pieces: CompletionsStreamParser, payloads: list[bytes]
) -> tuple[Piece, BackendError | None]:
    """What payloads that came together say, up to the one that is an error."""
    whole = Piece()
    for payload in payloads:
        try:
            piece = pieces.feed(payload)
        except BackendError as error:
            return whole, error
        whole.tokens = [*whole.tokens, *piece.tokens] if whole.tokens else piece.tokens
        whole.reason = piece.reason or whole.reason
        whole.untold += piece.untold
        whole.cached = whole.cached if piece.cached is None else max(0, piece.cached)
        whole.prompt = whole.prompt if piece.prompt is None else piece.prompt
    return whole, None


def _ended(endings: StopConditions, piece: Piece) -> Chunk | None:
    """What the tokens make, with the end where the upstream says so."""
    chunk = endings.feed(piece.tokens) if piece.tokens else None
    if piece.reason is None or endings.over:
        return chunk
    rest = replace(endings.finish(piece.reason), untold=piece.untold)
    if chunk is None:
        return rest
    return replace(rest, ids=(*chunk.ids, *rest.ids), logprobs=(*chunk.logprobs, *rest.logprobs))


# --- what the upstream tells of itself -----------------------------------------------------------


def _flavour(name: str, upstream: Upstream, told: str | None, listed: Any) -> tuple[str, Flavour]:
    known = ", ".join(FLAVOURS)
    if told is not None:
        if told not in FLAVOURS:
            raise SetupError(
                f"models.{name}.engine_options.flavour: there is no {told!r} (there are: {known})"
            )
        return told, FLAVOURS[told]
    owners = [each.get("owned_by") for each in entries(listed)]
    for kind, flavour in FLAVOURS.items():
        if flavour.owner in owners:
            return kind, flavour
    raise SetupError(
        f"model {name}: {upstream.url} "
        + ("does not answer" if listed is None else "does not say what it is")
        + f": set models.{name}.engine_options.flavour (there are: {known}), or use the engine"
        " chat_completions"
    )


def _adapters(flavour: Flavour, listed: Any) -> frozenset[str]:
    """Those that the server lists as models of their own."""
    found = (each.get("id") for each in entries(listed) if each.get("parent"))
    return frozenset(id for id in found if flavour.adapts and isinstance(id, str))


async def _facts(upstream: Upstream, kind: str) -> Mapping[str, Any]:
    """What the server says of itself and its model besides; nothing where it does not."""
    facts: dict[str, Any] = {}
    for path in _FACTS.get(kind, ()):
        with suppress(BackendError):
            told = await upstream.ask(f"{upstream.root}/{path}", wait_s=10)
            facts |= told if isinstance(told, Mapping) else {}
    return facts


_FACTS: Mapping[str, tuple[str, ...]] = {
    "llama-server": ("props",),
    "sglang": ("server_info", "get_model_info"),
}


def _tokenizer_of(entry: Mapping[str, Any], facts: Mapping[str, Any]) -> str | None:
    """Where the server has its files, if that is on this machine."""
    for place in (facts.get("tokenizer_path"), facts.get("model_path"), entry.get("root")):
        if isinstance(place, str) and Path(place).is_absolute() and Path(place).exists():
            return place
    return None


def _context_of(entry: Mapping[str, Any], facts: Mapping[str, Any]) -> int | None:
    defaults = facts.get("default_generation_settings")
    for size in (
        entry.get("max_model_len"),
        facts.get("context_length"),
        defaults.get("n_ctx") if isinstance(defaults, Mapping) else None,
    ):
        if isinstance(size, int) and size > 0:
            return size
    return None


def _described(path: Path, name: str, size: int | None) -> tuple[Tokenizer, ModelCard]:
    path = path.expanduser()
    if path.suffix == ".gguf":
        from antiphon.engines.gguf.model_card import gguf_card
        from antiphon.engines.llama.tokenizer import LlamaTokenizer

        head, spelled = read_gguf(path), LlamaTokenizer(path)
        trained = int(head.of_architecture("context_length") or 0)
        return spelled, gguf_card(name, size or trained or DEFAULT_CONTEXT, head, spelled)
    found = read_folder(path, name=name)
    return found.tokenizer, replace(found.card, context_size=size or found.card.context_size)
