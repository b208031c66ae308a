"""What a format is: the values in which the tables are written.

A tool format is a machine. A state says what the text in it is (``reads``) and where its terminals
lead (``on``); a call begins when its name is known and ends when a state outside of it is entered.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from msgspec import Struct

__all__ = [
    "START",
    "TEXT",
    "THINKING",
    "ParameterForm",
    "Reads",
    "ReasoningFormat",
    "State",
    "ToolFormat",
    "Written",
]

#: The states every reply has: before an answer's first word, in the answer, in the thinking.
START, TEXT, THINKING = "start", "text", "thinking"


class ReasoningFormat(Struct, frozen=True, kw_only=True):
    """Thinking stands between an ``open`` and a ``close`` terminal. The first of each is how it is
    written; the others are read as well, in pairs where there are as many of both. Without any, the
    row only tells how answers are framed. ``answer``: what may stand before an answer and behind
    it; ``leads``: what else may stand before its first word; ``header``: what begins each further
    message, where a reply consists of several; ``frames``: what else says nothing anywhere.
    ``kept``: the thinking stays in the answer with its tags. ``mark``: a pattern that tells a
    template's format; none tells of ``""``."""

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
    def closes(self) -> tuple[str, ...]:
        """What may end thinking, to go on with an answer."""
        return self.close if len(self.open) == len(self.close) else self.close[:1]

    @property
    def opening(self) -> str:
        """Thinking begins."""
        return self.open[0].rstrip() + ("" if self.header else "\n")

    def ending(self, prompt: str) -> str:
        """The thinking that ``prompt`` has opened, or that was begun behind it, is over, and an
        answer or calls may follow."""
        close = self.opened(prompt) or self.close[0]
        return f"{close}{self.header}" if self.header else f"\n{close}\n\n"

    def opened(self, prompt: str) -> str:
        """What closes the thinking that ``prompt`` ends in; nothing if it ends in none."""
        end = prompt.rstrip()
        pairs = zip(self.open, self.close * len(self.open), strict=False)
        return next((close for begin, close in pairs if end.endswith(begin.rstrip())), "")


class ParameterForm(Struct, frozen=True, kw_only=True):
    """How one argument is written where arguments are no JSON object: before key text VALUE
    text_end for strings, before key json VALUE json_end for the rest. ``quoted``: strings too are
    JSON values, or Python's. ``plain``: a pattern of strings that may as well be written as the
    rest is. ``in_order``: of the alphabet, and not of the schema. ``{key}`` stands for the key once
    more, ``{type}`` for the JSON type of a value, ``{line}`` for a line end that may be missing."""

    before: str
    json: str
    json_end: str
    text: str = ""
    text_end: str = ""
    separator: str = ""
    quoted: bool = False
    plain: str = ""
    in_order: bool = False

    def written(self, key: str, value: Any) -> str:
        """An argument as a model writes it."""
        if isinstance(value, str) and not self.quoted:
            begin, said, end = self.text, value, self.text_end
        else:
            begin, said, end = self.json, json.dumps(value, ensure_ascii=False), self.json_end
        known = {"{key}": key, "{type}": _type_of(value)}
        begin, end = (_filled(part, known) for part in (begin, end))
        return self.before + key + begin + said + end


class Written(Struct, frozen=True, kw_only=True):
    """How calls are written: first (before name between ARGUMENTS after) separator … last.

    The arguments are a JSON object, or parameters in their own form. In ``before`` and
    ``between``, ``{n}`` is the call's number, counted from 0, ``{n+1}`` the same counted from 1,
    ``{id}`` an id, ``{name}`` its name once more; anywhere, ``{line}`` is a line end that may be
    missing. ``ids``: a JSON object of name and arguments may end in an id."""

    before: str
    between: str
    after: str
    first: str = ""
    separator: str = "\n"
    last: str = ""
    parameter: ParameterForm | None = None
    ids: bool = False

    def calls(self, said: Iterable[tuple[str, str]]) -> str:
        """Calls as they are written: of each its name, and its arguments as they stand."""
        each = (
            self.opening(name, number) + arguments + _filled(self.after, {})
            for number, (name, arguments) in enumerate(said)
        )
        first, separator, last = (
            _filled(part, {}) for part in (self.first, self.separator, self.last)
        )
        return first + separator.join(each) + last

    def arguments(self, values: Mapping[str, Any]) -> str:
        """Arguments as a model writes them."""
        parameter = self.parameter
        if parameter is None:
            return json.dumps(values, ensure_ascii=False)
        return parameter.separator.join(parameter.written(*pair) for pair in values.items())

    def opening(self, name: str, number: int) -> str:
        """A call up to its arguments."""
        known = {"{n}": str(number), "{n+1}": str(number + 1), "{name}": name}
        known["{id}"] = f"call{number:06}"
        return _filled(self.before, known) + name + _filled(self.between, known)


_BLANKS = re.compile(r"\{(?:n|n\+1|id|name|key|type|line)\}")


def _filled(text: str, known: Mapping[str, str]) -> str:
    known = {"{line}": "\n", **known}
    return _BLANKS.sub(lambda blank: known.get(blank.group(), blank.group()), text)


_TYPES: Mapping[type, str] = {
    bool: "boolean",
    int: "number",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
    type(None): "null",
}


def _type_of(value: Any) -> str:
    return _TYPES.get(type(value), "object")


#: What text can be. Outside of calls: ``between`` (skipped, if it is white space or in ``skips``;
#: other text goes to ``then``), ``record`` (a JSON object with name and arguments). Inside:
#: ``name``, ``label`` (a call id that holds the name), ``header`` (the name, which will be told
#: again), ``id``, ``filler`` (of no meaning), ``gap`` (nothing), ``json`` (the
#: arguments), ``pairs`` (the arguments, written with their separator and no tags), ``elements``
#: (the arguments as nested tags), ``body`` (the arguments without any markup), ``key``, ``value``
#: (by the schema), ``string`` and ``literal`` (values whose kind the model tells).
Reads = Literal[
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
    """``on``: terminal → the state it leads to. ``peek``: the same, but the terminal is left to be
    read there. ``then``: where the state leads by itself, when what it reads is whole."""

    reads: Reads
    on: Mapping[str, str] = {}
    peek: Mapping[str, str] = {}
    then: str = START
    skips: str = ""


class ToolFormat(Struct, frozen=True, kw_only=True):
    """One way of writing calls.

    ``opens``: the terminals that lead out of text and thinking. ``bare``: the character that does
    so at the start of an answer only, to ``bare_state``, which reads it; without one, the answer's
    first word does. Without any markup of its own, only a known tool's name makes that a call;
    ``doubtful``: nor does more make one of what ``opens`` leads to.
    ``begins``: the state a reply begins in, where the prompt has opened it already. ``quote``: what
    readers of pairs are told of as the quote of strings, and readers of elements as the beginning
    of a tag. ``trims``: one line end on each side of a value is not part of it. ``mark``: a pattern
    that tells a template's format.
    """

    name: str
    states: Mapping[str, State]
    opens: Mapping[str, str] = {}
    bare: str = ""
    bare_state: str = ""
    begins: str = ""
    doubtful: bool = False
    quote: str = ""
    written: Written
    mark: str
    trims: bool = False
    models: str = ""
    aliases: tuple[str, ...] = ()
    source: str = ""
    from_template: bool = False
