"""The scanner: reads one reply, whatever format it is written in, as deltas.

Text and special tokens go through the lexer, which finds the terminals of the present state; the
format's machine says what they mean; the text of a state goes to a reader of calls. It never
raises, loses no text, reads nothing twice, and gives the same deltas however the reply is cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import UNSET, Struct

from antiphon.stream.deltas import Close, Delta, Open, Reason, Sampled, Text
from antiphon.tokens import Chunk, Tokenizer, TokenLogprob
from antiphon.wire.items import (
    CustomToolCall,
    FunctionCall,
    Logprob,
    Message,
    Reasoning,
    TopLogprob,
)

from .calls import CallReader, reader_for
from .detokenize import Detokenizer
from .formats import ReasoningFormat, Step, ToolFormat
from .json_text import InputText
from .lexer import Lexer

__all__ = ["Parser", "ToolShape"]

_TEXT, _THINK = "text", "think"


class ToolShape(Struct, frozen=True, kw_only=True):
    """What a tool the model was shown is on the wire."""

    wire_name: str
    namespace: str | None = None
    custom: bool = False
    schema: Mapping[str, Any] | None = None


class Parser:
    """``dialects.base.Parser`` for any pair of formats.

    ``shapes``: the name the model was shown → what it is on the wire. ``thinking``: the prompt
    already opened the thinking. Without ``tools`` no call is looked for.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        reasoning: ReasoningFormat | None,
        tools: ToolFormat | None,
        shapes: Mapping[str, ToolShape],
        thinking: bool,
        parallel: bool = True,
    ) -> None:
        self._tokenizer = tokenizer
        self._reasoning = reasoning
        self._tools = tools
        self._shapes = shapes
        self._parallel = parallel
        self._detokenizer = Detokenizer()
        self._special = {token: literal for literal, token in tokenizer.special.items()}
        self._lexer = Lexer(reasoning, tools, tokenizer.special)
        self._state = _THINK if thinking and reasoning is not None else _TEXT
        self._out: list[Delta] = []
        self._open: str | None = None  # message, reasoning, call
        self._blank = ""  # white space that may turn out to stand before markup
        self._fresh = True  # nothing has been read yet: leading white space is the model's own
        self._said = False  # the message has text: a spelled-out opening tag is just text now
        self._raw: list[str] = []  # markup that has not become a call yet
        self._reader: CallReader | None = None
        self._was_text = False  # the last markup was text after all: then so is its end tag
        self._input: InputText | None = None
        self._logprobs: list[Logprob] = []
        self._texts: list[str] = []
        self._text_logprobs: list[Logprob] = []
        self.reasoning_tokens = 0
        self.done = False

    # --- the contract ----------------------------------------------------------------------------

    def feed(self, chunk: Chunk) -> Iterable[Delta]:
        if chunk.ids:
            self._out.append(Sampled(chunk.ids))
        logprobs = chunk.logprobs or (None,) * len(chunk.ids)
        for token, logprob in zip(chunk.ids, logprobs, strict=False):
            if self.done:
                break
            if self._state == _THINK:
                self.reasoning_tokens += 1
            if logprob is not None:
                self._logprobs.append(self._logprob(logprob))
            self._token(token)
        if chunk.tail:
            self._scan(chunk.tail)
        return self._take()

    def finish(self, reason: Reason) -> Iterable[Delta]:
        self._settle()
        if self._reader is not None:
            self._end_region(cut=reason == "length")
        if self._open == "message":
            self._write("")
        elif self._open is None and self._blank and self._fresh and not self.done:
            self._open = "message"
            self._out.append(Open(Message(role="assistant", content=())))
            self._write("")
        self._blank = ""
        if reason != "length":
            self._close()
        return self._take()

    # --- from tokens to text and terminals -------------------------------------------------------

    def _token(self, token: int) -> None:
        literal = self._special.get(token)
        if literal is None:
            self._scan(self._detokenizer.feed(self._tokenizer.piece(token)))
            return
        self._settle()
        if self._lexer.knows(self._state, literal):
            self._terminal(literal, spelled=False)
        else:
            self._logprobs.clear()  # an end token, or one of another use: never text

    def _settle(self) -> None:
        """What was held back, of a character or a terminal, is text."""
        self._scan(self._detokenizer.finish())
        held: str | None = self._lexer.flush()
        while held and not self.done:
            held = self._plain(held)

    def _scan(self, text: str) -> None:
        while text and not self.done:
            plain, terminal, rest = self._lexer.feed(self._state, text)
            back = self._plain(plain)
            if back is not None:  # what is left stands in another state now
                text = back + (terminal or "") + rest
                continue
            if terminal is None:
                return
            if self._reader is not None and self._reader.in_string:
                self._plain(terminal[0])
                text = terminal[1:] + rest
                continue
            if not self._terminal(terminal, spelled=True):
                self._plain(terminal)
            text = rest

    def _bare_next(self) -> str:
        """The character that would begin a call here without any terminal."""
        if self._tools is None or self._state != _TEXT or self._said or self._open == "message":
            return ""
        return self._tools.bare

    # --- the machine -----------------------------------------------------------------------------

    def _terminal(self, terminal: str, *, spelled: bool) -> bool:
        """False: it is no terminal here after all, but text."""
        thinking = self._thinking(terminal, spelled)
        if thinking is not None:
            return thinking
        assert self._tools is not None
        state = _TEXT if self._state == _THINK else self._state
        step = self._tools.steps.get((state, terminal))
        if step is None:
            return False
        if state == _TEXT:
            self._enter(step, terminal)
        else:
            self._raw.append(terminal)
            self._apply(step, terminal)
        return True

    def _thinking(self, terminal: str, spelled: bool) -> bool | None:
        """What a terminal of the reasoning format does; None if it is none."""
        form = self._reasoning
        if form is None or terminal not in form.open + form.close:
            return None
        if self._state == _THINK:
            if terminal in form.close:
                self._close()
                self._state = _TEXT
                self._fresh = self._said = False
            return True
        if self._state != _TEXT:
            return False
        if terminal in form.close:
            self._logprobs.clear()
            return True  # a stray end tag means nothing
        if spelled and self._said:
            return False
        self._close()
        self._state = _THINK
        return True

    def _enter(self, step: Step, terminal: str) -> None:
        """Out of plain text or thinking, into markup."""
        if "region" not in step.meanings:  # an end tag without a beginning
            if self._was_text:
                self._was_text = False
                self._say(terminal)
            self._logprobs.clear()
            return
        self._logprobs.clear()
        self._blank = ""
        self._close()
        self._fresh = False
        self._raw = [terminal]
        self._reader = self._new_reader()
        self._apply(Step(step.to, step.meanings[1:]), terminal)

    def _new_reader(self) -> CallReader:
        assert self._tools is not None
        schemas = {name: shape.schema for name, shape in self._shapes.items()}
        return reader_for(self._tools, schemas)

    def _apply(self, step: Step, terminal: str = "") -> None:
        assert self._reader is not None
        self._logprobs.clear()
        ends = False
        for meaning in step.meanings:
            if meaning == "end":
                ends = True
            elif meaning != "region":
                self._reader.mean(meaning)
                self._drain()
        self._state = step.to
        if ends or step.to == _TEXT:
            self._end_region(cut=False)

    def _plain(self, text: str) -> str | None:
        """Text of the present state. Returns what a reader of calls gave back, if it did."""
        if not text or self.done:
            return None
        if self._state == _THINK:
            self._think(text)
        elif self._state != _TEXT:
            return self._markup(text)
        elif (bare := self._bare_next()) and (self._blank + text).lstrip()[:1] == bare:
            assert self._tools is not None
            self._raw = [self._blank]
            self._blank = ""
            self._reader = self._new_reader()
            self._reader.tentative = True
            self._state = self._tools.bare_state
            return self._markup(text)
        else:
            self._say(text)
        return None

    def _markup(self, text: str) -> str | None:
        assert self._reader is not None and self._tools is not None
        self._logprobs.clear()
        kind = self._tools.reads[self._state]
        taken = self._reader.read(kind, text)
        self._raw.append(text[:taken])
        self._drain()
        if self._reader.refused:
            self._end_region(cut=False)
            return text[taken:]
        if self._reader.whole and (step := self._tools.after.get(self._state)) is not None:
            self._apply(step)
            return text[taken:]
        return None

    def _end_region(self, *, cut: bool) -> None:
        """Markup is over. What never became a call is text: nothing a model writes is lost."""
        reader, self._reader = self._reader, None
        assert reader is not None
        reader.finish(cut)
        self._drain(reader)
        self._state = _TEXT
        if self._open == "call" and not cut:
            self._close()
        left = reader.left if reader.begun else "".join(self._raw)
        self._was_text = reader.refused and not reader.begun
        self._raw = []
        if left.strip() and not self.done:
            self._say(left)

    # --- what calls become -----------------------------------------------------------------------

    def _drain(self, reader: CallReader | None = None) -> None:
        """Turn what the reader found into deltas."""
        reader = reader or self._reader
        assert reader is not None
        for found in reader.take():
            if self.done:
                return
            match found:
                case ("open", str(name), str(call_id)):
                    self._begin_call(name, call_id)
                case ("text", str(text)):
                    self._argue(text)
                case ("close",):
                    self._close()
                    self.done = not self._parallel

    def _begin_call(self, name: str, call_id: str) -> None:
        self._close()
        shape = self._shapes.get(name) or ToolShape(wire_name=name)
        namespace = shape.namespace if shape.namespace is not None else UNSET
        self._open = "call"
        self._raw = []
        self._input = InputText() if shape.custom else None
        if shape.custom:
            self._out.append(
                Open(
                    CustomToolCall(
                        call_id=call_id, name=shape.wire_name, input="", namespace=namespace
                    )
                )
            )
        else:
            self._out.append(
                Open(
                    FunctionCall(
                        call_id=call_id, name=shape.wire_name, arguments="", namespace=namespace
                    )
                )
            )

    def _argue(self, text: str) -> None:
        if self._input is not None:
            text = self._input.feed(text)
        if text:
            self._texts.append(text)

    # --- text ------------------------------------------------------------------------------------

    def _think(self, text: str) -> None:
        if self._open != "reasoning":
            text = (self._blank + text).lstrip("\n")
            self._blank = ""
            if not text.strip():
                self._blank = text
                return
            self._close()
            self._open = "reasoning"
            self._out.append(Open(Reasoning()))
        self._logprobs.clear()
        self._write(text, hold=True)

    def _say(self, text: str) -> None:
        if self._open != "message":
            text = self._blank + text
            self._blank = ""
            if not text.strip():
                self._blank = text
                return
            if not self._fresh:
                text = text.lstrip("\r\n")
            self._close()
            self._open = "message"
            self._out.append(Open(Message(role="assistant", content=())))
        self._said = True
        self._fresh = False
        self._write(text, hold=self._tools is not None or self._reasoning is not None)

    def _write(self, text: str, *, hold: bool = False) -> None:
        """Write into the open item; white space at the end may belong to markup: it waits."""
        text = self._blank + text
        self._blank = ""
        if hold:
            bare = text.rstrip()
            self._blank, text = text[len(bare) :], bare
        if text:
            self._texts.append(text)
            self._text_logprobs += self._logprobs
            self._logprobs.clear()

    def _close(self) -> None:
        if self._open is None:
            return
        if self._open == "call" and self._input is not None:
            self._texts.append(self._input.finish())
            self._input = None
        self._flush_text()
        self._out.append(Close())
        self._open = None
        self._blank = ""

    def _flush_text(self) -> None:
        if text := "".join(self._texts):
            self._out.append(Text(text, tuple(self._text_logprobs)))
        self._texts.clear()
        self._text_logprobs.clear()

    def _take(self) -> list[Delta]:
        self._flush_text()
        out, self._out = self._out, []
        return out

    def _logprob(self, found: TokenLogprob) -> Logprob:
        piece = self._tokenizer.piece(found.id)
        return Logprob(
            token=piece.decode("utf-8", "replace"),
            bytes=tuple(piece),
            logprob=found.logprob,
            top_logprobs=tuple(
                TopLogprob(
                    token=(alternative := self._tokenizer.piece(top.id)).decode("utf-8", "replace"),
                    bytes=tuple(alternative),
                    logprob=top.logprob,
                )
                for top in found.top
            ),
        )
