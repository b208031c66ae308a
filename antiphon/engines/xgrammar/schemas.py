"""Convert JSON schemas to syntax trees. A tree matches the JSON texts that are valid under the
schema, with the same white space as in llguidance's grammars.

The tree may allow less than the schema. For example, it may allow no additional properties.

A schema is lenient if its ``x-guidance`` says so. Unsupported keywords of a lenient schema are
ignored, so its tree may also allow more than the schema. Unsupported keywords of any other schema
raise ``UnsupportedGrammar``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from antiphon.dialects.grammar.schema_types import Schema, has_type
from antiphon.dialects.grammar.syntax_tree import (
    Alternatives,
    AnyText,
    Concatenation,
    LiteralText,
    Node,
    Repeat,
    RuleRef,
    UnsupportedGrammar,
)
from antiphon.dialects.grammar.user_regex import JSON, UnwritableGrammar, regex_rule

from .limits import MAX_COUNT
from .numbers import INTEGER, NUMBER, integers, numbers
from .regexes import parse_regex

#: Keywords that do not constrain a value.
_ANNOTATIONS = frozenset(
    "title description default examples deprecated readOnly writeOnly $comment $schema $id"
    " $defs definitions x-guidance".split()
)
_BOUNDS = frozenset("minimum maximum exclusiveMinimum exclusiveMaximum".split())
_LENGTHS = frozenset({"minLength", "maxLength"})
#: Type → keywords that constrain its values.
_TYPE_KEYWORDS: Mapping[str, frozenset[str]] = {
    "string": frozenset({*_LENGTHS, "pattern", "format"}),
    "integer": _BOUNDS,
    "number": _BOUNDS,
    "array": frozenset({"items", "prefixItems", "minItems", "maxItems"}),
    "object": frozenset({"properties", "required", "additionalProperties"}),
    "boolean": frozenset(),
    "null": frozenset(),
}
#: Types that can be inferred from a schema's keywords.
_INFERRED_TYPES = ("object", "array", "string", "number")
_REFERENCE = re.compile(r"#/(\$defs|definitions)/([^/~%]+)\Z")
_DEFAULT_SEPARATORS = (", ", ": ")
_NO_VALUES: Schema = {"enum": []}

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
#: Format → a regex that matches only valid texts of the format, but not all of them.
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
#: Excludes surrogates.
_ESCAPE = r'\\(["\\\/bfnrt]|u([0-9a-ce-f][0-9a-f]|d[0-7])[0-9a-f]{2})'
_UNBOUNDED = {"integer": INTEGER, "number": NUMBER}
_PLAIN = r'[^"\\\x00-\x1f]'
#: Characters that end a string or must be escaped in it.
_NOT_PLAIN = ('"', "\\", *(chr(code) for code in range(0x20)))


class SchemaTree:
    """Builds the syntax tree of one JSON schema.

    ``root``: the schema. ``prefix``: start of the names of the schema's rules. ``rules``: the rules
    of the grammar, by name. The rules of the schema are added to them. ``body``: a function that
    parses the body of a Lark rule. It is used for regexes in the keyword ``pattern``.
    """

    def __init__(
        self, root: Any, prefix: str, rules: dict[str, Node], body: Callable[[str], Node]
    ) -> None:
        guidance = root.get("x-guidance") or {} if isinstance(root, Mapping) else {}
        self._lenient = bool(guidance.get("lenient"))
        self._comma = LiteralText(guidance.get("item_separator", _DEFAULT_SEPARATORS[0]))
        self._colon = guidance.get("key_separator", _DEFAULT_SEPARATORS[1])
        self._root = root
        self._prefix = prefix
        self._body = body
        self._object_count = 0
        self._rules = rules

    def start(self) -> RuleRef:
        """Return a reference to the rule of the whole schema. Raises ``UnsupportedGrammar`` if the
        schema cannot be converted."""
        return self._rule("root", lambda: self._node(self._root))

    def _rule(self, name: str, write: Callable[[], Node]) -> RuleRef:
        """Return a reference to the rule ``name`` of this schema. If the rule does not exist yet,
        call ``write`` to build the rule. The rule may refer to itself."""
        return self._shared_rule(f"{self._prefix}_{name}", write)

    def _shared_rule(self, name: str, write: Callable[[], Node]) -> RuleRef:
        """Return a reference to the rule ``name``, which all schemas of the grammar share. If the
        rule does not exist yet, call ``write`` to build the rule."""
        if name not in self._rules:
            self._rules[name] = LiteralText("")
            self._rules[name] = write()
        return RuleRef(name)

    def _node(self, schema: Any) -> Node:
        if schema is True:
            return self._any_value()
        if not isinstance(schema, Mapping):
            raise UnsupportedGrammar("the schema allows no value")
        keywords = {key: value for key, value in schema.items() if key not in _ANNOTATIONS}
        try:
            return self._by_keyword(keywords)
        except UnsupportedGrammar:
            if not self._lenient:
                raise
        try:
            return self._by_type(
                {"type": keywords.get("type", "object" if "properties" in keywords else [])}
            )
        except UnsupportedGrammar:
            return self._any_value()

    # --- any value -------------------------------------------------------------------------------

    def _any_value(self) -> RuleRef:
        kinds = ("object", "array", "string", "number", "boolean", "null")
        return self._rule(
            "any", lambda: Alternatives(tuple(self._single_type(kind, {}) for kind in kinds))
        )

    def _by_keyword(self, schema: Schema) -> Node:
        keyword = next((form for form in self._keyword_methods if form in schema), None)
        if keyword is None:
            return self._by_type(schema)
        if others := schema.keys() - {keyword, "type"}:
            raise UnsupportedGrammar(f"{sorted(others)} beside {keyword}")
        if "type" in schema and keyword not in ("enum", "const"):
            return self._node(self._restrict_types({keyword: schema[keyword]}, _types(schema)))
        return self._keyword_methods[keyword](self, schema)

    def _restrict_types(self, schema: Any, types: Sequence[str]) -> Schema:
        """Return a schema that allows only values of these types. If no type remains, return a
        schema with an empty ``enum``, which allows no value."""
        if schema is True:
            return {"type": types}
        if not isinstance(schema, Mapping):
            return _NO_VALUES
        if "$ref" in schema:
            return self._restrict_types(self._resolve(schema["$ref"])[1], types)
        for form in ("anyOf", "oneOf", "allOf"):
            if form in schema:
                arms = [self._restrict_types(arm, types) for arm in schema[form]]
                return {**schema, form: [arm for arm in arms if arm != _NO_VALUES]}
        shared = [
            kind
            for kind in _types(schema) or types
            if kind in types or (kind == "integer" and "number" in types)
        ]
        return {**schema, "type": shared} if shared else _NO_VALUES

    def _reference(self, schema: Schema) -> Node:
        if schema["$ref"] == "#":
            return self.start()
        name, defined = self._resolve(schema["$ref"])
        return self._rule(name, lambda: self._node(defined))

    def _resolve(self, reference: str) -> tuple[str, Any]:
        """Find the schema that ``reference`` points to. Return a name for the rule of this schema,
        and the schema. Raises ``UnsupportedGrammar`` if the schema is not found."""
        match = _REFERENCE.match(str(reference))
        section = self._root.get(match[1], {}) if match else {}
        if match is None or match[2] not in section:
            raise UnsupportedGrammar(f"a reference to {reference}")
        return f"{match[1].strip('$')}_{list(section).index(match[2])}", section[match[2]]

    def _values(self, schema: Schema) -> Node:
        values = schema["enum"] if "enum" in schema else [schema["const"]]
        if "type" in schema:
            kinds = _types(schema)
            values = [value for value in values if has_type(value, kinds)]
        return _choice([LiteralText(self._dump(value)) for value in values])

    def _dump(self, value: Any) -> str:
        layout = (self._comma.text, self._colon)
        return json.dumps(value, ensure_ascii=False, separators=layout)

    def _any_of(self, schema: Schema) -> Node:
        """Build a node that matches one of the schemas in ``anyOf`` or ``oneOf``. This is correct
        for ``oneOf`` because llguidance accepts ``oneOf`` only if no value matches two of its
        schemas."""
        return _choice(
            [self._node(arm) for arm in schema["anyOf" if "anyOf" in schema else "oneOf"]]
        )

    def _all_of(self, schema: Schema) -> Node:
        if len(schema["allOf"]) != 1:
            raise UnsupportedGrammar("allOf with several schemas")
        return self._node(schema["allOf"][0])

    _keyword_methods: Mapping[str, Callable[[SchemaTree, Schema], Node]] = {
        "$ref": _reference,
        "enum": _values,
        "const": _values,
        "anyOf": _any_of,
        "oneOf": _any_of,
        "allOf": _all_of,
    }

    def _by_type(self, schema: Schema) -> Node:
        kinds = _types(schema)
        unknown = schema.keys() - frozenset({"type"}).union(
            *(_TYPE_KEYWORDS[kind] for kind in kinds)
        )
        if unknown and not self._lenient:
            raise UnsupportedGrammar(f"{sorted(unknown)} cannot be enforced")
        if not kinds:
            return self._any_value()
        return _choice([self._single_type(kind, schema) for kind in kinds])

    def _single_type(self, kind: str, schema: Schema) -> Node:
        match kind:
            case "object":
                return self._object(schema)
            case "array":
                return self._array(schema)
            case "string":
                return self._string(schema)
            case "boolean":
                return Alternatives((LiteralText("true"), LiteralText("false")))
            case "null":
                return LiteralText("null")
        if bounds := {key: schema[key] for key in _BOUNDS & schema.keys()}:
            return _number(kind, bounds)
        return self._shared_rule(f"json_{kind}", lambda: parse_regex(_UNBOUNDED[kind]))

    # --- strings and numbers ---------------------------------------------------------------------

    def _string(self, schema: Schema) -> Node:
        keywords = [key for key in ("pattern", "format", *_LENGTHS) if key in schema]
        if not keywords:
            return self._shared_rule("json_string", _any_string)
        if keywords == ["pattern"]:
            body = self._pattern(schema["pattern"])
        elif keywords == ["format"] and schema["format"] in _FORMATS:
            name = schema["format"]
            body = self._shared_rule(
                f"json_{name.replace('-', '_')}", lambda: parse_regex(_FORMATS[name])
            )
        elif _LENGTHS.issuperset(keywords):
            char = parse_regex(f"{_PLAIN}|{_ESCAPE}")
            body = Repeat(
                char, _count_bound(schema, "minLength") or 0, _count_bound(schema, "maxLength")
            )
        else:
            raise UnsupportedGrammar(f"a string with {keywords} together")
        return Concatenation((LiteralText('"'), body, LiteralText('"')))

    def _pattern(self, pattern: str) -> Node:
        """Build a node for the content of a string with the keyword ``pattern``. The whole string
        must match the pattern. This is stricter than JSON Schema, which also accepts a string if
        only a part of it matches."""
        try:
            return self._body(regex_rule(pattern, JSON))
        except UnwritableGrammar as reason:
            raise UnsupportedGrammar(str(reason)) from None

    # --- arrays and objects ----------------------------------------------------------------------

    def _array(self, schema: Schema) -> Node:
        first = [self._node(item) for item in schema.get("prefixItems", ())]
        # JSON Schema allows fewer items than `prefixItems` has. Requiring all of them is simpler.
        least, most = (
            max(_count_bound(schema, "minItems") or 0, len(first)),
            _count_bound(schema, "maxItems"),
        )
        items = schema.get("items", True)
        if items is False and (most is None or most > len(first)):
            most = len(first)
        if most is not None and most < least:
            raise UnsupportedGrammar("minItems is larger than maxItems")
        more = None if most == len(first) else self._node(items)
        return Concatenation(
            (LiteralText("["), self._items(first, more, least, most), LiteralText("]"))
        )

    def _items(
        self, first: Sequence[Node], more: Node | None, least: int, most: int | None
    ) -> Node:
        """Build the comma-separated items of an array.

        ``first``: one node for each of the first items. ``more``: the node of each later item; None
        if there are no later items. ``least``, ``most``: the bounds of the total number of items.
        """
        parts = [part for node in first for part in (self._comma, node)][1:]
        if more is None:
            return Concatenation(tuple(parts))
        one = Concatenation((self._comma, more))
        if first:
            rest = None if most is None else most - len(first)
            return Concatenation((*parts, Repeat(one, least - len(first), rest)))
        several = Repeat(one, max(0, least - 1), None if most is None else most - 1)
        return Repeat(Concatenation((more, several)), min(least, 1), 1)

    def _object(self, schema: Schema) -> Node:
        properties, required = schema.get("properties") or {}, {*(schema.get("required") or ())}
        if not required <= properties.keys():
            raise UnsupportedGrammar("a required property without a schema")
        if not properties:
            return self._map(schema.get("additionalProperties", True))
        members = [
            (
                Concatenation((LiteralText(self._dump(key) + self._colon), self._node(inner))),
                key in required,
            )
            for key, inner in properties.items()
            if inner is not False or key in required
        ]
        return Concatenation((LiteralText("{"), self._members(members), LiteralText("}")))

    def _map(self, value: Any) -> Node:
        if value is False:
            return LiteralText("{}")
        member = Concatenation(
            (
                self._shared_rule("json_string", _any_string),
                LiteralText(self._colon),
                self._node(value),
            )
        )
        return Concatenation((LiteralText("{"), self._items((), member, 0, None), LiteralText("}")))

    def _members(self, members: Sequence[tuple[Node, bool]]) -> Node:
        """Build the comma-separated members of an object, in the order of ``members``.

        ``members``: the node of each member, and whether the member is required. All members before
        the first required member are optional. So the output may start with the first required
        member or with any member before it.
        """
        self._object_count += 1
        number, arms = self._object_count, list[Node]()

        def tail(index: int) -> Node:
            if index == len(members):
                return LiteralText("")
            member, is_required = members[index]
            one = Concatenation((self._comma, member))
            rest = self._rule(f"{number}_{index + 1}", partial(tail, index + 1))
            return Concatenation((one if is_required else Repeat(one, 0, 1), rest))

        for index, (member, is_required) in enumerate(members):
            rest = self._rule(f"{number}_{index + 1}", partial(tail, index + 1))
            arms.append(Concatenation((member, rest)))
            if is_required:
                return _choice(arms)
        return _choice([*arms, LiteralText("")])


def _count_bound(schema: Schema, key: str) -> int | None:
    count = schema.get(key)
    if count is not None and not (isinstance(count, int) and 0 <= count <= MAX_COUNT):
        raise UnsupportedGrammar(f"{key} is not a count, or too large")
    return count


def _choice(arms: Sequence[Node]) -> Node:
    if not arms:
        raise UnsupportedGrammar("no value is allowed")
    return arms[0] if len(arms) == 1 else Alternatives(tuple(arms))


def _any_string() -> Node:
    """Build a node that matches any JSON string. Escapes (backslash sequences) divide the string
    into plain texts, which may be empty.

    An excluded text, such as the text of a control token, cannot occur within a plain text. The
    string can contain an excluded text only if at least one character of the excluded text is
    written as an escape.
    """
    plain = AnyText(_NOT_PLAIN)
    escaped = Repeat(Concatenation((parse_regex(_ESCAPE), plain)), 0, None)
    return Concatenation((LiteralText('"'), plain, escaped, LiteralText('"')))


def _number(kind: str, bounds: Mapping[str, Any]) -> Node:
    lows = [
        (bounds[key], key != "minimum") for key in ("minimum", "exclusiveMinimum") if key in bounds
    ]
    highs = [
        (-bounds[key], key != "maximum") for key in ("maximum", "exclusiveMaximum") if key in bounds
    ]
    low, exclude_low = max(lows, default=(None, False))
    high, exclude_high = max(highs, default=(None, False))
    if any(bound is not None and bound != int(bound) for bound in (low, high)):
        raise UnsupportedGrammar("a bound that is no integer")
    low, high = (None if low is None else int(low)), (None if high is None else -int(high))
    if kind == "number":
        return numbers(low, high, exclude_low=exclude_low, exclude_high=exclude_high)
    low = low + 1 if low is not None and exclude_low else low
    return integers(low, high - 1 if high is not None and exclude_high else high)


def _types(schema: Schema) -> list[str]:
    kind = schema.get("type")
    if kind is None:
        inferred = [kind for kind in _INFERRED_TYPES if schema.keys() & _TYPE_KEYWORDS[kind]]
        if len(inferred) > 1:
            raise UnsupportedGrammar("the schema's type is ambiguous")
        return inferred
    kinds = [kind] if isinstance(kind, str) else [*kind]
    if not _TYPE_KEYWORDS.keys() >= {*kinds}:
        raise UnsupportedGrammar(f"the type {kind}")
    return kinds
