"""What a template cannot say is said in words: roles it lacks, tools it does not know.

The prompt for tools is the one Hermes and Qwen models were trained on; models that know none follow
it best, and constrained decoding makes even the smallest write it right.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count
from typing import Any

from antiphon.dialects.formats.types import ToolFormat

from .template_probe import SHORT_ID, TemplateCapabilities

__all__ = ["fitted", "tool_prompt", "without_tools"]

Message = dict[str, Any]

_TOOL_PROMPT = """# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tools}
</tools>

For each function call, return the function's name and a json object of its arguments like this:
{call}"""


def tool_prompt(definitions: Iterable[Mapping[str, Any]], form: ToolFormat) -> str:
    """The text that tells a model without tools of its own how to call some."""
    lines = (json.dumps(definition, ensure_ascii=False) for definition in definitions)
    call = _written([("<function-name>", "<args-json-object>")], form)
    return _TOOL_PROMPT.format(tools="\n".join(lines), call=call)


def without_tools(messages: Sequence[Message], form: ToolFormat) -> list[Message]:
    """Calls become the text that this format writes, results what a user hands in."""
    out: list[Message] = []
    for message in messages:
        if message["role"] == "tool":
            text = f"<tool_response>\n{message['content']}\n</tool_response>"
            if out and out[-1].get("results"):
                out[-1]["content"] += f"\n{text}"
            else:
                out.append({"role": "user", "content": text, "results": True})
        elif calls := message.get("tool_calls"):
            written = _written(map(_said, calls), form)
            content = message["content"]
            text = f"{content}\n{written}" if content else written
            kept = {name: value for name, value in message.items() if name != "tool_calls"}
            out.append({**kept, "content": text})
        else:
            out.append(dict(message))
    return out


def _written(calls: Iterable[tuple[str, str]], form: ToolFormat) -> str:
    """Calls (name, arguments as JSON) in the format's own way."""
    return form.written.render_calls(calls)


def _said(call: Mapping[str, Any]) -> tuple[str, str]:
    arguments = call["function"]["arguments"]
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return call["function"]["name"], arguments


# --- roles and forms -----------------------------------------------------------------------------


def fitted(messages: Sequence[Message], traits: TemplateCapabilities) -> list[Message]:
    """The messages in the roles and forms that the template takes, nothing lost and the order kept
    where it can be: developer → system, later system messages → the first, system → user."""
    out = [dict(message) for message in messages]
    for applies, fit in _FITS:
        if applies(traits):
            out = fit(out)
    return [_formed(message, traits) for message in out]


def _developer_to_system(messages: list[Message]) -> list[Message]:
    return [{**m, "role": "system"} if m["role"] == "developer" else m for m in messages]


def _one_head(messages: list[Message]) -> list[Message]:
    """Models are trained with one system message: those that lead are one."""
    lead = next((n for n, m in enumerate(messages) if m["role"] != "system"), len(messages))
    if lead < 2:
        return messages
    text = "\n\n".join(message["content"] for message in messages[:lead])
    return [{"role": "system", "content": text}, *messages[lead:]]


def _first_system(messages: list[Message]) -> list[Message]:
    """All that system and developer say, in order, as one leading message."""
    said = [m["content"] for m in messages if m["role"] in ("system", "developer")]
    rest = [m for m in messages if m["role"] not in ("system", "developer")]
    return [{"role": "system", "content": "\n\n".join(said)}, *rest] if said else rest


def _system_to_user(messages: list[Message]) -> list[Message]:
    """What the system says stands before what the user says next."""
    out: list[Message] = []
    waiting: list[str] = []
    for message in messages:
        if message["role"] in ("system", "developer"):
            waiting.append(message["content"])
            continue
        if waiting and message["role"] == "user":
            message = {**message, "content": "\n\n".join((*waiting, message["content"]))}
            waiting = []
        elif waiting and not out:  # an answer that must not come first
            out.append({"role": "user", "content": "\n\n".join(waiting)})
            waiting = []
        out.append(message)
    return [*out, {"role": "user", "content": "\n\n".join(waiting)}] if waiting else out


