"""The body of ``POST /chat/completions`` becomes a request for a response that is not stored.

Every field is honoured, a hint, or refused by name; what nobody knows is ignored, as everywhere.
Field lists: the ``openai`` SDK's types, 3.54.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from antiphon.errors import InvalidRequest
from antiphon.wire.parsing.errors import bad_type, bad_value, kind_of, missing
from antiphon.wire.parsing.fields import Json, array, fields_of, tag_of
from antiphon.wire.parsing.json_body import DEFAULT_LIMITS, Limits, parse
from antiphon.wire.parsing.requests import read_create
from antiphon.wire.parsing.unsupported_fields import refuse_foreign
from antiphon.wire.request import CreateResponse
from antiphon.wire.response import Response

from .chat_messages import read_messages
from .chat_response import ChatCompletion, chat_completion
from .chat_stream import Chunks
from .error_paths import Paths
from .n_choices import count, reseeded

__all__ = ["Chat", "chat_request", "read_chat"]


class Chat(Struct, frozen=True, kw_only=True):
    """What a client of the Chat Completions API asks, once a choice. ``include_usage``: a stream
    ends with what was used. ``legacy``: calls are answered in the API's first form,
    ``function_call``."""

    requests: tuple[CreateResponse, ...]
    paths: Paths
    include_usage: bool = False
    legacy: bool = False

    @property
    def stream(self) -> bool:
        return bool(self.requests[0].stream)

    def answer(self, responses: Sequence[Response]) -> ChatCompletion:
        """Responses that are over, none of which failed."""
        return chat_completion(responses, legacy=self.legacy)

    def chunks(self, first: Response, index: int) -> Chunks:
        """The stream of one choice, of the answer that ``first`` names."""
        return Chunks(first, index, include_usage=self.include_usage, legacy=self.legacy)


def chat_request(body: bytes, limits: Limits = DEFAULT_LIMITS) -> Chat:
    """Raises ``InvalidRequest``, with the path of the field as the client wrote it."""
    return read_chat(parse(body, limits), limits)


def read_chat(raw: Json, limits: Limits = DEFAULT_LIMITS) -> Chat:
    """A request, from its fields. Raises ``InvalidRequest``."""
    if "messages" not in raw:
        raise missing("messages")
    _refuse(raw)
    paths = Paths(
        input="messages",
        include="logprobs",
        max_output_tokens=next((name for name in _LIMITS if name in raw), _LIMITS[0]),
    )
    choices = count(raw.get("n", 1), "n", _MOST)
    asked: Json = {"store": False}
    for name, value in raw.items():
        if (read := _READERS.get(name)) is not None:
            _merge(asked, read(value, name, paths, limits))
        elif name in _SAME:
            asked[name] = value
    legacy = "functions" in raw
    if legacy:
        asked["parallel_tool_calls"] = False  # an answer has room for one
    _go_on(raw, asked["input"])
    if "top_logprobs" in raw and "include" not in asked:
        raise InvalidRequest(
            "The 'top_logprobs' parameter is only allowed when 'logprobs' is enabled.",
            param="top_logprobs",
        )
    try:
        request = read_create(asked, limits)
    except InvalidRequest as error:
        paths.name(error)
        raise
    return Chat(
        requests=tuple(reseeded(request, at) for at in range(choices)),
        paths=paths,
        include_usage=bool((raw.get("stream_options") or {}).get("include_usage")),
        legacy=legacy,
    )


def _go_on(raw: Json, items: list[Json]) -> None:
    """vLLM's words for an answer that the model is to go on with: with a turn that is not over
    there is none to be opened."""
    goes_on = raw.get("continue_final_message", False)
    for name, usual in (("continue_final_message", False), ("add_generation_prompt", not goes_on)):
        if not isinstance(raw.get(name, usual), bool):
            raise bad_type(name, "a boolean", kind_of(raw[name]))
    if raw.get("add_generation_prompt", not goes_on) == goes_on:
        raise InvalidRequest(
            "Unsupported value: 'add_generation_prompt' is false where 'continue_final_message' is"
            " true, and nowhere else.",
            param="add_generation_prompt",
            code="unsupported_value",
        )
    if not goes_on:
        return
    last = items[-1]
    if last["type"] != "message" or last["role"] != "assistant":
        raise InvalidRequest(
            "Invalid 'continue_final_message': the last message is not an answer.",
            param="continue_final_message",
            code="invalid_value",
        )
    last["status"] = "incomplete"


def _merge(asked: Json, more: Json) -> None:
    """Several fields of theirs are one group of ours."""
    for name, value in more.items():
        known = asked.get(name)
        if isinstance(known, dict) and isinstance(value, dict):
            value = {**known, **value}
        asked[name] = value


# --- what is refused -----------------------------------------------------------------------------

#: Of the Responses API: what is said there is said here otherwise, or cannot be.
_ELSEWHERE = (
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
    "previous_input_messages",
    "return_metrics",
)
#: Choices of one request.
_MOST = 32
_LIMITS = ("max_completion_tokens", "max_tokens")


def _refuse(raw: Json) -> None:
    for name in _ELSEWHERE:
        if name in raw:
            raise InvalidRequest(
                f"Unsupported parameter: '{name}' belongs to the Responses API.",
                param=name,
                code="unsupported_parameter",
            )
    refuse_foreign(raw, known=("logprobs", "n"))
    if raw.get("store", False) is not False:
        raise InvalidRequest(
            "Unsupported parameter: 'store' is not supported by this server.",
            param="store",
            code="unsupported_parameter",
        )
    for one, other in (_LIMITS, ("functions", "tools"), ("function_call", "tool_choice")):
        if one in raw and other in raw:
            raise InvalidRequest(
                f"Mutually exclusive parameters: '{one}' and '{other}'. Ensure you are only "
                "providing one of them.",
                param=other,
                code="mutually_exclusive_parameters",
            )


# --- what is said otherwise ----------------------------------------------------------------------


def _messages(raw: Any, path: str, paths: Paths, limits: Limits) -> Json:
    return {"input": read_messages(raw, path, paths, limits)}


def _most(raw: Any, path: str, paths: Paths, limits: Limits) -> Json:
    return {"max_output_tokens": raw}


def _tools(raw: Any, path: str, paths: Paths, limits: Limits) -> Json:
    tools = array(raw, path, limits.tools)
    return {"tools": [_tool(tool, path, at, paths) for at, tool in enumerate(tools)]}


def _tool(raw: Any, path: str, at: int, paths: Paths) -> Json:
    path = f"{path}[{at}]"
    fields = fields_of(raw, path)
    kind = tag_of(fields, path, ("function", "custom"))
    if kind not in fields:
        raise missing(f"{path}.{kind}")
    declared = fields_of(fields[kind], f"{path}.{kind}")
    paths.add(f"tools[{at}]", f"{path}.{kind}")
    if isinstance(form := declared.get("format"), dict) and form.get("type") == "grammar":
        if "grammar" not in form:
            raise missing(f"{path}.{kind}.format.grammar")
        grammar = fields_of(form["grammar"], f"{path}.{kind}.format.grammar")
        declared["format"] = {**grammar, "type": "grammar"}
    return {**declared, "type": kind}


def _functions(raw: Any, path: str, paths: Paths, limits: Limits) -> Json:
    functions = array(raw, path, limits.tools)
    tools = []
    for at, function in enumerate(functions):
        paths.add(f"tools[{at}]", f"{path}[{at}]")
        tools.append({**fields_of(function, f"{path}[{at}]"), "type": "function"})
    return {"tools": tools}


def _choice(raw: Any, path: str, paths: Paths, limits: Limits) -> Json:
    if not isinstance(raw, dict):
        return {"tool_choice": raw}
    fields = fields_of(raw, path)
    kind = tag_of(fields, path, ("function", "custom", "allowed_tools"))
    if kind not in fields:
        raise missing(f"{path}.{kind}")
    inner = fields_of(fields[kind], f"{path}.{kind}")
    paths.add(path, f"{path}.{kind}")
    if kind == "allowed_tools" and isinstance(inner.get("tools"), list):
        inner["tools"] = [
            _choice(tool, f"{path}.{kind}.tools[{at}]", paths, limits)["tool_choice"]
            for at, tool in enumerate(inner["tools"])
        ]
    return {"tool_choice": {**inner, "type": kind}}


def _function_choice(raw: Any, path: str, paths: Paths, limits: Limits) -> Json:
    paths.add("tool_choice", path)
    if isinstance(raw, str):
        if raw not in ("none", "auto"):
            raise bad_value(path, raw, ("none", "auto"))
        return {"tool_choice": raw}
    return {"tool_choice": {**fields_of(raw, path), "type": "function"}}


def _format(raw: Any, path: str, paths: Paths, limits: Limits) -> Json:
    fields = fields_of(raw, path)
    paths.add("text.format", path)
    if fields.get("type") == "json_schema":
        if "json_schema" not in fields:
            raise missing(f"{path}.json_schema")
        paths.add("text.format", f"{path}.json_schema")
        inner = fields_of(fields["json_schema"], f"{path}.json_schema")
        fields = {**inner, "type": "json_schema"}
    return {"text": {"format": fields}}


def _verbosity(raw: Any, path: str, paths: Paths, limits: Limits) -> Json:
    paths.add("text.verbosity", path)
    return {"text": {"verbosity": raw}}


def _effort(raw: Any, path: str, paths: Paths, limits: Limits) -> Json:
    paths.add("reasoning.effort", path)
    return {"reasoning": {"effort": raw}}


def _logprobs(raw: Any, path: str, paths: Paths, limits: Limits) -> Json:
    if not isinstance(raw, bool):
        raise bad_type(path, "a boolean", kind_of(raw))
    return {"include": ["message.output_text.logprobs"]} if raw else {}


def _stream_options(raw: Any, path: str, paths: Paths, limits: Limits) -> Json:
    fields = fields_of(raw, path)
    usage = fields.pop("include_usage", False)
    if not isinstance(usage, bool):
        raise bad_type(f"{path}.include_usage", "a boolean", kind_of(usage))
    refuse_foreign(fields, path=path)
    return {path: fields}


_READERS: Mapping[str, Callable[[Any, str, Paths, Limits], Json]] = {
    "messages": _messages,
    "max_completion_tokens": _most,
    "max_tokens": _most,
    "tools": _tools,
    "functions": _functions,
    "tool_choice": _choice,
    "function_call": _function_choice,
    "response_format": _format,
    "reasoning_effort": _effort,
    "verbosity": _verbosity,
    "logprobs": _logprobs,
    "stream_options": _stream_options,
}
#: What both APIs call by one name; ``store`` means another store.
_SAME = frozenset(CreateResponse.__struct_fields__) - {*_ELSEWHERE, *_READERS, "store"}
