"""Harmony's messages become token ids, by the library that defines how; kept tokens are extended.

What users wrote stays text, whatever it spells. What the model sampled is taken as it stands where
it means what is to be written: models put words of a header elsewhere than the library does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from antiphon.conversation import PromptTokens
from antiphon.dialects.json_stream import load
from antiphon.text import replace_lone_surrogates
from antiphon.tokens import Tokenizer

from .header import CHANNEL, CONSTRAIN, read_header
from .messages import ASSISTANT, FUNCTIONS, Said, Talk
from .parser import CONTROL_TOKENS, TokenCodes

if TYPE_CHECKING:
    from openai_harmony import HarmonyEncoding, Message

__all__ = ["Encoder"]

_ENDS = ("end", "return", "call")
_JSON = CONTROL_TOKENS["constrain"] + "json"


class Encoder:
    """Messages to ids, for a model whose tokenizer has gpt-oss's vocabulary."""

    def __init__(
        self, encoding: HarmonyEncoding, tokenizer: Tokenizer, codes: TokenCodes, fingerprint: str
    ) -> None:
        self._encoding = encoding
        self._piece = tokenizer.piece
        self._codes = codes
        self._fingerprint = fingerprint
        #: Control token → id.
        self.ids = {name: id for id, name in codes.controls.items()}
        #: What the model's turn begins with.
        self.turn = (self.ids["start"], *self.words(ASSISTANT))

    def words(self, text: str) -> tuple[int, ...]:
        """Ids of a text, whatever it spells."""
        return tuple(self._encoding.encode(text, disallowed_special=()))

    def encode(
        self, head: Sequence[Message], talk: Talk, kept: PromptTokens | None, *, has_functions: bool
    ) -> tuple[int, ...]:
        """Ids of ``head`` and what was said behind it, up to where the model goes on."""
        first = [self._rendered(message, has_functions) for message in head]
        found = list(self._kept(first, talk, kept))
        ids = [id for message in found for id in message]
        for message in first[len(found) :]:
            ids += message
        for said in talk.said[max(0, len(found) - len(first)) :]:
            ids += self._rendered(_message(said), has_functions)
        if not talk.is_open:
            return (*ids, *self.turn)
        return tuple(ids[:-1] if ids[-1] in self._codes.controls else ids)

    def _rendered(self, message: Message, has_functions: bool) -> list[int]:
        from openai_harmony import RenderOptions

        options = RenderOptions(conversation_has_function_tools=has_functions)
        return list(self._encoding.render(message, options))

    # --- kept tokens ------------------------------------------------------------------------------

    def _kept(
        self, first: Sequence[list[int]], talk: Talk, kept: PromptTokens | None
    ) -> Iterator[Sequence[int]]:
        """Those messages from the beginning of ``kept`` that are to be written again, each ended
        as those of the past are."""
        if kept is None or kept.fingerprint != self._fingerprint:
            return
        messages = self._split(kept.ids)
        for rendered in first:
            if list(next(messages, ())) != rendered:
                return
            yield rendered
        for said in talk.said:
            message = next(messages, ())
            if not self._means(message, said):
                return
            yield self._ended(message, said)

    def _split(self, ids: Sequence[int]) -> Iterator[Sequence[int]]:
        start = self.ids["start"]
        begins = [at for at, id in enumerate(ids) if id == start]
        for begin, end in zip(begins, [*begins[1:], len(ids)], strict=True):
            yield ids[begin:end]

    def _ended(self, message: Sequence[int], said: Said) -> Sequence[int]:
        """A turn that is over ends as a message does; what was cut has no end yet."""
        last = self._codes.controls.get(message[-1])
        if last == "call":
            return message
        body = message[:-1] if last in _ENDS else message
        is_call = said.author == ASSISTANT and said.recipient is not None
        return (*body, self.ids["call" if is_call else "end"])

    def _means(self, message: Sequence[int], said: Said) -> bool:
        """Whether these ids are a way to write that message."""
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
        return self._says(content, said) and self._addresses(header, said)

    def _says(self, content: Sequence[int], said: Said) -> bool:
        text = b"".join(map(self._piece, content))
        if text == replace_lone_surrogates(said.text).encode():
            return True
        if said.author != ASSISTANT or said.recipient is None:
            return False
        try:
            return bool(load(text.decode()) == load(said.text))
        except ValueError:
            return False

    def _addresses(self, header: Sequence[int], said: Said) -> bool:
        marks = {self.ids["channel"]: CHANNEL, self.ids["constrain"]: CONSTRAIN}
        pieces = (marks.get(id) or self._piece(id).decode("utf-8", "replace") for id in header)
        text = "".join(pieces)
        if said.author != ASSISTANT:
            to = f" to={said.recipient}{CHANNEL}{said.channel}" if said.recipient else ""
            return text == said.author + to
        found = read_header(text)
        if not found.is_own or (found.recipient is None) != (said.recipient is None):
            return False
        if found.recipient is not None and said.recipient is not None:
            name = found.recipient.removeprefix(FUNCTIONS)
            shown = said.recipient.removeprefix(FUNCTIONS)
            return shown in (name, name.replace(".", "__"))
        return (found.channel or "final") == said.channel


def _message(said: Said) -> Message:
    """A message for the library."""
    from openai_harmony import Author, Message, Role

    if said.author in (ASSISTANT, "user"):
        author = Author(role=Role(said.author))
    else:
        author = Author.new(Role.TOOL, said.author)
    message = Message.from_author_and_content(author, replace_lone_surrogates(said.text))
    if said.channel is not None:
        message.with_channel(said.channel)
    if said.recipient is not None:
        message.with_recipient(said.recipient)
        if said.author == ASSISTANT:
            message.with_content_type(_JSON if said.recipient.startswith(FUNCTIONS) else "code")
    return message
