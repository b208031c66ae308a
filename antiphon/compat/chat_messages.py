"""Translate messages of the Chat Completions API to input items of the Responses API.

One message may become several items: reasoning, text and tool calls. This module checks the
structure that is specific to Chat Completions. ``wire.parsing`` checks the resulting items.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from antiphon.errors import InvalidRequest, unsupported_parameter
from antiphon.wire.json_types import JsonObject
from antiphon.wire.parsing.errors import (
    empty_value,
    invalid_type,
    json_type_name,
)
from antiphon.wire.parsing.fields import (
    read_inner,
    read_object,
    read_objects,
    read_string,
    read_tag,
    require,
)
from antiphon.wire.parsing.json_body import BodyLimits

from .error_paths import ErrorPaths

_CALL_TYPES = ("function", "custom")


def read_messages(
    raw: object, path: str, paths: ErrorPaths, limits: BodyLimits
) -> list[JsonObject]:
    """Translate ``messages`` to input items, in the JSON form of the Responses API. ``path``: the
    field's name in error messages. ``paths`` records from which field of ``messages`` each item was
    read. Raises ``InvalidRequest``.
    """
    reader = _MessageReader(paths, limits)
    for message, at in read_objects(raw, path, limits.items):
        reader.read(message, at)
    if raw == []:
        raise empty_value(path, raw)
    return reader.items


class _MessageReader:
    """Translates messages one by one and adds the results to ``items``. ``paths`` records from
    which field of the client's messages each item was read, so that error messages can name the
    client's field."""

    def __init__(self, paths: ErrorPaths, limits: BodyLimits) -> None:
        self.items: list[JsonObject] = []
        self._paths = paths
        self._limits = limits
        #: Id of a call as the client wrote it → id of the call in the items, and whether the call
        #: is a custom tool call. The ids can differ, because clients may use an id again in a later
        #: turn.
        self._calls: dict[str, tuple[str, bool]] = {}
        self._call_count = 0
        #: Id in the items of the last deprecated ``function_call``. The client sends no id for it.
        self._function_call_id = ""

    def read(self, fields: JsonObject, path: str) -> None:
        ROLES[read_tag(fields, path, ROLES, "role")](self, fields, path)

    def _add(self, item: JsonObject, path: str, **renamed: str) -> None:
        item_path = f"input[{len(self.items)}]"
        self._paths.add(item_path, path)
        for field, client_field in renamed.items():
            self._paths.add(f"{item_path}.{field}", f"{path}.{client_field}")
        self.items.append(item)

    # --- roles -----------------------------------------------------------------------------------

    def _input_message(self, fields: JsonObject, path: str) -> None:
        """Translate a message of the user, the developer or the system."""
        require(fields, path, "content")
        content = _content(fields["content"], f"{path}.content", INPUT_PARTS, self._limits)
        self._add({"type": "message", "role": fields["role"], "content": content}, path)

    def _assistant_message(self, fields: JsonObject, path: str) -> None:
        """Translate a message with the role ``assistant``. Raises ``InvalidRequest`` if the message
        refers to audio, or if it lacks the field ``content`` and has neither reasoning nor a
        refusal nor a call."""
        count_before = len(self.items)
        if fields.get("audio") is not None:
            raise unsupported_parameter(f"{path}.audio")
        reasoning = fields.get("reasoning_content", fields.get("reasoning"))
        if reasoning:
            if not isinstance(reasoning, str):
                raise invalid_type(
                    f"{path}.reasoning_content", "a string", json_type_name(reasoning)
                )
            part = {"type": "reasoning_text", "text": reasoning}
            self._add({"type": "reasoning", "content": [part]}, f"{path}.reasoning_content")
        content = _content(fields.get("content", []), f"{path}.content", OUTPUT_PARTS, self._limits)
        if refusal := fields.get("refusal"):
            parts = [{"type": "output_text", "text": content}] if isinstance(content, str) else []
            content = [*(parts or content), {"type": "refusal", "refusal": refusal}]
        if content:
            self._add({"type": "message", "role": "assistant", "content": content}, path)
        calls = fields.get("tool_calls", [])
        for call, at in read_objects(calls, f"{path}.tool_calls", self._limits.parts):
            self._tool_call(call, at)
        if "function_call" in fields:
            self._function_call(fields["function_call"], f"{path}.function_call")
        if len(self.items) == count_before:
            require(fields, path, "content")

    def _tool_message(self, fields: JsonObject, path: str) -> None:
        """Translate the result of a tool call."""
        call_id = read_string(fields, "tool_call_id", path)
        require(fields, path, "content")
        item_call_id, is_custom = self._calls.get(call_id, (call_id, False))
        self._add_output(item_call_id, "custom" if is_custom else "function", fields, path)

    def _function_message(self, fields: JsonObject, path: str) -> None:
        """Translate the result of a deprecated ``function_call``."""
        require(fields, path, "name", "content")
        if not self._function_call_id:
            raise InvalidRequest(
                "A message with the role 'function' must follow one with a 'function_call'.",
                param=path,
                code="invalid_value",
            )
        self._add_output(self._function_call_id, "function", fields, path)
        self._function_call_id = ""

    def _add_output(self, call_id: str, kind: str, fields: JsonObject, path: str) -> None:
        output = _content(fields["content"], f"{path}.content", INPUT_PARTS, self._limits)
        tag = "custom_tool_call_output" if kind == "custom" else "function_call_output"
        item = {"type": tag, "call_id": call_id, "output": output}
        self._add(item, path, call_id="tool_call_id", output="content")

    # --- calls -----------------------------------------------------------------------------------

    def _tool_call(self, fields: JsonObject, path: str) -> None:
        kind = read_tag({"type": "function", **fields}, path, _CALL_TYPES)
        id = read_string(fields, "id", path)
        call = read_inner(fields, kind, path)
        call_id = self._assign_call_id(id, custom=kind == "custom")
        arguments = {"input": call.get("input")} if kind == "custom" else _arguments(call)
        tag = "custom_tool_call" if kind == "custom" else "function_call"
        item = {"type": tag, "call_id": call_id, "name": call.get("name"), **arguments}
        self._add(item, f"{path}.{kind}")

    def _function_call(self, raw: object, path: str) -> None:
        call = read_object(raw, path)
        self._call_count += 1
        self._function_call_id = f"call_{self._call_count}"
        item = {
            "type": "function_call",
            "call_id": self._function_call_id,
            "name": call.get("name"),
            **_arguments(call),
        }
        self._add(item, path)

    def _assign_call_id(self, client_id: str, *, custom: bool) -> str:
        """Return a unique id for a tool call. It is the client's id, or a new id if an earlier call
        has the same id. ``custom``: whether the call is a call of a custom tool."""
        self._call_count += 1
        call_id = f"{client_id}#{self._call_count}" if client_id in self._calls else client_id
        self._calls[client_id] = (call_id, custom)
        return call_id


