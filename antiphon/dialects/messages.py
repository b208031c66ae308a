"""Convert a conversation's items to the messages that chat templates take.

The reasoning, text and calls of one turn form one message. ``KINDS`` states how the model is shown
each type of call and each type of result, and which items it is not shown.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import unquote_to_bytes

from msgspec import UNSET

from antiphon.errors import InvalidRequest
from antiphon.inference.conversation import caller_program_id
from antiphon.stream.kinds import KINDS
from antiphon.stream.prompt_forms import ResultForm, dump_text, present_fields
from antiphon.wire import items as it
from antiphon.wire.tools import Tool

from .async_calls import shown_items
from .images import PromptImages, Unreadable, omission_note
from .json_stream import load
from .tools import PromptTools, namespace_notes, tool_definitions

Message = dict[str, Any]

_TEXTS = (it.InputText, it.OutputText, it.ReasoningText, it.SummaryText)

# --- parts ---------------------------------------------------------------------------------------


class _PartReader:
    """Converts the parts of an item, such as texts, files and images, to one text.

    ``path``: the position of the current item in the request, such as ``input[2]``, for error
    messages. ``unreadable``: what happens to a part that the model cannot read. Either a note
    replaces the part, or the request is rejected.

    ``images``: collects the images. In the text, one special character (the mark) stands for each
    collected image. If ``images`` is None, images are treated as parts that the model cannot read.
    """

    def __init__(self, unreadable: Unreadable, images: PromptImages | None) -> None:
        self._unreadable = unreadable
        self._images = images
        self.path = ""

    def join(self, parts: Iterable[it.Part], field: str = "content") -> str:
        if isinstance(parts, tuple) and len(parts) == 1 and isinstance(parts[0], _TEXTS):
            return parts[0].text  # nearly all
        text_so_far, was_image = "", False
        for index, part in enumerate(parts):
            if isinstance(part, _TEXTS):  # nearly all are
                text = part.text
            else:
                text = self.text(part, f"{self.path}.{field}[{index}]")
            is_image = self._images is not None and text == self._images.mark
            if index:
                text_so_far += self._between(was_image, is_image)
            text_so_far, was_image = text_so_far + text, is_image
        return text_so_far

    def _between(self, was_image: bool, is_image: bool) -> str:
        if self._images is None or not (was_image or is_image):
            return "\n"
        markup = self._images.markup
        if was_image and is_image:
            return markup.after or markup.before
        return markup.after if was_image else markup.before

    def text(self, part: it.Part, path: str) -> str:
        match part:
            case it.Refusal(refusal=refusal):
                return refusal
            case it.EncryptedContent(encrypted_content=text):
                return text
            case it.InputFile():
                return self._file(part, path)
            case it.InputImage() | it.ComputerScreenshot() if self._images is not None:
                return self._images.add(part) or omission_note("image", path, "describe")
            case it.ComputerScreenshot(image_url=url) if url is UNSET:  # it is no longer stored
                return omission_note("image", path, "describe")
            case it.InputImage() | it.ComputerScreenshot():
                return self._omitted("image", path)
            case it.InputAudio():
                return self._omitted("audio", path)
            case it.InputVideo():
                return self._omitted("video", path)
        return part.text

    def _file(self, part: it.InputFile, path: str) -> str:
        """Return the content of a text file, after a line with its name. For a file that is not
        text, return a note instead."""
        label = "" if part.filename is UNSET else f" '{part.filename}'"
        text = None if part.file_data is UNSET else _decode_text(part.file_data)
        return self._omitted(f"file{label}", path) if text is None else f"[file{label}]\n{text}"

    def _omitted(self, what: str, path: str) -> str:
        return omission_note(what, path, self._unreadable)

    def value(self, value: it.Part | it.ToolOutput, field: str) -> str:
        """Return the text of a field whose value is a text, one part or a list of parts."""
        if isinstance(value, tuple):
            return self.join(value, field)
        return value if isinstance(value, str) else self.text(value, f"{self.path}.{field}")


def _decode_text(data: str) -> str | None:
    """Return the text in a data URL or in bare base64, or None if the content is not text."""
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


def _search_result_text(tools: tuple[Tool, ...]) -> str:
    """Return the result of a tool search as text: the definitions of the tools that were found. The
    prompt contains these definitions nowhere else."""
    if not tools:
        return "No tools were found. Try other words."
    return "\n".join([*namespace_notes(tools), *map(dump_text, tool_definitions(tools))])


def _result_text(item: it.Item, form: ResultForm, reader: _PartReader) -> str:
    """Return the result that an item contains, as the text that the model is shown."""
    if form.text is not None:
        return form.text(item)
    if form.fields:
        return dump_text(present_fields(item, *form.fields))
    kind, value = KINDS[type(item)], getattr(item, form.field)
    if kind.declares_tools:
        return _search_result_text(value)
    return reader.value(value, form.field) if kind.parts_field else dump_text(value)


def render_call(item: it.Item) -> tuple[str, Any]:
    """Return a call as the name of the called function, without its namespace, and its arguments.
    Raises ``ValueError`` if the item is no call."""
    if (form := KINDS[type(item)].call) is None:
        raise ValueError(f"Items of type {item.type} are no calls.")
    return form.read(item)


def render_result(item: it.Item) -> str:
    """Return the result that an item contains, as the text that the model is shown. A note stands
    for each part that is not text. Raises ``ValueError`` if the item contains no result."""
    if (form := KINDS[type(item)].result) is None:
        raise ValueError(f"Items of type {item.type} contain no result.")
    return _result_text(item, form, _PartReader("describe", None))


def build_messages(
    items: Sequence[it.Item],
    prompt_tools: PromptTools,
    unreadable: Unreadable = "refuse",
    past_count: int = 0,
    images: PromptImages | None = None,
) -> list[Message]:
    """Convert items to messages: one message per turn of the user or the model, and each result
    directly after its call.

    System and developer messages stay where they are. If the model must continue the last message,
    this message has the key ``open`` set to True.

    ``unreadable``: whether a note replaces a part that the model cannot read (``describe``), or the
    request is rejected (``refuse``). ``past_count``: how many of the items come from earlier
    responses and not from this request. ``images`` collects the images for a model with vision.
    Raises ``InvalidRequest`` with the path of an item or part that cannot be shown to the model.
    """
    builder = _MessageBuilder(prompt_tools, unreadable, images)
    builder.read(items, past_count)
    messages = builder.build()
    if messages and is_unfinished(items):
        messages[-1]["open"] = messages[-1]["role"] == "assistant"
    return messages


def is_unfinished(items: Sequence[it.Item]) -> bool:
    """Return whether the last item is the unfinished start of an answer, which the model must
    continue."""
    last = items[-1] if items else None
    if last is None or last.status == "completed":
        return False
    return last.is_message or bool(last.reasoning_parts)


class Builder:
    """Base class of the builders that convert the items of a conversation to messages. For each
    item that the prompt shows, the base class calls the method ``message``, ``reasoning``, ``call``
    or ``result``. The item of a hosted call, which the server has run, contains both the call and
    its result. For such an item, the base class calls ``call`` and then ``result``.

    A subclass implements these methods and builds the messages of one prompt format.
    """

    def __init__(
        self, prompt_tools: PromptTools, unreadable: Unreadable, images: PromptImages | None = None
    ) -> None:
        self._prompt_tools = prompt_tools
        self.reader = _PartReader(unreadable, images)
        self._names: dict[str, str] = {}
        self._approval_requests: dict[str, it.McpApprovalRequest] = {}
        self._program_call_ids: set[str] = set()

    def message(self, item: it.Message) -> None:
        """Add a message of the user, the model, the system or the developer."""
        raise NotImplementedError

    def reasoning(self, text: str) -> None:
        """Add reasoning of the model."""
        raise NotImplementedError

    def call(self, call_id: str, name: str, arguments: object) -> None:
        """Add a tool call. ``name``: the tool's name in the prompt."""
        raise NotImplementedError

    def result(self, call_id: str, name: str, text: str) -> None:
        """Add the result of the call ``call_id``. ``name``: the tool's name in the prompt."""
        raise NotImplementedError

    def read(self, items: Sequence[it.Item], past_count: int) -> None:
        """Read all items, in order. For each item that the prompt shows, call those methods of the
        subclass that add messages.

        ``past_count``: how many of the items come from earlier responses. Raises ``InvalidRequest``
        with the path of an item that cannot be shown to the model.
        """
        for index, item in shown_items(items):
            path = f"input[{index - past_count}]" if index >= past_count else "previous_response_id"
            self._add(item, path)

    def _add(self, item: it.Item, path: str) -> None:
        self.reader.path = path
        if isinstance(item, it.Message):  # most are
            self.message(item)
            return
        call_id = item.call_id
        if (
            caller_program_id(item) is not None or call_id in self._program_call_ids
        ):  # the model sees neither a program's calls nor their results
            self._program_call_ids.add(call_id or item.id)
            return
        if isinstance(item, it.Reasoning):
            self._add_reasoning(item)
        elif isinstance(item, it.McpApprovalRequest):
            self._approval_requests[item.id] = item
        elif isinstance(item, it.McpApprovalResponse):
            self._add_approval(item)
        else:
            self._add_call_or_result(item, path)

    def _add_reasoning(self, item: it.Reasoning) -> None:
        if parts := item.reasoning_parts:
            self.reasoning(self.reader.join(parts))

    def _add_call_or_result(self, item: it.Item, path: str) -> None:
        kind = KINDS[type(item)]
        if kind.hidden:
            return
        if kind.call is None and kind.result is None:
            raise InvalidRequest(
                f"Items of type '{item.type}' are not supported by this server.",
                param=path,
                code="unsupported_parameter",
            )
        call_id = item.call_id or item.id
        if kind.call is not None:
            name, arguments = kind.call.read(item)
            name = self._prompt_tools.name_of(name, item.namespace or None)
            self._add_call(call_id, name, arguments)
        if kind.result is not None:
            self._add_result(call_id, _result_text(item, kind.result, self.reader), item)

    def _add_approval(self, item: it.McpApprovalResponse) -> None:
        """Process the user's response to an approval request of an MCP call. If the user refused,
        add the call with the refusal as its result. If the user approved, add nothing, because the
        approved call is an item of its own later in the conversation."""
        request = self._approval_requests.get(item.approval_request_id)
        if request is None or item.approve:
            return
        name = self._prompt_tools.name_of(request.name, request.server_label)
        self._add_call(request.id, name, request.arguments)
        why = f": {item.reason}" if item.reason else "."
        self._add_result(request.id, f"The user did not allow this call{why}", item)

    def _add_call(self, call_id: str, name: str, arguments: object) -> None:
        self._names[call_id] = name
        self.call(call_id, name, arguments)

    def _add_result(self, call_id: str, text: str, item: it.Item) -> None:
        name = self._names.get(call_id)
        if name is not None:
            self.result(call_id, name, text)
        # The prompt already lists the tools that a hosted search found.
        elif not KINDS[type(item)].declares_tools:
            raise InvalidRequest(
                f"No tool call found for function call output with call_id {call_id}.",
                param="input",
            )


