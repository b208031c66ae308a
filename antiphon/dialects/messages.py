"""Items become the messages that chat templates take.

Thinking, text and calls of one turn are one message. ``CALLS``, ``OUTPUTS``, ``SILENT`` and
``UNREADABLE`` say how each kind of item is shown to a model.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast
from urllib.parse import unquote_to_bytes

from msgspec import UNSET, to_builtins

from antiphon.conversation import caller_program_id
from antiphon.errors import InvalidRequest
from antiphon.wire import items as it
from antiphon.wire.tools import Tool

from .images import PromptImages, Unreadable, omitted
from .json_stream import load
from .tools import PromptTools, definitions_of, namespace_notes

__all__ = [
    "CALLS",
    "OUTPUTS",
    "SILENT",
    "UNREADABLE",
    "Builder",
    "Unreadable",
    "messages_of",
    "told_of",
    "unfinished",
]

Message = dict[str, Any]


# --- parts ---------------------------------------------------------------------------------------


class _Reader:
    """Reads parts. ``path``: where the item stands that is being read. With ``pictures`` an image
    leaves its mark."""

    def __init__(self, unreadable: Unreadable, pictures: PromptImages | None) -> None:
        self._unreadable = unreadable
        self._pictures = pictures
        self.path = ""

    def joined(self, parts: Iterable[it.Part], field: str = "content") -> str:
        said, was_shown = "", False
        for index, part in enumerate(parts):
            text = self.text(part, f"{self.path}.{field}[{index}]")
            is_shown = self._pictures is not None and text == self._pictures.mark
            if index:
                said += self._between(was_shown, is_shown)
            said, was_shown = said + text, is_shown
        return said

    def _between(self, was_shown: bool, is_shown: bool) -> str:
        if self._pictures is None or not (was_shown or is_shown):
            return "\n"
        place = self._pictures.place
        if was_shown and is_shown:
            return place.after or place.before
        return place.after if was_shown else place.before

    def text(self, part: it.Part, path: str) -> str:
        match part:
            case it.Refusal(refusal=refusal):
                return refusal
            case it.InputFile():
                return self._file(part, path)
            case it.InputImage() | it.ComputerScreenshot():
                mark = self._pictures.take(part) if self._pictures is not None else None
                return mark or self._omitted("image", path)
            case it.InputAudio():
                return self._omitted("audio", path)
            case it.InputVideo():
                return self._omitted("video", path)
        return part.text

    def _file(self, part: it.InputFile, path: str) -> str:
        """A file of text is read."""
        named = "" if part.filename is UNSET else f" '{part.filename}'"
        text = None if part.file_data is UNSET else _decoded(part.file_data)
        return self._omitted(f"file{named}", path) if text is None else f"[file{named}]\n{text}"

    def _omitted(self, what: str, path: str) -> str:
        return omitted(what, path, self._unreadable)

    def output(self, output: it.ToolOutput) -> str:
        return output if isinstance(output, str) else self.joined(output, "output")


def _decoded(data: str) -> str | None:
    """The text in a data URL or in bare base64; None if it is none."""
    head, comma, body = data.partition(",")
    try:
        if comma and not head.endswith(";base64"):
            raw = unquote_to_bytes(body)
        else:
            raw = base64.b64decode(body if comma else data, validate=True)
        text = raw.decode()
    except ValueError:
        return None
    return None if "\0" in text else text


def _dump(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _found(tools: tuple[Tool, ...]) -> str:
    """What a search found, as the model is told of it: the definitions, since they stand nowhere
    else."""
    if not tools:
        return "No tools were found. Try other words."
    return "\n".join([*namespace_notes(tools), *map(_dump, definitions_of(tools))])


def _ran(item: it.CodeInterpreterCall) -> str:
    """What code wrote, if the client asked to be told; its pictures are files in the container."""
    told = [str(each.get("logs", "[picture]")) for each in item.outputs or ()]
    return "\n".join(told) or _dump(_given(item, "status"))


def _given(item: Any, *fields: str) -> dict[str, Any]:
    """Those of the fields that have a value."""
    values = {field: getattr(item, field) for field in fields}
    given = {f: value for f, value in values.items() if value is not None and value is not UNSET}
    return cast(dict[str, Any], to_builtins(given))


# --- calls and their outputs ---------------------------------------------------------------------

#: Item type → how it looks as a call: (name, arguments). What a server ran looks like the rest.
CALLS: Mapping[type[it.ItemBase], Callable[[Any], tuple[str, Any]]] = {
    it.FunctionCall: lambda i: (i.name, i.arguments),
    it.CustomToolCall: lambda i: (i.name, {"input": i.input}),
    it.McpCall: lambda i: (i.name, i.arguments),
    it.WebSearchCall: lambda i: ("web_search", _given(i, "action").get("action", {})),
    it.FileSearchCall: lambda i: ("file_search", _given(i, "queries")),
    it.CodeInterpreterCall: lambda i: ("python", {"input": i.code or ""}),
    it.ImageGenerationCall: lambda i: (
        "image_generation",
        {"prompt": i.revised_prompt} if i.revised_prompt else {},
    ),
    it.ComputerCall: lambda i: ("computer", _given(i, "action", "actions")),
    it.LocalShellCall: lambda i: ("local_shell", i.action),
    it.ShellCall: lambda i: ("shell", i.action),
    it.ApplyPatchCall: lambda i: ("apply_patch", i.operation),
    it.ToolSearchCall: lambda i: ("tool_search", i.arguments),
    it.Program: lambda i: ("program", {"input": i.code}),
}

#: Item type → the text of a result. Hosted tools carry theirs in the item of the call.
OUTPUTS: Mapping[type[it.ItemBase], Callable[[Any, _Reader], str]] = {
    it.FunctionCallOutput: lambda i, reader: reader.output(i.output),
    it.CustomToolCallOutput: lambda i, reader: reader.output(i.output),
    it.ComputerCallOutput: lambda i, reader: reader.text(i.output, f"{reader.path}.output"),
    it.LocalShellCallOutput: lambda i, _: i.output,
    it.ShellCallOutput: lambda i, _: _dump(list(i.output)),
    it.ApplyPatchCallOutput: lambda i, _: i.status if i.output is UNSET else i.output,
    it.ToolSearchOutput: lambda i, _: _found(i.tools),
    it.ProgramOutput: lambda i, _: _dump(i.result),
    it.McpCall: lambda i, _: i.output or "" if i.error is None else f"Error: {_dump(i.error)}",
    it.WebSearchCall: lambda i, _: _dump(_given(i, "status", "results")),
    it.FileSearchCall: lambda i, _: _dump(_given(i, "status", "results")),
    it.CodeInterpreterCall: lambda i, _: _ran(i),
    it.ImageGenerationCall: lambda i, _: _dump(_given(i, "status", "action", "size", "error")),
}

#: Says nothing to the model by itself: the tools stand in the prompt, and what was approved
#: follows as a call.
SILENT = (it.AdditionalTools, it.McpListTools, it.McpApprovalRequest)

#: Asks for what nobody here can do, or was to be resolved before.
UNREADABLE = (it.Compaction, it.CompactionTrigger, it.ConfigurationUpdate, it.ItemReference)


def told_of(item: it.Item) -> tuple[str, Any, str]:
    """A call that a server ran, in words: the name, the arguments, and what came of it."""
    name, arguments = CALLS[type(item)](item)
    return name, arguments, OUTPUTS[type(item)](item, _Reader("note", None))


def messages_of(
    items: Sequence[it.Item],
    shown: PromptTools,
    unreadable: Unreadable = "note",
    past: int = 0,
    pictures: PromptImages | None = None,
) -> list[Message]:
    """One message a turn of each side, system and developer messages where they stand, results
    behind their calls. The last one has ``open`` set if it is an answer to go on with. ``past``
    items stood before the request. ``pictures`` takes the images, of a model that sees.

    Raises ``InvalidRequest`` with the path of items and parts that the model cannot be shown.
    """
    builder = _Messages(shown, unreadable, pictures)
    builder.read(items, past)
    messages = builder.finished()
    if messages and unfinished(items):
        messages[-1]["open"] = messages[-1]["role"] == "assistant"
    return messages


def unfinished(items: Sequence[it.Item]) -> bool:
    """Whether the last item is the beginning of an answer to go on with."""
    last = items[-1] if items else None
    if isinstance(last, it.Reasoning) and not (last.content or last.summary):
        return False
    return isinstance(last, it.Message | it.Reasoning) and last.status != "completed"


class Builder:
    """Goes through items and says what each of them is: a message, thinking, a call, a result.
    How a model is shown these is said by those who derive from it."""

    def __init__(
        self, shown: PromptTools, unreadable: Unreadable, pictures: PromptImages | None = None
    ) -> None:
        self._shown = shown
        self.reader = _Reader(unreadable, pictures)
        self._names: dict[str, str] = {}
        self._asked: dict[str, it.McpApprovalRequest] = {}
        #: Calls of programs, by their ids.
        self._hidden: set[str] = set()

    def message(self, item: it.Message) -> None:
        """What somebody said."""
        raise NotImplementedError

    def reasoning(self, text: str) -> None:
        """What the model thought."""
        raise NotImplementedError

    def call(self, call_id: str, name: str, arguments: Any) -> None:
        """A call of the tool that the model was shown by this name."""
        raise NotImplementedError

    def result(self, call_id: str, name: str, text: str) -> None:
        """What came of it."""
        raise NotImplementedError

    def read(self, items: Sequence[it.Item], past: int) -> None:
        """All of a conversation. Raises ``InvalidRequest`` with the path of what the model cannot
        be shown."""
        for index, item in enumerate(items):
            path = f"input[{index - past}]" if index >= past else "previous_response_id"
            self._add(item, path)

    def _add(self, item: it.Item, path: str) -> None:
        kind = type(item)
        self.reader.path = path
        call_id = getattr(item, "call_id", None)
        if (
            caller_program_id(item) is not None or call_id in self._hidden
        ):  # the model is told of neither
            self._hidden.add(call_id or item.id)
            return
        if kind in UNREADABLE:
            raise InvalidRequest(
                f"Items of type '{kind.__struct_config__.tag}' are not supported by this server.",
                param=path,
                code="unsupported_parameter",
            )
        if isinstance(item, it.Message):
            self.message(item)
        elif isinstance(item, it.Reasoning):
            self._thought(item)
        elif isinstance(item, it.McpApprovalRequest):
            self._asked[item.id] = item
        elif isinstance(item, it.McpApprovalResponse):
            self._decided(item)
        elif kind not in SILENT:
            self._called_or_answered(item)

    def _thought(self, item: it.Reasoning) -> None:
        parts = item.content or item.summary
        if parts:
            self.reasoning(self.reader.joined(parts))

    def _called_or_answered(self, item: it.Item) -> None:
        call_id = getattr(item, "call_id", None) or item.id
        if (read := CALLS.get(type(item))) is not None:
            name, arguments = read(item)
            namespace = getattr(item, "server_label", None) or getattr(item, "namespace", None)
            self._called(call_id, self._shown.name_of(name, namespace or None), arguments)
        if (answer := OUTPUTS.get(type(item))) is not None:
            self._answered(call_id, answer(item, self.reader), item)

    def _decided(self, item: it.McpApprovalResponse) -> None:
        """A model is told of what was denied; what was allowed follows as a call."""
        asked = self._asked.get(item.approval_request_id)
        if asked is None or item.approve:
            return
        name = self._shown.name_of(asked.name, asked.server_label)
        self._called(asked.id, name, asked.arguments)
        why = f": {item.reason}" if item.reason else "."
        self._answered(asked.id, f"The user did not allow this call{why}", item)

    def _called(self, call_id: str, name: str, arguments: Any) -> None:
        self._names[call_id] = name
        self.call(call_id, name, arguments)

    def _answered(self, call_id: str, text: str, item: it.Item) -> None:
        name = self._names.get(call_id)
        if name is not None:
            self.result(call_id, name, text)
        elif not isinstance(item, it.ToolSearchOutput):  # found by a server: stands in the prompt
            raise InvalidRequest(
                f"No tool call found for function call output with call_id {call_id}.",
                param="input",
            )


class _Messages(Builder):
    def __init__(
        self, shown: PromptTools, unreadable: Unreadable, pictures: PromptImages | None
    ) -> None:
        super().__init__(shown, unreadable, pictures)
        self._messages: list[Message] = []
        self._results: dict[str, Message] = {}

    def finished(self) -> list[Message]:
        """Each result behind its call, whenever it came. A call without a result was cut before
        anybody could run it: it is left out, and so is an answer that was nothing else."""
        messages: list[Message] = []
        for message in self._messages:
            calls = message.pop("tool_calls", [])
            answered = [call for call in calls if call["id"] in self._results]
            if answered:
                message["tool_calls"] = answered
            if answered or not calls or message["content"] or "reasoning_content" in message:
                messages.append(message)
            messages += [self._results[call["id"]] for call in answered]
        return messages

    def message(self, item: it.Message) -> None:
        text = self.reader.joined(item.content)
        if item.role != "assistant":
            role = item.role if item.role in ("system", "developer") else "user"
            self._messages.append({"role": role, "content": text})
            return
        turn = self._turn()
        turn["content"] = f"{turn['content']}\n\n{text}" if turn["content"] else text

    def reasoning(self, text: str) -> None:
        """Thinking begins an answer, or goes on with one that has only thought."""
        turn = self._turn()
        if turn["content"] or turn.get("tool_calls"):
            turn = self._new_turn()
        said = turn.get("reasoning_content")
        turn["reasoning_content"] = f"{said}\n{text}" if said else text

    def call(self, call_id: str, name: str, arguments: Any) -> None:
        made = {
            "type": "function",
            "id": call_id,
            "function": {"name": name, "arguments": _arguments(arguments)},
        }
        self._turn().setdefault("tool_calls", []).append(made)

    def result(self, call_id: str, name: str, text: str) -> None:
        self._results[call_id] = {
            "role": "tool",
            "content": text,
            "tool_call_id": call_id,
            "name": name,
        }

    def _turn(self) -> Message:
        """The answer that goes on; a new one where a call of it has been answered."""
        last = self._messages[-1] if self._messages else None
        if last is None or last["role"] != "assistant":
            return self._new_turn()
        answered = any(call["id"] in self._results for call in last.get("tool_calls", ()))
        return self._new_turn() if answered else last

    def _new_turn(self) -> Message:
        self._messages.append({"role": "assistant", "content": ""})
        return self._messages[-1]


def _arguments(arguments: Any) -> Any:
    """Templates want an object; what a model wrote that is none stays as it wrote it."""
    if not isinstance(arguments, str):
        return arguments
    try:
        value = load(arguments)
    except ValueError:
        return arguments
    return value if isinstance(value, dict) else arguments