def _one_call_each(messages: list[Message]) -> list[Message]:
    """An answer with several calls becomes several, each before its result."""
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


def _merge_neighbours(messages: list[Message]) -> list[Message]:
    """Templates that insist on alternating roles get one message a side, the user's first."""
    out: list[Message] = []
    for message in messages:
        last = out[-1] if out else {"role": "system"}
        if last["role"] == message["role"] and message["role"] in ("user", "assistant"):
            out[-1] = _merged(last, message)
            continue
        if message["role"] == "assistant" and last["role"] == "system":
            out.append({"role": "user", "content": ""})
        out.append(message)
    return out


def _answer_results(messages: list[Message]) -> list[Message]:
    """Templates that want an answer to results before the user speaks again get an empty one."""
    out: list[Message] = []
    for message in messages:
        if message["role"] == "user" and out and out[-1]["role"] == "tool":
            out.append({"role": "assistant", "content": ""})
        out.append(message)
    return out


def _name_ids(messages: list[Message]) -> list[Message]:
    """Each call's id becomes its tool's name and its number in the conversation."""
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


def _merged(one: Message, other: Message) -> Message:
    merged = {**one, **other}
    for key in ("content", "reasoning_content"):
        if texts := [m[key] for m in (one, other) if m.get(key)]:
            merged[key] = "\n\n".join(texts)
    if calls := [*one.get("tool_calls", ()), *other.get("tool_calls", ())]:
        merged["tool_calls"] = calls
    return merged


_FITS: Sequence[
    tuple[Callable[[TemplateCapabilities], bool], Callable[[list[Message]], list[Message]]]
] = (
    (lambda traits: not traits.developer, _developer_to_system),
    (lambda traits: not traits.system_anywhere, _first_system),
    (lambda traits: True, _one_head),
    (lambda traits: not traits.system, _system_to_user),
    (lambda traits: not traits.parallel, _one_call_each),
    (lambda traits: not traits.neighbours, _merge_neighbours),
    (lambda traits: not traits.user_after_results, _answer_results),
    (lambda traits: traits.named_ids, _name_ids),
)


#: Keys that mean something here and nothing to a template.
_OURS = ("results", "reasoning_content")


def _formed(message: Message, traits: TemplateCapabilities) -> Message:
    """One message with its fields in the form that the template takes."""
    formed = {key: value for key, value in message.items() if key not in _OURS}
    thought = message.get("reasoning_content")
    demanded = traits.thought and message["role"] == "assistant"
    if traits.reasoning is not None and (thought or demanded):
        formed[traits.reasoning] = thought or ""
    if calls := formed.get("tool_calls"):
        formed["tool_calls"] = [_formed_call(call, traits) for call in calls]
    if traits.short_ids and "tool_call_id" in formed:
        formed["tool_call_id"] = _short(formed["tool_call_id"])
    if traits.parts:
        formed["content"] = [{"type": "text", "text": formed["content"]}]
    return formed


def _formed_call(call: Mapping[str, Any], traits: TemplateCapabilities) -> dict[str, Any]:
    """Arguments that are no object, which models also write, go where only objects do under a
    name of their own."""
    function = dict(call["function"])
    arguments = function["arguments"]
    if not isinstance(arguments, str) and not traits.objects:
        function["arguments"] = json.dumps(arguments, ensure_ascii=False)
    elif isinstance(arguments, str) and not traits.texts:
        function["arguments"] = {"arguments": arguments}
    elif traits.unquoted and isinstance(arguments, dict):
        function["arguments"] = {
            key: json.dumps(value, ensure_ascii=False) if isinstance(value, str) else value
            for key, value in arguments.items()
        }
    id = _short(call["id"]) if traits.short_ids else call["id"]
    return {**call, "id": id, "function": function}


def _short(id: str) -> str:
    return hashlib.sha256(id.encode()).hexdigest()[:SHORT_ID]
