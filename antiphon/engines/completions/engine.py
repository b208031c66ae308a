"""An engine that sends the token ids of a prompt to an upstream server over HTTP. The server
generates the next tokens and returns their ids.

The engine supports vLLM, SGLang, TensorRT-LLM and llama-server. The module ``servers`` lists their
differences. Antiphon renders prompts to token ids itself, so the model's tokenizer must be on this
machine.
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
from antiphon.engines.common.image_token_cache import ImageTokenCache
from antiphon.engines.common.request_checks import check_request, images_unsupported_error
from antiphon.engines.common.stop_conditions import EngineOutput, StopConditions
from antiphon.engines.gguf.reader import read_gguf
from antiphon.engines.huggingface.model_folder import DEFAULT_CONTEXT, read_folder
from antiphon.engines.llama.partial_tokens import PartialTokens
from antiphon.errors import BackendError, EngineLost, SetupError, UnreadableImage
from antiphon.inference.sampling import SessionSignal
from antiphon.inference.tokens import Chunk, EncodedImage, ModelCard, Prompt, Tokenizer
from antiphon.upstream.client import Upstream
from antiphon.upstream.endpoint import connecting, first_model_id, list_models, model_entries
from antiphon.upstream.errors import UpstreamDown
from antiphon.upstream.retries import RetryPolicy

from .constraints import SYNTAXES, ConstraintEncoder, ConstraintSyntax, probe_constraints
from .images import EncodedRequest, ImageRequestEncoder, image_encoder
from .servers import FLAVOURS, CompletionsFlavour
from .stream_parser import CompletionsStreamParser, StreamRequest

_encode = msgspec.json.Encoder().encode


async def load(
    url: str,
    options: LoadOptions = DEFAULT_LOAD_OPTIONS,
    *,
    key: str | None = None,
    model: str | None = None,
) -> CompletionsEngine:
    """Connect to one model of the server at ``url``.

    ``model``: the name of the model on the server. If None, the first model that the server lists
    is used. ``key``: the API key of the server. ``options.name``: the name of the model in
    Antiphon; the default is ``url``. ``options.context_size``: size of the context in tokens; it
    replaces the size that the server reports. ``options.adapters``: name of a LoRA adapter in
    Antiphon → its name on the server. ``options.engine_options``: see ``EndpointOptions``. The
    option ``tokenizer`` is the path of a Hugging Face folder, a ``tokenizer.json`` or a GGUF file.
    This option is not needed if the server reports a path that exists on this machine.

    Raises ``SetupError`` if the server does not answer or is of an unknown kind, if the model's
    tokenizer is not on this machine, or if a required package is not installed.
    """
    name, adapters = options.name or url, options.adapters
    async with connecting(name, url, key, options.engine_options) as (upstream, endpoint):
        listed = await list_models(upstream)
        kind, flavour = _find_flavour(name, upstream, endpoint.flavour, listed)
        upstream_model = model or first_model_id(name, upstream, listed)
        entry = next(
            (each for each in model_entries(listed) if each.get("id") == upstream_model), {}
        )
        properties = await _server_properties(upstream, kind)
        if adapters and not flavour.has_adapters:
            raise SetupError(f"model {name}: {kind} takes no adapters in token-id requests")
        source = endpoint.tokenizer or _local_tokenizer(entry, properties)
        if source is None:
            raise SetupError(
                f"model {name}: the tokenizer of {upstream_model} is not on this machine: set"
                f" models.{name}.engine_options.tokenizer to its Hugging Face folder or GGUF file"
            )
        size = options.context_size or _reported_context(entry, properties)
        tokenizer, card = await asyncio.to_thread(_read_tokenizer, Path(source), name, size)
        encoder = await image_encoder(kind, upstream, upstream_model, tokenizer, properties)
        capabilities = replace(
            flavour.capabilities,
            images=None if encoder is None else encoder.image_mode,
            seed=flavour.capabilities.seed
            or properties.get("enable_deterministic_inference") is True,
            adapters=_adapters(flavour, listed),
        )
        flavour = replace(flavour, capabilities=capabilities)
        make_engine = partial(
            CompletionsEngine,
            upstream,
            upstream_model,
            flavour,
            tokenizer,
            card,
            body=endpoint.body,
        )
        for syntax in SYNTAXES[kind]:
            if await probe_constraints(make_engine(constraint_syntax=syntax)):
                return make_engine(
                    constraint_syntax=syntax, adapters=adapters, image_encoder=encoder
                )
        return make_engine(adapters=adapters, image_encoder=encoder)


class CompletionsEngine:
    """``Engine`` for one model of an upstream server.

    ``upstream``: the HTTP client for the server. ``close`` closes this client. ``model``: name of
    the model on the server. ``body``: extra fields for the body of every request to the server.
    They override the fields that the engine sets. ``adapters``: name of a LoRA adapter in Antiphon
    → its name on the server. ``image_encoder``: None if the model accepts no images.
    ``constraint_syntax``: None if the server enforces no constraints.
    """

    def __init__(
        self,
        upstream: Upstream,
        model: str,
        flavour: CompletionsFlavour,
        tokenizer: Tokenizer,
        card: ModelCard,
        *,
        body: Mapping[str, Any] | None = None,
        adapters: Mapping[str, str] | None = None,
        image_encoder: ImageRequestEncoder | None = None,
        constraint_syntax: ConstraintSyntax | None = None,
    ) -> None:
        self._adapters = adapters or {}
        listed = flavour.capabilities
        listed = replace(listed, adapters=listed.adapters | frozenset(self._adapters))
        self._constraint_encoder = ConstraintEncoder(constraint_syntax, tokenizer)
        self.capabilities = self._constraint_encoder.capabilities(listed)
        self._image_encoder = image_encoder
        self._image_token_cache = ImageTokenCache()
        self._upstream = upstream
        self._model = model
        self._flavour = flavour
        self.tokenizer = tokenizer
        self.card = card
        self._partial_tokens = PartialTokens(tokenizer)
        self._body = body or {}
        base = upstream.versioned_url if flavour.has_version_path else upstream.root
        self._url = f"{base}/{flavour.path}"

    async def generate(self, prompt: Prompt, sampling: Sampling) -> AsyncGenerator[Chunk, None]:
        check_request(self, prompt, sampling)
        context_left = self.card.context_size - len(prompt.ids)
        # SGLang rejects a limit that exceeds the context.
        sampling = replace(sampling, max_tokens=min(sampling.max_tokens, context_left))
        retry_policy = self._upstream.retry_policy(sampling.session)
        if isinstance(sampling.retry, RetryPolicy):
            retry_policy = sampling.retry
        stop_conditions = StopConditions(self.tokenizer, sampling, sampling.max_tokens)
        held_ids: tuple[int, ...] = ()
        is_begun = False
        while True:
            rest = prompt.followed_by(held_ids), sampling.after(held_ids)
            attempt = self._generate_once(*rest, stop_conditions, retry_policy)
            try:
                async with aclosing(attempt) as chunks:
                    async for chunk in chunks:
                        is_begun = is_begun or bool(chunk.ids)
                        yield chunk
                return
            except BackendError as error:
                if is_begun or len(stop_conditions.held_ids) > len(held_ids):
                    retry_policy.restart(error)
                await retry_policy.wait_before_retry(error)
                if is_begun:
                    raise EngineLost(error, retry_policy) from None
            if sampling.constraint is None:
                held_ids = stop_conditions.held_ids
            else:
                stop_conditions = StopConditions(self.tokenizer, sampling, sampling.max_tokens)

    async def _generate_once(
        self,
        prompt: Prompt,
        sampling: Sampling,
        stop_conditions: StopConditions,
        retry_policy: RetryPolicy,
    ) -> AsyncGenerator[Chunk, None]:
        """Send one request to the server and yield its chunks. Raises ``BackendError`` if the
        request fails."""
        request = await self._encode_request(prompt, sampling)
        last: Chunk | None = None
        cached: int | None = None
        async with aclosing(self._stream(request, sampling, retry_policy)) as batches:
            async for payloads in batches:
                parsed, error = _parse_payloads(request.parser, payloads)
                self._check_vocabulary(parsed)
                if parsed.cached_tokens is not None:
                    cached = parsed.cached_tokens
                chunk = stop_conditions.take(parsed)
                if chunk is not None and chunk.finish is not None:
                    last = chunk
                    # Stop strings are matched here: the upstream does not know them.
                    if self._flavour.usage_after_finish and parsed.reason is not None:
                        reported = await _read_usage(request.parser, batches)
                        cached = reported if reported is not None else cached
                    break
                if chunk is not None:
                    yield replace(chunk, cached_tokens=cached)
                if error is not None:
                    raise error
        if last is None:
            raise UpstreamDown("The upstream's answer broke off.")
        yield replace(last, cached_tokens=cached)

    def _check_vocabulary(self, parsed: EngineOutput) -> None:
        """Raise ``BackendError`` for ids outside the vocabulary.

        Without this check, such ids would be stored and sent again with later requests.
        """
        if any(token.id >= self.tokenizer.size for token in parsed.tokens):
            raise BackendError(
                "The upstream's token ids do not belong to the configured tokenizer.",
                permanent=True,
            )

    async def image_tokens(self, image: EncodedImage) -> int:
        """Return how many tokens of the context the image takes. The upstream is asked once per
        image. See ``ImageMeasurer``."""
        if self._image_encoder is None:
            raise images_unsupported_error()
        return await self._image_token_cache.get_or_measure(
            image, partial(self._measure_image, self._image_encoder)
        )

    async def _measure_image(self, image_encoder: ImageRequestEncoder, image: EncodedImage) -> int:
        try:
            return await self._extra_tokens(image_encoder.measuring_prompt(image))
        except BackendError as error:
            if error.code != "invalid_prompt" or error.for_operator:
                raise
            raise UnreadableImage(error.message.rstrip("."), image.content) from None

    async def _extra_tokens(self, prompt: Prompt) -> int:
        """Return the number of tokens that the images add to ``prompt``: the number of prompt
        tokens that the upstream reports, minus the number of ids in ``prompt``."""
        sampling = Sampling(max_tokens=1)
        request = await self._encode_request(prompt, sampling)
        async with aclosing(self._stream(request, sampling)) as batches:
            async for payloads in batches:
                parsed, error = _parse_payloads(request.parser, payloads)
                if parsed.prompt_tokens is not None:
                    return max(0, parsed.prompt_tokens - len(prompt.ids))
                if error is not None:
                    raise error
        raise BackendError("The upstream does not report the size of an image in tokens.")

    async def _encode_request(self, prompt: Prompt, sampling: Sampling) -> EncodedRequest:
        if sampling.adapter is not None:
            upstream_name = self._adapters.get(sampling.adapter) or sampling.adapter
            sampling = replace(sampling, adapter=upstream_name)
        # Converting a grammar is slow: do not block the event loop.
        constraint_fields = (
            {}
            if sampling.constraint is None
            else await asyncio.to_thread(self._constraint_encoder.encode, sampling)
        )
        request = StreamRequest(
            model=self._model,
            prompt=prompt,
            sampling=sampling,
            partial_tokens=self._partial_tokens,
            constraint_fields=constraint_fields,
        )
        if prompt.images and self._image_encoder is not None:
            return await self._image_encoder.encode(request)
        flavour = self._flavour
        return EncodedRequest(self._url, flavour.encode(request), flavour.make_parser(request))

    def _stream(
        self, request: EncodedRequest, sampling: Sampling, patience: RetryPolicy | None = None
    ) -> AsyncGenerator[list[bytes], None]:
        body = _encode({**request.body, **self._body})
        return self._upstream.stream(request.url, body, sampling.trace, patience)

    async def on_session(self, signal: SessionSignal) -> None:
        """Tell the upstream that a conversation has ended, or that its beginning has."""
        if signal.key is not None and signal.event != "waiting":
            await self._upstream.end_session(signal.key)

    async def close(self) -> None:
        await self._upstream.close()


def _parse_payloads(
    parser: CompletionsStreamParser, payloads: list[bytes]
) -> tuple[EngineOutput, BackendError | None]:
    """Parse payloads that arrived together, and merge their contents. Stop at the first error.

    Returns the merged content, and the error or None.
    """
    merged = EngineOutput()
    for payload in payloads:
        try:
            parsed = parser.feed(payload)
        except BackendError as error:
            return merged, error
        merged.tokens = [*merged.tokens, *parsed.tokens] if merged.tokens else parsed.tokens
        merged.reason = parsed.reason or merged.reason
        merged.unreported_tokens += parsed.unreported_tokens
        merged.cached_tokens = (
            merged.cached_tokens if parsed.cached_tokens is None else max(0, parsed.cached_tokens)
        )
        merged.prompt_tokens = (
            merged.prompt_tokens if parsed.prompt_tokens is None else parsed.prompt_tokens
        )
    return merged, None


async def _read_usage(
    parser: CompletionsStreamParser, batches: AsyncGenerator[list[bytes], None]
) -> int | None:
    """Read the payloads after the finish reason. Return the number of cached prompt tokens, or None
    if the server does not report this number.

    ``batches``: the remaining payloads of the response stream, in lists of payloads that arrived
    together. A failure is ignored, because the output is already complete.
    """
    cached: int | None = None
    with suppress(BackendError):
        async for payloads in batches:
            parsed, _ = _parse_payloads(parser, payloads)
            cached = parsed.cached_tokens if parsed.cached_tokens is not None else cached
    return cached


# --- what the upstream reports about itself ------------------------------------------------------


def _find_flavour(
    name: str, upstream: Upstream, requested: str | None, listed: Any
) -> tuple[str, CompletionsFlavour]:
    known = ", ".join(FLAVOURS)
    if requested is not None:
        if requested not in FLAVOURS:
            raise SetupError(
                f"models.{name}.engine_options.flavour: unknown {requested!r}. Known: {known}."
            )
        return requested, FLAVOURS[requested]
    owners = [each.get("owned_by") for each in model_entries(listed)]
    for kind, flavour in FLAVOURS.items():
        if flavour.owner in owners:
            return kind, flavour
    raise SetupError(
        f"model {name}: {upstream.url} "
        + ("does not answer" if listed is None else "is a server of unknown kind")
        + f": set models.{name}.engine_options.flavour (one of {known}), or use the engine"
        " chat_completions"
    )


def _adapters(flavour: CompletionsFlavour, listed: Any) -> frozenset[str]:
    """Return the names of the server's LoRA adapters. In the server's model list ``listed``, an
    adapter is a model with the field ``parent``."""
    ids = (each.get("id") for each in model_entries(listed) if each.get("parent"))
    return frozenset(id for id in ids if flavour.has_adapters and isinstance(id, str))


async def _server_properties(upstream: Upstream, kind: str) -> Mapping[str, Any]:
    """Read the endpoints where the server describes itself. Return their JSON objects merged into
    one. Endpoints that fail are skipped."""
    properties: dict[str, Any] = {}
    for path in _PROPERTY_PATHS.get(kind, ()):
        with suppress(BackendError):
            answer = await upstream.request_json(f"{upstream.root}/{path}", wait_s=10)
            properties |= answer if isinstance(answer, Mapping) else {}
    return properties


_PROPERTY_PATHS: Mapping[str, tuple[str, ...]] = {
    "llama-server": ("props",),
    "sglang": ("server_info", "get_model_info"),
}


def _local_tokenizer(entry: Mapping[str, Any], properties: Mapping[str, Any]) -> str | None:
    """Return the path of the tokenizer or of the model that the server reports, if this path exists
    on this machine. Return None if no reported path exists here."""
    for path in (
        properties.get("tokenizer_path"),
        properties.get("model_path"),
        entry.get("root"),
    ):
        if isinstance(path, str) and Path(path).is_absolute() and Path(path).exists():
            return path
    return None


def _reported_context(entry: Mapping[str, Any], properties: Mapping[str, Any]) -> int | None:
    defaults = properties.get("default_generation_settings")
    for size in (
        entry.get("max_model_len"),
        properties.get("context_length"),
        defaults.get("n_ctx") if isinstance(defaults, Mapping) else None,
    ):
        if isinstance(size, int) and size > 0:
            return size
    return None


def _read_tokenizer(path: Path, name: str, size: int | None) -> tuple[Tokenizer, ModelCard]:
    path = path.expanduser()
    if path.suffix == ".gguf":
        from antiphon.engines.gguf.model_card import gguf_card
        from antiphon.engines.llama.tokenizer import LlamaTokenizer

        header, tokenizer = read_gguf(path), LlamaTokenizer(path)
        trained = int(header.architecture_value("context_length") or 0)
        card = gguf_card(name, size or trained or DEFAULT_CONTEXT, header, tokenizer)
        return tokenizer, card
    folder = read_folder(path, name=name)
    return folder.tokenizer, replace(folder.card, context_size=size or folder.card.context_size)
