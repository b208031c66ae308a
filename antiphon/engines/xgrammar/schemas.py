"""JSON schemas as trees: the JSON that follows them, laid out as llguidance lays it out.

What it cannot say it refuses, unless it may be lenient; it may say less than is asked for (no more
properties than are named), never more. It knows no notation of grammars.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from antiphon.dialects.grammar.user_regex import JSON, Unwritable, regex_rule

from .ast import Anything, Choice, Node, Row, Rule, Text, Times, Unreadable
from .limits import MOST
from .numbers import INTEGER, NUMBER, integers, numbers
from .regexes import regex

__all__ = ["SchemaTree"]

Schema = Mapping[str, Any]

#: What says nothing of a value.
_SAID = frozenset(
    "title description default examples deprecated readOnly writeOnly $comment $schema $id"
    " $defs definitions x-guidance".split()
)
_BOUNDS = frozenset("minimum maximum exclusiveMinimum exclusiveMaximum".split())
_LENGTHS = frozenset({"minLength", "maxLength"})
#: Type → what may be said of its values.
_OF: Mapping[str, frozenset[str]] = {
    "string": frozenset({*_LENGTHS, "pattern", "format"}),
    "integer": _BOUNDS,
    "number": _BOUNDS,
    "array": frozenset({"items", "prefixItems", "minItems", "maxItems"}),
    "object": frozenset({"properties", "required", "additionalProperties"}),
    "boolean": frozenset(),
    "null": frozenset(),
}
#: What says of a schema without a type which it is of.
_MEANT = ("object", "array", "string", "number")
_REFERENCE = re.compile(r"#/(\$defs|definitions)/([^/~%]+)\Z")
_LAYOUT = (", ", ": ")
_NOTHING: Schema = {"enum": []}

_DATE = (
    "[0-9]{4}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)"
    "|02-(0[1-9]|1[0-9]|2[0-8]))"
)
_CLOCK = "([01][0-9]|2[0-3]):[0-5][0-9]"
_TIME = rf"{_CLOCK}:[0-5][0-9](\.[0-9]{{1,6}})?(Z|[+\-]{_CLOCK})"
_OCTET = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_NAME = "[A-Za-z0-9]{1,20}"
_LABEL = r"[A-Za-z0-9]([A-Za-z0-9\-]{0,61}[A-Za-z0-9])?"
_HOST = rf"{_LABEL}(\.{_LABEL}){{0,3}}"
_WORD = "[0-9a-f]{1,4}"
_SEGMENT = r"[A-Za-z0-9_.~=&\-]*"
#: Format → a regex of texts that have it: none that has not, if not all.
_FORMATS: Mapping[str, str] = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "duration": r"P([0-9]+W|[0-9]+D(T[0-9]+H)?|T[0-9]+H([0-9]+M)?|T[0-9]+M([0-9]+S)?|T[0-9]+S)",
    "email": rf"{_NAME}([._+\-]{_NAME}){{0,2}}@{_LABEL}(\.{_LABEL}){{1,3}}",
    "hostname": _HOST,
    "ipv4": rf"{_OCTET}(\.{_OCTET}){{3}}",
    "ipv6": f"({_WORD}:){{7}}{_WORD}|::1|{_WORD}(:{_WORD}){{0,3}}::{_WORD}",
    "uri": rf"[a-z][a-z0-9+.\-]*:\/\/{_HOST}(:[0-9]{{1,4}})?(\/{_SEGMENT})*(\?{_SEGMENT})?",
    "uuid": "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}",
}
#: No halves of characters among them.
_ESCAPE = r'\\(["\\\/bfnrt]|u([0-9a-ce-f][0-9a-f]|d[0-7])[0-9a-f]{2})'
_UNBOUND = {"integer": INTEGER, "number": NUMBER}
_PLAIN = r'[^"\\\x00-\x1f]'
#: What ends the text of a string, or may not stand in it.
_NOT_PLAIN = ('"', "\\", *(chr(code) for code in range(0x20)))


class SchemaTree:
    """Trees of the parts of one schema, some of them as ``rules``; names of its own begin with
    ``prefix``. ``body``: reads what may stand in a rule of Lark."""

    def __init__(
        self, root: Any, prefix: str, rules: dict[str, Node], body: Callable[[str], Node]
    ) -> None:
        told = root.get("x-guidance") or {} if isinstance(root, Mapping) else {}
        self._lenient = bool(told.get("lenient"))
        self._comma = Text(told.get("item_separator", _LAYOUT[0]))
        self._colon = told.get("key_separator", _LAYOUT[1])
        self._root = root
        self._prefix = prefix
        self._body = body
        self._objects = 0
        self._rules = rules

    def start(self) -> Rule:
        """The whole. Raises ``Unreadable``."""
        return self._rule("root", lambda: self._of(self._root))

    def _rule(self, name: str, write: Callable[[], Node]) -> Rule:
        """What is written once, and may stand in itself."""
        return self._shared(f"{self._prefix}_{name}", write)

    def _shared(self, name: str, write: Callable[[], Node]) -> Rule:
        """The same for every schema."""
        if name not in self._rules:
            self._rules[name] = Text("")
            self._rules[name] = write()
        return Rule(name)

    def _of(self, schema: Any) -> Node:
        if schema is True:
            return self._anything()
        if not isinstance(schema, Mapping):
            raise Unreadable("nothing follows that")
        said = {key: value for key, value in schema.items() if key not in _SAID}
        try:
            return self._formed(said)
        except Unreadable:
            if not self._lenient:
                raise
        try:
            return self._typed({"type": said.get("type", "object" if "properties" in said else [])})
        except Unreadable:
            return self._anything()

    # --- any value -------------------------------------------------------------------------------

    def _anything(self) -> Rule:
        kinds = ("object", "array", "string", "number", "boolean", "null")
        return self._rule("any", lambda: Choice(tuple(self._kind(kind, {}) for kind in kinds)))

    def _formed(self, said: Schema) -> Node:
        form = next((form for form in self._forms if form in said), None)
        if form is None:
            return self._typed(said)
        if besides := said.keys() - {form, "type"}:
            raise Unreadable(f"{sorted(besides)} beside {form}")
        if "type" in said and form not in ("enum", "const"):
            return self._of(self._narrowed({form: said[form]}, _kinds(said)))
        return self._forms[form](self, said)

    def _narrowed(self, schema: Any, kinds: Sequence[str]) -> Schema:
        """What of a schema is of these types; an ``enum`` of nothing, if nothing is."""
        if schema is True:
            return {"type": kinds}
        if not isinstance(schema, Mapping):
            return _NOTHING
        if "$ref" in schema:
            return self._narrowed(self._defined(schema["$ref"])[1], kinds)
        for form in ("anyOf", "oneOf", "allOf"):
            if form in schema:
                arms = [self._narrowed(arm, kinds) for arm in schema[form]]
                return {**schema, form: [arm for arm in arms if arm != _NOTHING]}
        shared = [
            kind
            for kind in _kinds(schema) or kinds
            if kind in kinds or (kind == "integer" and "number" in kinds)
        ]
        return {**schema, "type": shared} if shared else _NOTHING

    def _reference(self, said: Schema) -> Node:
        if said["$ref"] == "#":
            return self.start()
        name, defined = self._defined(said["$ref"])
        return self._rule(name, lambda: self._of(defined))

    def _defined(self, reference: str) -> tuple[str, Any]:
        """What a reference means, and a name for it."""
        found = _REFERENCE.match(str(reference))
        section = self._root.get(found[1], {}) if found else {}
        if found is None or found[2] not in section:
            raise Unreadable(f"a reference to {reference}")
        return f"{found[1].strip('$')}_{list(section).index(found[2])}", section[found[2]]

    def _values(self, said: Schema) -> Node:
        values = said["enum"] if "enum" in said else [said["const"]]
        if "type" in said:
            kinds = _kinds(said)
            values = [value for value in values if _is_one(value, kinds)]
        return _choice([Text(self._written(value)) for value in values])

    def _written(self, value: Any) -> str:
        layout = (self._comma.text, self._colon)
        return json.dumps(value, ensure_ascii=False, separators=layout)

    def _either(self, said: Schema) -> Node:
        """llguidance takes ``oneOf`` where its arms have nothing in common."""
        return _choice([self._of(arm) for arm in said["anyOf" if "anyOf" in said else "oneOf"]])

    def _all(self, said: Schema) -> Node:
        if len(said["allOf"]) != 1:
            raise Unreadable("several schemas at once")
        return self._of(said["allOf"][0])

    _forms: Mapping[str, Callable[[SchemaTree, Schema], Node]] = {
        "$ref": _reference,
        "enum": _values,
        "const": _values,
        "anyOf": _either,
        "oneOf": _either,
        "allOf": _all,
    }

    def _typed(self, said: Schema) -> Node:
        kinds = _kinds(said)
        unknown = said.keys() - frozenset({"type"}).union(*(_OF[kind] for kind in kinds))
        if unknown and not self._lenient:
            raise Unreadable(f"{sorted(unknown)} cannot be held to")
        if not kinds:
            return self._anything()
        return _choice([self._kind(kind, said) for kind in kinds])

    def _kind(self, kind: str, said: Schema) -> Node:
        match kind:
            case "object":
                return self._object(said)
            case "array":
                return self._array(said)
            case "string":
                return self._string(said)
            case "boolean":
                return Choice((Text("true"), Text("false")))
            case "null":
                return Text("null")
        if bounds := {key: said[key] for key in _BOUNDS & said.keys()}:
            return _number(kind, bounds)
        return self._shared(f"json_{kind}", lambda: regex(_UNBOUND[kind]))

    # --- texts and numbers -----------------------------------------------------------------------

    def _string(self, said: Schema) -> Node:
        asked = [key for key in ("pattern", "format", *_LENGTHS) if key in said]
        if not asked:
            return self._shared("json_string", _text)
        if asked == ["pattern"]:
            body = self._pattern(said["pattern"])
        elif asked == ["format"] and said["format"] in _FORMATS:
            name = said["format"]
            body = self._shared(f"json_{name.replace('-', '_')}", lambda: regex(_FORMATS[name]))
        elif _LENGTHS.issuperset(asked):
            char = regex(f"{_PLAIN}|{_ESCAPE}")
            body = Times(char, _count(said, "minLength") or 0, _count(said, "maxLength"))
        else:
            raise Unreadable(f"a text of which {asked} are asked")
        return Row((Text('"'), body, Text('"')))

    def _pattern(self, pattern: str) -> Node:
        """For the whole text, which is one way to have it somewhere within."""
        try:
            return self._body(regex_rule(pattern, JSON))
        except Unwritable as reason:
            raise Unreadable(str(reason)) from None

    # --- lists and objects -----------------------------------------------------------------------

    def _array(self, said: Schema) -> Node:
        first = [self._of(item) for item in said.get("prefixItems", ())]
        # fewer than those that are told apart would do as well
        least, most = max(_count(said, "minItems") or 0, len(first)), _count(said, "maxItems")
        items = said.get("items", True)
        if items is False and (most is None or most > len(first)):
            most = len(first)
        if most is not None and most < least:
            raise Unreadable("more items than there may be")
        more = None if most == len(first) else self._of(items)
        return Row((Text("["), self._row(first, more, least, most), Text("]")))

    def _row(self, first: Sequence[Node], more: Node | None, least: int, most: int | None) -> Node:
        """Items with commas between: those that are told apart, and more of one kind."""
        said = [part for node in first for part in (self._comma, node)][1:]
        if more is None:
            return Row(tuple(said))
        one = Row((self._comma, more))
        if first:
            rest = None if most is None else most - len(first)
            return Row((*said, Times(one, least - len(first), rest)))
        several = Times(one, max(0, least - 1), None if most is None else most - 1)
        return Times(Row((more, several)), min(least, 1), 1)

    def _object(self, said: Schema) -> Node:
        properties, required = said.get("properties") or {}, {*(said.get("required") or ())}
        if not required <= properties.keys():
            raise Unreadable("a property that must be there, and is not told of")
        if not properties:
            return self._map(said.get("additionalProperties", True))
        members = [
            (Row((Text(self._written(key) + self._colon), self._of(inner))), key in required)
            for key, inner in properties.items()
            if inner is not False or key in required
        ]
        return Row((Text("{"), self._members(members), Text("}")))

    def _map(self, value: Any) -> Node:
        if value is False:
            return Text("{}")
        member = Row((self._shared("json_string", _text), Text(self._colon), self._of(value)))
        return Row((Text("{"), self._row((), member, 0, None), Text("}")))

    def _members(self, members: Sequence[tuple[Node, bool]]) -> Node:
        """Members in their order, each with whether it must be there: any may be the first up to
        the one that must be."""
        self._objects += 1
        number, arms = self._objects, list[Node]()

        def behind(at: int) -> Node:
            if at == len(members):
                return Text("")
            member, must = members[at]
            one = Row((self._comma, member))
            rest = self._rule(f"{number}_{at + 1}", partial(behind, at + 1))
            return Row((one if must else Times(one, 0, 1), rest))

        for at, (member, must) in enumerate(members):
            rest = self._rule(f"{number}_{at + 1}", partial(behind, at + 1))
            arms.append(Row((member, rest)))
            if must:
                return _choice(arms)
        return _choice([*arms, Text("")])


def _count(said: Schema, key: str) -> int | None:
    count = said.get(key)
    if count is not None and not (isinstance(count, int) and 0 <= count <= MOST):
        raise Unreadable("more than can be counted")
    return count


def _choice(arms: Sequence[Node]) -> Node:
    if not arms:
        raise Unreadable("no value is left")
    return arms[0] if len(arms) == 1 else Choice(tuple(arms))


def _text() -> Node:
    """Any string; what no text may have in it cannot come about across what is escaped."""
    plain = Anything(_NOT_PLAIN)
    escaped = Times(Row((regex(_ESCAPE), plain)), 0, None)
    return Row((Text('"'), plain, escaped, Text('"')))


def _number(kind: str, bounds: Mapping[str, Any]) -> Node:
    lows = [
        (bounds[key], key != "minimum") for key in ("minimum", "exclusiveMinimum") if key in bounds
    ]
    highs = [
        (-bounds[key], key != "maximum") for key in ("maximum", "exclusiveMaximum") if key in bounds
    ]
    low, over = max(lows, default=(None, False))
    high, under = max(highs, default=(None, False))
    if any(bound is not None and bound != int(bound) for bound in (low, high)):
        raise Unreadable("a bound between two whole numbers")
    low, high = (None if low is None else int(low)), (None if high is None else -int(high))
    if kind == "number":
        return numbers(low, high, over=over, under=under)
    low = low + 1 if low is not None and over else low
    return integers(low, high - 1 if high is not None and under else high)


def _kinds(said: Schema) -> list[str]:
    kind = said.get("type")
    if kind is None:
        found = [kind for kind in _MEANT if said.keys() & _OF[kind]]
        if len(found) > 1:
            raise Unreadable("it does not say of which type it is")
        return found
    kinds = [kind] if isinstance(kind, str) else [*kind]
    if not _OF.keys() >= {*kinds}:
        raise Unreadable(f"the type {kind}")
    return kinds


def _is_one(value: Any, kinds: Sequence[str]) -> bool:
    match value:
        case bool():
            return "boolean" in kinds
        case None:
            return "null" in kinds
        case int():
            return "integer" in kinds or "number" in kinds
        case float():
            return "number" in kinds
        case str():
            return "string" in kinds
        case list():
            return "array" in kinds
    return "object" in kinds
