"""Meanings become deltas: items opened when they have something to say, one at a time.

White space is kept where it is text and dropped where it only parts text from markup: at the ends
of thinking, before a call, and up to the last line end between markup and an answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from msgspec import UNSET

from antiphon.stream.deltas import Close, Delta, Open, SampledTokens, Text
from antiphon.wire.items import CustomToolCall, FunctionCall, Item, Logprob, Message, Reasoning

from .tool_call import ToolShape

__all__ = ["Sink"]

_Kind = Literal["message", "reasoning", "call"]
_Logprobs = Sequence[Logprob]


class Sink:
    """Takes what a reply says, in order; ``take`` gives the deltas. Without ``holds`` nothing but
    text can come, and white space at its end need not wait for what follows."""

    def __init__(self, *, holds: bool = True) -> None:
        self._holds = holds
        self._out: list[Delta] = []
        self._open: _Kind | None = None
        self._is_first = True
        self._held: list[tuple[str, _Logprobs]] = []
        self._held_kind: _Kind = "message"
        self._call_ids: set[str] = set()

    def take(self) -> list[Delta]:
        """The deltas since the last call; neighbouring texts are one."""
        out, self._out = self._out, []
        if len(out) == 1 or (len(out) == 2 and not isinstance(out[0], Text)):
            return out  # one token's worth, as nearly always
        return list(_merged(out))

    def sampled(self, ids: tuple[int, ...]) -> None:
        """These tokens stand behind what follows."""
        self._out.append(SampledTokens(ids))

    # --- text -------------------------------------------------------------------------------------

    def say(self, text: str, logprobs: _Logprobs = ()) -> None:
        """Some of an answer."""
        self._write("message", text, logprobs)

    def think(self, text: str) -> None:
        """Some of the thinking."""
        self._write("reasoning", text, ())

    def _write(self, kind: _Kind, text: str, logprobs: _Logprobs) -> None:
        if kind != self._held_kind:
            self._held, self._held_kind = [], kind
        said = text.rstrip() if self._holds else text
        if not said:
            if text or logprobs:
                self._held.append((text, logprobs))
            return
        if self._open != kind:
            text, said, logprobs = self._begin(kind, text, said, logprobs)
        if self._held:
            self._held.append((said, logprobs))
            self._out.append(_joined(self._held))
            self._held = []
        else:
            self._out.append(Text(said, tuple(logprobs)))
        if len(text) > len(said):
            self._held.append((text[len(said) :], ()))

    def _begin(
        self, kind: _Kind, text: str, said: str, logprobs: _Logprobs
    ) -> tuple[str, str, _Logprobs]:
        """Open an item for text, without the white space that only parts it from markup."""
        if kind == "reasoning":
            self._held = []
            text, said = text.lstrip(), said.lstrip()
        elif not self._is_first:
            lead = len(said) - len(said.lstrip())
            cut = said.rfind("\n", 0, lead) + 1
            if cut:
                self._held = []
                text, said = text[cut:], said[cut:]
            else:
                self._held = _behind_last_line(self._held)
        self._opened(
            kind,
            Message(role="assistant", content=()) if kind == "message" else Reasoning(),
        )
        return text, said, logprobs

    def open(self, item: Message | Reasoning) -> None:
        """An item whose text is written as it stands, by ``write``."""
        self._opened("message" if isinstance(item, Message) else "reasoning", item)

    def write(self, text: str, logprobs: _Logprobs = ()) -> None:
        """Some of what was opened."""
        self._out.append(Text(text, tuple(logprobs)))

    def part(self) -> None:
        """Markup of thinking stands here."""
        self._is_first = False

    # --- calls ------------------------------------------------------------------------------------

    def call(self, shape: ToolShape, call_id: str) -> None:
        """A call begins. Without an id, or with one that another call has, the run gives it one."""
        self._held = []
        call_id = "" if call_id in self._call_ids else call_id
        self._call_ids.add(call_id)
        name, namespace = shape.wire_name, UNSET if shape.namespace is None else shape.namespace
        self._opened(
            "call",
            CustomToolCall(call_id=call_id, name=name, input="", namespace=namespace)
            if shape.custom
            else FunctionCall(call_id=call_id, name=name, arguments="", namespace=namespace),
        )

    def add_arguments(self, text: str) -> None:
        """More of its arguments or input."""
        self._out.append(Text(text))

    def end_call(self) -> None:
        """It is whole."""
        self.close()

    # --- items ------------------------------------------------------------------------------------

    def _opened(self, kind: _Kind, item: Item) -> None:
        self.close()
        self._out.append(Open(item))
        self._open, self._is_first = kind, False

    def close(self) -> None:
        """The open item is over, if there is one."""
        if self._open is not None:
            self._out.append(Close())
            self._open = None

    def finish(self, *, is_cut: bool) -> None:
        """Nothing follows: white space that was held back is text after all. A reply of nothing
        else is a message of white space. What was cut stays open."""
        if self._held_kind == "message" and self._held and self._is_first:
            self._opened("message", Message(role="assistant", content=()))
        if self._held and self._open == self._held_kind == "message":
            self._out.append(_joined(self._held))
        self._held = []
        if not is_cut:
            self.close()


def _behind_last_line(held: list[tuple[str, _Logprobs]]) -> list[tuple[str, _Logprobs]]:
    """What stands behind the last line end."""
    for n in range(len(held) - 1, -1, -1):
        text, logprobs = held[n]
        if "\n" in text:
            left = text.rpartition("\n")[2]
            return ([(left, logprobs)] if left else []) + held[n + 1 :]
    return held


def _merged(deltas: Iterable[Delta]) -> Iterable[Delta]:
    texts: list[tuple[str, _Logprobs]] = []
    for delta in deltas:
        if isinstance(delta, Text):
            texts.append((delta.text, delta.logprobs))
            continue
        if texts:
            yield _joined(texts)
            texts = []
        yield delta
    if texts:
        yield _joined(texts)


def _joined(texts: list[tuple[str, _Logprobs]]) -> Text:
    return Text(
        "".join(text for text, _ in texts),
        tuple(logprob for _, logprobs in texts for logprob in logprobs),
    )
