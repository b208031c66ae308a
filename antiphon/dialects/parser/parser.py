"""The parser of one reply in any pair of formats.

It works token by token. The lexer finds the terminals of the current state. The text before a
terminal goes to that state's reader. The terminal leads to the next state. The parser never raises,
loses no text, reads nothing twice, and gives the same deltas for any chunking of the reply.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import repeat

from antiphon.dialects.detokenizer import Detokenizer, TokenOrigins, wire_logprob
from antiphon.dialects.formats.types import (
    RESULT,
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
#: A state of one of these kinds ends the call before it.
_BETWEEN_CALLS = frozenset({"between", "header", "record", "name", "label"})
_BLANK = " \t\r\n"
#: Characters that may stand between calls and have no meaning.
_SEPARATORS = _BLANK + "]),;}`"
_BETWEEN = _SEPARATORS + "[{("


class _Markup:
    """A stretch of markup that is not part of a call yet.

    - ``origin``: the parser's state before the markup. ``position``: where the markup starts in the
      reply.
    - ``is_bare``: only the syntax suggests that the markup contains a call.
    - ``text``: the text of the markup; ``plain_text``: the same text without terminals.
    """

    def __init__(self, origin: str, position: int, *, is_bare: bool) -> None:
        self.origin = origin
        self.position = position
        self.is_bare = is_bare
        self.text: list[str] = []
        self.plain_text: list[str] = []
        self.terminal = ""
        self.call_count = 0

    def add(self, text: str) -> None:
        """Add text between terminals."""
        self.text.append(text)
        self.plain_text.append(text)
        self.terminal = ""

    def add_terminal(self, text: str) -> None:
        """Add a terminal."""
        self.text.append(text)
        self.terminal = text

    def clear(self) -> None:
        """Drop the text, because it belongs to a call."""
        self.text, self.plain_text, self.terminal = [], [], ""


class FormatParser:
    """``dialects.base.Parser`` for any pair of formats.

    - ``shapes``: name in the prompt → the tool on the wire. If empty, the parser recognizes no
      calls.
    - ``thinking``: the prompt has already opened the reasoning.
    - ``parallel``: the reply may have more than one call.
    - ``constrained``: the engine enforces a format; ``json_answer``: the answer must be JSON. In a
      string of constrained JSON, a special token is text, as in llama.cpp's grammars.
    - ``lexer``: the lexer of these formats and this tokenizer. If None, the parser creates it.
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
        #: The start of the answer that the prompt contains, for reasoning that is part of it.
        self._prompt_text = (
            f"{reasoning.open[0]}\n" if reasoning is not None and kept and thinking else ""
        )
        self._state = THINKING if thinking and reasoning is not None and not kept else START
        self._reader: Reader | None = None
        self._call: CallBuilder | None = None
        self._header_name = ""
        self._has_stray_text = False
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
        """Whether a special token is plain text because it stands inside a string.

        A quote token of the format and an end token of the model are never text.
        """
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
        steps, position = 0, self._position
        while self._buffer and not self.done:
            steps = steps + 1 if self._position == position else 0
            position = self._position
            if steps > self._max_steps:
                self._abandon_markup()
            cut, terminal = self._lexer.states[self._state].find(self._buffer, final)
            if cut and not self._read(cut):
                continue
            if terminal is None:
                return
            self._handle_terminal(terminal)

    @property
    def _max_steps(self) -> int:
        """The most steps without progress: each state may lead to the next one once."""
        return len(self._states) + 4

    def _abandon_markup(self) -> None:
        """Treat the markup as text and go on. The parser makes no progress, so a reader or the
        table of the format has a bug."""
        self._reject_call()
        self._state = THINKING if self._markup.origin == THINKING else TEXT

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
        """At the first word after START, begin the answer. If calls have no opening terminal, begin
        a possible call instead."""
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
        elif to == RESULT:
            self._take_buffer(len(terminal))
            self._end_before_result()
        elif to in _OUTSIDE:
            tag = self._take_buffer(len(terminal))
            if self._state == THINKING:
                self.reasoning_tokens += len(self._take_tokens(tag))
            self._sink.note_markup()
            self._state = to
        else:
            is_bare = is_left or (self._tools is not None and self._tools.doubtful)
            self._markup = _Markup(self._state, self._position, is_bare=is_bare)
            if not is_left:
                self._markup.add_terminal(self._take_buffer(len(terminal)))
            self._enter(to)

    def _end_before_result(self) -> None:
        """End the reply of a model that writes the result of a tool itself.

        A result tag before the first word does not end the reply, because such a model puts its
        answer into the tag. That tag is dropped.
        """
        self._sink.note_markup()
        if self._state == TEXT or self._markup.call_count:
            self.done = True
            self._sink.finish(is_cut=False)

    @property
    def _content_kind(self) -> ContentKind:
        """The kind of text in the current state of markup."""
        state = self._states.get(self._state)
        return "between" if state is None else state.reads

    def _handle_stray_terminal(self, terminal: str) -> None:
        """Handle a special token that has no meaning in the current state."""
        if self._call is not None and self._call.has_started and self._reader is not None:
            self._read_as_text(self._lexer.spell_out(terminal))  # code may contain its text
        elif self._content_kind == "header" and terminal in self._lexer.states[TEXT].transitions:
            self._reject_call()  # an answer's end: its last word only looked like a header
        else:
            self._skip_terminal(terminal)

    def _read_as_text(self, literal: str) -> None:
        """Replace the special token at the start of the buffer by its text, and read this text."""
        self._buffer = literal + self._buffer[1:]
        self._position -= len(literal) - 1
        self._read(len(literal))

    def _skip_terminal(self, terminal: str) -> None:
        """Remove a terminal from the buffer without passing it to a reader."""
        text = self._take_buffer(len(terminal))
        if self._state not in _OUTSIDE:
            self._markup.add_terminal(text)

    def _enter(self, state: str) -> None:
        """Go to another state, from a state of markup or into markup."""
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
                    self._call = self._new_call()
                self._reader = reader_for(self._states[state], self._call, self._tools)

    def _new_call(self) -> CallBuilder:
        name, self._header_name = self._header_name, ""
        return CallBuilder(
            self._sink, self._shapes, is_bare=self._markup.is_bare, repeated_name=name
        )

    def _leave(self, next_kind: str) -> bool:
        """Leave the current state for a state that reads ``next_kind``. Return False if the markup
        is not a call."""
        call, reader, kind = self._call, self._reader, self._content_kind
        if call is None or reader is None:
            return True
        reader.finish()
        is_named = kind in _NAMING and next_kind != "id"
        if is_named and not call.has_started and (call.name or next_kind not in _BETWEEN_CALLS):
            if not call.start():
                return False
        if call.has_started:
            self._markup.clear()
        if self._ends_call(call, kind, next_kind):
            self._call = self._reader = None
            self._end_call(call, kind)
        return True

    @staticmethod
    def _ends_call(call: CallBuilder, kind: str, next_kind: str) -> bool:
        """Return whether the call ends between a state that reads ``kind`` and a state that reads
        ``next_kind``."""
        if kind == "id" and not call.name:  # the name follows the id
            return next_kind in _BETWEEN_CALLS | {"id"} and next_kind != "name"
        is_next_id = next_kind == "id" and call.has_started  # the id stands before the name
        return next_kind in _BETWEEN_CALLS or is_next_id or kind == "header"

    def _end_call(self, call: CallBuilder, kind: str) -> None:
        if kind == "header":
            self._header_name = f"{self._header_name} {call.name}".strip()
        elif not call.has_started:
            self._flush_markup()
        if not call.has_started:
            return
        call.finish()
        self._markup.call_count += 1
        stray_text = self._lexer.spell_out("".join(call.stray_text)).strip()
        if stray_text:
            self._sink.add_text(stray_text)
            self._has_stray_text = True
        self.done = not self._parallel

    def _reject_call(self) -> None:
        """Treat the markup since the last call as text."""
        self._call = self._reader = None
        self._end_markup(START, is_text=True)

    def _flush_markup(self) -> None:
        """Emit markup that is not a call as text, before the next call may start.

        The last terminal belongs to the next call.
        """
        markup = self._markup
        terminal = markup.terminal
        end = self._position - len(terminal)
        if terminal:
            markup.text.pop()
        text, start = self._uncalled_text(end, is_text=True)
        if "".join(markup.plain_text).strip(_BETWEEN if markup.call_count else _BLANK):
            self._emit_uncalled(text, start, end)
            markup.clear()
            markup.position, self._header_name = end, ""
        if terminal:
            markup.text.append(terminal)

    def _end_markup(self, state: str, *, is_text: bool = False) -> None:
        """End the markup and go to ``state``. Emit the text that is not part of a call.

        Special tokens without text between them are dropped, unless ``is_text`` is set: then text
        follows them.
        """
        markup = self._markup
        text, start = self._uncalled_text(self._position, is_text=is_text)
        markup.clear()
        self._header_name = ""
        self._state = state if markup.call_count or state == THINKING else markup.origin
        has_text = strip_marks(text).strip(_BETWEEN if markup.call_count else _BLANK)
        if not is_text and not has_text:
            return
        if self._emit_uncalled(text, start, self._position) and self._state != THINKING:
            self._state = TEXT

    def _uncalled_text(self, end: int, *, is_text: bool) -> tuple[str, int]:
        """Return the text of the markup that is not part of a call, and the position where this
        text starts.

        ``end``: the position where the text ends.
        """
        markup = self._markup
        text = "".join(markup.text)
        if not markup.call_count:
            return text, markup.position
        text = (text if is_text else "".join(markup.plain_text)).lstrip(_SEPARATORS)
        return text, end - len(text)

    def _emit_uncalled(self, text: str, start: int, end: int) -> bool:
        """Emit text of markup that is not a call. Return whether the text is more than white space.

        If the markup began in the reasoning, its text is reasoning; if not, it is part of the
        answer.
        """
        markup = self._markup
        text = self._lexer.spell_out(text)
        if self._state == THINKING or (markup.origin == THINKING and not markup.call_count):
            self._emit_reasoning(text, start, end)
        else:
            self._emit_text(text, start, end)
        return bool(text.strip())

    def _end_reply(self, *, is_cut: bool) -> None:
        """End the reply.

        A call that was cut off stays open. A call that was cut off before its name is complete is
        dropped. But if only the syntax suggested a call, the text is emitted as text.
        """
        if self._state not in _OUTSIDE:
            if self._markup.is_bare and self._content_kind in _NAMING:
                self._reject_call()  # a word, and nothing else of a call
            elif not is_cut:
                if self._call is not None:  # incomplete, so its name must be that of a tool
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

    def _emit_text(self, text: str, start: int | None = None, end: int | None = None) -> None:
        logprobs = [
            wire_logprob(self._tokenizer, found)
            for found in self._take_tokens(text, start, end)
            if found
        ]
        if text and self._has_stray_text:
            self._has_stray_text = False
            text = text if text[0].isspace() else f"\n{text}"
        self._sink.add_text(text, logprobs)

    def _emit_reasoning(self, text: str, start: int | None = None, end: int | None = None) -> None:
        self.reasoning_tokens += len(self._take_tokens(text, start, end))
        self._sink.add_reasoning(text)

    def _take_tokens(
        self, text: str, start: int | None = None, end: int | None = None
    ) -> list[TokenLogprob | None]:
        """Return the tokens of a text.

        By default, this is the text just taken from the buffer. With two positions, it is the text
        between them.
        """
        if start is None:
            start = self._position - len(text)
        return self._origins.take(start, self._position if end is None else end)
