"""What a template cannot say is said in words: roles it lacks, tools it does not know.

The prompt for tools is the one Hermes and Qwen models were trained on; models that know none follow
it best, and constrained decoding makes even the smallest write it right.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .formats import ToolFormat
from .template import Traits
from .tools import ShownTool

__all__ = ["fitted", "tool_prompt", "without_tools"]

Message = dict[str, Any]

_TOOL_PROMPT = """# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tools}
</tools>

For each function call, return a json object with function name and arguments within \
<tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""


def tool_prompt(tools: Sequence[ShownTool]) -> str:
    """The text that tells a model without tools of its own how to call some."""
    lines = (json.dumps(tool.definition(), ensure_ascii=False) for tool in tools)
    return _TOOL_PROMPT.format(tools="\n".join(lines))


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
            written = _written(calls, form)
            content = message["content"]
            text = f"{content}\n{written}" if content else written
            kept = {name: value for name, value in message.items() if name != "tool_calls"}
            out.append({**kept, "content": text})
        else:
            out.append(dict(message))
    return out


def _written(calls: Sequence[Mapping[str, Any]], form: ToolFormat) -> str:
    how = form.written
    texts = []
    for call in calls:
        function = call["function"]
        arguments = function["arguments"]
        said = (
            arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        )
        texts.append(f"{how.before}{function['name']}{how.between}{said}{how.after}")
    return how.first + how.separator.join(texts) + how.last


# --- roles ---------------------------------------------------------------------------------------


def fitted(messages: Sequence[Message], traits: Traits) -> list[Message]:
    """The messages in roles that the template takes, nothing lost and the order kept where it
    can be: developer → system, later system messages → the first, system → the first user."""
    out = [dict(message) for message in messages]
    for applies, fit in _FITS:
        if applies(traits):
            out = fit(out)
    return out


def _developer_to_system(messages: list[Message]) -> list[Message]:
    return [{**m, "role": "system"} if m["role"] == "developer" else m for m in messages]


def _first_system(messages: list[Message]) -> list[Message]:
    """All that system and developer say, in order, as one leading message."""
    said = [m["content"] for m in messages if m["role"] in ("system", "developer")]
    rest = [m for m in messages if m["role"] not in ("system", "developer")]
    return [{"role": "system", "content": "\n\n".join(said)}, *rest] if said else rest


def _system_to_user(messages: list[Message]) -> list[Message]:
    if not messages or messages[0]["role"] != "system":
        return messages
    said, rest = messages[0]["content"], messages[1:]
    for position, message in enumerate(rest):
        if message["role"] == "user":
            merged = {**message, "content": f"{said}\n\n{message['content']}"}
            return [*rest[:position], merged, *rest[position + 1 :]]
    return [{"role": "user", "content": said}, *rest]


def _merge_neighbours(messages: list[Message]) -> list[Message]:
    """Templates that insist on alternating roles get one message a side."""
    out: list[Message] = []
    for message in messages:
        last = out[-1] if out else None
        if last is not None and last["role"] == message["role"] in ("user", "assistant"):
            calls = [*last.get("tool_calls", ()), *message.get("tool_calls", ())]
            content = "\n\n".join(text for text in (last["content"], message["content"]) if text)
            out[-1] = {**last, **message, "content": content}
            if calls:
                out[-1]["tool_calls"] = calls
        else:
            out.append(message)
    if out and out[0]["role"] == "assistant":
        out.insert(0, {"role": "user", "content": ""})
    return out


_FITS: Sequence[tuple[Callable[[Traits], bool], Callable[[list[Message]], list[Message]]]] = (
    (lambda traits: not traits.developer, _developer_to_system),
    (lambda traits: not traits.system_anywhere, _first_system),
    (lambda traits: not traits.system, _system_to_user),
    (lambda traits: not traits.neighbours, _merge_neighbours),
)