def _arguments(call: JsonObject) -> JsonObject:
    """Return the field ``arguments`` of a call. For a call without arguments, clients send null or
    "". The result is then an empty JSON object."""
    return {"arguments": call.get("arguments") or "{}"}


ROLES: Mapping[str, Callable[[_MessageReader, JsonObject, str], None]] = {
    "system": _MessageReader._input_message,
    "developer": _MessageReader._input_message,
    "user": _MessageReader._input_message,
    "assistant": _MessageReader._assistant_message,
    "tool": _MessageReader._tool_message,
    "function": _MessageReader._function_message,
}


# --- parts ---------------------------------------------------------------------------------------


def _content(
    raw: object,
    path: str,
    kinds: Mapping[str, Callable[[JsonObject, str], JsonObject]],
    limits: BodyLimits,
) -> str | list[JsonObject]:
    if isinstance(raw, str):
        return raw
    parts = read_objects(raw, path, limits.parts, "a string or an array")
    return [kinds[read_tag(part, at, kinds)](part, at) for part, at in parts]


def _image(fields: JsonObject, path: str) -> JsonObject:
    part: JsonObject = {"type": "input_image", **_breakpoint(fields)}
    if isinstance(fields.get("image_url"), str):  # many clients send a plain URL
        return {**part, "image_url": fields["image_url"]}
    image = read_inner(fields, "image_url", path)
    require(image, f"{path}.image_url", "url")
    detail = {"detail": image["detail"]} if "detail" in image else {}
    return {**part, "image_url": image["url"], **detail}


def _file(fields: JsonObject, path: str) -> JsonObject:
    return {**read_inner(fields, "file", path), "type": "input_file", **_breakpoint(fields)}


def _breakpoint(fields: JsonObject) -> JsonObject:
    name = "prompt_cache_breakpoint"
    return {name: fields[name]} if name in fields else {}


def _video(fields: JsonObject, path: str) -> JsonObject:
    video = read_inner(fields, "video_url", path)
    require(video, f"{path}.video_url", "url")
    return {"type": "input_video", "video_url": video["url"]}


INPUT_PARTS: Mapping[str, Callable[[JsonObject, str], JsonObject]] = {
    "text": lambda fields, path: {**fields, "type": "input_text"},
    "image_url": _image,
    "input_audio": lambda fields, path: fields,
    "file": _file,
    "video_url": _video,
}
OUTPUT_PARTS: Mapping[str, Callable[[JsonObject, str], JsonObject]] = {
    "text": lambda fields, path: {**fields, "type": "output_text"},
    "refusal": lambda fields, path: fields,
}