class _MessageBuilder(Builder):
    """Builds the messages in the form in which chat templates need them."""

    def __init__(
        self, prompt_tools: PromptTools, unreadable: Unreadable, images: PromptImages | None
    ) -> None:
        super().__init__(prompt_tools, unreadable, images)
        self._messages: list[Message] = []
        self._results: dict[str, Message] = {}

    def build(self) -> list[Message]:
        """Return the messages, with each result directly after its call.

        A call without a result was interrupted before it could run, so it is left out. A message of
        the model is also left out if it contained nothing but such calls.
        """
        messages: list[Message] = []
        for message in self._messages:
            calls = message.pop("tool_calls", None)
            if calls is None:
                messages.append(message)
                continue
            answered = [call for call in calls if call["id"] in self._results]
            if answered:
                message["tool_calls"] = answered
            if answered or message["content"] or "reasoning_content" in message:
                messages.append(message)
            messages += [self._results[call["id"]] for call in answered]
        return messages

    def message(self, item: it.Message) -> None:
        text = self.reader.join(item.content)
        if item.role != "assistant":
            role = item.role if item.role in ("system", "developer") else "user"
            self._messages.append({"role": role, "content": text})
            return
        turn = self._turn()
        turn["content"] = f"{turn['content']}\n\n{text}" if turn["content"] else text

    def reasoning(self, text: str) -> None:
        """Add reasoning to the model's current message. Starts a new message if the current one
        already has text or calls."""
        turn = self._turn()
        if turn["content"] or turn.get("tool_calls"):
            turn = self._new_turn()
        text_so_far = turn.get("reasoning_content")
        turn["reasoning_content"] = f"{text_so_far}\n{text}" if text_so_far else text

    def call(self, call_id: str, name: str, arguments: object) -> None:
        call = {
            "type": "function",
            "id": call_id,
            "function": {"name": name, "arguments": _arguments(arguments)},
        }
        self._turn().setdefault("tool_calls", []).append(call)

    def result(self, call_id: str, name: str, text: str) -> None:
        self._results[call_id] = {
            "role": "tool",
            "content": text,
            "tool_call_id": call_id,
            "name": name,
        }

    def _turn(self) -> Message:
        """Return the current message of the model, to which reasoning, text or calls can be added.
        If there is no such message, or if one of the message's calls already has a result, start a
        new message."""
        last = self._messages[-1] if self._messages else None
        if last is None or last["role"] != "assistant":
            return self._new_turn()
        answered = any(call["id"] in self._results for call in last.get("tool_calls", ()))
        return self._new_turn() if answered else last

    def _new_turn(self) -> Message:
        self._messages.append({"role": "assistant", "content": ""})
        return self._messages[-1]


def _arguments(arguments: object) -> Any:
    """Parse the arguments of a call if they are the text of a JSON object, because templates expect
    an object. Other arguments are returned unchanged."""
    if not isinstance(arguments, str):
        return arguments
    try:
        value = load(arguments)
    except ValueError:
        return arguments
    return value if isinstance(value, dict) else arguments
