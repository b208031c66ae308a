"""Reader of a call that is one JSON object with the tool's name and the arguments."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from antiphon.dialects.json_stream import (
    PLAIN_QUOTES,
    JsonSpan,
    StringDecoder,
    load_object,
    match_end,
)

from .tool_call import CallBuilder

_BLANK = re.compile(r"\s*")
_GAP = re.compile(r"[\s,]*")
_WORD = re.compile(r"\w*")
_NAME_KEYS = frozenset({"name", "tool_name", "function", "tool", "action"})
#: The keys under which a message of the Chat Completions API holds its calls.
_CALL_KEYS = frozenset({"tool_calls", "tool_call", "function_calls", "function_call"})
#: The keys under which models write the arguments.
ARGUMENT_KEYS = frozenset(
    {"arguments", "argument", "args", "parameters", "parameter", "params", "kwargs"}
    | {"input", "inputs", "tool_input", "action_input"}
    | {"tool_arguments", "tool_args", "tool_parameters", "tool_params"}
)
_ID = re.compile(r"""["']?[A-Za-z0-9_.:\-]*["']?\s*""")
_TYPE = re.compile(r"""["'](?:function|function_call|tool|tool_call|tool_use)["']\s*|null\s*""")
#: Key of a field that may only describe a call → regex for the values of such a field.
_METADATA: Mapping[str, re.Pattern[str]] = {
    **dict.fromkeys(("id", "call_id", "tool_call_id", "index"), _ID),
    "type": _TYPE,
    "role": re.compile(r"""["']assistant["']\s*"""),
    **dict.fromkeys(("content", "refusal", *_CALL_KEYS), re.compile(r"""null\s*|""\s*""")),
}
_KNOWN_KEYS = _NAME_KEYS | ARGUMENT_KEYS | _METADATA.keys()
#: How long a field before the name of the call may be.
_MAX_FIELD = 256
#: The beginning of a JSON Schema in the place of arguments: the object is the definition of a tool.
_SCHEMA = re.compile(
    r"""\{\s*["'](?:type["']\s*:\s*["']object["']|properties["']\s*:\s*\{|\$schema["'])"""
)
#: The beginning of arguments that are no schema.
_FIRST_KEY = re.compile(r"""\{\s*["'](?!(?:type|properties|\$schema)["'])[^"']*["']""")
#: How many characters of arguments are held back until their first key is known.
_MAX_HEAD = 64

_Step = Callable[[str, int], int]


class JsonCallReader:
    """Reads a call such as ``{"name": …, "arguments": {…}}`` incrementally. The keys may have any
    order.

    - The key of the arguments is one of ``ARGUMENT_KEYS``. The arguments are an object, or a string
      that contains JSON.
    - The name and the arguments may stand in an inner object under the key ``function``, or in a
      message of the Chat Completions API: under the key ``tool_calls``, for example.
    - Arguments that stand before the name are held back until the name is complete.
    - If tags mark the call, the only key may be the name, and its value the arguments, as in
      ``{"f": {"city": "Paris"}}``.
    - If no key holds the arguments, all other fields are the arguments, as in ``{"name": "f",
      "city": "Paris"}``. Otherwise the other fields do not belong to the call, and the parser emits
      them after the call as text of the answer.
    """

    def __init__(self, call: CallBuilder) -> None:
        self._call = call
        self._step: _Step = self._read_opening
        self._depth = 0
        self._key = ""
        self._text: list[str] = []
        self._string = StringDecoder()
        self._span = JsonSpan()
        self._early_arguments: list[str] = []
        self._has_arguments = False
        self._has_argument_text = False
        self._is_key_name = False  # whether the key of the arguments is the name of the tool
        #: The current field as the model wrote it; None if it is the name or the arguments.
        self._field: list[str] | None = None
        self._field_length = 0
        self._fields: list[tuple[str, str]] = []
        self.complete = False
        self.failed = False

    @property
    def in_string(self) -> bool:
        """Whether the text read so far ends inside a string of the arguments. In such a string,
        text that looks like a tag is part of the string. Keys and names contain no tags."""
        in_argument = self._step == self._read_string and self._key in ARGUMENT_KEYS
        return self._span.in_string or in_argument

    def read(self, text: str) -> int:
        """Read the next piece of text. Returns the number of characters that belong to the call."""
        at = 0
        while at < len(text) and not (self.complete or self.failed):
            start, field = at, self._field
            at = self._step(text, at)
            if field is not None and field is self._field:
                field.append(text[start:at])
        if self.complete:
            self._end_fields(end="" if self._depth else "}")
        return at

    def finish(self) -> None:
        """End the call. The parser uses this method at the next tag or special token, and at the
        end of the reply."""
        if self._step == self._read_scalar:
            self._end_scalar()
        elif self._step == self._read_string and self._key in ARGUMENT_KEYS:
            self._add_arguments(self._string.finish())
        if self.failed:
            return
        if not self._call.has_started and self._call.name:
            self._start()
        self._end_fields(end="" if self._field is not None else "}")

    # The reader is a state machine. Each method that follows is a step: it reads some of the text,
    # returns the position after it, and sets the next step.

    def _read_opening(self, text: str, at: int) -> int:
        at = match_end(_BLANK, text, at)
        if at == len(text):
            return at
        if text[at] != "{":
            return self._fail(at)
        self._depth += 1
        self._step = self._read_gap
        return at + 1

    def _read_gap(self, text: str, at: int) -> int:
        self._end_field()
        at = match_end(_GAP, text, at)
        if at == len(text):
            return at
        if text[at] == "}":
            self._depth -= 1
            if not self._depth:
                self._close()
            return at + 1
        if text[at] == "{" and not (self._call.is_bare or self._key):  # a bracket too many
            self._depth += 1
            return at + 1
        if text[at] in PLAIN_QUOTES:
            self._key, self._field = "", [text[at]]
            self._expect_string(self._read_key, text[at])
            return at + 1
        if self._call.is_bare or not text[at].isalpha():
            return self._fail(at)
        self._text, self._field, self._step = [], [], self._read_word
        return at

    def _read_word(self, text: str, at: int) -> int:
        """Read a key that is written without quotes."""
        end = match_end(_WORD, text, at)
        self._text.append(text[at:end])
        return self._end_key(end) if end < len(text) else end

    def _read_line(self, text: str, at: int) -> tuple[str, int, bool]:
        """Read the next piece of a key or a name, which contains no line end. Returns the decoded
        text, the position after it, and whether a line end follows it."""
        end = text.find("\n", at)
        decoded, at = self._string.read(text[:end] if end >= 0 else text, at)
        return decoded, at, at == end and not self._string.complete

    def _read_key(self, text: str, at: int) -> int:
        decoded, at, is_broken = self._read_line(text, at)
        self._text.append(decoded)
        if is_broken:
            return self._fail(at)
        if self._string.complete:
            self._text.append(self._string.finish())
            return self._end_key(at)
        return at

    def _end_key(self, at: int) -> int:
        self._key, self._step = "".join(self._text), self._read_colon
        if self._key in _KNOWN_KEYS or (self._call.name and self._call.is_likely):
            return at
        if self._call.is_bare or self._fields:
            return self._fail(at)
        self._call.name, self._key, self._is_key_name = self._key, "arguments", True
        return at

    def _read_colon(self, text: str, at: int) -> int:
        at = match_end(_BLANK, text, at)
        if at == len(text):
            return at
        if text[at] != ":":
            return self._fail(at)
        self._step = self._read_value_start
        return at + 1

    def _read_value_start(self, text: str, at: int) -> int:
        at = match_end(_BLANK, text, at)
        if at == len(text):
            return at
        char = text[at]
        if self._is_key_name and char != "{" and not self._call.tool_named(self._call.name):
            return self._fail(at)
        if self._key in _CALL_KEYS and char in "{[" and not self._call.name:
            self._end_message()
            self._depth, self._field, self._step = 0, None, self._read_opening
            return at + (char == "[")
        if self._key in _NAME_KEYS and not self._call.name:
            return self._start_name(char, at)
        if self._key not in ARGUMENT_KEYS or self._is_parameter(char):
            self._span, self._step, self._field_length = JsonSpan(), self._read_field, 0
            return at
        self._field, self._has_arguments = None, True
        if char in PLAIN_QUOTES:
            self._expect_string(self._read_string, char)
            return at + 1
        self._span, self._text = JsonSpan(), []
        if char in "{[":
            self._step = self._read_arguments
            self._start_if_named()
        else:
            self._step = self._read_scalar
        return at

    def _start_name(self, char: str, at: int) -> int:
        if self._key == "function" and char == "{":
            self._field, self._step = None, self._read_opening
            return at
        if char not in PLAIN_QUOTES:
            return self._fail(at)
        self._field = None
        self._expect_string(self._read_string, char)
        return at + 1

    def _is_parameter(self, char: str) -> bool:
        """Return whether the value of the current key belongs to one parameter. Otherwise, the
        value contains all arguments of the call. Both are possible for a key such as ``input``.
        ``char``: the first character of the value.

        The value belongs to one parameter in two cases:

        - Arguments of this call have already been read under an earlier key.
        - The function has a parameter of this name, and the value is not an object.
        """
        return self._has_argument_text or (char != "{" and self._key in self._call.parameter_names)

    def _expect_string(self, step: _Step, quote: str) -> None:
        self._string, self._text, self._step = StringDecoder(quote), [], step

    def _read_string(self, text: str, at: int) -> int:
        """Read a string: either the tool's name, or arguments that are written as a string."""
        if self._key in ARGUMENT_KEYS:
            decoded, at = self._string.read(text, at)
        else:
            decoded, at, is_broken = self._read_line(text, at)
            if is_broken:
                return self._fail(at)
        is_complete = self._string.complete
        decoded += self._string.finish() if is_complete else ""
        if self._key in ARGUMENT_KEYS:
            self._add_arguments(decoded)
        else:
            self._text.append(decoded)
            if is_complete:
                self._call.name = "".join(self._text).strip()
                self._start_if_named()
        if is_complete:
            self._step = self._read_gap
        return at

    def _read_arguments(self, text: str, at: int) -> int:
        end = self._span.read(text, at)
        self._add_arguments(text[at:end])
        if self._span.complete:
            self._step = self._read_gap
        return end

    def _read_scalar(self, text: str, at: int) -> int:
        """Read arguments that are neither an object, an array nor a string. ``null`` means that
        there are no arguments. Any other value shows that the text is not a call."""
        end = self._span.read(text, at)
        self._text.append(text[at:end])
        if self._span.complete:
            self._end_scalar()
        return end

    def _end_scalar(self) -> None:
        text, self._text = "".join(self._text), []
        self._step = self._read_gap
        if text in ("null", "None", ""):
            self._start_if_named()
        elif self._call.has_started:
            self._call.stray_text.append(f"{text}\n")
        else:
            self.failed = True

    def _read_field(self, text: str, at: int) -> int:
        """Read the value of a field that is neither the tool's name nor the arguments. A long field
        before the name shows that the text is not a call."""
        if not self._call.name:
            text = text[: at + _MAX_FIELD - self._field_length]
        end = self._span.read(text, at)
        self._field_length += end - at
        if self._field_length == _MAX_FIELD and not self._call.name:
            return self._fail(end)
        if self._span.complete:
            self._step = self._read_gap
        return end

    # --- the parsed call --------------------------------------------------------------------------

    def _add_arguments(self, text: str) -> None:
        self._has_argument_text |= bool(text)
        if self._call.has_started:
            self._call.add_json_arguments(text)
        else:
            self._early_arguments.append(text)
            self._start_if_named()

    def _start_if_named(self) -> None:
        is_named = self._call.name and self._has_arguments
        if is_named and not self._call.has_started and not self._may_be_definition:
            self._start()

    @property
    def _may_be_definition(self) -> bool:
        """Whether only more of the arguments can tell the call from the definition of its tool,
        which has no key ``arguments``."""
        if not self._call.is_bare or self._key == "arguments":
            return False
        if self._step != self._read_arguments or self._span.complete:
            return False
        head = "".join(self._early_arguments)
        return len(head) < _MAX_HEAD and not _FIRST_KEY.match(head)

    def _start(self) -> None:
        if not self._is_foreign and self._call.start():
            waiting, self._early_arguments = "".join(self._early_arguments), []
            self._call.add_json_arguments(waiting)
        else:
            self.failed = True

    @property
    def _is_foreign(self) -> bool:
        """Whether an object that no tag marks is no call: it has a function's name, but it defines
        the function, or its other fields are no parameters of this function, or not all parameters
        that the function requires."""
        if not self._call.is_bare:
            return False
        fields = {*(key for key, _ in self._fields), *([] if self._field is None else [self._key])}
        names = set(self._call.parameter_names)
        if self._has_arguments:
            head = "".join(self._early_arguments)
            is_described = "description" in fields and not _FIRST_KEY.match(head)
            is_schema = _SCHEMA.match(head) is not None or is_described
            return is_schema and names.isdisjoint(("type", "properties", "description"))
        keys = fields - _METADATA.keys()
        return (bool(keys) and not keys & names) or not keys.issuperset(self._call.required_names)

    def _end_message(self) -> None:
        """Read the text of a message of the Chat Completions API, whose calls follow."""
        fields, self._fields = dict(self._fields), []
        content = load_object(f"{{{fields.pop('content', '')}}}") or {}
        self._call.message = str(content.get("content") or "")
        self._fields = [*fields.items()]

    def _end_field(self) -> None:
        if self._field is not None:
            self._fields.append((self._key, "".join(self._field)))
            self._field = None

    def _end_fields(self, *, end: str) -> None:
        """Process the fields that are neither the tool's name nor the arguments. Fields that only
        describe the call, such as its id, are dropped. If the call has no arguments, the other
        fields become its arguments. If it has arguments, the parser emits the other fields after
        the call as text of the answer.

        ``end``: the text to write after fields that become the arguments. It is a closing brace, or
        ``""`` if the model did not close the call.
        """
        self._end_field()
        if not self._call.has_started:
            return
        fields, self._fields = self._fields, []
        parameters = () if self._has_argument_text else self._call.parameter_names
        texts = [text for key, text in fields if key in parameters or not _is_metadata(key, text)]
        if self._has_argument_text:
            self._call.stray_text += [f"{text}\n" for text in texts]
        elif texts:
            self._call.add_json_arguments("{" + ", ".join(texts) + end)

    def _close(self) -> None:
        if not self._call.has_started:
            self._start()
        self.complete = not self.failed

    def _fail(self, at: int) -> int:
        """Stop reading at the position ``at``, because the text from there on is not valid. If the
        call has started, it is now complete. Otherwise the text is not a call. Returns ``at``."""
        self.complete = self._call.has_started
        self.failed = not self.complete
        return at


def _is_metadata(key: str, text: str) -> bool:
    """Return whether a field only describes the call, such as its id or type. ``text``: the field
    as the model wrote it."""
    pattern = _METADATA.get(key)
    return pattern is not None and pattern.fullmatch(text.partition(":")[2].strip()) is not None
