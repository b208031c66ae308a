"""Encode harmony messages as token ids with OpenAI's library, and reuse the token ids of earlier
turns.

If a user's text spells a control token, it stays plain text. Token ids that the model sampled are
reused if they have the same meaning as the message to encode. The sampled ids may differ from the
library's ids, because the model may order the words of a header differently.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from antiphon.dialects.json_stream import load
from antiphon.inference.conversation import PromptTokens
from antiphon.inference.tokens import Tokenizer
from antiphon.support.encoding_work import count_ids, windows
from antiphon.support.text import replace_lone_surrogates

from .header import CHANNEL, CONSTRAIN, read_header
from .messages import ASSISTANT, FUNCTIONS, HarmonyConversation, HarmonyMessage
from .parser import CONTROL_TOKENS, TokenCodes

if TYPE_CHECKING:
    from openai_harmony import HarmonyEncoding, Message

#: The library holds the interpreter's lock while it encodes, and its work grows with the square of
#: the length of a word. So it gets windows of this size.
_WINDOW_CHARS = 1000
_ENDS = ("end", "return", "call")
_JSON = CONTROL_TOKENS["constrain"] + "json"


class HarmonyPromptEncoder:
    """Encodes harmony messages for a model with gpt-oss's vocabulary. ``fingerprint``: the
    tokenizer's identifier in stored prompts. Stored token ids are reused only if they have the same
    identifier."""

    def __init__(
        self, encoding: HarmonyEncoding, tokenizer: Tokenizer, codes: TokenCodes, fingerprint: str
    ) -> None:
        self._encoding = encoding
        self._piece = tokenizer.piece
        self._codes = codes
        self._fingerprint = fingerprint
        #: Name of a control token → its id.
        self.ids = {name: id for id, name in codes.controls.items()}
        #: The ids with which a prompt starts the model's turn.
        self.turn = (self.ids["start"], *self.words(ASSISTANT))

    def words(self, text: str) -> tuple[int, ...]:
        """Return the token ids of a text. Characters that spell a control token are encoded as
        plain text."""
        ids: list[int] = []
        for part in windows(text, _WINDOW_CHARS, cuts=True):
            made = self._encoding.encode(part, disallowed_special=())
            count_ids(len(made))
            ids += made
        return tuple(ids)

    def encode(
        self,
        head: Sequence[Message],
        history: HarmonyConversation,
        stored: PromptTokens | None,
        *,
        has_functions: bool,
    ) -> tuple[int, ...]:
        """Return the token ids of the prompt: the messages ``head``, the messages of the
        conversation, and the start of the message that the model must write.

        ``stored``: the ids of an earlier prompt and its reply. They are reused up to the first
        message that differs from the new prompt. ``has_functions``: whether the prompt declares
        functions.
        """
        first = [self._render(message, has_functions) for message in head]
        found = list(self._reusable_messages(first, history, stored))
        ids = [id for message in found for id in message]
        for message in first[len(found) :]:
            ids += message
        for expected in history.messages[max(0, len(found) - len(first)) :]:
            ids += self._render_message(expected, has_functions)
        if not history.is_open:
            return (*ids, *self.turn)
        return tuple(ids[:-1] if ids[-1] in self._codes.controls else ids)

    def _render(self, message: Message, has_functions: bool) -> list[int]:
        from openai_harmony import RenderOptions

        options = RenderOptions(conversation_has_function_tools=has_functions)
        return list(self._encoding.render(message, options))

    def _render_message(self, expected: HarmonyMessage, has_functions: bool) -> list[int]:
        if len(expected.text) <= 2 * _WINDOW_CHARS:
            return self._render(_message(expected), has_functions)
        *start, end = self._render(_message(replace(expected, text="")), has_functions)
        return [*start, *self.words(replace_lone_surrogates(expected.text)), end]

    # --- stored tokens ----------------------------------------------------------------------------

    def _reusable_messages(
        self, first: Sequence[list[int]], history: HarmonyConversation, stored: PromptTokens | None
    ) -> Iterator[Sequence[int]]:
        """Compare the messages in ``stored`` with the messages of the new prompt, from the first
        message on. Yield the stored token ids of each message that has the same meaning in both.
        Stop at the first message that has different meanings.

        ``first``: the ids of the system and developer messages of the new prompt. ``history``: the
        messages that follow them. Each yielded message has the end token that it must have in a
        prompt.
        """
        if stored is None or stored.fingerprint != self._fingerprint:
            return
        messages = self._split(stored.ids)
        for rendered in first:
            if list(next(messages, ())) != rendered:
                return
            yield rendered
        for expected in history.messages:
            message = next(messages, ())
            if not self._is_message(message, expected):
                return
            yield self._with_end_token(message, expected)

    def _split(self, ids: Sequence[int]) -> Iterator[Sequence[int]]:
        """Yield the ids of each message in ``ids``. Each message starts with ``<|start|>``."""
        start = self.ids["start"]
        begins = [at for at, id in enumerate(ids) if id == start]
        for begin, end in zip(begins, [*begins[1:], len(ids)], strict=True):
            yield ids[begin:end]

    def _with_end_token(self, message: Sequence[int], expected: HarmonyMessage) -> Sequence[int]:
        """Return the token ids of ``message`` with the end token that the message must have in a
        prompt. A message that was cut off has no end token and gets one here."""
        last = self._codes.controls.get(message[-1])
        if last == "call":
            return message
        body = message[:-1] if last in _ENDS else message
        is_call = expected.author == ASSISTANT and expected.recipient is not None
        return (*body, self.ids["call" if is_call else "end"])

    def _is_message(self, message: Sequence[int], expected: HarmonyMessage) -> bool:
        """Return whether the token ids ``message`` encode the message ``expected``. The order of
        the words in the header may differ, and so may the spelling of arguments that are equal as
        JSON."""
        controls, marks = self._codes.controls, self._codes.marks
        names = [controls.get(id) for id in message]
        if "message" not in names:
            return False
        at = names.index("message")
        end = len(message) - (names[-1] in _ENDS)
        header, content = message[1:at], message[at + 1 : end]
        if any(id in marks for id in content):
            return False
        if any(id in marks and controls.get(id) not in ("channel", "constrain") for id in header):
            return False
        return self._has_text(content, expected) and self._has_header(header, expected)

    def _has_text(self, content: Sequence[int], expected: HarmonyMessage) -> bool:
        """Return whether the token ids ``content`` spell the text of ``expected``. For a call, it
        is enough that both texts are equal as JSON."""
        text = b"".join(map(self._piece, content))
        if text == replace_lone_surrogates(expected.text).encode():
            return True
        if expected.author != ASSISTANT or expected.recipient is None:
            return False
        try:
            return bool(load(text.decode()) == load(expected.text))
        except ValueError:
            return False

    def _has_header(self, header: Sequence[int], expected: HarmonyMessage) -> bool:
        """Return whether the header with the token ids ``header`` has the same author, channel and
        recipient as ``expected``."""
        marks = {self.ids["channel"]: CHANNEL, self.ids["constrain"]: CONSTRAIN}
        pieces = (marks.get(id) or self._piece(id).decode("utf-8", "replace") for id in header)
        text = "".join(pieces)
        if expected.author != ASSISTANT:
            to = (
                f" to={expected.recipient}{CHANNEL}{expected.channel}" if expected.recipient else ""
            )
            return text == expected.author + to
        found = read_header(text)
        if not found.is_own or (found.recipient is None) != (expected.recipient is None):
            return False
        if found.recipient is not None and expected.recipient is not None:
            name = found.recipient.removeprefix(FUNCTIONS)
            prompt_tools = expected.recipient.removeprefix(FUNCTIONS)
            return prompt_tools in (name, name.replace(".", "__"))
        return (found.channel or "final") == expected.channel


def _message(expected: HarmonyMessage) -> Message:
    """Convert a message to the message type of OpenAI's library."""
    from openai_harmony import Author, Message, Role

    if expected.author in (ASSISTANT, "user", "developer"):
        author = Author(role=Role(expected.author))
    else:
        author = Author.new(Role.TOOL, expected.author)
    message = Message.from_author_and_content(author, replace_lone_surrogates(expected.text))
    if expected.channel is not None:
        message.with_channel(expected.channel)
    if expected.recipient is not None:
        message.with_recipient(expected.recipient)
        if expected.author == ASSISTANT:
            message.with_content_type(_JSON if expected.recipient.startswith(FUNCTIONS) else "code")
    return message
