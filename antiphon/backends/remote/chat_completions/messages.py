"""A conversation as the messages of Chat Completions.

How turns are grouped and what each kind of item says is told by ``dialects.messages``; here are the
parts that are no text, which this API has places for, and what an upstream's thinking is called.
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

from antiphon.conversation import Conversation
from antiphon.dialects.json_stream import dump
from antiphon.dialects.messages import messages_of
from antiphon.dialects.tools import PromptTools
from antiphon.errors import InvalidRequest
from antiphon.wire import items as it

__all__ = ["messages"]

Message = dict[str, Any]

_REST = "[The rest of this result follows in the next message.]"


def messages(
    conversation: Conversation,
    shown: PromptTools,
    *,
    thought: Sequence[str] = (),
    developer: bool = False,
    origin: str = "",
) -> list[Message]:
    """``thought``: the fields in which the upstream takes what the model thought. ``developer``: it
    knows that role. ``origin``: marks what was kept for it. Raises ``InvalidRequest`` with the path
    of what it cannot be shown."""
    writer = _Writer(thought, developer, origin)
    items = [
        writer.marked(item, index - conversation.past_count)
        for index, item in enumerate(conversation.items)
    ]
    told = messages_of(items, shown, past=conversation.past_count)
    if conversation.instructions:
        told.insert(0, {"role": "system", "content": conversation.instructions})
    return writer.written(told)


class _Writer:
    def __init__(self, thought: Sequence[str], developer: bool, origin: str) -> None:
        self._thought = thought
        self._developer = developer
        self._origin = origin
        self._kept: list[Any] = []
        self._behind: list[Any] = []

    @cached_property
    def _secret(self) -> str:
        """Stands in a text where a part or a detail was; nobody can write it who did not see it."""
        return secrets.token_hex(8)

    # --- items: what is no text leaves a mark ----------------------------------------------------

    def marked(self, item: it.Item, index: int) -> it.Item:
        path = f"input[{index}]" if index >= 0 else "previous_response_id"
        if isinstance(item, it.Message):
            return replace(item, content=self._parts(item.content, f"{path}.content"))
        if isinstance(item, it.Reasoning):
            return self._reasoning(item)
        if isinstance(item, it.ComputerCallOutput):
            return replace(item, output=self._part(item.output, f"{path}.output"))
        output = getattr(item, "output", None)
        if isinstance(output, tuple) and isinstance(
            item, it.FunctionCallOutput | it.CustomToolCallOutput
        ):
            return replace(item, output=self._parts(output, f"{path}.output"))
        return item

    def _parts(self, parts: Sequence[Any], path: str) -> tuple[Any, ...]:
        return tuple(self._part(part, f"{path}[{index}]") for index, part in enumerate(parts))

    def _part(self, part: Any, path: str) -> Any:
        match part:
            case it.ComputerScreenshot(image_url=url) if url is UNSET:
                return part  # it can no longer be had
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

    def _mark(self, part: Any) -> it.InputText:
        self._kept.append(part)
        return it.InputText(text=f"\U0010ff00{self._secret}:{len(self._kept) - 1}\U0010ff01")

    def _reasoning(self, item: it.Reasoning) -> it.Reasoning:
        origin, line, kept = (item.encrypted_content or "").partition("\n")
        if not (line and origin == self._origin):
            return item
        mark = it.ReasoningText(text=self._mark(json.loads(kept)).text)
        parts = item.content or tuple(it.ReasoningText(text=each.text) for each in item.summary)
        return replace(item, content=(mark, *parts))

    # --- messages: marks become parts -------------------------------------------------------------

    def written(self, told: list[Message]) -> list[Message]:
        written: list[Message] = []
        for message in told:
            if message["role"] != "tool":
                self._add_behind(written)
            self._add(message, written)
        self._add_behind(written)
        return written

    def _add_behind(self, written: list[Message]) -> None:
        """All but what users say is text, results one behind the other: what else was in it
        stands behind it."""
        if self._behind:
            written.append({"role": "user", "content": self._behind})
            self._behind = []

    def _add(self, message: Message, written: list[Message]) -> None:
        role, content = message["role"], message["content"]
        if role == "developer" and not self._developer:
            role = "system"
        if role == "assistant":
            self._add_answer(message, written)
        elif role == "tool":
            text = self._text(content, _REST)
            written.append({"role": role, "tool_call_id": message["tool_call_id"], "content": text})
        elif role == "user":
            written.append({"role": role, "content": self._split(content)})
        elif role == "system" and written and all(each["role"] == "system" for each in written):
            # many templates take but one
            written[-1]["content"] += f"\n\n{self._text(content)}"
        elif (text := self._text(content)) or not self._behind:
            written.append({"role": role, "content": text})

    def _add_answer(self, message: Message, written: list[Message]) -> None:
        thinking = message.get("reasoning_content", "")
        pieces = self._pieces(thinking)
        details = [each for n in pieces[1::2] for each in self._kept[int(n)]]
        thinking = "".join(pieces[::2]).strip("\n")
        answer: Message = {"role": "assistant", "content": self._text(message["content"])}
        if calls := message.get("tool_calls"):
            answer["tool_calls"] = [_call(call) for call in calls]
        nothing = not answer["content"] and not calls
        if details and nothing and not thinking:
            last = next((each for each in reversed(written) if each["role"] == "assistant"), None)
            if last is not None:
                last["reasoning_details"] = [*last.get("reasoning_details", ()), *details]
            return
        if nothing and not self._thought:
            return
        if thinking:
            answer |= dict.fromkeys(self._thought, thinking)
        if details:
            answer["reasoning_details"] = details
        written.append(answer)

    def _split(self, text: str) -> str | list[Message]:
        """The text, or the parts that its marks stand for with the texts between."""
        pieces = self._pieces(text)
        if len(pieces) == 1:
            return text
        parts: list[Message] = []
        for place, piece in enumerate(pieces):
            if place % 2:
                parts.append(self._kept[int(piece)])
            elif piece := piece.strip("\n"):
                parts.append({"type": "text", "text": piece})
        return parts

    def _pieces(self, text: str) -> list[str]:
        """Texts, and between them the numbers of what was kept."""
        return self._sign.split(text) if self._kept else [text]

    @cached_property
    def _sign(self) -> re.Pattern[str]:
        return re.compile(f"\U0010ff00{self._secret}:(\\d+)\U0010ff01")

    def _text(self, text: str, note: str = "") -> str:
        """The text alone, and ``note`` where there was more: that stands behind it."""
        parts = self._split(text)
        if isinstance(parts, str):
            return parts
        self._behind += [part for part in parts if part["type"] != "text"]
        texts = [part["text"] for part in parts if part["type"] == "text"]
        return "\n".join([*texts, note] if note else texts)


def _call(call: Message) -> Message:
    function = call["function"]
    arguments = function["arguments"]
    text = arguments if isinstance(arguments, str) else dump(arguments)
    return {**call, "function": {"name": function["name"], "arguments": text}}


def _is_binary(data: str) -> bool:
    """Whether it is a document that only its kind tells how to read; files of text are read."""
    head = data[:80].lower()
    return head.startswith("data:application/pdf") or data.startswith("JVBERi0")


def _unreadable(what: str, path: str) -> InvalidRequest:
    return InvalidRequest(
        f"Invalid value: this model cannot be given an {what}.", param=path, code="invalid_value"
    )
