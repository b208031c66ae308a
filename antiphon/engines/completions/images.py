"""How servers that continue token ids are shown images beside them.

llama-server takes a prompt with images as text; vLLM and SGLang take ids, in which they find what
the model's template writes for an image. TensorRT-LLM takes none. It knows no messages.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal, Protocol

from msgspec import Struct
from msgspec.structs import replace

from antiphon.engines.llama.images import Speller, alone, check_places
from antiphon.errors import BackendError, InvalidRequest
from antiphon.tokens import Image, Prompt, Tokenizer
from antiphon.upstream.client import Upstream

from .servers import FLAVOURS, sglang_shown, vllm_shown
from .stream_parser import CompletionsStreamParser, SglangPieces, StreamRequest, VllmGeneratePieces

__all__ = ["ImagePrompt", "Question", "eyes_of"]


class Question(Struct, frozen=True):
    """What is asked, where, and who reads the answer."""

    url: str
    body: Mapping[str, Any]
    pieces: CompletionsStreamParser


class ImagePrompt(Protocol):
    """How one server is shown images. ``told``: see ``Capabilities.images``."""

    told: Literal["apart", "template"]

    def alone(self, image: Image) -> Prompt:
        """A prompt to measure the image with."""

    async def question(self, asked: StreamRequest) -> Question:
        """For a prompt with images. Raises ``InvalidRequest``, and ``BackendError`` where the
        server does not see any more."""


class _TextEyes:
    """llama-server with a projector. What stands for an image in its texts is drawn anew by each
    process, so it is asked for each time: the server may have been started again. ``bos``: see
    ``Speller``."""

    told: Literal["apart", "template"] = "apart"

    def __init__(self, upstream: Upstream, tokenizer: Tokenizer, bos: int | None) -> None:
        self._upstream = upstream
        self._tokenizer = tokenizer
        self._bos = bos
        self._speller: tuple[str, Speller] | None = None

    def alone(self, image: Image) -> Prompt:
        return alone(image, self._tokenizer, self._bos)

    async def question(self, asked: StreamRequest) -> Question:
        check_places(asked.prompt)
        speller = await self._spelling()
        flavour = FLAVOURS["llama-server"]
        prompt = await asyncio.to_thread(speller.prompt, asked.prompt)
        body = {**flavour.written(asked), "prompt": prompt}
        url = f"{self._upstream.root}/{flavour.path}"
        return Question(url, body, flavour.pieces(asked))

    async def _spelling(self) -> Speller:
        marker = _marker(await self._upstream.ask(f"{self._upstream.root}/props"))
        if marker is None:
            raise BackendError("The upstream cannot be shown images any more.")
        if self._speller is None or self._speller[0] != marker:
            self._speller = marker, Speller(self._tokenizer, marker, self._bos)
        return self._speller[1]


class _TokenEyes:
    """A server that takes ids, and puts in the place of a template's word for an image what the
    model's processor makes of it. ``written``: the body for a prompt, and data URLs of its images
    in order. ``speller``: where the server looks for the words in the text that the ids spell."""

    told: Literal["apart", "template"] = "template"

    def __init__(
        self,
        url: str,
        written: Callable[[StreamRequest, Sequence[str]], Mapping[str, Any]],
        pieces: Callable[[StreamRequest], CompletionsStreamParser],
        speller: Speller | None = None,
    ) -> None:
        self._speller = speller
        self._url = url
        self._written = written
        self._pieces = pieces

    def alone(self, image: Image) -> Prompt:
        return Prompt(image.word, (replace(image, at=0),))

    async def question(self, asked: StreamRequest) -> Question:
        if not all(image.word for image in asked.prompt.images):
            raise InvalidRequest("This model's chat template does not show images.", param="input")
        body = await asyncio.to_thread(self._body, asked)
        return Question(self._url, body, self._pieces(asked))

    def _body(self, asked: StreamRequest) -> Mapping[str, Any]:
        prompt = asked.prompt
        if self._speller is not None:
            asked = replace(asked, prompt=Prompt(self._speller.parted(prompt.ids)))
        return self._written(asked, [*map(_url_of, prompt.images)])


def _url_of(image: Image) -> str:
    return f"data:{image.mime};base64,{base64.b64encode(image.content).decode()}"


# --- who sees ------------------------------------------------------------------------------------


async def eyes_of(
    kind: str, upstream: Upstream, model: str, tokenizer: Tokenizer, facts: Mapping[str, Any]
) -> ImagePrompt | None:
    """How the server's ``model`` is shown images; None if it sees none. ``kind``: whose server it
    is; ``facts``: what it tells of itself."""
    if kind not in _OPENERS:
        return None
    try:
        return await _OPENERS[kind](upstream, model, tokenizer, facts)
    except BackendError:
        return None


async def _llama_eyes(
    upstream: Upstream, model: str, tokenizer: Tokenizer, facts: Mapping[str, Any]
) -> ImagePrompt | None:
    if _marker(facts) is None:
        return None
    added = await upstream.ask(f"{upstream.root}/tokenize", {"content": "", "add_special": True})
    ids = added.get("tokens") if isinstance(added, Mapping) else None
    return _TextEyes(upstream, tokenizer, ids[0] if ids else None)


def _marker(facts: Any) -> str | None:
    """What stands for an image in llama-server's texts; None if its model does not see."""
    modalities = facts.get("modalities") if isinstance(facts, Mapping) else None
    if not isinstance(modalities, Mapping) or not modalities.get("vision"):
        return None
    return str(facts.get("media_marker") or "<__media__>")


async def _vllm_eyes(
    upstream: Upstream, model: str, tokenizer: Tokenizer, facts: Mapping[str, Any]
) -> ImagePrompt | None:
    """A token is asked for, since only ``--enable-scale-out`` opens this address. Whether the model
    sees its chat template tells."""
    url = f"{upstream.root}/inference/v1/generate"
    ids = tokenizer.encode("a", special=False)
    await upstream.ask(
        url, {"model": model, "token_ids": ids, "sampling_params": {"max_tokens": 1}}
    )
    return _TokenEyes(url, vllm_shown, VllmGeneratePieces)


async def _sglang_eyes(
    upstream: Upstream, model: str, tokenizer: Tokenizer, facts: Mapping[str, Any]
) -> ImagePrompt | None:
    if not facts.get("has_image_understanding"):
        return None
    url = f"{upstream.root}/{FLAVOURS['sglang'].path}"
    return _TokenEyes(url, sglang_shown, SglangPieces, Speller(tokenizer))


_Opener = Callable[[Upstream, str, Tokenizer, Mapping[str, Any]], Awaitable[ImagePrompt | None]]
_OPENERS: Mapping[str, _Opener] = {
    "llama-server": _llama_eyes,
    "sglang": _sglang_eyes,
    "vllm": _vllm_eyes,
}
