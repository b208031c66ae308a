"""Parser of gpt-oss's output. It is a state machine over the seven control tokens of the harmony
format.

If a model makes a mistake in the format, OpenAI's library raises an error or loses messages. Real
models make such mistakes. This parser uses the valid part of a header, and treats text without a
header as an answer. It never raises, loses no text, and gives the same deltas however the reply is
split into chunks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from itertools import repeat
from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from antiphon.dialects.detokenizer import Detokenizer, wire_logprob
from antiphon.dialects.json_stream import JsonSpan
from antiphon.dialects.parser.delta_builder import ParserDeltaBuilder
from antiphon.dialects.parser.json_repair import begin_object
from antiphon.dialects.parser.tool_call import CallBuilder, ToolShape, meant_tool
from antiphon.inference.tokens import Chunk, Tokenizer, TokenLogprob
from antiphon.stream.deltas import Delta, FinishReason
from antiphon.wire.items import Message, Phase, Reasoning

from .container import EXEC, ExecCall
from .header import CHANNEL, CONSTRAIN, LIMIT, Header, bare_text, read_header
from .messages import PYTHON

#: The kinds of messages: an answer, a text before a call, reasoning, and a call.
HarmonyMessageKind = Literal["final", "commentary", "analysis", "call"]
ControlName = Literal["start", "channel", "constrain", "message", "end", "return", "call"]

#: Name of a control token → its text.
CONTROL_TOKENS: Mapping[ControlName, str] = {
    "start": "<|start|>",
    "channel": "<|channel|>",
    "constrain": "<|constrain|>",
    "message": "<|message|>",
    "end": "<|end|>",
    "return": "<|return|>",
    "call": "<|call|>",
}
#: The kinds of message that end a turn.
_FINAL_KINDS = ("final", "call")
#: The tools with which gpt-oss was trained. It may call them although no request offers them.
_BUILT_IN = frozenset({"python", "browser", "container"})


class TokenCodes(Struct, frozen=True):
    """The meaning of the token ids of one tokenizer.

    - ``controls``: id of a control token of harmony → its name.
    - ``marks``: id of a special token → ``""``, so the detokenizers add no text for it.
    - ``text_cache``: id of any other token → its text. The detokenizers add entries.
    """

    controls: Mapping[int, ControlName]
    marks: Mapping[int, str]
    text_cache: dict[int, str] = {}

    @staticmethod
    def from_tokenizer(tokenizer: Tokenizer) -> TokenCodes:
        """Build an instance from the special tokens of ``tokenizer``."""
        special = tokenizer.special
        controls = {special[text]: name for name, text in CONTROL_TOKENS.items() if text in special}
        return TokenCodes(controls, dict.fromkeys(special.values(), ""))


class _PlainInputCall:
    """Emits a call whose input is plain text, not JSON, such as code for the Python interpreter."""

    def __init__(self, sink: ParserDeltaBuilder, shape: ToolShape) -> None:
        self._sink = sink
        sink.open_call(shape, "")

    def add_json_arguments(self, text: str) -> None:
        self._sink.add_arguments(text)

    def finish(self) -> None:
        self._sink.close_call()


class HarmonyParser:
    """``dialects.base.Parser`` for the harmony format.

    - ``shapes``: name of a tool in the prompt → the tool's name and schema in the API. If empty,
      the parser recognizes no calls.
    - ``native_tools``: the tools with which gpt-oss was trained. Each key is the name that gpt-oss
      writes as the recipient of a call of the tool, for example ``python``. The value is the name
      of this tool in the prompt.
    - ``parallel``: whether the reply may have more than one call.
    - ``open_kind``: the kind of message inside which the prompt ends. None means that the prompt
      ends after the model's role, so the reply starts with a header.
    - ``constrained``: whether the engine enforces a format. If so, the reply ends after the first
      answer or call.
    - ``json_answer``: whether the answer must be JSON. If the engine enforces this, the parser
      reads a control token inside a JSON string as text. In the arguments of a call, the parser
      always does this.
    - ``passes_unknown``: whether a call of an unknown tool is a call, because the caller rejects
      it. Otherwise, its text is a message. A message to one of gpt-oss's own tools is dropped if
      the request has no tools.
    - ``logprob_token_ids``: whether log probabilities show the ids of tokens, not their text.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        codes: TokenCodes,
        *,
        shapes: Mapping[str, ToolShape],
        native_tools: Mapping[str, str] = {},
        parallel: bool = True,
        open_kind: HarmonyMessageKind | None = None,
        constrained: bool = False,
        json_answer: bool = False,
        passes_unknown: bool = False,
        logprob_token_ids: bool = False,
    ) -> None:
        self._codes = codes
        self._shapes = shapes
        self._native_tools = native_tools
        self._parallel = parallel
        self._is_constrained = constrained
        self._is_json_answer = json_answer
        self._passes_unknown = passes_unknown
        self._wire_logprob = partial(wire_logprob, tokenizer, token_ids=logprob_token_ids)
        self._json_span: JsonSpan | None = None
        self._sink = ParserDeltaBuilder()
        self._detokenizer = Detokenizer(tokenizer, codes.marks, codes.text_cache)
        #: The kind of the current message, or None while a header is read.
        self._kind: HarmonyMessageKind | None = open_kind
        self._is_open = False
        self._call: CallBuilder | _PlainInputCall | ExecCall | None = None
        #: The tool to which the current message is addressed, until its text shows that the message
        #: is a call: the arguments of a call are a JSON object.
        self._pending_name = ""
        self._is_dropped = False
        self._text: list[str] = []
        self._logprobs: list[TokenLogprob] = []
        self._header = ""
        self._header_tokens = 0
        self._has_start_token = False  # whether <|start|> precedes the header
        self._is_first = open_kind is None
        self._has_answered = False
        self.reasoning_tokens = 0
        self.done = False
        self._follow_json()

    # --- the contract -----------------------------------------------------------------------------

    def set_unconstrained(self) -> None:
        self._is_constrained, self._json_span = False, None

    @property
    def is_thinking(self) -> bool:
        return self._kind == "analysis"

    def feed(self, chunk: Chunk) -> Iterable[Delta]:
        if chunk.ids:
            self._sink.add_sampled_tokens(chunk.ids)
        controls, marks, decode = self._codes.controls, self._codes.marks, self._detokenizer.feed
        logprobs: Iterable[TokenLogprob | None] = chunk.logprobs or repeat(None)
        for token, logprob in zip(chunk.ids, logprobs, strict=False):
            if self.done:
                break
            control = controls.get(token)
            if control is not None and not self._is_text(control):
                self._handle_control(control)
                continue
            if logprob is not None and (control or token not in marks):
                self._logprobs.append(logprob)
            self._read(decode(token) + (CONTROL_TOKENS[control] if control else ""), 1)
        if chunk.tail and not self.done:
            self._read(chunk.tail, 0)
        self._emit_content()
        return self._sink.take_deltas()

    def finish(self, reason: FinishReason) -> Iterable[Delta]:
        is_cut = reason != "stop"
        if not self.done:
            # An incomplete character is not text, so it is dropped from a reply that was cut off.
            self._end_message(is_cut=is_cut)
        return self._sink.take_deltas()

    # --- the machine ------------------------------------------------------------------------------

    def _is_text(self, control: ControlName) -> bool:
        """Return whether a control token is read as text. This is the case inside a string of the
        arguments of a call, and inside a string of an answer if the engine enforces JSON.

        The control tokens ``return`` and ``call`` end the reply, so they are never text.
        """
        in_string = self._json_span is not None and self._json_span.in_string
        return in_string and control not in ("return", "call")

    def _handle_control(self, control: ControlName) -> None:
        if control in ("end", "return", "call"):
            self._count_reasoning(1)
            self._end_message()
        elif control == "start":
            self._end_message()
            self._has_start_token = True
        elif control == "channel":
            if self._kind is not None:  # a message without an end token
                self._end_message()
            self._add_to_header(CHANNEL)
        elif self._kind is None:
            if control == "constrain":
                self._add_to_header(CONSTRAIN)
            else:
                self._logprobs.clear()
                self._header_tokens += 1
                self._begin_message(read_header(self._finish_header()))

    def _read(self, text: str, tokens: int) -> None:
        """Add text to the current message, or to the header if no message has started. ``tokens``:
        the number of tokens from which the text comes."""
        if self._kind is None:
            self._add_to_header(text, tokens)
        else:
            self._count_reasoning(tokens)
            self._add_content(text)

    def _add_content(self, text: str) -> None:
        """Add text to the content of the current message."""
        if text and not self.done:
            self._text.append(text)
            if self._json_span is not None:
                self._json_span.read(text)

    def _count_reasoning(self, tokens: int) -> None:
        """If the current message is reasoning, add ``tokens`` to the number of reasoning tokens."""
        if self._kind == "analysis":
            self.reasoning_tokens += tokens

    # --- headers ----------------------------------------------------------------------------------

    def _add_to_header(self, text: str, tokens: int = 1) -> None:
        """Append ``text`` to the header. Start a message if the header is then too long, or if it
        contains text that cannot belong to a header.

        If the whole text begins with a valid header, this becomes the message's header, and the
        text after it becomes the message's content. Otherwise, the whole text becomes the content.
        ``tokens``: the number of tokens from which ``text`` comes.
        """
        self._header_tokens += tokens
        if text in (CHANNEL, CONSTRAIN):
            self._header += self._detokenizer.finish()
        self._header += text
        if self._is_unmarked_header:
            at = bare_text(self._header)
            if at is not None:
                self._begin_unmarked(at)
        elif len(self._header) > LIMIT:
            self._begin_overlong()

    @property
    def _is_unmarked_header(self) -> bool:
        """Whether the header so far contains no control token. It may then be plain text."""
        header = self._header
        return not self._has_start_token and CHANNEL not in header and CONSTRAIN not in header

    def _finish_header(self) -> str:
        """Return the complete text of the header."""
        self._header += self._detokenizer.finish()
        return self._header

    def _begin_unmarked(self, at: int) -> None:
        """Start a message from ``self._header``, which contains no control token and may be plain
        text. ``at``: the position where the possible header ends.

        If the possible header names the recipient of a call, the text after the header is the
        arguments of this call. Otherwise, the possible header and the text after it are an answer.
        """
        text, header = self._header, read_header(self._header[:at])
        if at and self._resolve_recipient(header.recipient, is_header=False) is None:
            at, header = 0, Header()
        self._begin_message(header)
        self._add_content(text[at:])

    def _begin_overlong(self) -> None:
        """Start a message although the header has not ended, because the header is too long. The
        known header words at the beginning of the header become the message's header. All other
        words become the message's text."""
        header = read_header(self._finish_header(), ended=False)
        self._begin_message(header)
        self._add_content(header.rest)

    def _begin_message(self, header: Header) -> None:
        """Start the message that follows ``header``."""
        tokens = self._header_tokens
        self._header, self._header_tokens, self._is_first = "", 0, False
        if not header.is_own and self._has_answered:
            self.done = True  # the model writes a message of another author: its turn is over
            return
        name = self._resolve_recipient(header.recipient)
        recipient = (header.recipient or "").partition(".")[0]
        self._is_dropped = (
            not self._shapes and recipient in _BUILT_IN and header.channel == "commentary"
        )
        if name is not None:
            self._kind = "call"
            self._has_answered = True
            if self._takes_json(name):
                self._pending_name = name
            else:
                self._call = self._open_call(name)
        elif header.channel == "analysis":
            self._kind = "analysis"
        else:
            self._kind = "commentary" if header.channel == "commentary" else "final"
        self._follow_json(is_addressed=header.recipient is not None)
        self._count_reasoning(tokens)

    def _follow_json(self, *, is_addressed: bool = False) -> None:
        """Start to track JSON strings if the current message may be JSON: a call, a message to an
        unknown tool (``is_addressed``), or an answer for which the engine enforces JSON. A control
        token inside such a string is text, so the string may quote another call."""
        is_json = (
            not isinstance(self._call, _PlainInputCall)
            if self._kind == "call"
            else is_addressed
            or (self._is_json_answer and self._is_constrained and self._kind == "final")
        )
        self._json_span = JsonSpan() if is_json else None

    def _open_call(self, name: str) -> CallBuilder | _PlainInputCall | ExecCall:
        """Start a call of the tool whose name in the prompt is ``name``. Returns the object that
        receives the call's arguments."""
        for recipient, reader in ((PYTHON, _PlainInputCall), (EXEC, ExecCall)):
            if name == self._native_tools.get(recipient):
                return reader(self._sink, self._shapes[name])
        call = CallBuilder(
            self._sink, self._shapes, is_bare=False, passes_unknown=self._passes_unknown
        )
        call.name = name
        call.start()
        return call

    def _takes_json(self, name: str) -> bool:
        """Return whether the arguments of the tool must be a JSON object."""
        shape = self._shapes.get(name)
        is_native = name in (self._native_tools.get(tool) for tool in (PYTHON, EXEC))
        return not is_native and (shape is None or not shape.custom)

    def _decide_message(self, text: str, *, final: bool = False) -> bool:
        """Decide whether a message to a tool is a call. It is one if its text is a JSON object, a
        string of such an object, or says that there are no arguments. Returns False if this cannot
        be decided yet. ``final``: whether the text is whole."""
        inner = text.lstrip().removeprefix('"')
        begin = begin_object(text if inner.startswith('"') else inner, final=final)
        if begin is None:
            return False
        name, self._pending_name = self._pending_name, ""
        if begin >= 0:
            self._call = self._open_call(name)
        else:
            self._kind, self._json_span = "final", None
        return True

    def _resolve_recipient(self, recipient: str | None, *, is_header: bool = True) -> str | None:
        """Return the name that the tool ``recipient`` has in the prompt. Returns None if
        ``recipient`` is no tool, or if there are no tools.

        An unknown name is returned if the caller rejects such calls, and if it begins with
        ``functions.`` or ``is_header`` is true. ``is_header``: false if ``recipient`` was read from
        a text that may not be a header.
        """
        if recipient is None or not self._shapes:
            return None
        if recipient in self._native_tools:
            return self._native_tools[recipient]
        name = recipient.removeprefix("functions.")
        is_unknown = self._passes_unknown and (is_header or name != recipient)
        return meant_tool(recipient, self._shapes) or (name if is_unknown else None)

    # --- content ----------------------------------------------------------------------------------

    def _emit_content(self) -> None:
        """Emit the message's content that has been read but not emitted yet."""
        text = "".join(self._text)
        if not text or (self._pending_name and not self._decide_message(text)):
            return
        self._text.clear()
        if self._is_dropped:
            return
        logprobs, self._logprobs = self._logprobs, []
        if self._call is not None:
            self._call.add_json_arguments(text)
            return
        if not self._is_open:
            self._open_item()
        if self._kind == "analysis":
            logprobs = []
        self._sink.write(text, [self._wire_logprob(found) for found in logprobs])

    def _open_item(self) -> None:
        self._is_open = True
        if self._kind == "analysis":
            self._sink.open_item(Reasoning())
            return
        phase: Phase | UnsetType = "commentary" if self._kind == "commentary" else UNSET
        self._sink.open_item(Message(role="assistant", content=(), phase=phase))
        self._has_answered = True

    def _end_message(self, *, is_cut: bool = False) -> None:
        """Process the end of the current message, or of a header that no message follows.
        ``is_cut``: whether the output was cut off. If so, the message's item or call is not
        closed."""
        if self._kind is None:
            self._rescue_header(is_cut=is_cut)
        elif not is_cut:
            self._text.append(self._detokenizer.finish())
        self._emit_content()
        if self._pending_name:
            self._decide_message("".join(self._text), final=True)
            self._emit_content()
        if is_cut and isinstance(self._call, ExecCall):
            self._call.finish_incomplete()
        if is_cut or self.done:
            return
        if self._call is not None:
            self._call.finish()
            self._emit_stray_text(self._call)
            self.done = not self._parallel
        else:
            self._sink.close_item()
        self.done |= self._is_constrained and self._kind in _FINAL_KINDS
        self._kind = self._call = self._json_span = None
        self._is_open = self._has_start_token = False
        self._header, self._header_tokens = "", 0
        self._logprobs.clear()

    def _emit_stray_text(self, call: CallBuilder | _PlainInputCall | ExecCall) -> None:
        """Emit the text that belongs to no argument of a call as a message after the call."""
        text = "".join(call.stray_text).strip() if isinstance(call, CallBuilder) else ""
        if text:
            self._sink.open_item(Message(role="assistant", content=()))
            self._sink.write(text)
            self._sink.close_item()

    def _rescue_header(self, *, is_cut: bool) -> None:
        """Process a header that no message follows. Words that do not belong to a header are
        emitted as text of the reply. ``is_cut``: whether the output was cut off.

        If the header contains no control token, its words may be an answer. All of them are then
        emitted.
        """
        text = self._header if is_cut else self._finish_header()
        is_unmarked = self._is_unmarked_header and not is_cut
        if is_unmarked and (self._is_first or "to=" in text):
            header = Header(rest=text)  # an answer that consists of words that headers also use
        else:
            header = read_header(text, ended=False)
        if header.rest.strip():
            self._begin_message(header)
            self._add_content(header.rest)
