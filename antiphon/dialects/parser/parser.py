"""The parser of a model's reply, for any reasoning format and tool format.

The parser works token by token. The lexer finds the terminals of the current state, which are the
texts and special tokens that lead to other states. The text before a terminal goes to the state's
reader, and the terminal leads to the next state. The parser never raises, loses no text, reads
nothing twice, and gives the same deltas however the reply is split into chunks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from itertools import repeat

from antiphon.dialects.detokenizer import Detokenizer, TokenOrigins, wire_logprob
from antiphon.dialects.formats.types import (
    OUTSIDE,
    RESULT,
    START,
    TEXT,
    THINKING,
    WHOLE_ANSWER,
    ContentKind,
    ReasoningFormat,
    ToolFormat,
)
from antiphon.dialects.json_stream import JsonSpan
from antiphon.inference.tokens import Chunk, Tokenizer, TokenLogprob
from antiphon.stream.deltas import Delta, FinishReason

from .delta_builder import ParserDeltaBuilder
from .lexer import QUOTE, Continuation, Lexer, QuotedCall, is_special, strip_marks
from .state_readers import Reader, reader_for
from .tool_call import CallBuilder, ToolShape

_NAMING = frozenset({"name", "label", "id"})
#: Kinds of states that can only follow a complete call. Entering one ends the current call.
_BETWEEN_CALLS = frozenset({"between", "header", "record", "name", "label"})
_BLANK = " \t\r\n"
#: Characters that may stand between calls and have no meaning.
_SEPARATORS = _BLANK + "]),;}"
#: Characters without a meaning if they are the only text between two calls.
_BETWEEN = _SEPARATORS + "[{("


class _Markup:
    """A part of the reply that may contain tool calls. It begins where a call may start. Text in it
    that turns out not to be a call is emitted as plain text.

    - ``origin``: the parser's state before this part. ``position``: where this part starts in the
      reply.
    - ``is_bare``: whether no special token marks the calls, and only the syntax of the text
      suggests them.
    - ``is_wrapped``: whether it began with the tag of the section that contains the calls.
    - ``text``: the collected text that belongs to no call yet. ``plain_text``: the same text
      without terminals.
    - ``terminal``: the terminal at the end of ``text``, or ``""``.
    - ``call_count``: the number of complete calls in this part.
    - ``is_text``: whether the last call in this part is text, because it names an unknown function.
    - ``section``: all text after the opening terminal, for formats whose calls may also begin
      without one. None if there is no such terminal, or if the text is long.
    """

    def __init__(
        self, origin: str, position: int, *, is_bare: bool, is_wrapped: bool = False
    ) -> None:
        self.origin = origin
        self.position = position
        self.is_bare = is_bare
        self.is_wrapped = is_wrapped
        self.text: list[str] = []
        self.plain_text: list[str] = []
        self.terminal = ""
        self.call_count = 0
        self.is_text = False
        self.section: list[str] | None = None

    def add(self, text: str) -> None:
        """Append text that contains no terminal to this part of the reply."""
        self.text.append(text)
        self.plain_text.append(text)
        self.terminal = ""

    def add_terminal(self, text: str) -> None:
        """Add a terminal to ``text``, but not to ``plain_text``."""
        self.text.append(text)
        self.terminal = text

    @property
    def has_text(self) -> bool:
        """Whether the collected text contains more than terminals and white space."""
        return bool("".join(self.plain_text).strip())

    @property
    def has_tags(self) -> bool:
        """Whether the collected text contains a terminal other than a line end."""
        return "".join(self.text).split() != "".join(self.plain_text).split()

    def clear(self) -> None:
        """Empty the collected text. Called when the parser knows what the text is: a part of a
        call, or text that belongs to no call."""
        self.text, self.plain_text, self.terminal = [], [], ""


#: Sections of calls up to this length are recognized if the model repeats them.
_ECHO_LIMIT = 4_096
#: Characters of a draft after which it counts as a call.
_DRAFT_LIMIT = 16_384


class _Draft:
    """A part of the reply that begins with a call, but may turn out to be text: a call in reasoning
    is a draft if the reasoning is closed after it, and an answer of JSON is a call only if nothing
    follows it. Its deltas are held back.

    - ``position``: where it starts in the reply. ``text``: the text that was read since then.
    - ``tokens``: where the tokens that were read since then start.
    - ``reasoning_tokens``: how many tokens of reasoning were counted before.
    - ``length``: how many deltas to keep, if the reply may have only one call; otherwise None.
    - ``is_answer``: whether it is an answer of JSON.
    """

    def __init__(self, position: int, reasoning_tokens: int, *, is_answer: bool) -> None:
        self.position = position
        self.is_answer = is_answer
        self.text: list[str] = []
        self.text_length = 0
        self.tokens: list[int] = []
        self.reasoning_tokens = reasoning_tokens
        self.length: int | None = None

    def add(self, text: str) -> None:
        """Add text that was read."""
        self.text.append(text)
        self.text_length += len(text)


class FormatParser:
    """``dialects.base.Parser`` for any reasoning format and tool format.

    - ``reasoning``, ``tools``: the model's formats, or None if the model has none.
    - ``shapes``: name of a tool in the prompt → the tool's name and schema in the API. If empty,
      the parser recognizes no calls.
    - ``thinking``: whether the prompt has already opened the reasoning.
    - ``parallel``: whether the reply may have more than one call.
    - ``constrained``: whether the engine enforces a grammar. If so, a special token inside a string
      argument of a call is part of the string, and the parser reads it as text.
    - ``json_answer``: whether the answer must be JSON. If the engine enforces this, a special token
      inside a JSON string is also read as text.
    - ``passes_unknown``: whether a call of an unknown tool is a call, because the caller rejects
      it. Otherwise, its text is part of the answer.
    - ``logprob_token_ids``: whether log probabilities show the ids of tokens, not their text.
    - ``lexer``: the lexer for these formats and this tokenizer. If None, the parser creates it.
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
        passes_unknown: bool = False,
        logprob_token_ids: bool = False,
        lexer: Lexer | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._is_constrained = constrained
        self._json_span = JsonSpan() if constrained and json_answer else None
        if not shapes:
            tools = None
        self._states = {} if tools is None else {**WHOLE_ANSWER, **tools.states}
        self._tools = tools
        self._shapes = shapes
        self._parallel = parallel
        self._passes_unknown = passes_unknown
        self._wire_logprob = partial(wire_logprob, tokenizer, token_ids=logprob_token_ids)
        self._lexer = lexer or Lexer(tokenizer, reasoning, tools)
        self._detokenizer = Detokenizer(tokenizer, self._lexer.marks, self._lexer.text_cache)
        self._origins = TokenOrigins()
        self._sink = ParserDeltaBuilder(has_markup=reasoning is not None or tools is not None)
        self._buffer = ""
        self._position = 0  # where the buffer starts in the text of the reply
        keeps_reasoning = reasoning is not None and reasoning.keeps_reasoning
        #: If the reasoning stays in the answer and the prompt has opened it: the opening tag, with
        #: which the answer must start.
        self._prompt_text = (
            f"{reasoning.open[0]}\n"
            if reasoning is not None and keeps_reasoning and thinking
            else ""
        )
        self._state = (
            THINKING if thinking and reasoning is not None and not keeps_reasoning else START
        )
        self._reader: Reader | None = None
        self._call: CallBuilder | None = None
        self._header_name = ""
        self._has_stray_text = False
        #: Whether the current text quotes the tags of a call. Its other tags are then text, too.
        self._quotes_tags = False
        #: The calls that the current value quotes. Each one stands in a value of the one before it.
        self._quoted: list[QuotedCall] = []
        self._draft: _Draft | None = None
        #: Whether an answer of JSON may be a call: nothing precedes it, and JSON was not asked for.
        self._may_be_whole = not json_answer
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
            self._count_draft()
            text = self._detokenizer.feed(token)
            if (mark := self._lexer.marks.get(token)) is not None:
                if self._is_text(token, mark):
                    piece = self._tokenizer.piece(token).decode("utf-8", "replace")
                    text = text.removesuffix(mark) + piece
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
        if is_cut:
            self._reject_cut_draft()
        if not is_cut or self._is_pending_text():
            self._scan(self._detokenizer.finish(), final=True)
        if is_cut:
            self._reject_cut_draft()  # the text that was held back may contain a call, too
        else:
            self._reject_open_draft()
        if not self.done:
            self._end_reply(is_cut=is_cut)
        self._keep_draft()
        return self._sink.take_deltas()

    def _is_text(self, token: int, mark: str) -> bool:
        """Return whether a special token is read as text. This is the case inside a string of the
        answer if the engine enforces JSON, and inside a value of a call if no format uses the
        token. ``mark``: the character that stands for the token, or ``""`` if no format uses it.

        A token that ends the model's output is never text.
        """
        if token in self._tokenizer.end_ids:
            return False
        if self._state == TEXT:
            return self._json_span is not None and self._json_span.in_string
        return not mark and self._reader is not None and self._reader.in_string

    def _emit_prompt_text(self) -> None:
        """Emit the opening tag of the reasoning as text of the answer, if the prompt already
        contains this tag and the reasoning stays in the answer."""
        if self._prompt_text:
            self._sink.add_text(self._prompt_text)
            self._prompt_text, self._state = "", TEXT

    def _is_pending_text(self) -> bool:
        """Return whether the text that is still held back is emitted at the end of an output that
        was cut off. Otherwise, this text is dropped.

        - Outside of a ``_Markup`` (a part of the reply that may contain calls), the text is emitted
          if it contains no special token.
        - Inside a ``_Markup``, the text is emitted if no special token marks the call, and if
          nothing of the call was emitted yet.
        """
        if self._state in OUTSIDE:
            return strip_marks(self._buffer) == self._buffer
        return self._markup.is_bare and (self._call is None or not self._call.has_started)

    # --- the machine ------------------------------------------------------------------------------

    def _is_plain(self, text: str) -> bool:
        """Return whether ``text``, the text of a token, can only continue the current answer or
        reasoning. This is true for most tokens. The parser need not search such a text for
        terminals."""
        return (
            text != ""
            and self._draft is None
            and (self._state == TEXT or self._state == THINKING)
            and not self._buffer
            and not self._origins.pending
            and self._lexer.states[self._state].find_start(text) is None
        )

    def _emit_plain(self, text: str, logprob: TokenLogprob | None) -> None:
        """Emit the text of a token that can only continue the current answer or reasoning. Call
        this if ``_is_plain`` is true for the token."""
        self._position += len(text)
        if self._state == THINKING:
            self.reasoning_tokens += 1
            self._sink.add_reasoning(text)
        else:
            self._may_be_whole = False
            self._sink.add_text(text, () if logprob is None else (self._wire_logprob(logprob),))

    def _add_to_buffer(self, text: str, logprob: TokenLogprob | None) -> None:
        """Add a token's text to the buffer, and search the buffer for terminals."""
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
            if cut and (not self._read(cut) or self._position < position):
                continue
            if terminal is None:
                return
            if (echo := self._echo_length(terminal, final=final)) is None:
                return
            if echo:
                self._take_buffer(echo)
                continue
            if (is_text := self._is_part_of_value(terminal, final=final)) is None:
                return
            if is_text and self._begins_with_quote(terminal) and not self._quoted:
                self._read_quote()
            elif is_text:
                self._read_as_text(self._lexer.spell_out(self._buffer[0]))
            else:
                self._handle_terminal(terminal)

    def _echo_length(self, terminal: str, *, final: bool) -> int | None:
        """Return the length of the last section of calls if the model repeats it without its
        opening tag. ``terminal``, which stands at the start of the buffer, begins a bare call then.
        Returns 0 for other text, and None if this depends on text that has not arrived yet.
        """
        if self._state != START or self._tools is None or terminal != self._tools.bare:
            return 0
        section = "".join(self._markup.section or ())
        if section.startswith(self._buffer):
            return len(self._buffer) if final or self._buffer == section else None
        return len(section) if section and self._buffer.startswith(section) else 0

    def _is_part_of_value(self, terminal: str, *, final: bool) -> bool | None:
        """Return whether ``terminal``, which stands at the start of the buffer, is part of a string
        or of a value between tags. Returns None if this depends on text that has not arrived yet.
        ``final``: whether no text follows the buffer.

        In a value, a terminal has a meaning only if a text follows that the format allows there
        (``State.ends``). A token that ends the model's output has no meaning if text follows it. In
        a call that the value quotes, a terminal has a meaning only at the end of the reply.
        """
        if self._reader is None or (self._is_quote(terminal) and not self._quoted):
            return False
        terminals = self._lexer.states[self._state]
        if not self._reader.in_string:  # tags of quoted calls are text here, too
            return bool(terminals.quotes) and terminals.transitions.get(terminal) == (
                self._state,
                False,
            )
        is_last = len(self._buffer) == len(terminal)
        if terminal in self._lexer.end_marks and is_last:
            return False if final else None
        continuation = Continuation(
            self._buffer,
            is_final=final,
            parameters=None if self._call is None else self._call.missing_parameters,
            is_wrapped=self._markup.is_wrapped,
            closing=terminals.closing,
        )
        quotation = terminals.quotes.get(terminal)
        if quotation is not None and self._may_quote(quotation):
            begins = continuation.matches(quotation.begins, len(terminal))
            if begins:
                self._quoted.append(quotation)
            return None if begins is None else True
        ends = terminals.ends.get(terminal, {})
        matched = continuation.matches(ends, len(terminal), is_over=bool(self._quoted))
        if matched and terminal in terminals.doubles:
            return not self._is_doubled(terminals.doubles[terminal])
        if matched is False and self._quoted and terminal in self._quoted[-1].closes:
            return self._end_quoted(continuation, terminal)
        return None if matched is None else not matched

    def _may_quote(self, quotation: QuotedCall) -> bool:
        """Return whether a terminal may begin a quoted call. In a section of calls that is quoted,
        only the beginning of another section is one."""
        return not self._quoted or {*quotation.closes} <= {*self._quoted[-1].closes}

    def _end_quoted(self, continuation: Continuation, terminal: str) -> bool | None:
        """Process the end of a quoted call, ``terminal``. It stands in another quoted call only if
        the value of that call ends here: models also quote beginnings of calls that have no end.
        Returns True, or None if this depends on text that has not arrived yet."""
        is_inner = len(self._quoted) > 1 and continuation.matches(
            self._quoted[-1].follows, len(terminal)
        )
        if is_inner is None:
            return None
        del self._quoted[-1 if is_inner else 0 :]
        return True

    def _is_doubled(self, opening: str) -> bool:
        """Return whether a closing tag that stands twice after the current value is doubled.
        Otherwise, the first one closes a tag in the value. ``opening``: the beginning of such a
        tag."""
        value = self._lexer.spell_out("".join(self._markup.text))
        return value.strip() != "" and opening not in value

    def _is_quote(self, terminal: str) -> bool:
        """Return whether ``terminal`` is the format's quote and has a meaning in this state."""
        return terminal == self._lexer.quote and self._begins_with_quote(terminal)

    def _begins_with_quote(self, terminal: str) -> bool:
        quote = self._lexer.quote
        transitions = self._lexer.states[self._state].transitions
        return quote != "" and terminal.startswith(quote) and quote in transitions

    def _read_quote(self) -> None:
        """Read the format's quote at the start of the buffer. The reader gets it as one character,
        even if it is longer."""
        self._position += len(self._lexer.quote) - 1
        self._buffer = QUOTE + self._buffer[len(self._lexer.quote) :]
        self._read(1)

    @property
    def _max_steps(self) -> int:
        """The maximum number of consecutive state changes that read no text. After more changes,
        the parser no longer treats the text as a possible call and emits it as plain text."""
        return len(self._states) + 4

    def _abandon_markup(self) -> None:
        """Emit the text of a possible call as plain text, and go on after it. Called if the parser
        changes its state again and again and reads no text. Only a bug in a reader or in the
        format's table can cause this."""
        self._reject_call()
        self._state = THINKING if self._markup.origin == THINKING else TEXT

    def _read(self, cut: int) -> bool:
        """Read the first ``cut`` characters of the buffer in the current state.

        Returns False if the state has changed. The characters that were not read are then still in
        the buffer.
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
        """Leave the state START at the first word of a reply, or at the first word after a call.
        ``char``: the first character of the word.

        Normally, the word begins the answer. In formats whose calls have no opening terminal, a
        word that can be a name begins a possible call.
        """
        tools = self._tools
        if tools is not None and tools.bare_state and not tools.bare and char.isidentifier():
            self._markup = _Markup(START, self._position, is_bare=True)
            self._enter(tools.bare_state)
        else:
            self._state = TEXT

    def _read_markup(self, text: str) -> bool:
        """Read ``text`` in the current state, which must be one of the states that the tool format
        defines. Returns False if the state has changed. The characters that were not read are then
        still in the buffer."""
        state, reader = self._states[self._state], self._reader
        if reader is None:
            # A bracket too many has no meaning after a call.
            skips = state.skips + ("]}" if self._markup.call_count else "")
            read = len(text) - len(text.lstrip(_BLANK + skips))
            is_over = read < len(text)
        else:
            read = reader.read(text)
            is_over = reader.complete
        self._markup.add(self._take_buffer(read))
        if reader is not None and reader.failed:
            self._reject_call()
            return False
        if self._call is not None and self._call.is_text:
            self._flush_markup(is_call=True)
        if is_over and state.then in OUTSIDE and reader is None:
            self._end_markup(state.then, is_text=True)
        elif is_over:
            self._enter(state.then)
        return not is_over and read == len(text)

    def _handle_terminal(self, terminal: str) -> None:
        """Process the terminal at the start of the buffer. The terminal changes the parser's state,
        or it is treated as text."""
        lead = self._lexer.states[self._state].transitions.get(terminal)
        draft = self._draft
        if draft is not None and not draft.is_answer and terminal in self._lexer.reasoning_ends:
            self._reject_draft(terminal)
            return
        if lead is None:
            self._handle_stray_terminal(terminal)
            return
        to, is_left = lead
        if self._is_quote(terminal):
            self._read_quote()
        elif self._state not in OUTSIDE:
            self._follow(terminal, to, is_left=is_left)
        elif to == RESULT:
            self._take_buffer(len(terminal))
            self._end_before_result()
        elif to in OUTSIDE:
            tag = self._take_buffer(len(terminal))
            if self._state == THINKING:
                self.reasoning_tokens += len(self._take_tokens(tag))
            self._sink.mark_reasoning_tag()
            self._state, self._quotes_tags = to, False
        else:
            self._begin_markup(terminal, to, is_peek=is_left)

    def _follow(self, terminal: str, to: str, *, is_left: bool) -> None:
        """Go on from a state of the tool format to the state ``to``. ``is_left``: whether that
        state reads ``terminal``."""
        if to == self._state and self._content_kind == "value":
            self._skip_terminal(terminal)  # it joins two parts of a value
            return
        self._markup.is_bare &= not is_special(terminal) and not self._opens_call(terminal)
        if not is_left:
            self._skip_terminal(terminal)
        self._enter(to)
        if self._ends_last_call(terminal):
            self._end_last_call()

    def _opens_call(self, terminal: str) -> bool:
        """Return whether ``terminal`` opens a call, and is never plain text."""
        tools, literal = self._tools, self._lexer.spell_out(terminal)
        if tools is None or tools.doubtful:
            return False
        return literal in tools.opens and literal not in tools.inner

    def _ends_last_call(self, terminal: str) -> bool:
        """Return whether ``terminal`` closes a call that is already complete, and so belongs to
        it."""
        to, _ = self._lexer.states[START].transitions.get(terminal, (START, False))
        is_closing = to in OUTSIDE and self._content_kind == "between"
        has_call = self._markup.call_count > 0 or self._markup.is_text
        return is_closing and has_call and not self._markup.has_text

    def _end_last_call(self) -> None:
        """Process a terminal that closes a call. It is text if the call is text."""
        if self._markup.is_text:
            self._flush_markup(is_call=True, keeps_terminal=False)
        else:
            self._markup.clear()

    def _begin_markup(self, terminal: str, to: str, *, is_peek: bool) -> None:
        """Start a part of the reply that may contain calls. ``terminal``: the terminal that leads
        to the state ``to``. ``is_peek``: whether this state reads the terminal."""
        if to in WHOLE_ANSWER and not self._may_be_whole:
            self._state = TEXT
            return
        if self._draft is not None and self._draft.is_answer:
            self._reject_answer()
            return
        self._begin_draft(to)
        tools, is_sure = self._tools, self._opens_call(terminal)
        self._markup = _Markup(
            self._state,
            self._position,
            is_bare=is_peek or not is_sure,
            is_wrapped=is_sure
            and (self._states[to].reads, self._states[to].then) == ("between", START),
        )
        if not is_peek:
            self._markup.add_terminal(self._take_buffer(len(terminal)))
            self._markup.section = [] if tools is not None and tools.bare else None
        self._enter(to)

    def _begin_draft(self, to: str) -> None:
        """Hold back the deltas of a call in reasoning, unless the opening terminal of a call ends
        the reasoning, and those of an answer of JSON. ``to``: the state of the call."""
        ends_reasoning = self._tools is not None and self._tools.ends_reasoning
        if self._draft is not None:
            return
        is_answer = to in WHOLE_ANSWER
        if is_answer or (self._state == THINKING and not ends_reasoning):
            self._draft = _Draft(self._position, self.reasoning_tokens, is_answer=is_answer)
            self._sink.begin_draft()

    def _reject_draft(self, terminal: str, state: str = START) -> None:
        """Emit the draft as reasoning, because ``terminal``, which stands at the start of the
        buffer, closes the reasoning after it. ``state``: the parser's next state."""
        draft = self._drop_draft(state)
        self._origins.take(draft.position, self._position)
        self._sink.add_reasoning(self._lexer.spell_out("".join(draft.text)))
        # Tokens of reasoning inside the draft were counted already.
        self.reasoning_tokens = max(
            self.reasoning_tokens, draft.reasoning_tokens + len(draft.tokens)
        )
        self._take_buffer(len(terminal))
        self._sink.mark_reasoning_tag()
        self._quotes_tags = False

    def _drop_draft(self, state: str) -> _Draft:
        """Drop the deltas of the draft and return it. ``state``: the parser's next state."""
        draft, self._draft = self._draft, None
        assert draft is not None
        self._call = self._reader = None
        self._markup.clear()
        self._sink.drop_draft()
        self._header_name, self._has_stray_text, self._state = "", False, state
        return draft

    def _reject_answer(self) -> None:
        """Read an answer of JSON again as text, because it is not a call, or because text follows
        it. The text may contain the terminals of calls, which have no meaning in an answer of JSON.
        This happens at most once in a reply."""
        draft = self._drop_draft(TEXT)
        self._may_be_whole = False
        self._buffer = "".join(draft.text) + self._buffer
        self._position = draft.position

    def _reject_cut_draft(self) -> None:
        """Read the draft at the end of an output that was cut off as text, because the answer may
        have gone on, and the reasoning was not over. The text that is held back in a value belongs
        to the draft: a tag in it that closes the reasoning may be part of the value."""
        if self._draft is not None and self._draft.is_answer:
            self._reject_answer()
            self._scan("")
        elif self._draft is not None:
            if self._reader is not None and self._reader.in_string:
                self._take_buffer(len(self._buffer))
            self._reject_draft("", THINKING)

    def _reject_open_draft(self) -> None:
        """Read the reply again after the closing tag of the reasoning, if this tag stands in the
        last call of the draft, and this call has no end: the model has broken off its draft."""
        draft = self._draft
        if draft is None or draft.is_answer or self._call is None:
            return
        text = self._lexer.mark("".join(draft.text)) + self._buffer
        found = [(text.find(tag), tag) for tag in self._lexer.reasoning_ends if tag in text]
        if not found:
            return
        at, terminal = min(found)
        self._position, self._buffer, draft.text = draft.position + at, text[at:], [text[:at]]
        draft.tokens = [start for start in draft.tokens if start < self._position]
        self._reject_draft(terminal)
        self._scan("", final=True)

    def _count_draft(self) -> None:
        """Count a token of the draft. If the draft is long, decide what it is: what is held back is
        bounded."""
        draft = self._draft
        if draft is None:
            return
        draft.tokens.append(self._position + len(self._buffer))
        if draft.text_length <= _DRAFT_LIMIT:
            return
        if draft.is_answer and not (self._call is not None and self._call.has_started):
            self._reject_answer()
        else:
            self._keep_draft()

    def _keep_draft(self) -> None:
        """Emit the deltas of the draft, because its call is a call."""
        draft, self._draft = self._draft, None
        if draft is not None:
            self._sink.keep_draft(draft.length)
            self.done |= draft.length is not None

    def _end_before_result(self) -> None:
        """Process a tag for tool results. The model wrote this tag, although only Antiphon is
        allowed to write tool results.

        - If text or a call precedes the tag, the reply ends.
        - If the tag comes first, the model's answer follows inside the tag. So only the tag is
          dropped, and the reply goes on.
        """
        self._sink.mark_reasoning_tag()
        if self._state == TEXT or self._markup.call_count:
            self._keep_draft()
            self.done = True
            self._sink.finish(is_cut=False)

    @property
    def _content_kind(self) -> ContentKind:
        """The kind of text that the current state reads, such as ``name`` or ``json``. It is
        ``between`` for a state outside of the tool format."""
        state = self._states.get(self._state)
        return "between" if state is None else state.reads

    def _handle_stray_terminal(self, terminal: str) -> None:
        """Process a special token that has no meaning in the current state. It is read as text or
        dropped, or it shows that the text before it is not a call."""
        if self._call is not None and self._call.has_started and self._reader is not None:
            self._read_as_text(self._lexer.spell_out(terminal))  # code may contain its text
        elif (self._markup.is_bare and self._content_kind in _NAMING) or (
            self._content_kind == "header" and terminal in self._lexer.states[TEXT].transitions
        ):
            self._reject_call()  # the word before it only looked like a name or a header
        elif self._state in WHOLE_ANSWER and self._draft is not None:
            self._reject_answer()  # an answer of JSON contains no special tokens
        elif self._is_quoted(terminal):
            self._quotes_tags = True
            self._read_as_text(self._lexer.spell_out(terminal))
        else:
            self._skip_terminal(terminal)

    def _is_quoted(self, terminal: str) -> bool:
        """Return whether a special token without a meaning in the current state is text. Text are
        tags that stand only in calls, all tags in a message to the user, and tags that follow a tag
        that is text, because they belong to it."""
        if self._state not in OUTSIDE or terminal in self._lexer.end_marks:
            return False
        has_messages = self._tools is not None and self._tools.has_messages
        is_text = self._state != START and (has_messages or self._quotes_tags)
        return is_text or terminal in self._lexer.call_marks

    def _read_as_text(self, literal: str) -> None:
        """Read the special token at the start of the buffer as text. The buffer contains one
        character that stands for this token. The method replaces that character with the token's
        text, ``literal``."""
        self._buffer = literal + self._buffer[1:]
        self._position -= len(literal) - 1
        self._read(len(literal))

    def _skip_terminal(self, terminal: str) -> None:
        """Remove ``terminal`` from the start of the buffer, and do not pass it to the reader of the
        current state."""
        text = self._take_buffer(len(terminal))
        if self._state not in OUTSIDE:
            self._markup.add_terminal(text)

    def _enter(self, state: str) -> None:
        """Go to the next state, ``state``. It is either a state of the tool format, or a state
        outside of it, such as ``start``."""
        reads = self._states[state].reads if state in self._states else "between"
        if not self._leave(reads):
            self._reject_call()
        elif self.done:
            return
        elif state in OUTSIDE:
            self._end_markup(state)
        else:
            self._state, self._reader, self._quoted = state, None, []
            if reads != "between" and self._tools is not None:
                if self._call is None:
                    self._call = self._new_call()
                self._reader = reader_for(self._states[state], self._call, self._tools)

    def _new_call(self) -> CallBuilder:
        name, self._header_name = self._header_name, ""
        return CallBuilder(
            self._sink,
            self._shapes,
            is_bare=self._markup.is_bare,
            is_listed=self._markup.call_count > 0 and self._state not in WHOLE_ANSWER,
            repeated_name=name,
            passes_unknown=self._passes_unknown,
        )

    def _leave(self, next_kind: str) -> bool:
        """Finish the reader of the current state before the parser goes to the next state.
        ``next_kind``: the kind of text that the next state reads, such as ``name``.

        Starts the call if its name is complete now, and ends the call if the call is complete.
        Returns False if the text is not a call.
        """
        call, reader, kind = self._call, self._reader, self._content_kind
        if call is None or reader is None:
            return True
        reader.finish()
        if reader.failed and not call.has_started:
            return False
        if call.is_bare and not call.has_started:
            # Only a parameter or the end of the call shows that this is a call.
            is_named = kind in (*_NAMING, "gap") and next_kind not in ("id", "gap")
        else:
            is_named = kind in _NAMING and next_kind != "id"
        if is_named and not call.has_started and (call.name or next_kind not in _BETWEEN_CALLS):
            call.is_listed |= not self._markup.is_bare
            if not call.start():
                return False
        if call.is_unnamed and kind == "json" and not call.start_by_arguments():
            return False
        is_end = self._ends_call(call, kind, next_kind)
        if call.is_text:
            self._flush_markup(is_call=True, keeps_terminal=not is_end or next_kind != "between")
        elif call.has_started:
            self._markup.clear()
            self._markup.is_text = False
        if is_end:
            self._call = self._reader = None
            self._end_call(call, kind)
        return True

    @staticmethod
    def _ends_call(call: CallBuilder, kind: str, next_kind: str) -> bool:
        """Return whether the current call ends when the parser goes from one state to the next.
        ``kind``, ``next_kind``: the kind of text that the old state reads, and the kind that the
        new state reads, such as ``name`` or ``json``."""
        if kind == "id" and not call.name:  # the name follows the id
            return next_kind in _BETWEEN_CALLS | {"id"} and next_kind != "name"
        is_next_id = next_kind == "id" and call.has_started  # the id stands before the name
        return next_kind in _BETWEEN_CALLS or is_next_id or kind == "header"

    def _end_call(self, call: CallBuilder, kind: str) -> None:
        if kind == "header":
            self._header_name = f"{self._header_name} {call.name}".strip()
        elif not call.has_started:
            self._flush_markup()
        if not call.has_started or call.is_text:
            return
        call.finish()
        self._may_be_whole = self._quotes_tags = False
        self._markup.call_count += 1
        stray_text = self._lexer.spell_out("".join(call.stray_text)).strip()
        if stray_text:
            self._sink.add_text(stray_text)
            self._has_stray_text = True
        if self._draft is None:
            self.done = not self._parallel
        elif not self._parallel and self._draft.length is None:
            self._draft.length = self._sink.draft_length

    def _reject_call(self) -> None:
        """Drop the current call, because the text is not a call. The text since the last complete
        call is emitted as plain text."""
        self._call = self._reader = None
        self._end_markup(START, is_text=True)

    def _flush_markup(self, *, is_call: bool = False, keeps_terminal: bool = True) -> None:
        """Emit text that looked like a call, but is plain text.

        - ``is_call``: whether the text is a call of an unknown function. Otherwise, it is emitted
          only if it contains more than separators.
        - ``keeps_terminal``: whether a terminal at the end of the text is not emitted, because it
          may start the next call.
        """
        markup = self._markup
        terminal = markup.terminal if keeps_terminal else ""
        end = self._position - len(terminal)
        if terminal:
            markup.text.pop()
        text, start = self._uncalled_text(end, is_text=True)
        blank = _BETWEEN if markup.call_count else _BLANK
        if is_call or "".join(markup.plain_text).strip(blank):
            self._quotes_tags |= markup.has_tags
            self._emit_uncalled(text, start, end)
            markup.clear()
            markup.position, markup.is_text, self._header_name = end, is_call, ""
        if terminal:
            markup.text.append(terminal)

    def _end_markup(self, state: str, *, is_text: bool = False) -> None:
        """End a text that the parser has read as a possible call. Emit the parts of this text that
        belong to no call. Set the next state of the parser:

        - If the emitted parts belong to the answer, the next state is TEXT.
        - Otherwise, if the text contained a call or ``state`` is THINKING, the next state is
          ``state``.
        - Otherwise, the parser goes back to the state before the possible call.

        ``is_text``: whether the possible call turned out to be plain text. If ``is_text`` is False,
        parts that consist only of special tokens and separators are dropped.
        """
        markup = self._markup
        is_text |= markup.is_text
        text, start = self._uncalled_text(self._position, is_text=is_text)
        is_empty = not markup.is_bare and "".join("".join(markup.plain_text).split()) == "[]"
        has_tags = markup.has_tags
        markup.clear()
        self._header_name = ""
        self._state = state if markup.call_count or state == THINKING else markup.origin
        has_text = strip_marks(text).strip(_BETWEEN if markup.call_count else _BLANK)
        if not is_text and (is_empty or not has_text):
            return
        self._quotes_tags |= has_tags
        if self._emit_uncalled(text, start, self._position) and self._state != THINKING:
            self._state = TEXT

    def _uncalled_text(self, end: int, *, is_text: bool) -> tuple[str, int]:
        """Return the text that belongs to no call, and the position in the reply where it starts.

        This is the text that the parser has read since the last complete call. If there is no
        complete call, it is all text since the place where a call could start. ``end``: the
        position in the reply where the text ends. ``is_text``: whether the returned text includes
        the tags and special tokens that stand after the last complete call. If there is no complete
        call, the returned text always includes its tags and special tokens.
        """
        markup = self._markup
        text = "".join(markup.text)
        if not markup.call_count or markup.is_text:
            return text, markup.position
        text = (text if is_text else "".join(markup.plain_text)).lstrip(_SEPARATORS)
        return text, end - len(text)

    def _emit_uncalled(self, text: str, start: int, end: int) -> bool:
        """Emit ``text``, which the parser has read as part of a possible call, but which belongs to
        no call. Returns whether ``text`` contains more than white space.

        If the parser is in the reasoning, ``text`` becomes reasoning. It also becomes reasoning if
        the possible call began in the reasoning and contained no call. Otherwise it becomes part of
        the answer. ``start``, ``end``: the positions in the reply where ``text`` starts and ends.
        """
        markup = self._markup
        text = self._lexer.spell_out(text)
        if self._state == THINKING or (markup.origin == THINKING and not markup.call_count):
            self._emit_reasoning(text, start, end)
        else:
            self._emit_text(text, start, end)
        return bool(text.strip())

    def _end_reply(self, *, is_cut: bool) -> None:
        """End the reply. ``is_cut``: whether the output was cut off. A call that was cut off is
        treated as follows:

        - If its name is complete, the call stays open.
        - If its name is incomplete and a special token marks the call, the text of the call is
          dropped.
        - If its name is incomplete and no special token marks the call, its text is emitted as
          plain text.
        """
        if self._draft is not None and self._draft.is_answer:
            self._settle_markup(is_cut=is_cut)
            if self._draft is None and self._buffer:  # it is read again as text
                self._scan("", final=True)
        if not self.done:
            self._settle_markup(is_cut=is_cut)
        if not self.done:
            self._sink.finish(is_cut=is_cut)

    def _settle_markup(self, *, is_cut: bool) -> None:
        """Decide what the markup at the end of the reply is. See ``_end_reply``."""
        if self._state not in OUTSIDE:
            is_unsure = self._call is None or not self._call.has_started
            is_word = self._content_kind in _NAMING or (is_unsure and self._content_kind == "gap")
            is_blank = is_unsure and not "".join(self._markup.text).strip()
            if self._markup.is_bare and (is_word or is_blank):
                self._reject_call()  # what may be a name, and blank text, are text without a tag
            elif not is_cut:
                if self._call is not None:  # it is incomplete, so it must name a known tool
                    self._call.is_bare = True
                    self._call.is_broken |= self._has_passed_end
                self._enter(START)
            elif self._is_pending_text():
                self._reject_call()
            elif self._call is not None and self._content_kind in ("record", "json"):
                self._call.cut()

    @property
    def _has_passed_end(self) -> bool:
        """Whether the reply stopped inside a value that contains a possible closing tag."""
        value = "".join(self._markup.text)
        is_open = self._reader is not None and self._reader.in_string
        tags = map(self._lexer.spell_out, self._lexer.states[self._state].ends)
        return is_open and any(tag in value for tag in tags)

    # --- text -------------------------------------------------------------------------------------

    def _take_buffer(self, length: int) -> str:
        """Remove the first ``length`` characters from the buffer and return them."""
        text, self._buffer = self._buffer[:length], self._buffer[length:]
        self._position += length
        if self._state not in OUTSIDE and self._markup.section is not None:
            self._markup.section.append(text)
            if self._position - self._markup.position > _ECHO_LIMIT:
                self._markup.section = None
        if self._draft is not None:
            self._draft.add(text)
        return text

    def _emit_text(self, text: str, start: int | None = None, end: int | None = None) -> None:
        if text.strip():
            self._may_be_whole = False
            if self._draft is not None and self._draft.is_answer:
                self._reject_answer()
                return
        logprobs = [
            self._wire_logprob(found) for found in self._take_tokens(text, start, end) if found
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
        """Return the log probabilities of the tokens of a text, and remove these tokens from the
        parser's record of tokens.

        If ``start`` is None, the text was just taken from the buffer. Otherwise the text stands
        between the positions ``start`` and ``end`` of the reply.
        """
        if start is None:
            start = self._position - len(text)
        return self._origins.take(start, self._position if end is None else end)
