"""Finds where the instructions and tools of a prompt end (``Prompt.head``), and where the last user
message begins (``Prompt.past``)."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable

from msgspec.structs import replace

from antiphon.dialects.base import Dialect, Rendered
from antiphon.inference.conversation import Conversation, Options
from antiphon.inference.tokens import common_prefix_length
from antiphon.wire.items import Message
from antiphon.wire.parts import InputText

#: A user message that shares no text with others.
_OTHER_MESSAGE = Message(id="", role="user", content=(InputText(text="."),))
_MAX_KEPT = 16
#: Number of ids before the text of a user message, by which such messages are found.
_OPENING = 3


class PromptHeads:
    """Finds the heads of the prompts of one dialect. A head is the ids that do not depend on the
    first user message.

    To find it, the conversation is rendered with another first user message and without the items
    after it. This can take longer than rendering the next turn of a conversation, so the latest
    heads are kept. The heads are thread-safe, because several threads render prompts.
    """

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._lock = threading.Lock()
        #: What a head depends on → the head; latest last.
        self._kept: OrderedDict[Hashable, tuple[int, ...]] = OrderedDict()

    def add_head(
        self, rendered: Rendered, conversation: Conversation, options: Options
    ) -> Rendered:
        """Add ``Prompt.head`` and ``Prompt.past`` to the rendered conversation."""
        items, ids = conversation.items, rendered.prompt.ids
        first = next((n for n, item in enumerate(items) if item.role == "user"), None)
        if first is None:
            return rendered
        lead, key = items[:first], None
        if all(item.is_message for item in lead):  # the parts of messages have hashes
            texts = tuple((item.role, item.message_parts) for item in lead)
            key = (conversation.instructions, texts, options.shared)
        with self._lock:
            head = self._kept.get(key)
        # A kept head may be out of date, because many templates state the date.
        if head is None or ids[: len(head)] != head:
            other = Conversation((*lead, _OTHER_MESSAGE), conversation.instructions)
            other_ids = self._dialect.render(other, _with_optional_calls(options)).prompt.ids
            head = ids[: common_prefix_length(ids, other_ids)]
            if key is not None:
                self._keep(key, head)
        prompt = replace(rendered.prompt, head=len(head), past=_past(ids, len(head)))
        return replace(rendered, prompt=prompt)

    def _keep(self, key: Hashable, head: tuple[int, ...]) -> None:
        with self._lock:
            self._kept[key] = head
            self._kept.move_to_end(key)
            if len(self._kept) > _MAX_KEPT:
                self._kept.popitem(last=False)


def _past(ids: tuple[int, ...], head: int) -> int:
    """Return where the text of the last user message begins. It has the same ids before it as the
    first one, which begins at ``head``."""
    opening = ids[max(0, head - _OPENING) : head]
    for end in range(len(ids), head if opening else len(ids), -1):
        if ids[end - 1] == opening[-1] and ids[end - len(opening) : end] == opening:
            return end
    return head


def _with_optional_calls(options: Options) -> Options:
    """Return the options without a required call: the tool may be declared by an item after the
    first user message. The prompt is the same."""
    if not options.tool_choice.must_call:
        return options
    return replace(options, tool_choice=replace(options.tool_choice, mode="auto"))
