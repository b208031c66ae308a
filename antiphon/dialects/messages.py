"""Items become the messages that chat templates take.

Thinking, text and calls of one turn are one message; what a template has no role for is folded
into one it has. ``CALLS`` and ``OUTPUTS`` say how each kind of item is shown to a model.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from msgspec import UNSET

from antiphon.errors import InvalidRequest
from antiphon.wire import items as it

from .json_text import load
from .tools import Shown

__all__ = ["messages_of", "text_of"]

Message = dict[str, Any]


# --- parts ---------------------------------------------------------------------------------------


def text_of(part: it.Part) -> str:
    """A part as text. What a text model cannot read leaves a note in its place: the model can say
    so, and a conversation that once had an image stays usable."""
    match part:
        case it.InputText(text=text) | it.OutputText(text=text) | it.PlainText(text=text):
            return text
        case it.ReasoningText(text=text) | it.SummaryText(text=text):
            return text
        case it.Refusal(refusal=refusal):
            return refusal
        case it.InputFile(filename=name):
            named = "" if name is UNSET else f" '{name}'"
            return f"[file{named} omitted: this model reads text only]"
        case it.InputAudio():
            return "[audio omitted: this model reads text only]"
        case it.InputVideo():
            return "[video omitted: this model reads text only]"
    return "[image omitted: this model reads text only]"


def _joined(parts: Iterable[it.Part]) -> str:
    return "\n".join(text_of(part) for part in parts)


def _output(output: it.ToolOutput) -> str:
    return output if isinstance(output, str) else _joined(output)


def _dump(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


# --- calls and their outputs ---------------------------------------------------------------------

#: Item type → how it looks as a call: (name, arguments).
CALLS: Mapping[type[it.ItemBase], Callable[[Any], tuple[str, Any]]] = {
    it.FunctionCall: lambda i: (i.name, i.arguments),
    it.CustomToolCall: lambda i: (i.name, {"input": i.input}),
    it.McpCall: lambda i: (i.name, i.arguments),
    it.WebSearchCall: lambda i: ("web_search", {} if i.action is UNSET else i.action),
    it.FileSearchCall: lambda i: ("file_search", {"queries": list(i.queries)}),
    it.CodeInterpreterCall: lambda i: ("code_interpreter", {"code": i.code or ""}),
    it.ImageGenerationCall: lambda i: ("image_generation", {}),
    it.ComputerCall: lambda i: ("computer", {} if i.action is UNSET else i.action),
    it.LocalShellCall: lambda i: ("local_shell", i.action),
    it.ShellCall: lambda i: ("shell", i.action),
    it.ApplyPatchCall: lambda i: ("apply_patch", i.operation),
    it.ToolSearchCall: lambda i: ("tool_search", i.arguments),
    it.Program: lambda i: ("program", {"code": i.code}),
}

#: Item type → the text of a result. Hosted tools carry theirs in the item of the call.
OUTPUTS: Mapping[type[it.ItemBase], Callable[[Any], str]] = {
    it.FunctionCallOutput: lambda i: _output(i.output),
    it.CustomToolCallOutput: lambda i: _output(i.output),
    it.ComputerCallOutput: lambda i: "[image omitted: this model reads text only]",
    it.LocalShellCallOutput: lambda i: i.output,
    it.ShellCallOutput: lambda i: _dump(list(i.output)),
    it.ApplyPatchCallOutput: lambda i: i.status if i.output is UNSET else i.output,
    it.ToolSearchOutput: lambda i: ", ".join(getattr(tool, "name", "") for tool in i.tools),
    it.ProgramOutput: lambda i: _dump(i.result),
    it.McpCall: lambda i: _dump(i.error) if i.error is not None else i.output or "",
    it.WebSearchCall: lambda i: "[]" if i.results is UNSET else _dump(list(i.results)),
    it.FileSearchCall: lambda i: _dump(list(i.results or ())),
    it.CodeInterpreterCall: lambda i: _dump(list(i.outputs or ())),
    it.ImageGenerationCall: lambda i: "[an image]" if i.result else "[no image]",
}

#: Says nothing to the model by itself.
SILENT = (it.AdditionalTools, it.McpListTools, it.McpApprovalRequest, it.McpApprovalResponse)

#: Means something that nobody here can do.
UNREADABLE: Mapping[type[it.ItemBase], str] = {
    it.Compaction: "compaction",
    it.CompactionTrigger: "compaction_trigger",
    it.ConfigurationUpdate: "configuration_update",
}


def messages_of(items: Iterable[it.Item], shown: Shown) -> list[Message]:
    """One message a turn of each side, system and developer messages where they stand.

    Raises ``InvalidRequest`` for items that ask for what does not exist.
    """
    builder = _Builder(shown)
    for item in items:
        builder.add(item)
    return builder.messages


class _Builder:
    def __init__(self, shown: Shown) -> None:
        self._shown = shown
        self._names: dict[str, str] = {}
        self.messages: list[Message] = []

    def add(self, item: it.Item) -> None:
        kind = type(item)
        if kind in UNREADABLE:
            raise InvalidRequest(
                f"Unsupported item: '{UNREADABLE[kind]}' is not supported by this server.",
                param="input",
                code="unsupported_parameter",
            )
        if isinstance(item, it.Message):
            self._message(item)
        elif isinstance(item, it.Reasoning):
            self._reasoning(item)
        else:
            if kind in CALLS:
                self._call(item)
            if kind in OUTPUTS:
                self._result(item)

    def _message(self, item: it.Message) -> None:
        text = _joined(item.content)
        if item.role != "assistant":
            role = item.role if item.role in ("system", "developer") else "user"
            self.messages.append({"role": role, "content": text})
            return
        turn = self._turn(fresh=lambda turn: bool(turn.get("tool_calls")))
        turn["content"] = f"{turn['content']}\n{text}" if turn["content"] else text
        turn["open"] = item.status != "completed"

    def _reasoning(self, item: it.Reasoning) -> None:
        parts = item.content or item.summary
        if parts:
            turn = self._turn(fresh=lambda turn: bool(turn["content"] or turn.get("tool_calls")))
            said = turn.get("reasoning_content")
            text = _joined(parts)
            turn["reasoning_content"] = f"{said}\n{text}" if said else text

    def _call(self, item: it.Item) -> None:
        name, arguments = CALLS[type(item)](item)
        namespace = getattr(item, "namespace", UNSET)
        shown = self._shown.name_of(name, None if namespace is UNSET else namespace)
        call_id = getattr(item, "call_id", None) or item.id
        self._names[call_id] = shown
        call = {
            "type": "function",
            "id": call_id,
            "function": {"name": shown, "arguments": _arguments(arguments)},
        }
        self._turn(fresh=lambda turn: False).setdefault("tool_calls", []).append(call)

    def _result(self, item: it.Item) -> None:
        call_id = getattr(item, "call_id", None) or item.id
        self.messages.append(
            {
                "role": "tool",
                "content": OUTPUTS[type(item)](item),
                "tool_call_id": call_id,
                "name": self._names.get(call_id, ""),
            }
        )

    def _turn(self, fresh: Callable[[Message], bool]) -> Message:
        """The assistant's turn that goes on, or a new one."""
        if self.messages and self.messages[-1]["role"] == "assistant":
            last = self.messages[-1]
            if not fresh(last):
                return last
        self.messages.append({"role": "assistant", "content": ""})
        return self.messages[-1]


def _arguments(arguments: Any) -> Any:
    """Templates want an object; what a model wrote that is none stays as it wrote it."""
    if not isinstance(arguments, str):
        return arguments
    try:
        value = load(arguments)
    except ValueError:
        return arguments
    return value if isinstance(value, dict) else arguments
