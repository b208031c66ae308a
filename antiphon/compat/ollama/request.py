"""Translate the bodies of Ollama's ``/api/chat`` and ``/api/generate``.

A known field is either honoured, treated as a hint, or rejected with an error that names the field.
Unknown fields and unknown options are ignored, as in Ollama. An option that is missing has the
model's default and not Ollama's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec.json import encode
from msgspec.structs import replace

from antiphon.compat.chat_request import READERS
from antiphon.compat.error_paths import ErrorPaths
from antiphon.compat.translated_request import TranslatedRequest, read_translated
from antiphon.errors import InvalidRequest, invalid_field, unsupported_parameter
from antiphon.wire.json_types import JsonObject
from antiphon.wire.parsing.errors import empty_value, invalid_value, too_many
from antiphon.wire.parsing.fields import convert, drop_nulls, read_array
from antiphon.wire.parsing.json_body import DEFAULT_LIMITS, BodyLimits, parse_json_object
from antiphon.wire.response import Response

from .answer import OllamaAnswer, OllamaForm, OllamaStream, ollama_answer
from .bodies import (
    OPTION_FIELDS,
    OllamaChat,
    OllamaGenerate,
    OllamaGeneration,
    OllamaMessage,
    OllamaToolCall,
)

#: Options whose negative values mean "not set".
_UNSET_IF_NEGATIVE = ("seed", "num_predict")
#: Field → why it is refused.
_REFUSED: Mapping[str, str] = {
    "context": "send the conversation to /api/chat instead",
    "template": "set 'template' in the settings of the model",
    "suffix": "this server does not fill gaps in texts",
    "width": "this server generates images with the tool 'image_generation'",
    "height": "this server generates images with the tool 'image_generation'",
    "steps": "this server generates images with the tool 'image_generation'",
    "_debug_render_only": "send 'enable_response_messages' to /v1/responses instead",
}
#: A duration in Go's notation, such as ``1h30m`` or ``-1s``.
_DURATION = re.compile(r"-?(?:\d{1,9}(?:\.\d{1,9})?(?:ns|us|µs|ms|s|m|h)){1,8}|-?\d{1,12}|0")
#: The first bytes of images in base64 → media type.
_IMAGE_TYPES: Mapping[str, str] = {
    "/9j/": "image/jpeg",
    "iVBOR": "image/png",
    "R0lGO": "image/gif",
    "UklGR": "image/webp",
}


class OllamaRequest(TranslatedRequest, frozen=True, kw_only=True):
    """A translated request.

    - ``raw_prompt``: the text that the model continues without a chat template; None for a
      conversation.
    - ``only_loads``: whether the request has no prompt, and only loads the model, or unloads it if
      ``unloads``.
    - ``must_think``: whether the request is refused by a model that does not reason.
    """

    form: OllamaForm
    raw_prompt: str | None = None
    only_loads: bool = False
    unloads: bool = False
    must_think: bool = False

    def answer(self, responses: Sequence[Response]) -> OllamaAnswer:
        return ollama_answer(responses[0], self.form)

    def choice_stream(self, first: Response, index: int) -> OllamaStream:
        return OllamaStream(first, self.form)


def parse_chat(body: bytes, limits: BodyLimits = DEFAULT_LIMITS) -> OllamaRequest:
    """Parse and translate the body of ``/api/chat``. Raises ``InvalidRequest`` with the path of the
    field as the client wrote it."""
    raw = _read(body, limits)
    tools = raw.pop("tools", None)
    for message in raw["messages"] if isinstance(raw.get("messages"), list) else ():
        if isinstance(message, dict) and isinstance(role := message.get("role"), str):
            message["role"] = role.lower()
    request, paths = convert(raw, OllamaChat, ""), ErrorPaths(input="messages")
    fields: JsonObject = {"input": _Messages(paths, limits).read(request.messages)}
    if tools is not None:
        tools = [
            {"type": "function", **tool} if isinstance(tool, dict) else tool
            for tool in read_array(tools, "tools", limits.tools)
        ]
        fields |= READERS["tools"](tools, "tools", paths, limits)
    return _translate(request, fields, paths, limits, OllamaForm(chat=True))


def parse_generate(body: bytes, limits: BodyLimits = DEFAULT_LIMITS) -> OllamaRequest:
    """Parse and translate the body of ``/api/generate``. Raises ``InvalidRequest`` with the path of
    the field as the client wrote it."""
    request = convert(_read(body, limits), OllamaGenerate, "")
    paths = ErrorPaths(input="prompt", instructions="system")
    prompt, images = request.prompt, request.images or ()
    fields: JsonObject = {"input": []}
    if images:
        paths.add("input[0].content", "images")
    if prompt or images:
        content = [*_images(images, "images", limits), {"type": "input_text", "text": prompt}]
        fields["input"] = [{"type": "message", "role": "user", "content": content}]
    if request.system:
        fields["instructions"] = request.system
    translated = _translate(request, fields, paths, limits, OllamaForm(chat=False))
    return replace(translated, raw_prompt=prompt) if request.raw and prompt else translated


def _read(body: bytes, limits: BodyLimits) -> JsonObject:
    """Return the fields of a body. Raises ``InvalidRequest`` for a field that is refused."""
    raw = drop_nulls(parse_json_object(body, limits))
    for name, remedy in _REFUSED.items():
        if raw.get(name) not in (None, "", [], False):
            raise unsupported_parameter(name, where=f"by this server: {remedy}")
    return raw


def _translate(
    body: OllamaGeneration,
    fields: JsonObject,
    paths: ErrorPaths,
    limits: BodyLimits,
    form: OllamaForm,
) -> OllamaRequest:
    """Translate the fields that both endpoints have. ``fields``: the translated conversation."""
    only_loads, think = not fields["input"], body.think
    keep_alive = read_keep_alive(body.keep_alive)
    fields = {
        "model": body.model,
        "store": False,
        "stream": body.stream,
        "truncation": "auto" if body.truncate else "disabled",
        "return_metrics": True,
        **fields,
        **_options(body.options or {}, paths),
        **_format(body.format or "", paths),
        **_thinking(think, paths),
        **_logprobs(body),
    }
    if only_loads:
        fields["input"] = "-"
    request = read_translated(fields, paths, limits)
    return OllamaRequest(
        requests=(request,),
        paths=paths,
        form=replace(form, hides_thinking=think is False),
        only_loads=only_loads,
        unloads=only_loads and keep_alive == 0,
        must_think=think not in (None, False),
    )


def read_keep_alive(raw: object) -> float | None:
    """Return 0 if the model is to be unloaded at once, and None if the settings decide when it is
    unloaded. ``raw``: a number of seconds, or a duration in Go's notation. Raises
    ``InvalidRequest``."""
    if raw is None:
        return None
    if isinstance(raw, str) and _DURATION.fullmatch(raw):
        return None if any(digit in "123456789" for digit in raw) else 0
    if isinstance(raw, bool) or not isinstance(raw, int | float):
        raise invalid_field(
            "keep_alive", "a duration is a number of seconds, or a text such as '5m'."
        )
    return None if raw else 0


def _options(raw: JsonObject, paths: ErrorPaths) -> JsonObject:
    fields: JsonObject = {}
    for name, value in drop_nulls(raw).items():
        if (field := OPTION_FIELDS.get(name)) is None:
            continue
        if name in _UNSET_IF_NEGATIVE and isinstance(value, int) and value < 0:
            continue
        if name == "stop" and value == []:
            continue
        paths.add(field, f"options.{name}")
        fields[field] = value
    return fields


def _format(raw: str | JsonObject, paths: ErrorPaths) -> JsonObject:
    if raw == "":
        return {}
    paths.add("text.format", "format")
    if raw == "json":
        return {"text": {"format": {"type": "json_object"}}}
    if isinstance(raw, str):
        raise invalid_value("format", raw, ("json",))
    # OpenAI's rules for strict schemas do not apply here: clients send the schemas of their types.
    form = {"type": "json_schema", "name": "output", "schema": raw, "strict": False}
    return {"text": {"format": form}}


def _thinking(raw: bool | str | None, paths: ErrorPaths) -> JsonObject:
    """Translate ``think``. ``true`` lets the model reason as it does by default."""
    paths.add("reasoning.effort", "think")
    if raw is None or raw is True:
        return {}
    return {"reasoning": {"effort": raw or "none"}}


def _logprobs(body: OllamaGeneration) -> JsonObject:
    if not body.logprobs:
        return {}
    count = {"top_logprobs": body.top_logprobs} if body.top_logprobs else {}
    return {"include": ["message.output_text.logprobs"], **count}


class _Messages:
    """Translates messages to input items. Ollama's clients need not send ids of tool calls, so the
    calls get ids here."""

    def __init__(self, paths: ErrorPaths, limits: BodyLimits) -> None:
        self._paths = paths
        self._limits = limits
        self._items: list[JsonObject] = []
        #: The calls without a result: id in the items, id that the client wrote, and name.
        self._open_calls: list[tuple[str, object, str]] = []
        self._call_count = 0

    def read(self, messages: Sequence[OllamaMessage]) -> list[JsonObject]:
        """Return the input items of the messages. Raises ``InvalidRequest``."""
        if len(messages) > self._limits.items:
            raise too_many("messages", len(messages), self._limits.items)
        for index, message in enumerate(messages):
            _READ_ROLE[message.role](self, message, message.content or "", f"messages[{index}]")
        return self._items

    def _add(self, item: JsonObject, path: str) -> None:
        self._paths.add(f"input[{len(self._items)}]", path)
        self._items.append(item)

    def _input(self, message: OllamaMessage, content: str, path: str) -> None:
        parts = _images(message.images or (), f"{path}.images", self._limits)
        whole: Any = [{"type": "input_text", "text": content}, *parts] if parts else content
        self._add({"type": "message", "role": message.role, "content": whole}, path)

    def _assistant(self, message: OllamaMessage, content: str, path: str) -> None:
        if message.thinking:
            part = {"type": "reasoning_text", "text": message.thinking}
            self._add({"type": "reasoning", "content": [part]}, f"{path}.thinking")
        calls = message.tool_calls or ()
        if len(calls) > self._limits.parts:
            raise too_many(f"{path}.tool_calls", len(calls), self._limits.parts)
        if content or not calls:
            self._add({"type": "message", "role": message.role, "content": content}, path)
        for index, call in enumerate(calls):
            self._call(call, f"{path}.tool_calls[{index}]")

    def _call(self, call: OllamaToolCall, path: str) -> None:
        self._call_count += 1
        call_id, function = f"call_{self._call_count}", call.function
        self._open_calls.append((call_id, call.id, function.name))
        item = {
            "type": "function_call",
            "call_id": call_id,
            "name": function.name,
            "arguments": encode(function.arguments or {}).decode(),
        }
        self._add(item, f"{path}.function")

    def _tool(self, message: OllamaMessage, content: str, path: str) -> None:
        call_id = self._called(message, path)
        self._add({"type": "function_call_output", "call_id": call_id, "output": content}, path)

    def _called(self, message: OllamaMessage, path: str) -> str:
        """Return the id of the call to which a result belongs: the call with the id or the name
        that the result states, or else the oldest call without a result."""
        id, name = message.tool_call_id, message.tool_name or message.name
        for call in self._open_calls:
            call_id, client_id, called = call
            if (id is None or id == client_id) and (name is None or name == called):
                self._open_calls.remove(call)
                return call_id
        raise InvalidRequest(
            "A message with the role 'tool' must follow a message with a call of this tool that"
            " has no result yet.",
            param=path,
            code="invalid_value",
        )


_READ_ROLE: Mapping[str, Callable[[_Messages, OllamaMessage, str, str], None]] = {
    "system": _Messages._input,
    "user": _Messages._input,
    "assistant": _Messages._assistant,
    "tool": _Messages._tool,
}


def _images(images: Sequence[str], path: str, limits: BodyLimits) -> list[JsonObject]:
    """Translate images in base64 to parts with data URLs."""
    if len(images) > limits.parts:
        raise too_many(path, len(images), limits.parts)
    parts: list[JsonObject] = []
    for index, image in enumerate(images):
        if not image:
            raise empty_value(f"{path}[{index}]", image)
        if not image.startswith("data:"):
            kinds = (kind for start, kind in _IMAGE_TYPES.items() if image.startswith(start))
            image = f"data:{next(kinds, 'image/png')};base64,{image}"
        parts.append({"type": "input_image", "image_url": image})
    return parts
