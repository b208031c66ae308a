"""Parts of messages, reasoning and tool outputs.

An optional field that is absent is ``UNSET``. Source of the fields: the types of the ``openai``
SDK, version 3.57.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from antiphon.wire.json_types import JsonObject

__all__ = [
    "Annotation",
    "ComputerScreenshot",
    "ContainerFileCitation",
    "EncryptedContent",
    "FileCitation",
    "FilePath",
    "InputAudio",
    "InputFile",
    "InputImage",
    "InputText",
    "InputVideo",
    "Logprob",
    "OutputText",
    "Part",
    "PlainText",
    "PromptCacheBreakpoint",
    "ReasoningText",
    "Refusal",
    "SummaryText",
    "ToolOutput",
    "TopLogprob",
    "UrlCitation",
]


# OpenAI's limits for fields that clients send, in characters.
_Text = Annotated[str, Meta(max_length=10_485_760)]
_ImageUrl = Annotated[str, Meta(max_length=20_971_520)]
_FileContent = Annotated[str, Meta(max_length=73_400_320)]


class TopLogprob(Struct, frozen=True, kw_only=True):
    """A likely alternative to the sampled token. ``logprob`` is a natural logarithm. ``bytes``:
    the UTF-8 bytes of the token."""

    token: str
    logprob: float
    bytes: tuple[int, ...] = ()


class Logprob(Struct, frozen=True, kw_only=True):
    """A sampled token with its log-probability and, on request, the most likely alternatives."""

    token: str
    logprob: float
    bytes: tuple[int, ...] = ()
    top_logprobs: tuple[TopLogprob, ...] = ()


class FileCitation(Struct, frozen=True, kw_only=True, tag_field="type", tag="file_citation"):
    file_id: str
    filename: str
    index: int


class UrlCitation(Struct, frozen=True, kw_only=True, tag_field="type", tag="url_citation"):
    url: str
    title: str
    start_index: int
    end_index: int


class ContainerFileCitation(
    Struct, frozen=True, kw_only=True, tag_field="type", tag="container_file_citation"
):
    container_id: str
    file_id: str
    filename: str
    start_index: int
    end_index: int


class FilePath(Struct, frozen=True, kw_only=True, tag_field="type", tag="file_path"):
    file_id: str
    index: int


Annotation = FileCitation | UrlCitation | ContainerFileCitation | FilePath


class PromptCacheBreakpoint(Struct, frozen=True, kw_only=True):
    """The end of a part of the prompt that later requests will reuse. ``ttl``: how long the cache
    should keep it at least; UNSET stands for the ``ttl`` of the request."""

    mode: Literal["explicit"]
    ttl: Literal["30m", "12h"] | UnsetType = UNSET


class InputText(Struct, frozen=True, kw_only=True, tag_field="type", tag="input_text"):
    text: _Text
    prompt_cache_breakpoint: PromptCacheBreakpoint | UnsetType = UNSET


class InputImage(Struct, frozen=True, kw_only=True, tag_field="type", tag="input_image"):
    detail: Literal["low", "high", "auto", "original"] = "auto"
    image_url: _ImageUrl | UnsetType = UNSET
    file_id: str | UnsetType = UNSET
    prompt_cache_breakpoint: PromptCacheBreakpoint | UnsetType = UNSET


class InputFile(Struct, frozen=True, kw_only=True, tag_field="type", tag="input_file"):
    file_data: _FileContent | UnsetType = UNSET
    file_id: str | UnsetType = UNSET
    file_url: str | UnsetType = UNSET
    filename: str | UnsetType = UNSET
    detail: Literal["auto", "low", "high"] | UnsetType = UNSET
    prompt_cache_breakpoint: PromptCacheBreakpoint | UnsetType = UNSET


class EncryptedContent(
    Struct, frozen=True, kw_only=True, tag_field="type", tag="encrypted_content"
):
    """Content of a message between agents. OpenAI's API encrypts it; with another provider, Codex
    sends plain text."""

    encrypted_content: _Text


class InputAudio(Struct, frozen=True, kw_only=True, tag_field="type", tag="input_audio"):
    input_audio: JsonObject


class InputVideo(Struct, frozen=True, kw_only=True, tag_field="type", tag="input_video"):
    video_url: str


class OutputText(Struct, frozen=True, kw_only=True, tag_field="type", tag="output_text"):
    text: str
    annotations: tuple[Annotation, ...] = ()
    logprobs: tuple[Logprob, ...] = ()


class Refusal(Struct, frozen=True, kw_only=True, tag_field="type", tag="refusal"):
    refusal: str


class ReasoningText(Struct, frozen=True, kw_only=True, tag_field="type", tag="reasoning_text"):
    text: str


class SummaryText(Struct, frozen=True, kw_only=True, tag_field="type", tag="summary_text"):
    text: str


class PlainText(Struct, frozen=True, kw_only=True, tag_field="type", tag="text"):
    text: str


class ComputerScreenshot(
    Struct, frozen=True, kw_only=True, tag_field="type", tag="computer_screenshot"
):
    image_url: _ImageUrl | UnsetType = UNSET
    file_id: str | UnsetType = UNSET
    detail: Literal["low", "high", "auto", "original"] | UnsetType = UNSET


Part = (
    InputText
    | InputImage
    | InputFile
    | InputAudio
    | InputVideo
    | EncryptedContent
    | OutputText
    | Refusal
    | ReasoningText
    | SummaryText
    | PlainText
    | ComputerScreenshot
)

ToolOutput = str | tuple[InputText | InputImage | InputFile | InputVideo, ...]
