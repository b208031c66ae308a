"""Builds deltas from parsed text and calls. Items are opened one at a time, and only when they have
content.

White space is kept where it is text. It is dropped where it only separates text from tags and
special tokens: at the start and end of reasoning, and before a call. White space before an answer
is kept at the start of a reply. Elsewhere, the part of this white space up to and including its
last line end is dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from msgspec import UNSET

from antiphon.stream.deltas import Close, Delta, Open, SampledTokens, Text
from antiphon.wire.items import CustomToolCall, FunctionCall, Item, Logprob, Message, Reasoning

from .tool_call import ToolShape

_Kind = Literal["message", "reasoning", "call"]
_Logprobs = Sequence[Logprob]
#: The state of a builder: kind of the open item, whether nothing has been added yet, white space
#: that is held back and its kind, ids of calls.
_State = tuple[_Kind | None, bool, list[tuple[str, _Logprobs]], _Kind, set[str]]
_CLOSE, _INCOMPLETE = Close(), Close(status="incomplete")


class ParserDeltaBuilder:
    """Turns the parts of a reply into deltas. A parser adds the parts in order, and ``take_deltas``
    returns the deltas.

    ``has_markup``: whether tags or special tokens may follow a text. White space at the end of a
    text is then held back until the next part is known.
    """

    def __init__(self, *, has_markup: bool = True) -> None:
        self._has_markup = has_markup
        #: The deltas to return, and the list to which deltas are added. They differ in a draft.
        self._ready: list[Delta] = []
        self._deltas: list[Delta] = self._ready
        self._before_draft: _State | None = None
        self._open_kind: _Kind | None = None
        self._is_first = True
        self._pending: list[tuple[str, _Logprobs]] = []
        self._pending_kind: _Kind = "message"
        self._call_ids: set[str] = set()

    def take_deltas(self) -> list[Delta]:
        """Return the deltas since the last call of this method, with consecutive texts merged."""
        out, self._ready = self._ready, []
        if self._before_draft is None:
            self._deltas = self._ready
        if len(out) == 1 or (len(out) == 2 and not isinstance(out[0], Text)):
            return out  # the deltas of one token, which is the common case
        return list(_merge_texts(out))

    def add_sampled_tokens(self, ids: tuple[int, ...]) -> None:
        """Add token ids that the model sampled, as the delta ``SampledTokens``. The deltas that are
        added next are made from these tokens."""
        self._ready.append(SampledTokens(ids))

    # --- drafts -----------------------------------------------------------------------------------

    def begin_draft(self) -> None:
        """Hold back the deltas that are added from now on, until it is known what they are."""
        self._before_draft = (
            self._open_kind,
            self._is_first,
            list(self._pending),
            self._pending_kind,
            set(self._call_ids),
        )
        self._deltas = []

    @property
    def draft_length(self) -> int:
        """The number of deltas that are held back."""
        return len(self._deltas) if self._before_draft is not None else 0

    def keep_draft(self, length: int | None = None) -> None:
        """Add the deltas that were held back, or only the first ``length`` of them."""
        if length is not None and length < len(self._deltas):
            self._pending, self._open_kind = [], None
        self._before_draft, drafted = None, self._deltas[:length]
        self._deltas = self._ready
        self._deltas += drafted

    def drop_draft(self) -> None:
        """Drop the deltas that were held back."""
        assert self._before_draft is not None
        self._open_kind, self._is_first, self._pending, self._pending_kind, self._call_ids = (
            self._before_draft
        )
        self._before_draft, self._deltas = None, self._ready

    # --- text -------------------------------------------------------------------------------------

    def add_text(self, text: str, logprobs: _Logprobs = ()) -> None:
        """Add text to the answer."""
        self._write("message", text, logprobs)

    def add_reasoning(self, text: str) -> None:
        """Add text to the reasoning."""
        self._write("reasoning", text, ())

    def _write(self, kind: _Kind, text: str, logprobs: _Logprobs) -> None:
        if kind != self._pending_kind:
            self._pending, self._pending_kind = [], kind
        trimmed = text.rstrip() if self._has_markup else text
        if not trimmed:
            if text or logprobs:
                self._pending.append((text, logprobs))
            return
        if self._open_kind != kind:
            text, trimmed, logprobs = self._open_for_text(kind, text, trimmed, logprobs)
        if self._pending:
            self._pending.append((trimmed, logprobs))
            self._deltas.append(_join_texts(self._pending))
            self._pending = []
        else:
            self._deltas.append(Text(trimmed, tuple(logprobs)))
        if len(text) > len(trimmed):
            self._pending.append((text[len(trimmed) :], ()))

    def _open_for_text(
        self, kind: _Kind, text: str, trimmed: str, logprobs: _Logprobs
    ) -> tuple[str, str, _Logprobs]:
        """Open an item for ``text``. The kind of text decides how much of the white space at its
        start is dropped:

        - Reasoning: all of this white space is dropped.
        - An answer at the start of the reply: nothing is dropped.
        - Any other answer: the part up to and including the last line end in this white space is
          dropped.

        ``trimmed``: ``text`` without white space at its end. Returns ``text``, ``trimmed`` and
        ``logprobs`` without the dropped white space.
        """
        if kind == "reasoning":
            self._pending = []
            text, trimmed = text.lstrip(), trimmed.lstrip()
        elif not self._is_first:
            lead = len(trimmed) - len(trimmed.lstrip())
            cut = trimmed.rfind("\n", 0, lead) + 1
            if cut:
                self._pending = []
                text, trimmed = text[cut:], trimmed[cut:]
            else:
                self._pending = _after_last_line_end(self._pending)
        self._emit_open(
            kind,
            Message(role="assistant", content=()) if kind == "message" else Reasoning(),
        )
        return text, trimmed, logprobs

    def open_item(self, item: Message | Reasoning) -> None:
        """Open an item whose text is added with ``write``. White space in this text is not
        dropped."""
        self._emit_open("message" if item.is_message else "reasoning", item)

    def write(self, text: str, logprobs: _Logprobs = ()) -> None:
        """Add text to the item that ``open_item`` opened. The text is not changed."""
        self._deltas.append(Text(text, tuple(logprobs)))

    def mark_reasoning_tag(self) -> None:
        """Record that the model has written a tag or special token at this point of the reply. If
        an answer follows, the white space between the tag and the answer is dropped, up to and
        including the last line end in it."""
        self._is_first = False

    # --- calls ------------------------------------------------------------------------------------

    def open_call(self, shape: ToolShape, call_id: str) -> None:
        """Open the item of a call. If ``call_id`` is empty, or if an earlier call of the reply has
        the same ``call_id``, the item gets an empty ``call_id``. The run then assigns a new one."""
        self._pending = []
        call_id = "" if call_id in self._call_ids else call_id
        self._call_ids.add(call_id)
        name, namespace = shape.wire_name, UNSET if shape.namespace is None else shape.namespace
        self._emit_open(
            "call",
            CustomToolCall(call_id=call_id, name=name, input="", namespace=namespace)
            if shape.custom
            else FunctionCall(call_id=call_id, name=name, arguments="", namespace=namespace),
        )

    def add_arguments(self, text: str) -> None:
        """Add text to the arguments of the open call, or to the input of a custom tool."""
        self._deltas.append(Text(text))

    def close_call(self, *, is_complete: bool = True) -> None:
        """Close the item of the call. ``is_complete``: whether the arguments of the call are JSON.
        If they are not, the status of the item is ``incomplete``."""
        self.close_item(_CLOSE if is_complete else _INCOMPLETE)

    # --- items ------------------------------------------------------------------------------------

    def _emit_open(self, kind: _Kind, item: Item) -> None:
        self.close_item()
        self._deltas.append(Open(item))
        self._open_kind, self._is_first = kind, False

    def close_item(self, close: Close = _CLOSE) -> None:
        """Close the open item, if there is one. ``close``: the delta that closes it."""
        if self._open_kind is not None:
            self._deltas.append(close)
            self._open_kind = None

    def finish(self, *, is_cut: bool) -> None:
        """End the reply. White space at the end of an answer, which was held back, is emitted now.
        A reply of only white space becomes a message.

        If the reply was cut off (``is_cut``), the open item stays open.
        """
        if self._pending_kind == "message" and self._pending and self._is_first:
            self._emit_open("message", Message(role="assistant", content=()))
        if self._pending and self._open_kind == self._pending_kind == "message":
            self._deltas.append(_join_texts(self._pending))
        self._pending = []
        if not is_cut:
            self.close_item()


def _after_last_line_end(texts: list[tuple[str, _Logprobs]]) -> list[tuple[str, _Logprobs]]:
    """Return the texts after the last line end in ``texts``, or all of ``texts`` if they contain no
    line end."""
    for n in range(len(texts) - 1, -1, -1):
        text, logprobs = texts[n]
        if "\n" in text:
            left = text.rpartition("\n")[2]
            return ([(left, logprobs)] if left else []) + texts[n + 1 :]
    return texts


def _merge_texts(deltas: Iterable[Delta]) -> Iterable[Delta]:
    texts: list[tuple[str, _Logprobs]] = []
    for delta in deltas:
        if isinstance(delta, Text):
            texts.append((delta.text, delta.logprobs))
            continue
        if texts:
            yield _join_texts(texts)
            texts = []
        yield delta
    if texts:
        yield _join_texts(texts)


def _join_texts(texts: list[tuple[str, _Logprobs]]) -> Text:
    return Text(
        "".join(text for text, _ in texts),
        tuple(logprob for _, logprobs in texts for logprob in logprobs),
    )
