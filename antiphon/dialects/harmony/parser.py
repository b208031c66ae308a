"""Reads what gpt-oss writes: a machine over harmony's seven control tokens.

The format's own library raises, or loses messages, on the slips that real models make; here a
header is read as far as it says anything, and text without one is an answer. It never raises, loses
no text, and gives the same deltas however the reply is cut into chunks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from itertools import repeat
from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from antiphon.dialects.detokenizer import Detokenizer, wire_logprob
from antiphon.dialects.json_stream import JsonSpan
from antiphon.dialects.parser.delta_builder import Sink
from antiphon.dialects.parser.tool_call import Call, ToolShape
from antiphon.stream.deltas import Delta, Reason
from antiphon.tokens import Chunk, Tokenizer, TokenLogprob
from antiphon.wire.items import Message, Phase, Reasoning

from .header import CHANNEL, CONSTRAIN, LIMIT, Header, bare_text, read_header

__all__ = ["CONTROLS", "Codes", "Control", "Kind", "Parser"]

#: What a message is: an answer, something said on the way to one, thinking, a call.
Kind = Literal["final", "commentary", "analysis", "call"]
Control = Literal["start", "channel", "constrain", "message", "end", "return", "call"]

#: The control tokens, as they are spelled.
CONTROLS: Mapping[Control, str] = {
    "start": "<|start|>",
    "channel": "<|channel|>",
    "constrain": "<|constrain|>",
    "message": "<|message|>",
    "end": "<|end|>",
    "return": "<|return|>",
    "call": "<|call|>",
}
#: What a turn ends with.
_LAST = ("final", "call")


class Codes(Struct, frozen=True):
    """What the ids of a tokenizer mean. ``marks``: special tokens are never text; ``known``: what
    the others have turned out to stand for."""

    controls: Mapping[int, Control]
    marks: Mapping[int, str]
    known: dict[int, str] = {}

    @staticmethod
    def of(tokenizer: Tokenizer) -> Codes:
        special = tokenizer.special
        controls = {special[text]: name for name, text in CONTROLS.items() if text in special}
        return Codes(controls, dict.fromkeys(special.values(), ""))


class _PlainCall:
    """A call whose input is what the model writes."""

    def __init__(self, sink: Sink, shape: ToolShape) -> None:
        self._sink = sink
        sink.call(shape, "")

    def arguments(self, text: str) -> None:
        self._sink.add_arguments(text)

    def end(self) -> None:
        self._sink.end_call()


class Parser:
    """``dialects.base.Parser`` for harmony.

    ``shapes``: the name the model was shown → what it is on the wire; without any, no calls are
    looked for. ``plain``: those of them whose input stands as it is. ``begun``: the prompt ends
    within a message of this kind, else behind the model's role. ``parallel``: there may be more
    than one call. ``held``: to a form, by which the first answer or call is the last; ``is_json``:
    of the answer. In a string of JSON that is held to, a control token stands as text.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        codes: Codes,
        *,
        shapes: Mapping[str, ToolShape],
        plain: Collection[str] = (),
        parallel: bool = True,
        begun: Kind | None = None,
        held: bool = False,
        is_json: bool = False,
    ) -> None:
        self._tokenizer = tokenizer
        self._codes = codes
        self._shapes = shapes
        self._plain = plain
        self._parallel = parallel
        self._held = held
        self._is_json = is_json
        self._json: JsonSpan | None = None
        self._sink = Sink()
        self._detokenizer = Detokenizer(tokenizer, codes.marks, codes.known)
        #: Of the message that is being read; None in a header.
        self._kind: Kind | None = begun
        self._is_open = False
        self._call: Call | _PlainCall | None = None
        self._text: list[str] = []
        self._logprobs: list[TokenLogprob] = []
        self._header = ""
        self._header_tokens = 0
        self._is_announced = False  # by <|start|>
        self._is_first = begun is None
        self._has_answered = False
        self.reasoning_tokens = 0
        self.done = False
        self._expect()

    # --- the contract -----------------------------------------------------------------------------

    def set_unconstrained(self) -> None:
        self._held, self._json = False, None

    @property
    def thinking(self) -> bool:
        return self._kind == "analysis"

    def feed(self, chunk: Chunk) -> Iterable[Delta]:
        if chunk.ids:
            self._sink.sampled(chunk.ids)
        controls, marks, decode = self._codes.controls, self._codes.marks, self._detokenizer.feed
        logprobs: Iterable[TokenLogprob | None] = chunk.logprobs or repeat(None)
        for token, logprob in zip(chunk.ids, logprobs, strict=False):
            if self.done:
                break
            control = controls.get(token)
            if control is not None and not self._is_text(control):
                self._meet(control)
                continue
            if logprob is not None and (control or token not in marks):
                self._logprobs.append(logprob)
            self._read(decode(token) + (CONTROLS[control] if control else ""), 1)
        if chunk.tail and not self.done:
            self._read(chunk.tail, 0)
        self._write()
        return self._sink.take()

    def finish(self, reason: Reason) -> Iterable[Delta]:
        is_cut = reason != "stop"
        if not self.done:
            # The beginning of a character is no text yet: of a reply that was cut, it never was.
            self._end_message(is_cut=is_cut)
        return self._sink.take()

    # --- the machine ------------------------------------------------------------------------------

    def _is_text(self, control: Control) -> bool:
        """It stands in a string of JSON, as the text that it is to the grammar."""
        in_string = self._json is not None and self._json.in_string
        return in_string and control not in ("return", "call")

    def _meet(self, control: Control) -> None:
        if control in ("end", "return", "call"):
            self._count(1)
            self._end_message()
        elif control == "start":
            self._end_message()
            self._is_announced = True
        elif control == "channel":
            if self._kind is not None:  # a message nobody ended
                self._end_message()
            self._head(CHANNEL)
        elif self._kind is None:
            if control == "constrain":
                self._head(CONSTRAIN)
            else:
                self._logprobs.clear()
                self._header_tokens += 1
                self._begin(read_header(self._decoded()))

    def _read(self, text: str, tokens: int) -> None:
        if self._kind is None:
            self._head(text, tokens)
        else:
            self._count(tokens)
            self._take(text)

    def _take(self, text: str) -> None:
        """Some of a message's content."""
        if text and not self.done:
            self._text.append(text)
            if self._json is not None:
                self._json.read(text)

    def _count(self, tokens: int) -> None:
        if self._kind == "analysis":
            self.reasoning_tokens += tokens

    # --- headers ----------------------------------------------------------------------------------

    def _head(self, text: str, tokens: int = 1) -> None:
        """More of a header, unless it turns out to be none."""
        self._header_tokens += tokens
        if text in (CHANNEL, CONSTRAIN):
            self._header += self._detokenizer.finish()
        self._header += text
        if self._is_bare:
            at = bare_text(self._header)
            if at is not None:
                self._begin_bare(at)
        elif len(self._header) > LIMIT:
            self._begin_unannounced()

    @property
    def _is_bare(self) -> bool:
        """No control token says yet that this is a header."""
        header = self._header
        return not self._is_announced and CHANNEL not in header and CONSTRAIN not in header

    def _decoded(self) -> str:
        self._header += self._detokenizer.finish()
        return self._header

    def _begin_bare(self, at: int) -> None:
        """Text stands where a header should: it is an answer, or the arguments of a call that the
        words before it name."""
        text, header = self._header, read_header(self._header[:at])
        if at and self._called(header.recipient, sure=False) is None:
            at, header = 0, Header()
        self._begin(header)
        self._take(text[at:])

    def _begin_unannounced(self) -> None:
        """What the header says besides is the beginning of a message."""
        header = read_header(self._decoded(), ended=False)
        self._begin(header)
        self._take(header.rest)

    def _begin(self, header: Header) -> None:
        """What follows is the content of a message with this header."""
        tokens = self._header_tokens
        self._header, self._header_tokens, self._is_first = "", 0, False
        if not header.is_own and self._has_answered:
            self.done = True  # it goes on to speak for others: its turn is over
            return
        name = self._called(header.recipient)
        if name is not None:
            self._kind = "call"
            self._call = self._opened(name)
            self._has_answered = True
        elif header.channel == "analysis":
            self._kind = "analysis"
        else:
            self._kind = "commentary" if header.channel == "commentary" else "final"
        self._expect()
        self._count(tokens)

    def _expect(self) -> None:
        """Follow the JSON of what is held to be some."""
        is_json = isinstance(self._call, Call) if self._kind == "call" else self._is_json
        self._json = JsonSpan() if self._held and is_json and self._kind in _LAST else None

    def _opened(self, name: str) -> Call | _PlainCall:
        if name in self._plain:
            return _PlainCall(self._sink, self._shapes[name])
        call = Call(self._sink, self._shapes, is_bare=False)
        call.name = name
        call.begin()
        return call

    def _called(self, recipient: str | None, *, sure: bool = True) -> str | None:
        """The tool, by the name it was shown by, that a recipient stands for. One that is unknown
        is called by its own name, for the client to say so, if it is ``sure`` that this is a
        header; without tools nothing is called."""
        if recipient is None or not self._shapes:
            return None
        name = recipient.removeprefix("functions.")
        known = (n for n in (name, name.replace(".", "__")) if n in self._shapes)
        return next(known, name if sure or name != recipient else None)

    # --- content ----------------------------------------------------------------------------------

    def _write(self) -> None:
        """Say what has been read of the message."""
        text = "".join(self._text)
        if not text:
            return
        self._text.clear()
        logprobs, self._logprobs = self._logprobs, []
        if self._call is not None:
            self._call.arguments(text)
            return
        if not self._is_open:
            self._open()
        if self._kind == "analysis":
            logprobs = []
        self._sink.write(text, [wire_logprob(self._tokenizer, found) for found in logprobs])

    def _open(self) -> None:
        self._is_open = True
        if self._kind == "analysis":
            self._sink.open(Reasoning())
            return
        phase: Phase | UnsetType = "commentary" if self._kind == "commentary" else UNSET
        self._sink.open(Message(role="assistant", content=(), phase=phase))
        self._has_answered = True

    def _end_message(self, *, is_cut: bool = False) -> None:
        """The message is over, or the header that none came to. What is cut stays open."""
        if self._kind is None:
            self._rescue(is_cut=is_cut)
        elif not is_cut:
            self._text.append(self._detokenizer.finish())
        self._write()
        if is_cut or self.done:
            return
        if self._call is not None:
            self._call.end()
            self.done = not self._parallel
        else:
            self._sink.close()
        self.done |= self._held and self._kind in _LAST
        self._kind = self._call = self._json = None
        self._is_open = self._is_announced = False
        self._header, self._header_tokens = "", 0
        self._logprobs.clear()

    def _rescue(self, *, is_cut: bool) -> None:
        """No message came to this header: what it says besides is one."""
        text = self._header if is_cut else self._decoded()
        if self._is_bare and self._is_first and not is_cut and "to=" not in text:
            header = Header(rest=text)  # an answer of one word, which happens to be one of ours
        else:
            header = read_header(text, ended=False)
        if header.rest.strip():
            self._begin(header)
            self._take(header.rest)
