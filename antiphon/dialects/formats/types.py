"""The types of the entries in the tables of tool formats and reasoning formats.

A tool format is a state machine that reads calls. A terminal, which is a text or a special token,
leads from one state to the next. Each state says how its text is read (``reads``) and to which
state each terminal leads (``on``). A call begins when its name is complete. It ends when the
machine enters a state outside of the call.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Literal

from msgspec import Struct, field

#: The states that every reply has: before the answer's first word, in the answer, in the reasoning.
START, TEXT, THINKING = "start", "text", "thinking"
OUTSIDE = frozenset({START, TEXT, THINKING})
#: The state to which a tag for tool results leads. Only the server may write results. So if the
#: model itself writes such a tag after other text or calls, its reply ends there.
RESULT = "result"

#: Parts of ``State.ends``, besides literal texts: the end of the reply; any name; the name of a
#: parameter that the call has not given yet; any text, if the calls began without the tag of their
#: section; a text in which the closing tag of the value does not occur, up to the next part.
END, NAME, PARAMETER, UNWRAPPED = "{end}", "{name}", "{parameter}", "{unwrapped}"
STRAY = "{stray}"
#: Texts that may follow a terminal: each sequence consists of such parts and literal texts.
Sequences = tuple[tuple[str, ...], ...]


class ReasoningFormat(Struct, frozen=True, kw_only=True):
    """How a model family writes its reasoning. A terminal is a tag or other text that the parser
    looks for.

    - ``name``: the format's name.
    - ``open``, ``close``: the terminals before and after the reasoning. A prompt contains only the
      first entry of each tuple, but the parser accepts all entries. If both tuples have the same
      length, their entries form pairs. If both are empty, the format has no tags for reasoning, and
      describes only the texts around answers.
    - ``answer``: the texts that may stand before and after an answer.
    - ``header``: for models whose reply is several messages, the text before each message except
      the first.
    - ``bare_open``: texts that open the reasoning at the start of the reply, if the model leaves
      out the opening tag.
    - ``leads``: further texts that may stand before the answer's first word.
    - ``frames``: further texts that have no meaning and are dropped wherever they stand.
    - ``citation``: the name of the tags around cited text, which are dropped.
    - ``keeps_reasoning``: whether the reasoning stays in the answer, with its tags. In format
      files, the key is ``kept``.
    - ``mark``: a regex. A model whose chat template matches it has this format. ``""`` matches no
      template.
    - ``models``, ``aliases``, ``source``: documentation, as in ``ToolFormat``.
    """

    name: str
    open: tuple[str, ...] = ()
    close: tuple[str, ...] = ()
    answer: tuple[str, str] = ("", "")
    header: str = ""
    bare_open: tuple[str, ...] = ()
    leads: tuple[str, ...] = ()
    frames: tuple[str, ...] = ()
    citation: str = ""
    keeps_reasoning: bool = field(default=False, name="kept")
    mark: str
    models: str = ""
    aliases: tuple[str, ...] = ()
    source: str = "its template"

    @property
    def closing_tags(self) -> tuple[str, ...]:
        """The terminals (tags or other texts) that can end the reasoning before an answer."""
        return self.close if len(self.open) == len(self.close) else self.close[:1]

    @property
    def opening_text(self) -> str:
        """The text that opens the reasoning in a prompt."""
        return self.open[0].rstrip() + ("" if self.header else "\n")

    def closing_text(self, prompt: str) -> str:
        """Return the text that closes the reasoning if it is appended to ``prompt``. The model then
        writes an answer or a call. If ``prompt`` ends with an opening tag, the text contains the
        closing tag of the same pair."""
        close = self.closing_tag(prompt) or self.close[0]
        return f"{close}{self.header}" if self.header else f"\n{close}\n\n"

    def closing_tag(self, prompt: str) -> str:
        """Return the closing tag for the reasoning that is open at the end of ``prompt``. Returns
        ``""`` if ``prompt`` does not end with an opening tag."""
        end = prompt.rstrip()
        pairs = zip(self.open, self.close * len(self.open), strict=False)
        return next((close for begin, close in pairs if end.endswith(begin.rstrip())), "")


class ParameterSyntax(Struct, frozen=True, kw_only=True):
    """How a model writes one argument, in formats whose arguments are not a JSON object.

    An argument with a string as its value is written as ``before`` KEY ``text`` VALUE ``text_end``.
    Any other argument is written as ``before`` KEY ``json`` VALUE ``json_end``.

    - ``separator``: the text between two arguments.
    - ``quoted``: whether a string is written in quotes, as JSON or as a Python value. It then
      stands between ``json`` and ``json_end``, like any other value.
    - ``plain``: a regex. A string that matches it may also be written between ``json`` and
      ``json_end``.
    - ``in_order``: whether arguments are written in alphabetical order. Otherwise they have the
      schema's order.

    These texts may contain placeholders: ``{key}`` repeats the key, ``{type}`` is the value's JSON
    type, ``{line}`` is an optional line end.
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

    def render(self, key: str, value: object) -> str:
        """Return an argument as a model writes it."""
        if isinstance(value, str) and not self.quoted:
            begin, text, end = self.text, value, self.text_end
        else:
            begin, text, end = self.json, json.dumps(value, ensure_ascii=False), self.json_end
        values = {"{key}": key, "{type}": _json_type(value)}
        begin, end = (_fill_placeholders(part, values) for part in (begin, end))
        return self.before + key + begin + text + end


