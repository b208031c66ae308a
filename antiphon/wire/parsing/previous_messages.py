"""Parse ``previous_input_messages``, an extension of vLLM: earlier messages in a model's format.

Messages of Chat Completions and of harmony are translated to items.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from antiphon.errors import InvalidRequest
from antiphon.wire import items as it

from .errors import invalid_type, invalid_value, json_type_name, missing_parameter
from .fields import read_array, read_object

__all__ = ["read_previous_messages"]

Json = dict[str, Any]

#: Roles whose messages are ignored: each request supplies its own instructions.
_IGNORED_ROLES = frozenset({"system", "developer"})
_ROLES = ("assistant", "developer", "system", "tool", "user")
_FUNCTION_PREFIX = "functions."


def read_previous_messages(raw: Any, path: str, limit: int) -> tuple[it.Item, ...]:
    """Translate the messages to items. Raises ``InvalidRequest``.

    Results are matched with calls by id or, since harmony has no ids, in order.
    """
    messages = read_array(raw, path, limit)
    reader = _PreviousMessageReader()
    items = [
        item
        for at, message in enumerate(messages)
        for item in reader.items(read_object(message, f"{path}[{at}]"), f"{path}[{at}]")
    ]
    return tuple(items)


class _PreviousMessageReader:
    """Translates messages one by one and remembers the calls without a result."""

    def __init__(self) -> None:
        self._open: list[str] = []
        self._count = 0

    def items(self, message: Json, path: str) -> Iterator[it.Item]:
        author = message.get("author")
        fields = {**message, **author} if isinstance(author, dict) else message
        role = fields.get("role")
        if role is None:
            raise missing_parameter(f"{path}.role")
        if not isinstance(role, str):
            raise invalid_type(f"{path}.role", "a string", json_type_name(role))
        if role not in _ROLES:
            raise invalid_value(f"{path}.role", role, _ROLES)
        text = _read_text(fields.get("content"), f"{path}.content")
        if role == "user":
            yield it.Message(role="user", content=(it.InputText(text=text),))
        elif role == "tool":
            yield it.FunctionCallOutput(call_id=self._answered(fields, path), output=text)
        elif role not in _IGNORED_ROLES:
            yield from self._said(fields, text, path)

    def _said(self, fields: Json, text: str, path: str) -> Iterator[it.Item]:
        recipient = fields.get("recipient")
        if isinstance(recipient, str) and recipient.startswith(_FUNCTION_PREFIX):
            name = recipient.removeprefix(_FUNCTION_PREFIX)
            yield it.FunctionCall(call_id=self._called(None), name=name, arguments=text)
            return
        if fields.get("channel") == "analysis":
            yield _reasoning(text)
            return
        if isinstance(before := fields.get("reasoning_content"), str) and before:
            yield _reasoning(before)
        if text:
            yield it.Message(role="assistant", content=(it.OutputText(text=text),))
        for at, call in enumerate(
            read_array(fields.get("tool_calls", []), f"{path}.tool_calls", 128)
        ):
            yield self._call(call, f"{path}.tool_calls[{at}]")

    def _call(self, raw: Any, path: str) -> it.Item:
        call = read_object(raw, path)
        function = read_object(call.get("function"), f"{path}.function")
        for name in ("name", "arguments"):
            if not isinstance(function.get(name), str):
                raise invalid_type(
                    f"{path}.function.{name}", "a string", json_type_name(function.get(name))
                )
        id = call.get("id")
        return it.FunctionCall(
            call_id=self._called(id if isinstance(id, str) else None),
            name=function["name"],
            arguments=function["arguments"],
        )

    def _called(self, id: str | None) -> str:
        self._count += 1
        self._open.append(id or f"call_{self._count}")
        return self._open[-1]

    def _answered(self, fields: Json, path: str) -> str:
        id = fields.get("tool_call_id")
        if isinstance(id, str) and id in self._open:
            self._open.remove(id)
            return id
        if id is None and self._open:
            return self._open.pop(0)
        raise InvalidRequest(
            "This tool message does not match an earlier tool call.", param=path, code=None
        )


def _reasoning(text: str) -> it.Item:
    return it.Reasoning(summary=(), content=(it.ReasoningText(text=text),))


def _read_text(raw: Any, path: str) -> str:
    """Return a text, or the texts of parts joined by newlines."""
    if raw is None or isinstance(raw, str):
        return raw or ""
    parts = [raw] if isinstance(raw, dict) else read_array(raw, path, 1000)
    texts = []
    for at, part in enumerate(parts):
        text = read_object(part, f"{path}[{at}]").get("text", "")
        if not isinstance(text, str):
            raise invalid_type(f"{path}[{at}].text", "a string", json_type_name(text))
        texts.append(text)
    return "\n".join(texts)
