"""Translate the body of ``POST /chat/completions`` into Responses requests. Unlike those of the
Responses API, the responses to these requests are stored only if the client asks for it.

A known field is either honoured, treated as a hint, or rejected with an error that names the field.
Unknown fields are ignored, as everywhere in Antiphon. The field lists follow the types of the
``openai`` SDK 3.54.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from antiphon.errors import InvalidRequest, invalid_field, unsupported_value
from antiphon.wire.json_types import JsonObject
from antiphon.wire.parsing.errors import invalid_value, mutually_exclusive
from antiphon.wire.parsing.fields import (
    read_inner,
    read_object,
    read_objects,
    read_tag,
    require,
)
from antiphon.wire.parsing.json_body import DEFAULT_LIMITS, BodyLimits, parse_json_object
from antiphon.wire.parsing.unsupported_fields import refuse_unsupported_fields
from antiphon.wire.request import CreateResponse
from antiphon.wire.response import Response

from .chat_messages import read_messages
from .chat_response import ChatCompletion, chat_completion
from .chat_stream import ChatStream
from .error_paths import ErrorPaths
from .request_bodies import ChatOptions, read_options, read_stream_options
from .translated_request import TranslatedRequest, merge_fields, read_translated, with_seed_offset


class ChatRequest(TranslatedRequest, frozen=True, kw_only=True):
    """A translated Chat Completions request. ``include_usage``: a stream ends with a usage chunk.
    ``legacy``: calls are returned in the deprecated field ``function_call``."""

    include_usage: bool = False
    legacy: bool = False

    def answer(self, responses: Sequence[Response]) -> ChatCompletion:
        omitted = self.omitted_parts(responses[0])
        return chat_completion(responses, legacy=self.legacy, omitted_parts=omitted)

    def choice_stream(self, first: Response, index: int) -> ChatStream:
        return ChatStream(
            first,
            index,
            include_usage=self.include_usage,
            legacy=self.legacy,
            omitted_parts=self.omitted_parts(first),
        )


def parse_chat_request(body: bytes, limits: BodyLimits = DEFAULT_LIMITS) -> ChatRequest:
    """Parse the body of a Chat Completions request and translate it into Responses requests. Raises
    ``InvalidRequest`` with the path of the field as the client wrote it."""
    return read_chat_request(parse_json_object(body, limits), limits)


def read_chat_request(raw: JsonObject, limits: BodyLimits = DEFAULT_LIMITS) -> ChatRequest:
    """Translate a parsed Chat Completions request into Responses requests. Raises
    ``InvalidRequest`` with the path of the field as the client wrote it."""
    require(raw, "", "messages")
    _refuse(raw)
    paths = ErrorPaths(
        input="messages",
        include="logprobs",
        max_output_tokens=next((name for name in _TOKEN_LIMITS if name in raw), _TOKEN_LIMITS[0]),
    )
    options = read_options(raw, ChatOptions)
    if options.n > 1 and options.store:
        raise unsupported_value("n", "'n' must be 1 if 'store' is true.")
    fields: JsonObject = {"store": False}
    for name, value in raw.items():
        if (read := READERS.get(name)) is not None:
            merge_fields(fields, read(value, name, paths, limits))
        elif name in SHARED_FIELDS:
            fields[name] = value
    legacy = "functions" in raw
    if legacy:
        fields["parallel_tool_calls"] = False  # ``function_call`` holds one call
    _apply_continue_final_message(options, fields["input"])
    if "top_logprobs" in raw and "include" not in fields:
        raise InvalidRequest(
            "The 'top_logprobs' parameter is only allowed when 'logprobs' is enabled.",
            param="top_logprobs",
        )
    request = read_translated(fields, paths, limits)
    return ChatRequest(
        requests=tuple(with_seed_offset(request, at) for at in range(options.n)),
        paths=paths,
        include_usage=options.includes_usage,
        legacy=legacy,
    )


def _apply_continue_final_message(options: ChatOptions, items: list[JsonObject]) -> None:
    """If the request sets vLLM's field ``continue_final_message``, mark the last message as
    incomplete. The model then continues this message.

    The field ``add_generation_prompt`` has the opposite meaning: the model begins a new message. So
    exactly one of the two fields must be true. Raises ``InvalidRequest`` if both are true or both
    are false.
    """
    continues = options.continue_final_message
    if options.add_generation_prompt is continues:
        raise unsupported_value(
            "add_generation_prompt",
            "'add_generation_prompt' must be false if 'continue_final_message'"
            " is true, and true otherwise.",
        )
    if not continues:
        return
    last = items[-1]
    if last["type"] != "message" or last["role"] != "assistant":
        raise invalid_field(
            "continue_final_message",
            "the last message must be an assistant message with content and without tool calls.",
        )
    last["status"] = "incomplete"


# --- refused fields ------------------------------------------------------------------------------

#: Fields of the Responses API that Chat Completions requests must not contain. The Chat Completions
#: API has another field for the same purpose, or lacks the feature.
_RESPONSES_API_ONLY = (
    "input",
    "instructions",
    "previous_response_id",
    "conversation",
    "prompt",
    "max_tool_calls",
    "max_output_tokens",
    "text",
    "include",
    "background",
    "context_management",
    "enable_response_messages",
    "interrupted_tools",
    "previous_input_messages",
    "return_metrics",
    "interrupted_output",
)
_TOKEN_LIMITS = ("max_completion_tokens", "max_tokens")


def _refuse(raw: JsonObject) -> None:
    for name in _RESPONSES_API_ONLY:
        if name in raw:
            raise InvalidRequest(
                f"Unsupported parameter: '{name}' belongs to the Responses API, not to this one.",
                param=name,
                code="unsupported_parameter",
            )
    refuse_unsupported_fields(
        raw, known=("add_generation_prompt", "continue_final_message", "logprobs", "n")
    )
    for one, other in (_TOKEN_LIMITS, ("functions", "tools"), ("function_call", "tool_choice")):
        if one in raw and other in raw:
            raise mutually_exclusive(one, other)


# --- translated fields ---------------------------------------------------------------------------


def _messages(raw: object, path: str, paths: ErrorPaths, limits: BodyLimits) -> JsonObject:
    return {"input": read_messages(raw, path, paths, limits)}


def _max_tokens(raw: object, path: str, paths: ErrorPaths, limits: BodyLimits) -> JsonObject:
    return {"max_output_tokens": raw}


def _tools(raw: object, path: str, paths: ErrorPaths, limits: BodyLimits) -> JsonObject:
    tools = enumerate(read_objects(raw, path, limits.tools))
    return {"tools": [_tool(tool, at, f"tools[{index}]", paths) for index, (tool, at) in tools]}


def _tool(fields: JsonObject, path: str, ours: str, paths: ErrorPaths) -> JsonObject:
    """Translate a tool. ``ours``: its path in the translated request."""
    kind = read_tag(fields, path, ("function", "custom"))
    declared = read_inner(fields, kind, path)
    paths.add(ours, f"{path}.{kind}")
    if isinstance(form := declared.get("format"), dict) and form.get("type") == "grammar":
        grammar = read_inner(form, "grammar", f"{path}.{kind}.format")
        declared["format"] = {**grammar, "type": "grammar"}
    return {**declared, "type": kind}


def _functions(raw: object, path: str, paths: ErrorPaths, limits: BodyLimits) -> JsonObject:
    tools: list[JsonObject] = []
    for function, at in read_objects(raw, path, limits.tools):
        paths.add(f"tools[{len(tools)}]", at)
        tools.append({**function, "type": "function"})
    return {"tools": tools}


def _tool_choice(raw: object, path: str, paths: ErrorPaths, limits: BodyLimits) -> JsonObject:
    if not isinstance(raw, dict):
        return {"tool_choice": raw}
    fields = read_object(raw, path)
    kind = read_tag(fields, path, ("function", "custom", "allowed_tools"))
    inner = read_inner(fields, kind, path)
    paths.add(path, f"{path}.{kind}")
    if kind == "allowed_tools" and isinstance(inner.get("tools"), list):
        inner["tools"] = [
            _tool_choice(tool, f"{path}.{kind}.tools[{at}]", paths, limits)["tool_choice"]
            for at, tool in enumerate(inner["tools"])
        ]
    return {"tool_choice": {**inner, "type": kind}}


def _function_call(raw: object, path: str, paths: ErrorPaths, limits: BodyLimits) -> JsonObject:
    paths.add("tool_choice", path)
    if isinstance(raw, str):
        if raw not in ("none", "auto"):
            raise invalid_value(path, raw, ("none", "auto"))
        return {"tool_choice": raw}
    return {"tool_choice": {**read_object(raw, path), "type": "function"}}


def _response_format(raw: object, path: str, paths: ErrorPaths, limits: BodyLimits) -> JsonObject:
    fields = read_object(raw, path)
    paths.add("text.format", path)
    if fields.get("type") == "json_schema":
        paths.add("text.format", f"{path}.json_schema")
        fields = {**read_inner(fields, "json_schema", path), "type": "json_schema"}
    return {"text": {"format": fields}}


def _verbosity(raw: object, path: str, paths: ErrorPaths, limits: BodyLimits) -> JsonObject:
    paths.add("text.verbosity", path)
    return {"text": {"verbosity": raw}}


def _reasoning_effort(raw: object, path: str, paths: ErrorPaths, limits: BodyLimits) -> JsonObject:
    paths.add("reasoning.effort", path)
    return {"reasoning": {"effort": raw}}


def _logprobs(raw: object, path: str, paths: ErrorPaths, limits: BodyLimits) -> JsonObject:
    return {"include": ["message.output_text.logprobs"]} if raw else {}


READERS: Mapping[str, Callable[[Any, str, ErrorPaths, BodyLimits], JsonObject]] = {
    "messages": _messages,
    "max_completion_tokens": _max_tokens,
    "max_tokens": _max_tokens,
    "tools": _tools,
    "functions": _functions,
    "tool_choice": _tool_choice,
    "function_call": _function_call,
    "response_format": _response_format,
    "reasoning_effort": _reasoning_effort,
    "verbosity": _verbosity,
    "logprobs": _logprobs,
    "stream_options": read_stream_options,
    "store": lambda raw, path, paths, limits: {"store": raw},
}
#: Fields that are copied unchanged to the Responses request.
SHARED_FIELDS = frozenset(CreateResponse.__struct_fields__) - {
    *_RESPONSES_API_ONLY,
    *READERS,
}