class CallSyntax(Struct, frozen=True, kw_only=True):
    """How a model writes its calls.

    Calls are written as ``first`` (``before`` NAME ``between`` ARGUMENTS ``after``) ``separator`` …
    ``last``. The part in parentheses is one call, and ``separator`` stands between two calls.

    If ``parameter`` is None, ARGUMENTS is a JSON object. Otherwise it is a list of arguments, and
    ``parameter`` is the syntax of each.

    ``ids``: for formats that write the whole call as one JSON object with keys for the name and the
    arguments. Whether the object may have a further key ``id`` after the arguments.

    Placeholders: ``{line}`` is an optional line end and may stand in any of the texts. In
    ``before`` and ``between``, ``{n}`` is the call's number from 0, ``{n+1}`` is its number from 1,
    ``{id}`` is an id, and ``{name}`` repeats the name.
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
        """Return calls as a model writes them. Each call is a pair of its name and the text of its
        arguments."""
        rendered = (
            self.render_opening(name, number) + arguments + _fill_placeholders(self.after, {})
            for number, (name, arguments) in enumerate(calls)
        )
        first, separator, last = (
            _fill_placeholders(part, {}) for part in (self.first, self.separator, self.last)
        )
        return first + separator.join(rendered) + last

    def render_arguments(self, values: Mapping[str, object]) -> str:
        """Return the arguments of a call as a model writes them."""
        parameter = self.parameter
        if parameter is None:
            return json.dumps(values, ensure_ascii=False)
        return parameter.separator.join(parameter.render(*pair) for pair in values.items())

    def render_opening(self, name: str, number: int) -> str:
        """Return the text of a call up to its arguments. ``number``: the call's number from 0."""
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


def _json_type(value: object) -> str:
    return _JSON_TYPES.get(type(value), "object")


#: The kinds of text that a state can read.
#: Outside of calls:
#: - ``between``: white space and the characters of ``skips``, which are dropped. Other text leads
#:   to the state ``then``.
#: - ``record``: a JSON object with the call's name and its arguments.
#: Inside a call:
#: - ``name``; ``label``: a call id that contains the name; ``header``: the name, which the call
#:   repeats later; ``id``: a call id.
#: - ``filler``: text without meaning, which matches the regex ``filler``; ``gap``: no text is
#:   expected here; ``lead``: white space, and other text leads to the state ``then``.
#: - ``json``: the arguments as JSON; ``pairs``: the arguments with separators and without tags;
#:   ``elements``: the arguments as nested tags; ``body``: the arguments without any markup.
#: - ``key``: an argument's name; ``value``: its value, whose type the schema gives; ``string``: its
#:   value, which the model marks as a string; ``literal``: its value, which the model marks as
#:   another type.
ContentKind = Literal[
    "between",
    "record",
    "name",
    "label",
    "header",
    "id",
    "filler",
    "gap",
    "lead",
    "json",
    "pairs",
    "elements",
    "body",
    "key",
    "value",
    "string",
    "literal",
]


class Quotation(Struct, frozen=True, kw_only=True):
    """How a call begins and ends that a value between tags or marks quotes, in its own format.

    - ``begins``: what must follow the opening terminal, as in ``State.ends``. Otherwise the
      terminal stands alone and begins no call.
    - ``closes``: the terminals that end the quoted call.
    - ``follows``: what follows such a terminal, as in ``State.ends``, if the quoted call is the end
      of a value of another call, which is quoted, too.
    """

    begins: Sequences
    closes: tuple[str, ...]
    follows: Sequences = ()


