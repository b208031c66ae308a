"""Grammar rules for the arguments of tool calls, in formats that do not write the arguments as a
JSON object. Each parameter has one rule."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from antiphon.dialects.formats.types import ParameterSyntax

from .json_schema import short_grammar_fault
from .lark import ANYTHING, LarkRules, TokenLiterals
from .schema_types import SchemaTypes, keyword_list, keyword_object

#: JSON type → rule for Python's spelling of its values, if it differs from JSON's.
_PYTHON: Mapping[str, str] = {
    "string": '"\'" PYTHON "\'"',
    "boolean": '"True" | "False"',
    "null": '"None"',
}
#: The rule for the text between the single quotes of a Python string. It allows no escapes.
_UNESCAPED = rf"{ANYTHING} & ~/(?s:.*('|\\).*)/"
#: Keywords of a schema that restricts nothing but the type of a value. All of them except ``type``
#: are only documentation.
_ABOUT = frozenset({"type", "title", "description", "default", "examples"})

#: Keywords of a schema that are copied into the schema of each property, which needs them, too.
_SHARED = ("$defs", "definitions", "x-guidance")
#: The rule for the name of a parameter that is not in the schema, and the maximum number of such
#: parameters in a call.
_KEY = "/[A-Za-z_][A-Za-z0-9_.\\-]{0,63}/"
_MOST = 16


def json_rule(schema: Mapping[str, object]) -> str:
    """Return the rule for a JSON text that matches a schema."""
    return "%json " + json.dumps(schema, ensure_ascii=False)


def _pythons(schema: Mapping[str, object], types: SchemaTypes) -> list[str]:
    """Return grammar rules for values in Python's spelling, such as ``True``. There is one rule for
    each type that the schema allows and whose values Python spells differently from JSON. Returns
    no rules if the schema restricts anything other than the type."""
    named = types.of(schema) if schema.keys() <= _ABOUT else ()
    return [_PYTHON[name] for name in sorted(named) if name in _PYTHON]


class Parameters:
    """Builds the grammar rules for the parameters of calls, in the syntax of one tool format.

    ``spelling``: writes the literals of the grammar. ``form``: the syntax of an argument in the
    tool format.
    """

    def __init__(self, spelling: TokenLiterals, form: ParameterSyntax) -> None:
        self._spelling = spelling
        self._form = form

    def rule_for(self, rules: LarkRules, name: str, schema: Mapping[str, object]) -> str:
        """Return the rule for the parameters of a call. ``schema``: the schema of the arguments.
        ``name``: the start of the names of the rules that are added to ``rules``.

        The rule allows the parameters in one order only: in alphabetical order if the tool format's
        ``ParameterSyntax.in_order`` is set, otherwise in the schema's order. If the schema allows
        several alternative objects, the rule allows each of them.
        """
        types = SchemaTypes(schema)
        forms = types.forms(schema)
        if len(forms) == 1:
            return self._object(rules, name, forms[0], types)
        arms = [self._object(rules, f"{name}_{n}", form, types) for n, form in enumerate(forms)]
        return f"({' | '.join(arms)})"

    def text(self, key: str, body: str) -> str:
        """Return the rule for the parameter ``key``, whose value is free text. ``body``: the rule
        for the text.

        If the format writes strings in quotes, the rule has a double quote before and after the
        text.
        """
        form = self._form
        before, after = form.text, form.text_end
        if form.quoted:
            before, after = f'{form.json}"', f'"{form.json_end}'
        head = self._spelling.fill_template(form.before + key + before, key=key)
        end = f" {self._spelling.fill_template(after, key=key)}" if after else ""
        return f"{head} {body}{end}"

    def _object(
        self, rules: LarkRules, name: str, schema: Mapping[str, Any], types: SchemaTypes
    ) -> str:
        """Return the rule for the parameters of one object schema. ``name``: the start of the names
        of added rules. ``types``: the types of the schemas inside the schema of the arguments."""
        properties = dict(keyword_object(schema, "properties"))
        if self._form.in_order:
            properties = dict(sorted(properties.items()))
        required = set(keyword_list(schema, "required"))
        if not properties:
            is_open = schema.get("additionalProperties", True) is not False
            return self._unknown(rules, name) if is_open else '""'
        values: list[tuple[str, bool]] = []
        for position, (key, inner) in enumerate(properties.items()):
            value = self._one(rules, f"{name}_{position}", key, inner, types)
            values.append((value, key in required))
        return self._row(rules, name, values)

    def _row(self, rules: LarkRules, name: str, values: list[tuple[str, bool]]) -> str:
        """Return the rule for a sequence of parameters. ``values``: one pair for each parameter,
        in order. The pair contains the parameter's rule, and True if the parameter is required."""
        if not self._form.separator:
            return " ".join(value if must else f"{value}?" for value, must in values)
        comma = self._spelling.literal(self._form.separator)
        # The rule for the remaining parameters if no parameter precedes them, and the rule if one
        # does, so that a separator is needed.
        alone = more = '""'
        for position, (value, must) in reversed(list(enumerate(values))):
            alone = f"{value} {more}" if must else f"{value} {more} | {alone}"
            alone = rules.add(f"{name}_a{position}", alone)
            behind = f"{comma} {value}" if must else f"({comma} {value})?"
            more = rules.add(f"{name}_b{position}", f"{behind} {more}")
        return alone

    def _one(
        self, rules: LarkRules, name: str, key: str, schema: object, types: SchemaTypes
    ) -> str:
        """Return the rule for one parameter. ``name``: the name of the rule. ``key``, ``schema``:
        the parameter's name and schema. ``types``: the types of the schemas inside the schema of
        the arguments."""
        form = self._form
        shared = {keyword: types.root[keyword] for keyword in _SHARED if keyword in types.root}
        plain = schema if isinstance(schema, Mapping) else {}
        if form.quoted or not types.allows_string(schema):
            value = json_rule({**plain, **shared})
            if form.quoted:
                rules.add("PYTHON", _UNESCAPED)
                value = f"({' | '.join([value, *_pythons(plain, types)])})"
            return rules.add(name, self._json(key, value))
        strings = types.strings(schema)
        arms = self._texts(rules, f"{name}_v", key, strings)
        # A text that is not marked as a string may also be another value: the schema decides.
        is_marked = (form.text, form.text_end) != (form.json, form.json_end)
        others = types.without_strings(schema) if strings is not None or is_marked else None
        rule = json_rule({**(plain if others is None else others), **shared})
        if not arms or (others is not None and short_grammar_fault(f"start: {rule}") is None):
            arms.append(self._json(key, rule))
        return rules.add(name, " | ".join(arms))

    def _texts(
        self, rules: LarkRules, name: str, key: str, strings: Sequence[str] | None
    ) -> list[str]:
        """Return the rules for a parameter whose value is a string without quotes. ``name``: the
        name of an added rule. ``strings``: the valid strings, or None for any string."""
        form, spelling = self._form, self._spelling
        if strings is not None:
            options = " | ".join(map(spelling.literal, strings))
            return [self.text(key, rules.add(name, options))] if strings else []
        until = spelling.add_text_until(rules, name, form.text_end.replace("{key}", key))
        head = spelling.fill_template(form.before + key + form.text, key=key)
        plain = [self._json(key, f"/{form.plain}/")] if form.plain else []
        return [f"{head} {until}", *plain]

    def _json(self, key: str, value: str) -> str:
        """Return the rule for a parameter whose value stands between the texts ``json`` and
        ``json_end`` of the syntax. ``key``: the parameter's name. ``value``: the rule for its
        value.

        All values that are not strings are written this way. A string is written this way only if
        the syntax is ``quoted`` or the string matches ``plain``.
        """
        form, spelling = self._form, self._spelling
        head = spelling.fill_template(form.before + key + form.json, key=key)
        end = f" {spelling.fill_template(form.json_end, key=key)}" if form.json_end else ""
        return f"{head} {value}{end}"

    def _unknown(self, rules: LarkRules, name: str) -> str:
        """Return the rule for parameters with any names, for a schema that lists no properties."""
        form, spelling = self._form, self._spelling
        if "{key}" in form.text_end + form.json_end:
            return '""'  # the end of a value depends on its key
        key = f"{spelling.fill_template(form.before)} " if form.before else ""
        if form.quoted:
            end = f" {spelling.fill_template(form.json_end)}" if form.json_end else ""
            body = f"{key}{_KEY} {spelling.fill_template(form.json)} {json_rule({})}{end}"
        else:
            until = spelling.add_text_until(rules, f"{name}_any", form.text_end)
            body = f"{key}{_KEY} {spelling.fill_template(form.text)} {until}"
        one = rules.add(f"{name}_free", body)
        comma = f"{spelling.literal(form.separator)} " if form.separator else ""
        return f"({one} ({comma}{one}){{0,{_MOST - 1}}})?"
