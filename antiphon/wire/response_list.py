"""Two views of a response besides the response object: its entry in the list of
``GET /responses``, and its tokens as text.

OpenAI's dashboard has such a list, but OpenAI's public API has none. A list entry is only a
summary; a client retrieves the whole response by its id.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from msgspec import UNSET, Struct

from .items import Item, Message
from .object_ids import STORED_CHAT_ID
from .parts import InputText, OutputText, PlainText
from .response import ConversationRef, Response, ResponseError, ResponseStatus, Usage

__all__ = ["STORED_CHAT", "ResponseSummary", "Transcript", "summarize"]

#: The label of stored chat completions.
STORED_CHAT = "chat.completion"

#: Characters of a preview.
_PREVIEW = 300
_TEXT_PARTS = (InputText, OutputText, PlainText)


class ResponseSummary(Struct, frozen=True, kw_only=True):
    """A response as an entry of a list.

    ``tools``: the kinds of calls in its output, such as ``web_search``, ``function`` and ``mcp``.
    ``input_preview`` is the beginning of the last input message. ``output_preview`` is the
    beginning of the output text.
    """

    id: str
    object: Literal["response.summary"] = "response.summary"
    created_at: int
    completed_at: int | None = None
    status: ResponseStatus
    model: str
    background: bool = False
    previous_response_id: str | None = None
    conversation: ConversationRef | None = None
    error: ResponseError | None = None
    usage: Usage | None = None
    tools: tuple[str, ...] = ()
    input_preview: str = ""
    output_preview: str = ""
    metadata: dict[str, str] = {}

    @property
    def labels(self) -> tuple[str, ...]:
        """What the filter ``tool`` of a list finds: the kinds of calls, and ``STORED_CHAT`` for a
        stored chat completion."""
        is_chat = self.id.startswith(f"{STORED_CHAT_ID}_")
        return (*self.tools, STORED_CHAT) if is_chat else self.tools

    @property
    def search_text(self) -> str:
        """The text in which a search looks for words: both previews, in lower case."""
        return f"{self.input_preview}\n{self.output_preview}".casefold()


class Transcript(Struct, frozen=True, kw_only=True):
    """A response and the conversation before it, as the text of their tokens. The text contains
    everything that the model read and wrote, including the control tokens of the model's format."""

    id: str
    object: Literal["antiphon.transcript"] = "antiphon.transcript"
    model: str
    token_count: int
    text: str


def summarize(response: Response, input: tuple[Item, ...]) -> ResponseSummary:
    """Return the list entry of a response. ``input``: the input items of this response, without
    earlier responses."""
    conversation = response.conversation
    return ResponseSummary(
        id=response.id,
        created_at=response.created_at,
        completed_at=response.completed_at,
        status=response.status,
        model=response.model,
        background=response.background,
        previous_response_id=response.previous_response_id,
        conversation=None if conversation is UNSET else conversation,
        error=response.error,
        usage=response.usage,
        tools=_called_tools(response.output),
        input_preview=_preview(_last_message(input)),
        output_preview=_preview(response.output),
        metadata=response.metadata,
    )


def _last_message(input: tuple[Item, ...]) -> tuple[Message, ...]:
    """Return the last input message that is not from the model, as a tuple of one.

    If all messages are from the model, return the last message. A client sends such input to let
    the model continue its own message. If there are no messages, return an empty tuple.
    """
    last: tuple[Message, ...] = ()
    for item in reversed(input):
        if isinstance(item, Message):
            if item.role != "assistant":
                return (item,)
            last = last or (item,)
    return last


def _called_tools(output: tuple[Item, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(tool for item in output if (tool := item.tool_type) is not None))


def _preview(items: Iterable[Item]) -> str:
    """Return the beginning of the messages' text, in one line. U+0000 is left out, because
    PostgreSQL cannot store it."""
    text = ""
    for item in items:
        for part in item.message_parts:
            if isinstance(part, _TEXT_PARTS):
                text += f" {part.text[: 2 * _PREVIEW]}"
            if len(text) > 2 * _PREVIEW:
                break
    return " ".join(text.replace("\0", "").split())[:_PREVIEW]
