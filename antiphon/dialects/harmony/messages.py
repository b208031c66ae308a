"""Convert items to harmony's messages: each reasoning, text, call and result is a message of its
own.

Instructions are separate, because harmony puts them all into one developer message.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from antiphon.dialects.messages import Builder, Unreadable, is_unfinished
from antiphon.dialects.tools import PromptTools
from antiphon.wire import items as it

from .container import EXEC, exec_arguments, is_shell

__all__ = [
    "ASSISTANT",
    "BROWSER",
    "FUNCTIONS",
    "PYTHON",
    "HarmonyConversation",
    "HarmonyMessage",
    "build_conversation",
    "native_tools",
]

ASSISTANT = "assistant"
#: Harmony's namespace for functions.
FUNCTIONS = "functions."
#: Tools that gpt-oss was trained with, besides ``container.exec``: an interpreter whose input is
#: plain code, and a namespace of functions. The system message declares them, and the model calls
#: them while reasoning.
PYTHON, BROWSER = "python", "browser"


class HarmonyMessage(Struct, frozen=True, kw_only=True):
    """One message.

    ``author``: ``user``, ``assistant``, or the tool that returns a result. ``recipient``: the tool
    that is called.
    """

    author: str
    text: str
    channel: str | None = None
    recipient: str | None = None


class HarmonyConversation(Struct, frozen=True, kw_only=True):
    """A conversation as harmony's messages.

    ``instructions``: the texts of the system and developer messages, in order. ``is_open``: the
    last message is the start of an answer that the model must continue.
    """

    instructions: tuple[str, ...]
    messages: tuple[HarmonyMessage, ...]
    is_open: bool


def native_tools(prompt_tools: PromptTools) -> Mapping[str, str]:
    """Return the tools that gpt-oss was trained to call: name in the prompt → recipient of their
    calls.

    These are a custom tool ``python``, the functions of a namespace ``browser``, and the shell.
    """
    found = {}
    for tool in prompt_tools.tools:
        shape = tool.shape
        is_text = shape.custom and tool.grammar is None
        if is_text and (shape.wire_name, shape.namespace) == (PYTHON, None):
            found[tool.name] = PYTHON
        elif shape.namespace == BROWSER and not shape.custom:
            found[tool.name] = f"{BROWSER}.{shape.wire_name}"
        elif is_shell(tool):
            found[tool.name] = EXEC
    return found


def build_conversation(
    items: Sequence[it.Item],
    prompt_tools: PromptTools,
    unreadable: Unreadable = "note",
    past_count: int = 0,
    keeps_reasoning: bool = False,
) -> HarmonyConversation:
    """Convert items to messages. ``past_count``: how many items precede the request.

    Reasoning before the last final answer is dropped, as OpenAI recommends, unless
    ``keeps_reasoning``. Within a tool loop it stays. Raises ``InvalidRequest`` with the path of an
    item or part that the model cannot be shown.
    """
    builder = _ConversationBuilder(prompt_tools, unreadable)
    builder.read(items, past_count)
    messages = builder.build()
    is_open = is_unfinished(items) and messages[-1:] != [] and messages[-1].author == ASSISTANT
    answers = messages[:-1] if is_open else messages
    finals = (
        () if keeps_reasoning else (n for n, each in enumerate(answers) if each.channel == "final")
    )
    last_final = max(finals, default=-1)
    return HarmonyConversation(
        instructions=tuple(builder.instructions),
        messages=tuple(
            each for n, each in enumerate(messages) if n > last_final or each.channel != "analysis"
        ),
        is_open=is_open,
    )


class _ConversationBuilder(Builder):
    def __init__(self, prompt_tools: PromptTools, unreadable: Unreadable) -> None:
        super().__init__(prompt_tools, unreadable)
        self.instructions: list[str] = []
        self._messages: list[HarmonyMessage] = []
        self._native_tools = native_tools(prompt_tools)
        self._calls: dict[int, str] = {}
        self._results: dict[str, HarmonyMessage] = {}

    def build(self) -> list[HarmonyMessage]:
        """Return the messages, each result directly after its call.

        A call without a result was interrupted before it could run. It is left out.
        """
        messages: list[HarmonyMessage] = []
        for position, each in enumerate(self._messages):
            call_id = self._calls.get(position)
            if call_id is None:
                messages.append(each)
            elif call_id in self._results:
                messages += (each, self._results[call_id])
        return messages

    def message(self, item: it.Message) -> None:
        text = self.reader.join(item.content)
        if item.role in ("system", "developer"):
            self.instructions.append(text)
        elif item.role == "assistant":
            channel = "commentary" if item.phase == "commentary" else "final"
            self._messages.append(HarmonyMessage(author=ASSISTANT, text=text, channel=channel))
        else:
            self._messages.append(HarmonyMessage(author="user", text=text))

    def reasoning(self, text: str) -> None:
        self._messages.append(HarmonyMessage(author=ASSISTANT, text=text, channel="analysis"))

    def call(self, call_id: str, name: str, arguments: Any) -> None:
        recipient = self._recipient(name)
        if recipient == PYTHON and isinstance(arguments, dict):
            text = str(arguments.get("input", ""))
        else:
            if recipient == EXEC:
                arguments = exec_arguments(arguments)
            text = arguments if isinstance(arguments, str) else _dump(arguments)
        self._calls[len(self._messages)] = call_id
        channel = _channel(recipient)
        self._messages.append(
            HarmonyMessage(author=ASSISTANT, text=text, channel=channel, recipient=recipient)
        )

    def result(self, call_id: str, name: str, text: str) -> None:
        author = self._recipient(name)
        self._results[call_id] = HarmonyMessage(
            author=author, text=text, channel=_channel(author), recipient=ASSISTANT
        )

    def _recipient(self, name: str) -> str:
        """Return the tool's name in a header, which white space would end."""
        return self._native_tools.get(name) or FUNCTIONS + "_".join(name.split())


def _channel(recipient: str) -> str:
    return "commentary" if recipient.startswith(FUNCTIONS) else "analysis"


def _dump(arguments: Any) -> str:
    return json.dumps(arguments, ensure_ascii=False)
