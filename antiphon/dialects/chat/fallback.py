"""Rewrite messages that a chat template does not support, such as messages with a role that the
template lacks. Describe the tools in a text if the template does not show tools.

Hermes and Qwen models were trained with this text. Models without a tool format of their own
follow it better than other texts. With this text and constrained decoding, even the smallest models
write calls correctly.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count
from typing import Any

from antiphon.dialects.formats.types import ToolFormat

from .template_probe import SHORT_ID, TemplateCapabilities

Message = dict[str, Any]

_TOOL_PROMPT = """# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tools}
</tools>

For each function call, return the function's name and a json object of its arguments like this:
{call}"""


#: The tags around a tool's result in a user message.
RESULT_TAGS = ("<tool_response>", "</tool_response>")


def tool_prompt(definitions: Iterable[Mapping[str, object]], tool_format: ToolFormat) -> str:
    """Return the text that describes the tools in a prompt, for templates that do not show tools.
    ``tool_format``: the format in which the model must write calls."""
    lines = (json.dumps(definition, ensure_ascii=False) for definition in definitions)
    call = _render_calls([("<function-name>", "<args-json-object>")], tool_format)
    return _TOOL_PROMPT.format(tools="\n".join(lines), call=call)


def tools_as_text(messages: Sequence[Message], tool_format: ToolFormat) -> list[Message]:
    """Rewrite each tool call as text in ``tool_format``, and each tool result as a user message.
    This is for templates that do not support calls and results."""
    out: list[Message] = []
    for message in messages:
        if message["role"] == "tool":
            text = f"{RESULT_TAGS[0]}\n{message['content']}\n{RESULT_TAGS[1]}"
            if out and out[-1].get("results"):
                out[-1]["content"] += f"\n{text}"
            else:
                out.append({"role": "user", "content": text, "results": True})
        elif calls := message.get("tool_calls"):
            written = _render_calls(map(_name_and_arguments, calls), tool_format)
            content = message["content"]
            text = f"{content}\n{written}" if content else written
            rest = {name: value for name, value in message.items() if name != "tool_calls"}
            out.append({**rest, "content": text})
        else:
            out.append(message)
    return out


def _render_calls(calls: Iterable[tuple[str, str]], tool_format: ToolFormat) -> str:
    """Return tool calls as text in the syntax of ``tool_format``. ``calls``: pairs of a tool's name
    and the arguments as JSON."""
    return tool_format.written.render_calls(calls)


def _name_and_arguments(call: Mapping[str, Any]) -> tuple[str, str]:
    arguments = call["function"]["arguments"]
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return call["function"]["name"], arguments


# --- roles and formats ---------------------------------------------------------------------------


def adapt_messages(
    messages: Sequence[Message], capabilities: TemplateCapabilities
) -> list[Message]:
    """Rewrite messages so that they have only roles and formats that the template accepts.

    No text is lost, and the order stays the same where possible. Depending on the template,
    developer messages become system messages, later system messages are merged into the first one,
    and system messages become part of user messages.
    """
    out = list(messages)
    for applies, adapt in _ADAPTATIONS:
        if applies(capabilities):
            out = adapt(out)
    return [_format_message(message, capabilities) for message in out]


def _developer_to_system(messages: list[Message]) -> list[Message]:
    return [{**m, "role": "system"} if m["role"] == "developer" else m for m in messages]


def _merge_leading_system(messages: list[Message]) -> list[Message]:
    """Merge the system messages at the start into one, because models are trained with only one."""
    lead = next((n for n, m in enumerate(messages) if m["role"] != "system"), len(messages))
    if lead < 2:
        return messages
    text = "\n\n".join(message["content"] for message in messages[:lead])
    return [{"role": "system", "content": text}, *messages[lead:]]


def _system_first(messages: list[Message]) -> list[Message]:
    """Merge all system and developer messages, in their order, into one system message at the
    start. This is for templates that accept a system message only at the start."""
    texts = [m["content"] for m in messages if m["role"] in ("system", "developer")]
    rest = [m for m in messages if m["role"] not in ("system", "developer")]
    return [{"role": "system", "content": "\n\n".join(texts)}, *rest] if texts else rest


def _system_to_user(messages: list[Message]) -> list[Message]:
    """Move the text of each system message to the start of the next user message, for templates
    without a system role."""
    out: list[Message] = []
    pending: list[str] = []
    for message in messages:
        if message["role"] in ("system", "developer"):
            pending.append(message["content"])
            continue
        if pending and message["role"] == "user":
            message = {**message, "content": "\n\n".join((*pending, message["content"]))}
            pending = []
        elif pending and not out:  # an answer must not come first
            out.append({"role": "user", "content": "\n\n".join(pending)})
            pending = []
        out.append(message)
    return [*out, {"role": "user", "content": "\n\n".join(pending)}] if pending else out


def _split_parallel_calls(messages: list[Message]) -> list[Message]:
    """Split a message with several tool calls into one message per call, for templates that accept
    only one call per message. Each result directly follows the message of its call."""
    out: list[Message] = []
    later: dict[str, Message] = {}
    for message in messages:
        calls = message.get("tool_calls", ())
        if message["role"] == "tool" and message["tool_call_id"] in later:
            out.append(later.pop(message["tool_call_id"]))
        if len(calls) > 1:
            later = {
                c["id"]: {"role": "assistant", "content": "", "tool_calls": [c]} for c in calls
            }
            del later[calls[0]["id"]]
            message = {**message, "tool_calls": [calls[0]]}
        out.append(message)
    return out


def _merge_consecutive(messages: list[Message]) -> list[Message]:
    """Merge consecutive user messages and consecutive assistant messages, for templates that
    require these roles to alternate. If an answer comes first, an empty user message is inserted
    before it."""
    out: list[Message] = []
    for message in messages:
        last = out[-1] if out else {"role": "system"}
        if last["role"] == message["role"] and message["role"] in ("user", "assistant"):
            out[-1] = _merge(last, message)
            continue
        if message["role"] == "assistant" and last["role"] == "system":
            out.append({"role": "user", "content": ""})
        out.append(message)
    return out


def _insert_empty_answers(messages: list[Message]) -> list[Message]:
    """Insert an empty answer between tool results and a user message, for templates that require an
    answer there."""
    out: list[Message] = []
    for message in messages:
        if message["role"] == "user" and out and out[-1]["role"] == "tool":
            out.append({"role": "assistant", "content": ""})
        out.append(message)
    return out


def _number_call_ids(messages: list[Message]) -> list[Message]:
    """Replace each call id with an id such as ``functions.NAME:0``, which contains the tool's name
    and the call's number in the conversation. This is for templates that show the name only in the
    id."""
    ids: dict[str, str] = {}
    numbers = count()
    out: list[Message] = []
    for message in messages:
        if calls := message.get("tool_calls"):
            for call in calls:
                ids[call["id"]] = f"functions.{call['function']['name']}:{next(numbers)}"
            message = {**message, "tool_calls": [{**c, "id": ids[c["id"]]} for c in calls]}
        elif "tool_call_id" in message:
            id = message["tool_call_id"]
            message = {**message, "tool_call_id": ids.get(id, id)}
        out.append(message)
    return out


def _merge(one: Message, other: Message) -> Message:
    merged = {**one, **other}
    for key in ("content", "reasoning_content"):
        if texts := [m[key] for m in (one, other) if m.get(key)]:
            merged[key] = "\n\n".join(texts)
    if calls := [*one.get("tool_calls", ()), *other.get("tool_calls", ())]:
        merged["tool_calls"] = calls
    return merged


_ADAPTATIONS: Sequence[
    tuple[Callable[[TemplateCapabilities], bool], Callable[[list[Message]], list[Message]]]
] = (
    (lambda capabilities: not capabilities.developer, _developer_to_system),
    (lambda capabilities: not capabilities.system_anywhere, _system_first),
    (lambda capabilities: True, _merge_leading_system),
    (lambda capabilities: not capabilities.system, _system_to_user),
    (lambda capabilities: not capabilities.parallel_calls, _split_parallel_calls),
    (lambda capabilities: not capabilities.consecutive_roles, _merge_consecutive),
    (lambda capabilities: not capabilities.user_after_results, _insert_empty_answers),
    (lambda capabilities: capabilities.named_ids, _number_call_ids),
)


#: Keys that only this package uses. They are removed before rendering.
_INTERNAL_KEYS = ("results", "reasoning_content")


def _format_message(message: Message, capabilities: TemplateCapabilities) -> Message:
    """Convert the fields of a message to the format that the template accepts."""
    formed = {key: value for key, value in message.items() if key not in _INTERNAL_KEYS}
    reasoning = message.get("reasoning_content")
    is_required = capabilities.requires_reasoning and message["role"] == "assistant"
    if capabilities.reasoning is not None and (reasoning or is_required):
        formed[capabilities.reasoning] = reasoning or ""
    if calls := formed.get("tool_calls"):
        formed["tool_calls"] = [_format_call(call, capabilities) for call in calls]
    if capabilities.short_ids and "tool_call_id" in formed:
        formed["tool_call_id"] = _short_id(formed["tool_call_id"])
    if capabilities.content_parts:
        formed["content"] = [{"type": "text", "text": formed["content"]}]
    return formed


def _format_call(call: Mapping[str, Any], capabilities: TemplateCapabilities) -> dict[str, Any]:
    """Convert the fields of a tool call to the format that the template accepts.

    Models sometimes write arguments that are not an object. If the template accepts only objects,
    such arguments are put into an object, as the value of the key ``arguments``.
    """
    function = dict(call["function"])
    arguments = function["arguments"]
    if not isinstance(arguments, str) and not capabilities.argument_objects:
        function["arguments"] = json.dumps(arguments, ensure_ascii=False)
    elif isinstance(arguments, str) and not capabilities.argument_strings:
        function["arguments"] = {"arguments": arguments}
    elif capabilities.unquoted_strings and isinstance(arguments, dict):
        function["arguments"] = {
            key: json.dumps(value, ensure_ascii=False) if isinstance(value, str) else value
            for key, value in arguments.items()
        }
    id = _short_id(call["id"]) if capabilities.short_ids else call["id"]
    return {**call, "id": id, "function": function}


def _short_id(id: str) -> str:
    return hashlib.sha256(id.encode()).hexdigest()[:SHORT_ID]
