"""Encode requests whose prompts have images, for the kinds of server in the module ``servers``.

llama-server takes a prompt with images as text. vLLM and SGLang take token ids, and replace the
placeholder tokens of the model's chat template by image tokens. Images are not supported for
TensorRT-LLM.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal, Protocol

from msgspec import Struct
from msgspec.structs import replace

from antiphon.engines.llama.images import PromptDetokenizer, check_image_positions, measuring_prompt
from antiphon.errors import BackendError, InvalidRequest
from antiphon.inference.tokens import EncodedImage, Prompt, Tokenizer
from antiphon.upstream.client import Upstream

from .servers import FLAVOURS, sglang_image_body, vllm_image_body
from .stream_parser import CompletionsStreamParser, SglangParser, StreamRequest, VllmGenerateParser


class EncodedRequest(Struct, frozen=True):
    """An HTTP request and the parser for its response stream."""

    url: str
    body: Mapping[str, Any]
    parser: CompletionsStreamParser


class ImageRequestEncoder(Protocol):
    """Encodes requests to one model server. Each of these requests has a prompt with images.
    ``image_mode``: see ``Capabilities.images``."""

    image_mode: Literal["apart", "template"]

    def measuring_prompt(self, image: EncodedImage) -> Prompt:
        """Return a prompt with this image, for a request that counts the image's tokens."""

    async def encode(self, request: StreamRequest) -> EncodedRequest:
        """Encode a request whose prompt has images.

        Raises ``InvalidRequest`` if the prompt or an image is not usable. Raises ``BackendError``
        if the server no longer accepts images.
        """


class _TextImageEncoder:
    """``ImageRequestEncoder`` for llama-server. The server's model must have an image encoder
    (projector).

    The request contains the prompt as text, with a marker at the position of each image. Each
    llama-server process chooses a new random marker. The server may have been restarted, so the
    marker is read before each request. ``bos``: the id that the server adds before every text, or
    None if it adds no id.
    """

    image_mode: Literal["apart", "template"] = "apart"

    def __init__(self, upstream: Upstream, tokenizer: Tokenizer, bos: int | None) -> None:
        self._upstream = upstream
        self._tokenizer = tokenizer
        self._bos = bos
        self._cached_detokenizer: tuple[str, PromptDetokenizer] | None = None

    def measuring_prompt(self, image: EncodedImage) -> Prompt:
        return measuring_prompt(image, self._tokenizer, self._bos)

    async def encode(self, request: StreamRequest) -> EncodedRequest:
        check_image_positions(request.prompt)
        detokenizer = await self._detokenizer()
        flavour = FLAVOURS["llama-server"]
        prompt = await asyncio.to_thread(detokenizer.request_prompt, request.prompt)
        body = {**flavour.encode(request), "prompt": prompt}
        url = f"{self._upstream.root}/{flavour.path}"
        return EncodedRequest(url, body, flavour.make_parser(request))

    async def _detokenizer(self) -> PromptDetokenizer:
        marker = _marker(await self._upstream.request_json(f"{self._upstream.root}/props"))
        if marker is None:
            raise BackendError("The upstream no longer accepts images.")
        if self._cached_detokenizer is None or self._cached_detokenizer[0] != marker:
            self._cached_detokenizer = marker, PromptDetokenizer(self._tokenizer, marker, self._bos)
        return self._cached_detokenizer[1]


