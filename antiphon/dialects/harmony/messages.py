"""Convert a conversation's items to messages of the harmony format. Each reasoning item, text, call
and result becomes a message of its own.

Instructions at the beginning are collected separately, because they stand in one developer message
together with the tools. Later ones stay where they are, so that the prompt of the next turn begins
with the prompt of this turn.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from msgspec import Struct

from antiphon.dialects.images import Unreadable
from antiphon.dialects.messages import Builder, is_unfinished
from antiphon.dialects.tools import PromptTools
from antiphon.wire import items as it

from .container import EXEC, exec_arguments, is_shell

ASSISTANT = "assistant"
#: Harmony's namespace for functions.
FUNCTIONS = "functions."
#: Tools with which gpt-oss was trained, in addition to ``container.exec``: a Python interpreter,
#: whose input is plain code, and the namespace of the browser's functions. The system message
#: declares them, and the model calls them while it is reasoning.
PYTHON, BROWSER = "python", "browser"
#: With this heading, OpenAI's library starts the instructions in a developer message.
_INSTRUCTIONS_HEADING = "# Instructions\n\n"


class HarmonyMessage(Struct, frozen=True, kw_only=True):
    """One message of the harmony format.

    - ``author``: ``user``, ``assistant`` or ``developer``. For a tool result, it is the name of the
      tool.
    - ``channel``: ``analysis`` (reasoning), ``commentary`` or ``final``. None for a user's message.
    - ``recipient``: for a call, the name of the called tool. For a tool result, it is
      ``assistant``.
    """

    author: str
    text: str
    channel: str | None = None
    recipient: str | None = None


class HarmonyConversation(Struct, frozen=True, kw_only=True):
    """A conversation as messages of the harmony format.

    ``instructions``: the texts of the system and developer messages at the beginning, in order.
    ``messages``: all other messages. ``is_open``: whether the last message is the start of an
    answer that the model must continue.
    """

    instructions: tuple[str, ...]
    messages: tuple[HarmonyMessage, ...]
    is_open: bool


def native_tools(prompt_tools: PromptTools) -> Mapping[str, str]:
    """Return those tools of the prompt with which gpt-oss was trained. The result maps the name of
    a tool in the prompt to the name that gpt-oss writes as the recipient of a call of this tool.

    These tools are a custom tool ``python``, the functions of a namespace ``browser``, and
    Antiphon's shell function.
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
    unreadable: Unreadable = "refuse",
    past_count: int = 0,
    keeps_reasoning: bool = False,
) -> HarmonyConversation:
    """Convert a conversation's items to messages of the harmony format.

    ``unreadable``: whether a note replaces a part that the model cannot read (``describe``), or the
    request is rejected (``refuse``). ``past_count``: how many of the items come from earlier
    responses. ``keeps_reasoning``: whether all reasoning stays. If False, the reasoning before the
    last final answer is dropped, as OpenAI recommends. Raises ``InvalidRequest`` with the path of
    an item or part that cannot be shown to the model.
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
    """Converts a conversation's items to messages of the harmony format. Collects the texts of
    system and developer messages at the beginning in ``instructions``."""

    def __init__(self, prompt_tools: PromptTools, unreadable: Unreadable) -> None:
        super().__init__(prompt_tools, unreadable)
        self.instructions: list[str] = []
        self._messages: list[HarmonyMessage] = []
        self._native_tools = native_tools(prompt_tools)
        self._calls: dict[int, str] = {}
        self._results: dict[str, HarmonyMessage] = {}

    def build(self) -> list[HarmonyMessage]:
        """Return the messages, with each result directly after its call.

        A call without a result was interrupted before it could run, so it is left out.
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
            self._add_instructions(text)
        elif item.role == "assistant":
            channel = "commentary" if item.phase == "commentary" else "final"
            self._messages.append(HarmonyMessage(author=ASSISTANT, text=text, channel=channel))
        else:
            self._messages.append(HarmonyMessage(author="user", text=text))

    def _add_instructions(self, text: str) -> None:
        if self._messages:
            text = f"{_INSTRUCTIONS_HEADING}{text}"
            self._messages.append(HarmonyMessage(author="developer", text=text))
        else:
            self.instructions.append(text)

    def reasoning(self, text: str) -> None:
        self._messages.append(HarmonyMessage(author=ASSISTANT, text=text, channel="analysis"))

    def call(self, call_id: str, name: str, arguments: object) -> None:
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
        """Return the name of a tool as it stands in a message's header. White space in the name is
        replaced with underscores, because it would end the name."""
        return self._native_tools.get(name) or FUNCTIONS + "_".join(name.split())


def _channel(recipient: str) -> str:
    return "commentary" if recipient.startswith(FUNCTIONS) else "analysis"


def _dump(arguments: object) -> str:
    return json.dumps(arguments, ensure_ascii=False)
