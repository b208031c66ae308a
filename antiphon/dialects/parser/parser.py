"""The scanner: reads one reply, in whatever formats it is written, as deltas.

Token by token: the lexer finds the terminals of the present state, the text up to there goes to
that state's reader, the terminal leads to the next state. It never raises, loses no text, reads
nothing twice, and gives the same deltas however the reply is cut into chunks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import repeat

from antiphon.dialects.detokenizer import Detokenizer, TokenOrigins, wire_logprob
from antiphon.dialects.formats.types import (
    START,
    TEXT,
    THINKING,
    ContentKind,
    ReasoningFormat,
    ToolFormat,
)
from antiphon.dialects.json_stream import JsonSpan
from antiphon.stream.deltas import Delta, FinishReason
from antiphon.tokens import Chunk, Tokenizer, TokenLogprob

from .delta_builder import ParserDeltaBuilder
from .lexer import QUOTE, Lexer, is_special, strip_marks
from .state_readers import Reader, reader_for
from .tool_call import CallBuilder, ToolShape

__all__ = ["FormatParser"]

_OUTSIDE = frozenset({START, TEXT, THINKING})
_NAMING = frozenset({"name", "label", "id"})
#: Reading one of these, the call before is over.
_BETWEEN_CALLS = frozenset({"between", "record", "name", "label"})
_BLANK = " \t\r\n"
#: What may stand between calls and says nothing.
_SEPARATORS = _BLANK + "]),;}`"
_BETWEEN = _SEPARATORS + "[{("


class _Markup:
    """A stretch of markup: where it began, and the text of it that is no call yet; ``words``: that
    without its terminals."""

    def __init__(self, origin: str, position: int, *, is_bare: bool) -> None:
        self.origin = origin
        self.position = position
        self.is_bare = is_bare
        self.text: list[str] = []
        self.plain_text: list[str] = []
        self.call_count = 0

    def add(self, text: str) -> None:
        """What stands between terminals."""
        self.text.append(text)
        self.plain_text.append(text)

    def clear(self) -> None:
        """It is a call's."""
        self.text, self.plain_text = [], []