class _TokenImageEncoder:
    """``ImageRequestEncoder`` for a server that takes the prompt as token ids. The server replaces
    the image placeholder of the chat template by image tokens.

    ``encode_body``: function that returns the request body. Its arguments are the request and the
    data URLs of the prompt's images, in order. ``detokenizer``: escapes user text that looks like a
    placeholder. It is needed only for a server that converts the ids back to text and searches this
    text for placeholders. For other servers, it is None.
    """

    image_mode: Literal["apart", "template"] = "template"

    def __init__(
        self,
        url: str,
        encode_body: Callable[[StreamRequest, Sequence[str]], Mapping[str, Any]],
        make_parser: Callable[[StreamRequest], CompletionsStreamParser],
        detokenizer: PromptDetokenizer | None = None,
    ) -> None:
        self._detokenizer = detokenizer
        self._url = url
        self._encode_body = encode_body
        self._make_parser = make_parser

    def measuring_prompt(self, image: EncodedImage) -> Prompt:
        return Prompt(image.placeholder_ids, (replace(image, position=0),))

    async def encode(self, request: StreamRequest) -> EncodedRequest:
        if not all(image.placeholder_ids for image in request.prompt.images):
            raise InvalidRequest("This model's chat template does not show images.", param="input")
        body = await asyncio.to_thread(self._body, request)
        return EncodedRequest(self._url, body, self._make_parser(request))

    def _body(self, request: StreamRequest) -> Mapping[str, Any]:
        prompt = request.prompt
        if self._detokenizer is not None:
            request = replace(request, prompt=Prompt(self._detokenizer.escaped_ids(prompt.ids)))
        return self._encode_body(request, [*map(_data_url, prompt.images)])


def _data_url(image: EncodedImage) -> str:
    return f"data:{image.mime};base64,{base64.b64encode(image.content).decode()}"


# --- which servers accept images -----------------------------------------------------------------


async def image_encoder(
    kind: str, upstream: Upstream, model: str, tokenizer: Tokenizer, properties: Mapping[str, Any]
) -> ImageRequestEncoder | None:
    """Return the image encoder for the server's ``model``. Return None if the server takes no
    images for this model.

    ``kind``: the kind of server, which is a key of ``FLAVOURS``. ``properties``: the values that
    the server reports about itself.
    """
    if kind not in _ENCODER_FACTORIES:
        return None
    try:
        return await _ENCODER_FACTORIES[kind](upstream, model, tokenizer, properties)
    except BackendError:
        return None


async def _llama_image_encoder(
    upstream: Upstream, model: str, tokenizer: Tokenizer, properties: Mapping[str, Any]
) -> ImageRequestEncoder | None:
    if _marker(properties) is None:
        return None
    added = await upstream.request_json(
        f"{upstream.root}/tokenize", {"content": "", "add_special": True}
    )
    ids = added.get("tokens") if isinstance(added, Mapping) else None
    return _TextImageEncoder(upstream, tokenizer, ids[0] if ids else None)


def _marker(properties: Any) -> str | None:
    """Return the text that stands for an image in llama-server's prompts. Return None if the model
    of the server takes no images. ``properties``: the values that the server reports about
    itself."""
    modalities = properties.get("modalities") if isinstance(properties, Mapping) else None
    if not isinstance(modalities, Mapping) or not modalities.get("vision"):
        return None
    return str(properties.get("media_marker") or "<__media__>")


async def _vllm_image_encoder(
    upstream: Upstream, model: str, tokenizer: Tokenizer, properties: Mapping[str, Any]
) -> ImageRequestEncoder | None:
    """Check that the server has vLLM's endpoint for images, and return the image encoder.

    vLLM has this endpoint only with ``--enable-scale-out``. The check generates one token and
    raises ``BackendError`` if the endpoint does not exist. The check does not show whether the
    model accepts images, because this depends on the model's chat template.
    """
    url = f"{upstream.root}/inference/v1/generate"
    ids = tokenizer.encode("a", special=False)
    await upstream.request_json(
        url, {"model": model, "token_ids": ids, "sampling_params": {"max_tokens": 1}}
    )
    return _TokenImageEncoder(url, vllm_image_body, VllmGenerateParser)


async def _sglang_image_encoder(
    upstream: Upstream, model: str, tokenizer: Tokenizer, properties: Mapping[str, Any]
) -> ImageRequestEncoder | None:
    if not properties.get("has_image_understanding"):
        return None
    url = f"{upstream.root}/{FLAVOURS['sglang'].path}"
    return _TokenImageEncoder(url, sglang_image_body, SglangParser, PromptDetokenizer(tokenizer))


_EncoderFactory = Callable[
    [Upstream, str, Tokenizer, Mapping[str, Any]], Awaitable[ImageRequestEncoder | None]
]
_ENCODER_FACTORIES: Mapping[str, _EncoderFactory] = {
    "llama-server": _llama_image_encoder,
    "sglang": _sglang_image_encoder,
    "vllm": _vllm_image_encoder,
}
