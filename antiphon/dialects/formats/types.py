"""The types in which the format tables are written.

A tool format is a state machine. Each state says what its text is (``reads``) and to which state
each terminal leads (``on``). A call begins when its name is complete. It ends when the machine
enters a state outside of the call.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from msgspec import Struct

__all__ = [
    "RESULT",
    "START",
    "TEXT",
    "THINKING",
    "CallSyntax",
    "ContentKind",
    "ParameterSyntax",
    "ReasoningFormat",
    "State",
    "ToolFormat",
]

#: The states that every reply has: before the answer's first word, in the answer, in the reasoning.
START, TEXT, THINKING = "start", "text", "thinking"
#: Where a model leads that writes a tool's result itself: only the server may do that.
RESULT = "result"


class ReasoningFormat(Struct, frozen=True, kw_only=True):
    """How a model family writes its reasoning.

    - ``open``, ``close``: the terminals around the reasoning. The first of each is the one written
      by ``opening_text`` and ``closing_text``. The others are only parsed; they form pairs if both
      tuples have the same length. If both are empty, the row describes only how answers are framed.
    - ``answer``: the text that may stand before an answer and after it.
    - ``header``: the text before each further message, for models whose reply is several messages.
    - ``leads``: further texts that may stand before the answer's first word.
    - ``frames``: further texts that have no meaning anywhere.
    - ``kept``: the reasoning stays in the answer, with its tags.
    - ``mark``: a regex. A chat template that it matches has this format; ``""`` matches none.
    - ``models``, ``aliases``, ``source``, ``from_template``: documentation, as in ``ToolFormat``.
    """

    name: str
    open: tuple[str, ...] = ()
    close: tuple[str, ...] = ()
    answer: tuple[str, str] = ("", "")
    header: str = ""
    leads: tuple[str, ...] = ()
    frames: tuple[str, ...] = ()
    kept: bool = False
    mark: str
    models: str = ""
    aliases: tuple[str, ...] = ()
    source: str = ""
    from_template: bool = False

    @property
    def closing_tags(self) -> tuple[str, ...]:
        """The terminals that end the reasoning and lead to an answer."""
        return self.close if len(self.open) == len(self.close) else self.close[:1]

    @property
    def opening_text(self) -> str:
        """The text that opens the reasoning, for a prompt."""
        return self.open[0].rstrip() + ("" if self.header else "\n")

    def closing_text(self, prompt: str) -> str:
        """Return the text that closes the reasoning after ``prompt``, so that an answer or a call
        may follow.
        """
        close = self.closing_tag(prompt) or self.close[0]
        return f"{close}{self.header}" if self.header else f"\n{close}\n\n"

    def closing_tag(self, prompt: str) -> str:
        """Return the closing tag for reasoning left open at the end of ``prompt``, else ``""``."""
        end = prompt.rstrip()
        pairs = zip(self.open, self.close * len(self.open), strict=False)
        return next((close for begin, close in pairs if end.endswith(begin.rstrip())), "")


class ParameterSyntax(Struct, frozen=True, kw_only=True):
    """How a model writes one argument, in formats whose arguments are not a JSON object.

    A string is ``before`` KEY ``text`` VALUE ``text_end``. Any other value is ``before`` KEY
    ``json`` VALUE ``json_end``.

    - ``separator``: the text between two arguments.
    - ``quoted``: strings are also written as JSON or Python values.
    - ``plain``: a regex. Strings that match it may also be written the way other values are.
    - ``in_order``: arguments are written in alphabetical order, not in the schema's order.

    Placeholders: ``{key}`` repeats the key, ``{type}`` is the value's JSON type, ``{line}`` is an
    optional line end.
    """

    before: str
    json: str
    json_end: str
    text: str = ""
    text_end: str = ""
    separator: str = ""
    quoted: bool = False
    plain: str = ""
    in_order: bool = False

    def render(self, key: str, value: Any) -> str:
        """Write an argument the way a model does."""
        if isinstance(value, str) and not self.quoted:
            begin, text, end = self.text, value, self.text_end
        else:
            begin, text, end = self.json, json.dumps(value, ensure_ascii=False), self.json_end
        values = {"{key}": key, "{type}": _json_type(value)}
        begin, end = (_fill_placeholders(part, values) for part in (begin, end))
        return self.before + key + begin + text + end


class CallSyntax(Struct, frozen=True, kw_only=True):
    """How a model writes its calls.

    ``first`` (``before`` NAME ``between`` ARGUMENTS ``after``) ``separator`` … ``last``

    ARGUMENTS is a JSON object, or a list of arguments written as ``parameter`` says.

    Placeholders: in ``before`` and ``between``, ``{n}`` is the call's number from 0, ``{n+1}`` its
    number from 1, ``{id}`` an id and ``{name}`` the name again. ``{line}`` is an optional line end
    and may stand anywhere. ``ids``: a JSON object with name and arguments may end in an id.
    """

    before: str
    between: str
    after: str
    first: str = ""
    separator: str = "\n"
    last: str = ""
    parameter: ParameterSyntax | None = None
    ids: bool = False

    def render_calls(self, calls: Iterable[tuple[str, str]]) -> str:
        """Write calls the way a model does. Each call is a name and its arguments as already
        rendered.
        """
        rendered = (
            self.render_opening(name, number) + arguments + _fill_placeholders(self.after, {})
            for number, (name, arguments) in enumerate(calls)
        )
        first, separator, last = (
            _fill_placeholders(part, {}) for part in (self.first, self.separator, self.last)
        )
        return first + separator.join(rendered) + last

    def render_arguments(self, values: Mapping[str, Any]) -> str:
        """Write arguments the way a model does."""
        parameter = self.parameter
        if parameter is None:
            return json.dumps(values, ensure_ascii=False)
        return parameter.separator.join(parameter.render(*pair) for pair in values.items())

    def render_opening(self, name: str, number: int) -> str:
        """Write a call up to its arguments."""
        values = {"{n}": str(number), "{n+1}": str(number + 1), "{name}": name}
        values["{id}"] = f"call{number:06}"
        before, between = (_fill_placeholders(part, values) for part in (self.before, self.between))
        return before + name + between


_PLACEHOLDER = re.compile(r"\{(?:n|n\+1|id|name|key|type|line)\}")


def _fill_placeholders(text: str, values: Mapping[str, str]) -> str:
    values = {"{line}": "\n", **values}
    return _PLACEHOLDER.sub(lambda match: values.get(match.group(), match.group()), text)


_JSON_TYPES: Mapping[type, str] = {
    bool: "boolean",
    int: "number",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
    type(None): "null",
}


def _json_type(value: Any) -> str:
    return _JSON_TYPES.get(type(value), "object")


#: What the text of a state is.
#: Outside of calls:
#: - ``between``: white space and the characters of ``skips``, which are dropped. Other text leads
#:   to the state ``then``.
#: - ``record``: a JSON object with the name and the arguments.
#: Inside a call:
#: - ``name``; ``label``: a call id that contains the name; ``header``: the name, which the call
#:   repeats later; ``id``: a call id.
#: - ``filler``: text without meaning, as the regex ``filler`` says; ``gap``: no text.
#: - ``json``: the arguments as JSON; ``pairs``: the arguments with separators and without tags;
#:   ``elements``: the arguments as nested tags; ``body``: the arguments without any markup.
#: - ``key``: an argument's name; ``value``: its value, of the type the schema gives; ``string``
#:   and ``literal``: its value, of the type the model states.
ContentKind = Literal[
    "between",
    "record",
    "name",
    "label",
    "header",
    "id",
    "filler",
    "gap",
    "json",
    "pairs",
    "elements",
    "body",
    "key",
    "value",
    "string",
    "literal",
]


class State(Struct, frozen=True, kw_only=True):
    """A state of a tool format.

    - ``reads``: what the text in this state is.
    - ``on``: terminal → the next state.
    - ``peek``: the same, but the next state reads the terminal again.
    - ``then``: the next state once the text is complete.
    - ``skips``: with ``reads="between"``, the characters to drop besides white space.
    - ``filler``: with ``reads="filler"``, a regex of the text without meaning.
    """

    reads: ContentKind
    on: Mapping[str, str] = {}
    peek: Mapping[str, str] = {}
    then: str = START
    skips: str = ""
    filler: str = r"\s*"


class ToolFormat(Struct, frozen=True, kw_only=True):
    """How a model family writes tool calls.

    - ``opens``: terminal → state, for the terminals that lead out of answer and reasoning.
    - ``bare``: a character that opens a call without a terminal, only at the start of an answer. It
      leads to the state ``bare_state``. Without ``bare``, the answer's first word leads there. Text
      that no special token marks as a call becomes one only if it names a known tool.
    - ``doubtful``: the terminals of ``opens`` may be plain text as well, so the same rule holds for
      them.
    - ``begins``: the state a reply starts in, if the prompt has already opened it.
    - ``quote``: for ``pairs`` the quote around strings, for ``elements`` the prefix of each tag.
    - ``written``: how a call is written, for grammars and for prompts.
    - ``mark``: a regex. A chat template that it matches has this format.
    - ``trims``: one line end on each side of a value is not part of the value.

    The rest documents the row: ``models`` that write this way; ``aliases``, the names that vLLM,
    SGLang, TensorRT-LLM or llama.cpp give the format, where they differ in more than case and
    punctuation (the registry resolves them); ``source``, where the format is described;
    ``from_template``, whether that is a chat template (published with the model, or a server's for
    it) and not only a parser.
    """

    name: str
    states: Mapping[str, State]
    opens: Mapping[str, str] = {}
    bare: str = ""
    bare_state: str = ""
    begins: str = ""
    doubtful: bool = False
    quote: str = ""
    written: CallSyntax
    mark: str
    trims: bool = False
    models: str = ""
    aliases: tuple[str, ...] = ()
    source: str = ""
    from_template: bool = False