class FormatParser:
    """``dialects.base.Parser`` for any pair of formats.

    ``shapes``: the name the model was shown → what it is on the wire; without any, no calls are
    looked for. ``thinking``: the prompt already opened the thinking. ``parallel``: there may be
    more than one call. ``held``: to a constraint; ``is_json``: of the answer. In a string of JSON
    that is held to, a special token stands as text, as llama.cpp's grammars take it. ``lexer``:
    that of these formats and this tokenizer, if it has been made.
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
        constrained: bool = False,
        json_answer: bool = False,
        lexer: Lexer | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._is_constrained = constrained
        self._json_span = JsonSpan() if constrained and json_answer else None
        if not shapes:
            tools = None
        self._states = {} if tools is None else tools.states
        self._tools = tools
        self._shapes = shapes
        self._parallel = parallel
        self._lexer = lexer or Lexer(tokenizer, reasoning, tools)
        self._detokenizer = Detokenizer(tokenizer, self._lexer.marks, self._lexer.text_cache)
        self._origins = TokenOrigins()
        self._sink = ParserDeltaBuilder(has_markup=reasoning is not None or tools is not None)
        self._buffer = ""
        self._position = 0  # of the buffer in the text of the reply
        kept = reasoning is not None and reasoning.kept
        #: What the prompt wrote of an answer that its thinking is part of.
        self._prompt_text = (
            f"{reasoning.open[0]}\n" if reasoning is not None and kept and thinking else ""
        )
        self._state = THINKING if thinking and reasoning is not None and not kept else START
        self._reader: Reader | None = None
        self._call: CallBuilder | None = None
        self._markup = _Markup(self._state, 0, is_bare=False)
        self.reasoning_tokens = 0
        self.done = False
        if tools is not None and tools.begins and self._state == START:
            self._markup.is_bare = True
            self._enter(tools.begins)

    # --- the contract -----------------------------------------------------------------------------

    def set_unconstrained(self) -> None:
        self._is_constrained, self._json_span = False, None

    @property
    def is_thinking(self) -> bool:
        return self._state == THINKING

    def feed(self, chunk: Chunk) -> Iterable[Delta]:
        if chunk.ids:
            self._sink.add_sampled_tokens(chunk.ids)
        self._emit_prompt_text()
        logprobs: Iterable[TokenLogprob | None] = chunk.logprobs or repeat(None)
        for token, logprob in zip(chunk.ids, logprobs, strict=False):
            text = self._detokenizer.feed(token)
            if (mark := self._lexer.marks.get(token)) is not None:
                if self._is_constrained and self._is_text(token, mark):
                    text = text.removesuffix(mark) + self._literal(token)
            elif self._json_span is not None and self._state in (START, TEXT):
                self._json_span.read(text)
            if self._is_plain(text):
                self._emit_plain(text, logprob)
            elif text or not self._lexer.is_dropped(token):
                self._add_to_buffer(text, logprob)
        if chunk.tail:
            self._add_to_buffer(chunk.tail, None)
        return self._sink.take_deltas()

    def finish(self, reason: FinishReason) -> Iterable[Delta]:
        is_cut = reason != "stop"
        self._emit_prompt_text()
        if not is_cut or self._is_pending_text():
            self._scan(self._detokenizer.finish(), final=True)
        if not self.done:
            self._end_reply(is_cut=is_cut)
        return self._sink.take_deltas()

    def _literal(self, token: int) -> str:
        return self._tokenizer.piece(token).decode("utf-8", "replace")

    def _is_text(self, token: int, mark: str) -> bool:
        """Whether a special token is text inside a string, which it neither ends nor cuts off."""
        if (mark and mark == self._lexer.quote) or token in self._tokenizer.end_ids:
            return False
        if self._state == TEXT:
            return self._json_span is not None and self._json_span.in_string
        return self._reader is not None and self._reader.in_string

    def _emit_prompt_text(self) -> None:
        """Emit the start of the answer that the prompt contains."""
        if self._prompt_text:
            self._sink.add_text(self._prompt_text)
            self._prompt_text, self._state = "", TEXT

    def _is_pending_text(self) -> bool:
        """Whether the buffered end of a reply that was cut off may be text."""
        if self._state in _OUTSIDE:
            return strip_marks(self._buffer) == self._buffer
        return self._markup.is_bare and (self._call is None or not self._call.has_started)

    # --- the machine ------------------------------------------------------------------------------

    def _is_plain(self, text: str) -> bool:
        """Whether text can only continue the answer or the reasoning. This is the common case."""
        return (
            text != ""
            and (self._state == TEXT or self._state == THINKING)
            and not self._buffer
            and not self._origins.pending
            and self._lexer.states[self._state].find_start(text) is None
        )

    def _emit_plain(self, text: str, logprob: TokenLogprob | None) -> None:
        """Emit a token's plain text."""
        self._position += len(text)
        if self._state == THINKING:
            self.reasoning_tokens += 1
            self._sink.add_reasoning(text)
        else:
            self._sink.add_text(
                text, () if logprob is None else (wire_logprob(self._tokenizer, logprob),)
            )

    def _add_to_buffer(self, text: str, logprob: TokenLogprob | None) -> None:
        """Buffer and scan a token's text."""
        self._origins.add(self._position + len(self._buffer), len(text), logprob)
        self._scan(text)

    def _scan(self, text: str, *, final: bool = False) -> None:
        self._buffer += text
        while self._buffer and not self.done:
            cut, terminal = self._lexer.states[self._state].find(self._buffer, final)
            if cut and not self._read(cut):
                continue
            if terminal is None:
                return
            self._handle_terminal(terminal)

    def _read(self, cut: int) -> bool:
        """Read ``cut`` characters in the current state. Return False if the state changed before
        the end.
        """
        text = self._buffer[:cut]
        if self._state == THINKING:
            self._emit_reasoning(self._take_buffer(cut))
        elif self._state == TEXT:
            self._emit_text(self._take_buffer(cut))
        elif self._state == START:
            blank = len(text) - len(text.lstrip())
            self._emit_text(self._take_buffer(blank))
            if blank < cut:
                self._begin_text(text[blank])
                return False
        else:
            return self._read_markup(text)
        return True

    def _begin_text(self, char: str) -> None:
        """Start the answer, or a possible call if calls have no opening terminal."""
        tools = self._tools
        if tools is not None and tools.bare_state and not tools.bare and char.isidentifier():
            self._markup = _Markup(START, self._position, is_bare=True)
            self._enter(tools.bare_state)
        else:
            self._state = TEXT

    def _read_markup(self, text: str) -> bool:
        """Read text in a state of markup. Return False if the state changed before the end."""
        state, reader = self._states[self._state], self._reader
        if reader is None:
            read = len(text) - len(text.lstrip(_BLANK + state.skips))
            is_over = read < len(text)
        else:
            read = reader.read(text)
            is_over = reader.complete
        self._markup.add(self._take_buffer(read))
        if reader is not None and reader.failed:
            self._reject_call()
            return False
        if is_over and state.then in _OUTSIDE and reader is None:
            self._end_markup(state.then, is_text=True)
        elif is_over:
            self._enter(state.then)
        return not is_over and read == len(text)

    def _handle_terminal(self, terminal: str) -> None:
        """Handle the terminal at the start of the buffer."""
        lead = self._lexer.states[self._state].transitions.get(terminal)
        if lead is None:
            self._handle_stray_terminal(terminal)
            return
        to, is_left = lead
        if terminal == self._lexer.quote and to == self._state:  # for the reader, as one character
            self._buffer = QUOTE + self._buffer[len(terminal) :]
            self._position += len(terminal) - 1
            self._read(1)
        elif self._reader is not None and self._reader.in_string and not is_special(terminal):
            self._read(1)
        elif self._state not in _OUTSIDE:
            self._markup.is_bare &= not is_special(terminal)
            if not is_left:
                self._skip_terminal(terminal)
            self._enter(to)
        elif to in _OUTSIDE:
            tag = self._take_buffer(len(terminal))
            if self._state == THINKING:
                self.reasoning_tokens += len(self._take_tokens(tag, None))
            self._sink.note_markup()
            self._state = to
        else:
            is_bare = is_left or (self._tools is not None and self._tools.doubtful)
            self._markup = _Markup(self._state, self._position, is_bare=is_bare)
            if not is_left:
                self._markup.text.append(self._take_buffer(len(terminal)))
            self._enter(to)

    @property
    def _content_kind(self) -> ContentKind:
        """What the text is in the present state of markup."""
        state = self._states.get(self._state)
        return "between" if state is None else state.reads

    def _handle_stray_terminal(self, terminal: str) -> None:
        """A special token that means nothing here."""
        if self._call is not None and self._call.has_started and self._reader is not None:
            self._read_as_text(self._lexer.spell_out(terminal))  # who writes code may mean its text
        elif self._content_kind == "header" and terminal in self._lexer.states[TEXT].transitions:
            self._reject_call()  # the end of an answer, whose last word only looked like a header
        else:
            self._skip_terminal(terminal)

    def _read_as_text(self, literal: str) -> None:
        """The special token at the beginning of the buffer is read as the text it looks like."""
        self._buffer = literal + self._buffer[1:]
        self._position -= len(literal) - 1
        self._read(len(literal))

    def _skip_terminal(self, terminal: str) -> None:
        """Take a terminal that is read by nobody."""
        text = self._take_buffer(len(terminal))
        if self._state not in _OUTSIDE:
            self._markup.text.append(text)

    def _enter(self, state: str) -> None:
        """Go from a state of markup to another state."""
        reads = self._states[state].reads if state in self._states else "between"
        if not self._leave(reads):
            self._reject_call()
        elif self.done:
            return
        elif state in _OUTSIDE:
            self._end_markup(state)
        else:
            self._state, self._reader = state, None
            if reads != "between" and self._tools is not None:
                if self._call is None:
                    self._call = CallBuilder(self._sink, self._shapes, is_bare=self._markup.is_bare)
                self._reader = reader_for(reads, self._call, self._tools)

    def _leave(self, next_kind: str) -> bool:
        """Leave the present state for one that reads that. False: this was no call."""
        call, reader = self._call, self._reader
        if call is None or reader is None:
            return True
        reader.finish()
        is_named = self._content_kind in _NAMING and next_kind != "id"
        if is_named and not call.has_started and (call.name or next_kind not in _BETWEEN_CALLS):
            if not call.start():
                return False
        if call.has_started:
            self._markup.clear()
        has_only_id = self._content_kind == "id" and not call.name
        if next_kind in _BETWEEN_CALLS and not (has_only_id and next_kind == "name"):
            self._call = self._reader = None
            if call.has_started:
                self._end_call(call)
        return True

    def _end_call(self, call: CallBuilder) -> None:
        call.finish()
        self._markup.call_count += 1
        self.done = not self._parallel
        junk = self._lexer.spell_out("".join(call.stray_text)).strip()
        if junk and not self.done:
            self._sink.add_text(junk)  # it belongs to nothing, but is not lost

    def _reject_call(self) -> None:
        """What was read since the last call is no call: it is text."""
        self._call = self._reader = None
        self._end_markup(START, is_text=True)

    def _end_markup(self, state: str, *, is_text: bool = False) -> None:
        """Markup is over. What of it never became a call is text where the markup began; special
        tokens with nothing between them are dropped, unless text follows them (``is_text``)."""
        markup = self._markup
        text = "".join(markup.text)
        if markup.call_count:
            text = (text if is_text else "".join(markup.plain_text)).lstrip(_SEPARATORS)
        markup.clear()
        self._state = state if markup.call_count or state == THINKING else markup.origin
        nothing = _BETWEEN if markup.call_count else _BLANK
        if not is_text and not strip_marks(text).strip(nothing):
            return
        start = self._position - len(text) if markup.call_count else markup.position
        text = self._lexer.spell_out(text)
        if self._state == THINKING:
            self._emit_reasoning(text, start)
        else:
            self._emit_text(text, start)
            if text.strip():
                self._state = TEXT

    def _end_reply(self, *, is_cut: bool) -> None:
        """The reply is over. A call that was cut stays open; without a name it is left out, unless
        it only looked like a call."""
        if self._state not in _OUTSIDE:
            if self._markup.is_bare and self._content_kind in _NAMING:
                self._reject_call()  # a word, and nothing that makes it a call
            elif not is_cut:
                if self._call is not None:  # unfinished, its name must at least be a tool's
                    self._call.is_bare = True
                self._enter(START)
            elif self._is_pending_text():
                self._reject_call()
        if not self.done:
            self._sink.finish(is_cut=is_cut)

    # --- text -------------------------------------------------------------------------------------

    def _take_buffer(self, length: int) -> str:
        """Remove text from the buffer and return it."""
        text, self._buffer = self._buffer[:length], self._buffer[length:]
        self._position += length
        return text

    def _emit_text(self, text: str, start: int | None = None) -> None:
        logprobs = [
            wire_logprob(self._tokenizer, found)
            for found in self._take_tokens(text, start)
            if found
        ]
        self._sink.add_text(text, logprobs)

    def _emit_reasoning(self, text: str, start: int | None = None) -> None:
        self.reasoning_tokens += len(self._take_tokens(text, start))
        self._sink.add_reasoning(text)

    def _take_tokens(self, text: str, start: int | None) -> list[TokenLogprob | None]:
        """Those behind text that was just taken from the buffer, or that began at ``start``."""
        if start is None:
            start = self._position - len(text)
        return self._origins.take(start, self._position)
