"""What a format is: the values in which the tables are written.

A tool format is a machine. A state says what the text in it is (``reads``) and where its terminals
lead (``on``); a call begins when its name is known and ends when a state outside of it is entered.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

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
    written; the others are read as well. ``mark``: a pattern that tells a template's format."""

    name: str
    open: tuple[str, ...]
    close: tuple[str, ...]
    mark: str


class ParameterForm(Struct, frozen=True, kw_only=True):
    """How one argument is written where arguments are no JSON object: before key text VALUE
    text_end for strings, before key json VALUE json_end for the rest. ``quoted``: strings too are
    JSON values."""

    before: str
    json: str
    json_end: str
    text: str = ""
    text_end: str = ""
    separator: str = ""
    quoted: bool = False


class Written(Struct, frozen=True, kw_only=True):
    """How calls are written: first (before name between ARGUMENTS after) separator … last.

    The arguments are a JSON object, or parameters in their own form."""

    before: str
    between: str
    after: str
    first: str = ""
    separator: str = "\n"
    last: str = ""
    parameter: ParameterForm | None = None


#: What text can be. Outside of calls: ``between`` (skipped, if it is white space or in ``skips``;
#: other text goes to ``then``), ``record`` (a JSON object with name and arguments). Inside:
#: ``name``, ``label`` (a call id that holds the name), ``id``, ``gap`` (nothing), ``json`` (the
#: arguments), ``pairs`` (the arguments, written with their separator and no tags), ``key``,
#: ``value`` (by the schema), ``string`` and ``literal`` (values whose kind the model tells).
Reads = Literal[
    "between",
    "record",
    "name",
    "label",
    "id",
    "gap",
    "json",
    "pairs",
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
    so at the start of an answer only, to ``bare_state``, which reads it; without any markup of its
    own, only a known tool's name makes that a call. ``trims``: one line end on each side of a
    value is not part of it. ``mark``: a pattern that tells a template's format.
    """

    name: str
    states: Mapping[str, State]
    opens: Mapping[str, str] = {}
    bare: str = ""
    bare_state: str = ""
    written: Written
    mark: str
    trims: bool = False

    @property
    def id_holds_name(self) -> bool:
        """Whether what stands for the name is an id: ``functions.NAME:0``."""
        return any(state.reads == "label" for state in self.states.values())
