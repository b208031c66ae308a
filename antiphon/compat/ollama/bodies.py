"""Types of the request bodies of Ollama's API. The fields follow the types of the ``ollama`` client
0.6.3. ``request.py`` translates the requests that generate text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from antiphon.compat.request_bodies import ChatTool
from antiphon.wire.json_types import JsonObject

_Name = Annotated[str, Meta(min_length=1, max_length=256)]
_KeepAlive = int | float | str | None
#: Option → field of the Responses request. The other options concern the engine: they are ignored.
OPTION_FIELDS: Mapping[str, str] = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "seed": "seed",
    "num_predict": "max_output_tokens",
    "stop": "stop",
    "repeat_penalty": "repetition_penalty",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
}


class OllamaCalledFunction(Struct, frozen=True, kw_only=True):
    """A called function. Unlike in OpenAI's API, ``arguments`` is an object."""

    name: str
    arguments: JsonObject | None = None
    index: int | UnsetType | None = UNSET


class OllamaToolCall(Struct, frozen=True, kw_only=True):
    function: OllamaCalledFunction
    id: str | UnsetType | None = UNSET


class OllamaMessage(Struct, frozen=True, kw_only=True):
    """A message of a conversation. ``images``: base64 data. ``tool_name``, ``tool_call_id``: the
    call to which a message with the role ``tool`` belongs. By default, it belongs to the oldest
    call without a result. ``name`` is the older name of ``tool_name``."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = None
    thinking: str | None = None
    images: tuple[str, ...] | None = None
    tool_calls: tuple[OllamaToolCall, ...] | None = None
    tool_name: str | None = None
    name: str | None = None
    tool_call_id: str | None = None


class OllamaGeneration(Struct, frozen=True, kw_only=True):
    """The fields that ``/api/chat`` and ``/api/generate`` share.

    - ``format``: ``json``, or a JSON schema.
    - ``think``: whether and how much the model reasons.
    - ``options``: sampling options. Options that concern the engine have no effect.
    - ``keep_alive``: how long the model stays loaded, which the settings decide here.
    - ``truncate``: whether the oldest messages are left out if the prompt is too long.
    """

    model: _Name
    stream: bool = True
    format: str | JsonObject | None = None
    think: bool | Literal["low", "medium", "high", "max"] | None = None
    options: JsonObject | None = None
    keep_alive: _KeepAlive = None
    truncate: bool = True
    logprobs: bool = False
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] = 0


class OllamaChat(OllamaGeneration, frozen=True, kw_only=True):
    """A request to answer a conversation. Without messages, it only loads the model."""

    messages: tuple[OllamaMessage, ...] = ()
    tools: tuple[ChatTool, ...] | None = None


class OllamaGenerate(OllamaGeneration, frozen=True, kw_only=True):
    """A request to answer a prompt. Without a prompt, it only loads the model. ``raw``: the model
    continues the prompt without a chat template."""

    prompt: str = ""
    system: str = ""
    images: tuple[str, ...] | None = None
    raw: bool = False


class OllamaEmbed(Struct, frozen=True, kw_only=True):
    """A request for the embeddings of texts."""

    model: _Name
    input: str | tuple[str, ...]
    dimensions: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    truncate: bool = True
    options: JsonObject | None = None
    keep_alive: _KeepAlive = None


class OllamaEmbeddings(Struct, frozen=True, kw_only=True):
    """A request for the embedding of one text, in the older form."""

    model: _Name
    prompt: str = ""
    options: JsonObject | None = None
    keep_alive: _KeepAlive = None


class OllamaModelName(Struct, frozen=True, kw_only=True):
    """A request about one model. ``name`` is the older name of ``model``."""

    model: Annotated[str, Meta(max_length=256)] = ""
    name: Annotated[str, Meta(max_length=256)] = ""

    @property
    def wanted(self) -> str:
        return self.model or self.name


class OllamaPull(OllamaModelName, frozen=True, kw_only=True):
    """A request to download the files of a model. ``stream``: whether the answer reports the
    progress."""

    stream: bool = True
