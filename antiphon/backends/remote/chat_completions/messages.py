"""Convert a conversation to the messages of Chat Completions.

``dialects.messages`` groups items into messages and renders each kind of item as text. This module
adds the parts that are not text, such as images, and the fields in which an upstream accepts
reasoning.

``dialects.messages`` can render only text. So each part that is not text is first replaced by a
mark: a short text that clients cannot guess. After rendering, the marks are replaced by the parts.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from msgspec import UNSET, to_builtins
from msgspec.structs import replace

from antiphon.dialects.json_stream import dump
from antiphon.dialects.messages import build_messages
from antiphon.dialects.tools import PromptTools
from antiphon.errors import InvalidRequest
from antiphon.inference.conversation import Conversation
from antiphon.stream.kinds import KINDS, parts_of
from antiphon.wire import items as it
from antiphon.wire.json_types import JsonObject

Message = JsonObject

#: Types of parts that are not text.
_MEDIA = frozenset(
    {it.ComputerScreenshot, it.InputAudio, it.InputFile, it.InputImage, it.InputVideo}
)
_CONTINUED = "[The rest of this result follows in the next message.]"


def build_chat_messages(
    conversation: Conversation,
    prompt_tools: PromptTools,
    *,
    reasoning_fields: Sequence[str] = (),
    has_developer_role: bool = False,
    origin: str = "",
) -> list[Message]:
    """Return a conversation as messages of the Chat Completions API.

    ``reasoning_fields``: the fields in which the upstream accepts reasoning.
    ``has_developer_role``: the upstream supports the role ``developer``. ``origin``: the address of
    the upstream. Encrypted reasoning is sent only to the upstream that it came from. Raises
    ``InvalidRequest``, with the path of the part, for a part that cannot be sent.
    """
    writer = _Writer(reasoning_fields, has_developer_role, origin)
    items = [
        writer.replace_parts(item, index - conversation.past_count)
        for index, item in enumerate(conversation.items)
    ]
    rendered = build_messages(items, prompt_tools, "describe", past_count=conversation.past_count)
    if conversation.instructions:
        rendered.insert(0, {"role": "system", "content": conversation.instructions})
    return writer.restore_parts(rendered)


class _Writer:
    def __init__(
        self, reasoning_fields: Sequence[str], has_developer_role: bool, origin: str
    ) -> None:
        self._reasoning_fields = reasoning_fields
        self._has_developer_role = has_developer_role
        self._origin = origin
        self._parts_by_number: list[Any] = []
        self._deferred_parts: list[Any] = []

    @cached_property
    def _secret(self) -> str:
        """A random text that every mark contains. A mark is a short text that stands for an image
        or for another part that is not text. No client knows the random text, so no client can
        forge a mark."""
        return secrets.token_hex(8)

    # --- items: replace parts that are not text by marks -----------------------------------------

    def replace_parts(self, item: it.Item, index: int) -> it.Item:
        path = f"input[{index}]" if index >= 0 else "previous_response_id"
        if isinstance(item, it.Reasoning):
            return self._reasoning(item)
        if _MEDIA.isdisjoint(map(type, parts_of(item))):  # nearly all items
            return item
        field = KINDS[type(item)].parts_field
        value, path = getattr(item, field), f"{path}.{field}"
        if not isinstance(value, tuple):
            return replace(item, **{field: self._part(value, path)})
        parts = (self._part(part, f"{path}[{index}]") for index, part in enumerate(value))
        return replace(item, **{field: tuple(parts)})

    def _part(self, part: object, path: str) -> Any:
        match part:
            case it.ComputerScreenshot(image_url=url) if url is UNSET:
                return part  # the image is no longer available
            case it.InputImage() | it.ComputerScreenshot():
                if part.image_url is UNSET:
                    raise _unreadable("image without its content", path)
                image = {"url": part.image_url}
                if part.detail not in ("auto", UNSET):
                    image["detail"] = part.detail
                return self._mark({"type": "image_url", "image_url": image})
            case it.InputAudio():
                sound = to_builtins(part.input_audio)
                return self._mark({"type": "input_audio", "input_audio": sound})
            case it.InputVideo():
                return self._mark({"type": "video_url", "video_url": {"url": part.video_url}})
            case it.InputFile() if part.file_data is not UNSET and _is_binary(part.file_data):
                name = "file" if part.filename is UNSET else part.filename
                file = {"filename": name, "file_data": part.file_data}
                return self._mark({"type": "file", "file": file})
        return part

    def _mark(self, part: object) -> it.InputText:
        self._parts_by_number.append(part)
        return it.InputText(
            text=f"\U0010ff00{self._secret}:{len(self._parts_by_number) - 1}\U0010ff01"
        )

    def _reasoning(self, item: it.Reasoning) -> it.Reasoning:
        origin, line, state = (item.encrypted_content or "").partition("\n")
        if not (line and origin == self._origin):
            return item
        mark = it.ReasoningText(text=self._mark(json.loads(state)).text)
        parts = item.content or tuple(it.ReasoningText(text=each.text) for each in item.summary)
        return replace(item, content=(mark, *parts))

    # --- messages: replace marks by their parts ---------------------------------------------------

    def restore_parts(self, rendered: list[Message]) -> list[Message]:
        written: list[Message] = []
        for message in rendered:
            if message["role"] != "tool":
                self._add_deferred_parts(written)
            self._add(message, written)
        self._add_deferred_parts(written)
        return written

    def _add_deferred_parts(self, written: list[Message]) -> None:
        """Add a user message with the non-text parts of the preceding messages, for example the
        images in tool results.

        Only user messages may have non-text parts. The messages with tool results must follow one
        another directly, so the user message comes after the last of them.
        """
        if self._deferred_parts:
            written.append({"role": "user", "content": self._deferred_parts})
            self._deferred_parts = []

    def _add(self, message: Message, written: list[Message]) -> None:
        role, content = message["role"], message["content"]
        if role == "developer" and not self._has_developer_role:
            role = "system"
        if role == "assistant":
            self._add_answer(message, written)
        elif role == "tool":
            text = self._text(content, _CONTINUED)
            written.append({"role": role, "tool_call_id": message["tool_call_id"], "content": text})
        elif role == "user":
            written.append({"role": role, "content": self._split(content)})
        elif role == "system" and written and all(each["role"] == "system" for each in written):
            # many templates accept only one system message
            written[-1]["content"] += f"\n\n{self._text(content)}"
        elif (text := self._text(content)) or not self._deferred_parts:
            written.append({"role": role, "content": text})

    def _add_answer(self, message: Message, written: list[Message]) -> None:
        answer: Message = {"role": "assistant", "content": self._text(message["content"])}
        details: list[Any] = []
        if reasoning := message.get("reasoning_content", ""):
            pieces = self._pieces(reasoning)
            details = [each for n in pieces[1::2] for each in self._parts_by_number[int(n)]]
            reasoning = "".join(pieces[::2]).strip("\n")
        if calls := message.get("tool_calls"):
            answer["tool_calls"] = [_call(call) for call in calls]
        is_empty = not answer["content"] and not calls
        if details and is_empty and not reasoning:
            last = next((each for each in reversed(written) if each["role"] != "tool"), None)
            if last is not None and last["role"] == "assistant":
                last["reasoning_details"] = [*last.get("reasoning_details", ()), *details]
            return
        if is_empty and not self._reasoning_fields:
            return
        if reasoning:
            answer |= dict.fromkeys(self._reasoning_fields, reasoning)
        if details:
            answer["reasoning_details"] = details
        written.append(answer)

    def _split(self, text: str) -> str | list[Message]:
        """Replace the marks in a text by the parts for which they stand, such as images.

        Returns a text without marks unchanged. For a text with marks, returns a list of parts: the
        marked parts, and the texts between the marks.
        """
        pieces = self._pieces(text)
        if len(pieces) == 1:
            return text
        parts: list[Message] = []
        for index, piece in enumerate(pieces):
            if index % 2:
                parts.append(self._parts_by_number[int(piece)])
            elif piece := piece.strip("\n"):
                parts.append({"type": "text", "text": piece})
        return parts

    def _pieces(self, text: str) -> list[str]:
        """Split a text at its marks. Each mark stands for a part that is not text, such as an
        image, and contains the number of this part. The result alternates: text, number, text, and
        so on."""
        return self._mark_pattern.split(text) if self._parts_by_number else [text]

    @cached_property
    def _mark_pattern(self) -> re.Pattern[str]:
        return re.compile(f"\U0010ff00{self._secret}:(\\d+)\U0010ff01")

    def _text(self, text: str, note: str = "") -> str:
        """Return the text of a message without its marks. Each mark stands for a part that is not
        text, such as an image. These parts are sent in a later user message. If the text had marks,
        ``note`` is appended to the text."""
        parts = self._split(text)
        if isinstance(parts, str):
            return parts
        self._deferred_parts += [part for part in parts if part["type"] != "text"]
        texts = [part["text"] for part in parts if part["type"] == "text"]
        return "\n".join([*texts, note] if note else texts)


def _call(call: Message) -> Message:
    function = call["function"]
    arguments = function["arguments"]
    text = arguments if isinstance(arguments, str) else dump(arguments)
    return {**call, "function": {"name": function["name"], "arguments": text}}


def _is_binary(data: str) -> bool:
    """Return whether the data of a file is binary. Only PDF documents can be binary here, because
    all other files were already converted to text."""
    head = data[:80].lower()
    return head.startswith("data:application/pdf") or data.startswith("JVBERi0")


def _unreadable(what: str, path: str) -> InvalidRequest:
    return InvalidRequest(
        f"Invalid value: this model does not accept an {what}.", param=path, code="invalid_value"
    )
