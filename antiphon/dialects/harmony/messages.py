"""Items become harmony's messages: each thought, text, call and result one of its own.

What instructs the model is not among them: harmony has one place for it. It knows no tokens.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from antiphon.dialects.messages import Builder, Unreadable, unfinished
from antiphon.dialects.tools import PromptTools
from antiphon.wire import items as it

__all__ = ["ASSISTANT", "BROWSER", "FUNCTIONS", "PYTHON", "Said", "Talk", "natives", "talk_of"]

ASSISTANT = "assistant"
#: Where harmony puts the tools of a developer.
FUNCTIONS = "functions."
#: What gpt-oss was trained to call otherwise than functions: an interpreter that takes code as it
#: is, and a namespace of functions. They stand in the system message and are called while thinking.
PYTHON, BROWSER = "python", "browser"


class Said(Struct, frozen=True, kw_only=True):
    """One message. ``author``: ``user``, ``assistant``, or the tool that answers. ``recipient``:
    the tool that is called."""

    author: str
    text: str
    channel: str | None = None
    recipient: str | None = None


class Talk(Struct, frozen=True, kw_only=True):
    """A conversation. ``told``: what system and developer said, in order. ``is_open``: the last
    message is the beginning of an answer, to go on with."""

    told: tuple[str, ...]
    said: tuple[Said, ...]
    is_open: bool


def natives(shown: PromptTools) -> Mapping[str, str]:
    """The tools that are called as the model was trained to: by the name they were shown by, whom
    their calls are addressed to. A custom tool ``python``, functions of a namespace ``browser``."""
    found = {}
    for tool in shown.tools:
        shape = tool.shape
        is_text = shape.custom and tool.grammar is None
        if is_text and (shape.wire_name, shape.namespace) == (PYTHON, None):
            found[tool.name] = PYTHON
        elif shape.namespace == BROWSER and not shape.custom:
            found[tool.name] = f"{BROWSER}.{shape.wire_name}"
    return found


def talk_of(
    items: Sequence[it.Item],
    shown: PromptTools,
    unreadable: Unreadable = "note",
    past: int = 0,
    recalls: bool = False,
) -> Talk:
    """The messages of a conversation, of which ``past`` items stood before the request.

    Thinking before the last final answer is left out, as its makers do, unless ``recalls``; within
    a tool loop it stays. Raises ``InvalidRequest`` with the path of items and parts that the model
    cannot be shown.
    """
    builder = _Talk(shown, unreadable)
    builder.read(items, past)
    said = builder.finished()
    is_open = unfinished(items) and said[-1:] != [] and said[-1].author == ASSISTANT
    answers = said[:-1] if is_open else said
    finals = () if recalls else (n for n, each in enumerate(answers) if each.channel == "final")
    over = max(finals, default=-1)
    return Talk(
        told=tuple(builder.told),
        said=tuple(each for n, each in enumerate(said) if n > over or each.channel != "analysis"),
        is_open=is_open,
    )


class _Talk(Builder):
    def __init__(self, shown: PromptTools, unreadable: Unreadable) -> None:
        super().__init__(shown, unreadable)
        self.told: list[str] = []
        self._said: list[Said] = []
        self._natives = natives(shown)
        self._calls: dict[int, str] = {}
        self._results: dict[str, Said] = {}

    def finished(self) -> list[Said]:
        """Each result behind its call, whenever it came. A call without a result was cut before
        anybody could run it: it is left out."""
        said: list[Said] = []
        for place, each in enumerate(self._said):
            call_id = self._calls.get(place)
            if call_id is None:
                said.append(each)
            elif call_id in self._results:
                said += (each, self._results[call_id])
        return said

    def message(self, item: it.Message) -> None:
        text = self.reader.joined(item.content)
        if item.role in ("system", "developer"):
            self.told.append(text)
        elif item.role == "assistant":
            channel = "commentary" if item.phase == "commentary" else "final"
            self._said.append(Said(author=ASSISTANT, text=text, channel=channel))
        else:
            self._said.append(Said(author="user", text=text))

    def reasoning(self, text: str) -> None:
        self._said.append(Said(author=ASSISTANT, text=text, channel="analysis"))

    def call(self, call_id: str, name: str, arguments: Any) -> None:
        recipient = self._recipient(name)
        if recipient == PYTHON and isinstance(arguments, dict):
            text = str(arguments.get("input", ""))
        else:
            text = arguments if isinstance(arguments, str) else _dump(arguments)
        self._calls[len(self._said)] = call_id
        channel = _channel(recipient)
        self._said.append(Said(author=ASSISTANT, text=text, channel=channel, recipient=recipient))

    def result(self, call_id: str, name: str, text: str) -> None:
        author = self._recipient(name)
        self._results[call_id] = Said(
            author=author, text=text, channel=_channel(author), recipient=ASSISTANT
        )

    def _recipient(self, name: str) -> str:
        """The tool as headers name it, where white space would end its name."""
        return self._natives.get(name) or FUNCTIONS + "_".join(name.split())


def _channel(recipient: str) -> str:
    return "commentary" if recipient.startswith(FUNCTIONS) else "analysis"


def _dump(arguments: Any) -> str:
    return json.dumps(arguments, ensure_ascii=False)