class State(Struct, frozen=True, kw_only=True):
    """One state of a tool format's state machine. A terminal is a text or special token that leads
    to another state.

    - ``reads``: the kind of text in this state.
    - ``on``: terminal → the next state. The terminal is consumed.
    - ``peek``: terminal → the next state, which reads the terminal itself as its first text.
    - ``ends``: what must follow a terminal so that it ends a value. Inside a string, and inside a
      value between tags, a terminal is text unless one of its sequences follows it. The parts of a
      sequence are literals, ``END``, ``NAME``, ``PARAMETER``, ``UNWRAPPED`` and ``STRAY``, with
      white space between them. If a state has no ``ends``, all its terminals end a value between
      tags, and none of them ends a string.
    - ``closing``: the closing tag of a value.
    - ``quotes``: opening terminal of a call → how a value quotes such a call. Until the quoted call
      ends, a terminal, even the format's quote, ends the value only if the reply ends there, too.
    - ``doubles``: a closing tag that models write twice → the beginning of its opening tag. If the
      value contains that text, the first of the closing tags belongs to it.
    - ``then``: the next state once the text of this state is complete.
    - ``skips``: with ``reads="between"``, the characters that are dropped in addition to white
      space.
    - ``filler``: with ``reads="filler"``, a regex for the text that has no meaning.
    - ``close``: with ``reads="pairs"``, the bracket after the arguments, if it is another one than
      in ``ToolFormat.written``.
    """

    reads: ContentKind
    on: Mapping[str, str] = {}
    peek: Mapping[str, str] = {}
    ends: Mapping[str, Sequences] = {}
    closing: str = ""
    quotes: Mapping[str, Quotation] = {}
    doubles: Mapping[str, str] = {}
    then: str = START
    skips: str = ""
    filler: str = r"\s*"
    close: str = ""


#: States for an answer that consists of calls as JSON and of nothing else. Models of any format
#: write such an answer now and then, alone or in a fenced code block.
WHOLE_ANSWER: Mapping[str, State] = {
    "whole answer": State(
        reads="between", skips="[,", on={"```": START}, peek={"{": "whole record"}
    ),
    "whole record": State(reads="record", then="whole rest"),
    "whole rest": State(reads="between", skips=",]", on={"```": START}, peek={"{": "whole record"}),
}
#: The texts with which models begin a fenced code block of JSON.
FENCES = ("```json", "```\n", "```JSON", "``` json", "```tool_call", "```tool_code")
#: The texts that may begin such an answer: text → whether the next state reads the text again.
WHOLE_OPENS: Mapping[str, bool] = {
    "{": True,
    "[": True,
    **dict.fromkeys((*FENCES, "Action:\n```json", "Action: ```json"), False),
}


class ToolFormat(Struct, frozen=True, kw_only=True):
    """How a model family writes tool calls, as a state machine. A terminal is a text or special
    token that leads from one state to another.

    - ``name``: the format's name.
    - ``states``: state name → state, for the states inside and between calls.
    - ``opens``: terminal → state, for the terminals that start a call. Such a terminal can occur in
      an answer or in reasoning.
    - ``bare``, ``bare_state``: for calls that start without a terminal, which is possible only at
      the start of an answer. The character ``bare`` leads to the state ``bare_state``. If ``bare``
      is empty, the answer's first word leads to this state. The text is a call only if it names a
      known tool, or if it is a JSON object with a name and arguments.
    - ``doubtful``: whether the terminals of ``opens`` may also be plain text. If so, the text after
      them is a call only if it names a known tool.
    - ``inner``: the terminals of ``opens`` that normally stand inside a section of calls. Outside
      of a section, they may also be plain text: the text after them is a call only if it names a
      known tool, and a parameter or the end of the call follows. They have no meaning in reasoning.
    - ``ends_reasoning``: whether the opening terminal of a call ends the reasoning. Otherwise, a
      call in reasoning that is closed after the call was a draft, and is part of the reasoning.
    - ``has_messages``: whether a reply consists of messages that name their recipients. Calls then
      begin only at the start of a message. In a message to the user and in reasoning, text that
      looks like a call is text.
    - ``begins``: the state in which a reply starts, if the prompt already contains the text that
      leads to this state.
    - ``quote``: in a state with ``reads="pairs"``, the quote around strings. In a state with
      ``reads="elements"``, the prefix of each tag.
    - ``written``: how a call is written, for grammars and for prompts.
    - ``mark``: a regex. A model whose chat template matches it has this format.
    - ``trims``: whether one line end before and after each value is dropped.

    The other fields are documentation:

    - ``models``: the models that write this way.
    - ``aliases``: other names of the format in vLLM, SGLang, TensorRT-LLM or llama.cpp. The
      registry also finds the format by these names. Names that differ only in case and punctuation
      are not listed.
    - ``source``: where the format is described. A template is a chat template that is published
      with the model, or that was written for it by a server.
    """

    name: str
    states: Mapping[str, State]
    opens: Mapping[str, str] = {}
    bare: str = ""
    bare_state: str = ""
    begins: str = ""
    doubtful: bool = False
    inner: frozenset[str] = frozenset()
    ends_reasoning: bool = False
    has_messages: bool = False
    quote: str = ""
    written: CallSyntax
    mark: str
    trims: bool = False
    models: str = ""
    aliases: tuple[str, ...] = ()
    source: str = "its template"
