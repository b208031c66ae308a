"""State readers. A tool format is a state machine, and each of its states says how its text is
read. A reader parses the text of one state, and passes the parsed parts to ``CallBuilder``.

A reader gets only the text between the tags and special tokens that the lexer has found. Readers
emit no items, and they read no text twice.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Protocol

from antiphon.dialects.formats.types import ContentKind, State, ToolFormat
from antiphon.dialects.json_stream import JsonSpan

from .json_calls import JsonCallReader
from .keyword_arguments import KeywordArgumentReader
from .tool_call import WRAPPERS, CallBuilder
from .xml_arguments import XmlArgumentReader

#: A call's name, and a name as models also write it where tags mark a call: in quotes, or with a
#: list of its parameters, as in ``find(query)``.
_NAME = re.compile(r"[\w.\-:/$]*")
_QUOTES = "\"'`*"
_ODD_NAME = re.compile(rf"[\w.\-:/$#{_QUOTES}]*+(?:\([\w, ]*+\)?)?+[:.#\d{_QUOTES}]*+")
_NAME_LIMIT = 256
_ID = re.compile(r"[A-Za-z0-9_.:\-]{1,128}")
#: The start of a JSON object, and a prefix of such a start.
_OBJECT = re.compile(r'\{\s*["}]')
_OBJECT_BEGUN = re.compile(r"\{\s{0,64}")
#: A call id of OpenAI's, Anthropic's or vLLM's API.
_FOREIGN_ID = re.compile(r"(?:call|fc|toolu|chatcmpl-tool)[_-][A-Za-z0-9_-]{4,}")
#: A parameter's name and its attributes, such as ``string="true"``. Quotes may be missing.
_KEY = re.compile(r"""\s*["']?([^\s"'<>]+)["']?(?:\s+[a-z]+\s*=\s*["']?[A-Za-z]+["']?)*\s*""")
#: A tag of an element, and the limit of its length.
_TAG_LIMIT = 128
_TAG = re.compile(rf"</?[\w.\-]{{1,{_TAG_LIMIT - 3}}}>")
#: A number in a call id, characters around a number at other places, and an id without a name.
_NUMBER = re.compile(rf"(?:call_)?\d+|{_FOREIGN_ID.pattern}")
_DIGITS, _SIGNS = "0123456789", "._-#"
_NAMELESS = re.compile(rf"{_FOREIGN_ID.pattern}|(?:functions[.:])?:?\d+")


class Reader(Protocol):
    """Parses the text of one state of a tool format, for example a call's name or its arguments."""

    @property
    def complete(self) -> bool:
        """Whether the text of this state is complete. The text after it belongs to the next
        state."""

    @property
    def failed(self) -> bool:
        """Whether the text read so far shows that the model is not writing a call."""

    @property
    def in_string(self) -> bool:
        """Whether the text read so far ends inside a string. In a string, text that looks like a
        tag is part of the string."""

    def read(self, text: str) -> int:
        """Read the next piece of the state's text. Returns the number of characters that belong to
        this state."""

    def finish(self) -> None:
        """End the text of this state. The parser uses this method at the next tag or special token,
        and at the end of the reply."""


class _TextReader:
    """Base class of readers that accept all text up to the next terminal. A terminal is a text or
    special token that leads to another state."""

    def __init__(self, call: CallBuilder) -> None:
        self.complete = self.failed = self.in_string = False
        self.call = call
        self.parts: list[str] = []

    def read(self, text: str) -> int:
        self.parts.append(text)
        return len(text)

    def finish(self) -> None:
        """Do nothing. Subclasses that must process the whole text override this method."""

    @property
    def text(self) -> str:
        return "".join(self.parts)


class _NameReader(_TextReader):
    """Reads a call's name. The reader fails at the first character that cannot stand in a name. If
    a tag marks the call, the name of a parameter may follow whose opening tag is missing."""

    def __init__(self, call: CallBuilder) -> None:
        super().__init__(call)
        self._name = ""
        self._is_whole = False
        self._rest = ""

    def read(self, text: str) -> int:
        at = 0 if self._name else len(text) - len(text.lstrip())
        if not self._is_whole:
            before, pattern = len(self._name), _NAME if self.call.is_bare else _ODD_NAME
            name = pattern.match((self._name + text[at:])[:_NAME_LIMIT])
            assert name is not None
            self._name = name.group()
            at += len(self._name) - before
            self._is_whole = at < len(text)
        if not self.call.is_bare:  # a call without markup has no white space after its name
            self._rest = (self._rest + text[at:]).lstrip()
            self.call.name, key = self._name, self._rest.rstrip()
            names = self.call.parameter_names if len(self._rest) < _NAME_LIMIT else ()
            if not key or any(name.startswith(key) for name in names):
                return len(text)
        self.failed = at < len(text)
        return at

    def finish(self) -> None:
        self.call.name = self._name
        if self._rest:
            self.call.stray_text.append(self._rest)


class _LabelReader(_NameReader):
    """Reads a call id that contains the tool's name, such as ``functions.NAME:0``.

    If the number is missing, the text is not a valid id. The tool's name is then taken from the
    text, and the call's id stays empty. If the name is missing, the arguments tell which tool is
    called.
    """

    def finish(self) -> None:
        call, text = self.call, self._name.strip(_QUOTES)
        name = ":".join(part for part in text.split(":") if not _NUMBER.fullmatch(part))
        bare = name.rstrip(_DIGITS).rstrip(_SIGNS)
        names = (name, name.lstrip(_DIGITS + _SIGNS), bare, bare.removeprefix("functions_"))
        known = next((each for each in names if call.tool_named(each)), "")
        if not known and _NAMELESS.fullmatch(text):
            call.name, call.call_id = call.only_tool, text
            call.is_unnamed = not call.name
        else:
            name = known or name
            call.name = name.removeprefix("functions.")
            call.call_id = text if name != text else ""


class _HeaderReader(_NameReader):
    """Reads the tool's name in the header of a message. The call that follows repeats the name."""


class _IdReader(_TextReader):
    """Reads the call's id. If the text cannot be an id, it does not belong to the call, and the
    parser emits it after the call as text of the answer."""

    def finish(self) -> None:
        text = self.text.strip()
        if _ID.fullmatch(text):
            self.call.call_id = text
        elif text:
            self.call.stray_text.append(f"{text}\n")


class _FillerReader(_TextReader):
    """Drops meaningless text, which is text that matches the regex ``filler`` of the format. Any
    other text does not belong to the call, and the parser emits it after the call as text of the
    answer."""

    def __init__(self, call: CallBuilder, filler: str) -> None:
        super().__init__(call)
        self._filler = re.compile(filler)

    def finish(self) -> None:
        if self._filler.fullmatch(self.text) is None:
            self.call.stray_text.append(self.text)


class _GapReader(_TextReader):
    """Collects text between two parts of a call, where the format allows no text. The parser emits
    it after the call as text of the answer. Before a call that no special token marks has started,
    such text shows that it is no call.

    In elements with the names of parameters, as in ``<query>text</query>``, models write arguments.
    Other elements are arguments that the function does not have. The call is then incomplete.
    """

    def __init__(self, call: CallBuilder, form: ToolFormat) -> None:
        super().__init__(call)
        self._form = form
        self._held = ""  # text that may be the beginning of a tag
        self._value: Reader | None = None
        self._closing = ""

    def read(self, text: str) -> int:
        if self.call.is_bare and not self.call.has_started:
            end = len(text) - len(text.lstrip())
            self.failed = end < len(text)
            return end
        at, self._held = 0, self._held + text
        for tag in _TAG.finditer(self._held):
            self._add(self._held[at : tag.start()])
            self._handle_tag(tag[0])
            at = tag.end()
        begun = self._held.rfind("<", at)
        end = begun if begun > len(self._held) - _TAG_LIMIT and begun >= 0 else len(self._held)
        self._add(self._held[at:end])
        self._held = self._held[end:]
        return len(text)

    def finish(self) -> None:
        self._add(self._held)
        self._end_value()
        if self.text:
            self.call.stray_text.append(self.text)

    def _handle_tag(self, tag: str) -> None:
        missing = self.call.missing_parameters or ()
        if tag == self._closing:
            self._end_value()
        elif self._value is None and (key := tag[1:-1]) in missing:
            self.call.start_parameter(key)
            self._value = reader_for(State(reads="value"), self.call, self._form)
            self._closing, self.in_string = f"</{key}>", True
        elif self._value is not None or tag.strip("</>") not in WRAPPERS:
            self.call.is_broken |= self._value is None and bool(missing) and tag[1] != "/"
            self._add(tag)

    def _add(self, text: str) -> None:
        if self._value is None:
            self.parts.append(text)
        elif text:
            self._value.read(text)

    def _end_value(self) -> None:
        if self._value is not None:
            self._value.finish()
        self._value, self._closing, self.in_string = None, "", False


class _LeadReader(_TextReader):
    """Skips the white space before a value whose opening tag may be missing. The value begins with
    the first other character."""

    def read(self, text: str) -> int:
        end = len(text) - len(text.lstrip())
        self.complete = end < len(text)
        return end


class _JsonReader(_TextReader):
    """Reads a call's arguments as JSON. Arguments that are not JSON are passed on as the model
    wrote them."""

    def __init__(self, call: CallBuilder) -> None:
        super().__init__(call)
        self._span = JsonSpan()
        self._has_started = False

    def read(self, text: str) -> int:
        at = 0
        if not self._has_started:
            at = len(text) - len(text.lstrip())
            self._has_started = at < len(text)
        end = self._span.read(text, at)
        self.call.add_json_arguments(text[at:end])
        self.complete, self.in_string = self._span.complete, self._span.in_string
        return end


class _PlainArgumentsReader(_JsonReader):
    """Reads the arguments of a call in formats that write them without tags. Arguments that are a
    JSON object are passed on incrementally. Any other text is passed on once it is complete."""

    def __init__(self, call: CallBuilder) -> None:
        super().__init__(call)
        self._is_text = False

    def read(self, text: str) -> int:
        if self._has_started:
            return super().read(text)
        self.parts.append(text)
        if not self._is_text:
            content = self.text.lstrip()
            if _OBJECT.match(content):
                return super().read(content) + len(text) - len(content)
            self._is_text = bool(content) and not _OBJECT_BEGUN.fullmatch(content)
            self.parts = [content]
        return len(text)

    def finish(self) -> None:
        if not self._has_started:
            self.call.add_plain_arguments(self.text.rstrip("\r\n"))


class _KeyReader(_TextReader):
    """Reads a parameter's name. The quotes around it, and attributes after it, do not belong to
    it."""

    def finish(self) -> None:
        found = _KEY.fullmatch(self.text)
        self.call.start_parameter(self.text.strip() if found is None else found.group(1))


class _LiteralReader(_TextReader):
    """Reads the value of an argument, which may have any type, and passes it on once it is
    complete. ``trims``: whether to drop one line end on each side of the value."""

    def __init__(self, call: CallBuilder, *, trims: bool) -> None:
        super().__init__(call)
        self._trims = trims

    def finish(self) -> None:
        text = self.text
        if self._trims:
            line = _line_end(text)
            text = text.removeprefix(line).removesuffix("\n").removesuffix(line.rstrip("\n"))
        self.call.add_value(text)


class _StringReader(_TextReader):
    """Reads the value of an argument that is a string, and passes it on incrementally. ``trims``:
    whether to drop one line end on each side of the value."""

    def __init__(self, call: CallBuilder, *, trims: bool) -> None:
        super().__init__(call)
        self._trims = trims
        self._line = ""  # the line end before the value, once it is known
        self._pending = ""
        call.add_string("")

    def read(self, text: str) -> int:
        content = self._pending + text
        if self._trims:
            if not self._line:
                if content == "\r":  # perhaps the first half of a line end
                    self._pending = content
                    return len(text)
                self._line = _line_end(content)
                content = content.removeprefix(self._line)
            kept = content.removesuffix("\n").removesuffix(self._line.rstrip("\n"))
            content, self._pending = kept, content[len(kept) :]
        self.call.add_string(content)
        return len(text)

    def finish(self) -> None:
        if not self._line:
            self.call.add_string(self._pending)
        self.call.end_string()


def _line_end(text: str) -> str:
    """Return how the lines of a value end, which the first characters of its text tell."""
    return "\r\n" if text.startswith("\r\n") else "\n"


def reader_for(state: State, call: CallBuilder, form: ToolFormat) -> Reader:
    """Return the reader for ``state``, a state of the tool format ``form``."""
    if state.reads in ("value", "string", "literal"):
        call.find_key()
    reader = _reader_for(state, call, form)
    if isinstance(reader, _StringReader | _LiteralReader):
        reader.in_string = bool(state.ends) and not call.takes_scalar
    return reader


def _reader_for(state: State, call: CallBuilder, form: ToolFormat) -> Reader:
    match state.reads:
        case "filler":
            return _FillerReader(call, state.filler)
        case "string" if not call.takes_other_type:
            return _StringReader(call, trims=form.trims)
        case "gap":
            return _GapReader(call, form)
        case "value" if call.takes_string:
            return _StringReader(call, trims=form.trims)
        case "value" | "literal" | "string":
            return _LiteralReader(call, trims=form.trims)
        case "pairs":
            parameter, close = form.written.parameter, state.close or form.written.after[0]
            sign = "=" if parameter is None else parameter.json
            return KeywordArgumentReader(call, sign, close, form.quote)
        case "elements":
            return XmlArgumentReader(call, form.quote)
    return _READERS[state.reads](call)


_READERS: Mapping[ContentKind, Callable[[CallBuilder], Reader]] = {
    "name": _NameReader,
    "label": _LabelReader,
    "header": _HeaderReader,
    "id": _IdReader,
    "lead": _LeadReader,
    "json": _JsonReader,
    "body": _PlainArgumentsReader,
    "key": _KeyReader,
    "record": JsonCallReader,
}
