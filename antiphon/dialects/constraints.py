"""Grammars: what a reply must look like, in llguidance's Lark.

A schema, a forced call, strict arguments in a free answer: each is a body, and the thinking that
may come before it is part of the grammar, so that a constraint begins where reasoning ends.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from antiphon.conversation import Options
from antiphon.errors import InvalidRequest
from antiphon.tokens import Constraint, Tokenizer
from antiphon.wire import tools as tl
from antiphon.wire.extensions import Guide
from antiphon.wire.response import JsonObjectFormat, JsonSchemaFormat

from .escaped import JSON, PLAIN, Escapes, Unwritable, lark_rules, regex_rule
from .formats import ParameterForm, ReasoningFormat, ToolFormat
from .schemas import (
    check_schema,
    check_strict,
    closed_form,
    grammar_fault,
    strict_form,
    types_of,
)
from .tools import Shown, ShownTool

__all__ = ["ANYTHING", "Grammarian", "Rules", "guide_lark"]

#: One way to write JSON: a small model would else put blanks until its tokens run out.
_LAYOUT = {"whitespace_flexible": False}
#: Calls one after another, at most: a small model would else repeat one until its tokens run out.
_MOST_CALLS = 16
ANYTHING = "/(?s:.*)/"


def guide_lark(guide: Guide) -> str:
    """The grammar of an answer that is guided, alone. Raises ``InvalidRequest``."""
    rules = Rules(forced=False)
    return f"start: {_guide(rules, guide)}\n{rules.text()}"


class Grammarian:
    """Writes the grammars of one model."""

    #: What stands behind the items and the keys of JSON.
    separators = (", ", ": ")

    def __init__(
        self, tokenizer: Tokenizer, tools: ToolFormat, reasoning: ReasoningFormat | None
    ) -> None:
        self._special = tokenizer.special
        literals = sorted(tokenizer.special, key=len, reverse=True)
        self._split = (
            re.compile("(" + "|".join(map(re.escape, literals)) + ")") if literals else None
        )
        self._form = tools
        self._reasoning = reasoning
        head = tools.written.first + tools.written.before
        #: The terminal by which calls are told from text, if there is one.
        self._opening = max((t for t in tools.opens if head.startswith(t)), key=len, default="")
        self._valid = lru_cache(maxsize=512)(check_schema)

    def constraint(
        self, options: Options, shown: Shown, thinking: bool, *, thought: bool = False
    ) -> Constraint | None:
        """What the next reply must obey; None if it may be anything. ``thinking``: the prompt has
        opened the thinking; ``thought``: it is over. Raises ``InvalidRequest`` for what cannot
        be enforced."""
        schema = self._format_schema(options)
        answered = schema is not None or options.guide is not None
        needed = answered or self._must_hold(shown)
        # An answer may begin with "{" without being a bare call: that is not for us to forbid.
        better = bool(self._opening) and any(t.strict is None for t in shown.callable)
        if not (needed or better):
            return None
        rules = Rules(shown.required)
        if shown.required:
            body = self._calls(rules, shown, options.parallel_tool_calls)
        elif answered:
            body = answer = rules.add("answer", self._answer(rules, schema, options.guide))
            if shown.callable:
                body = f"{answer} | {self._calls(rules, shown, options.parallel_tool_calls)}"
        else:
            body = self._free(rules, shown, options.parallel_tool_calls)
        before = "" if thought else self._thinking(rules, thinking)
        start = f"{before}{rules.add('body', body)}"
        alone = not (shown.required or shown.callable or (thinking and not thought))
        return Constraint(
            lark=f"start: {start}\n{rules.text()}",
            needed=needed,
            schema=_unguided(schema) if alone and schema is not None else None,
        )

    def _must_hold(self, shown: Shown) -> bool:
        """Whether what may be called, and how, has to be enforced."""
        asked = any(tool.strict or tool.grammar for tool in shown.callable)
        return asked or shown.restricted or shown.required

    # --- thinking --------------------------------------------------------------------------------

    def _thinking(self, rules: Rules, begun: bool) -> str:
        form = self._reasoning
        if form is None:
            return ""
        said = self._until(rules, "thought", form.close[0])
        rules.add("gap", r"/\n{0,2}/")
        if begun:
            return f"{said} gap "
        return f"({self._literal(form.open[0])} {said} gap)? "

    def _until(self, rules: Rules, name: str, end: str) -> str:
        """Any text up to and with ``end``."""
        if end in self._special:
            return rules.add(name, f"{ANYTHING} {self._literal(end)}")
        return rules.add(name, ANYTHING, f"[suffix={json.dumps(end, ensure_ascii=False)}]")

    # --- answers ---------------------------------------------------------------------------------

    def _answer(self, rules: Rules, schema: Mapping[str, Any] | None, guide: Guide | None) -> str:
        return _json(schema or {}) if schema is not None or guide is None else _guide(rules, guide)

    def _format_schema(self, options: Options) -> Mapping[str, Any] | None:
        match options.text.format:
            case JsonObjectFormat():
                return self._guided({"type": "object"})
            case JsonSchemaFormat(schema=schema, strict=strict):
                path = "text.format.schema"
                if strict:
                    check_strict(schema, path)
                guided = self._guided(schema)
                self._check(guided, path)
                return guided
        return None

    def _guided(self, schema: Mapping[str, Any], *, lenient: bool = False) -> dict[str, Any]:
        """The schema with what llguidance is told about it, and not by its author. Which edition it
        claims to be of does not matter, and might be one that cannot be looked up."""
        said = {key: value for key, value in schema.items() if key != "$schema"}
        item, key = self.separators
        layout = {**_LAYOUT, "item_separator": item, "key_separator": key}
        return {**said, "x-guidance": {**layout, "lenient": lenient}}

    def _check(self, schema: Mapping[str, Any], path: str) -> None:
        self._valid(json.dumps(schema), path)

    # --- calls -----------------------------------------------------------------------------------

    def _calls(self, rules: Rules, shown: Shown, parallel: bool, opened: str = "") -> str:
        """Calls as they are written; ``opened``: what of the beginning stands already."""
        how = self._form.written
        head = (how.first + how.before)[len(opened) :]
        tools = [self._call(rules, n, tool) for n, tool in enumerate(shown.callable)]
        one = rules.add("one", " | ".join(tools))
        more = ""
        if parallel:
            again = self._literal(how.separator + how.before)
            more = f" ({again} {one}){{0,{_MOST_CALLS - 1}}}"
        last = f" {self._literal(how.last)}" if how.last else ""
        start = f"{self._literal(head)} " if head else ""
        return rules.add("calls_opened" if opened else "calls", f"{start}{one}{more}{last}")

    def _call(self, rules: Rules, number: int, tool: ShownTool) -> str:
        how = self._form.written
        between = self._literal(tool.name + how.between)
        if self._form.id_holds_name:  # the number of the call is part of its id
            between = f"{self._literal(tool.name)} /:[0-9]{{1,3}}/ {self._literal(how.between[2:])}"
        arguments = self._arguments(rules, number, tool)
        after = f" {self._literal(how.after)}" if how.after else ""
        return rules.add(f"tool_{number}", f"{between} {arguments}{after}")

    def _free(self, rules: Rules, shown: Shown, parallel: bool) -> str:
        """An answer in which calls may stand anywhere, each of them right."""
        opening = self._opening
        if not shown.callable:
            return rules.add("free", ANYTHING)
        if not opening:  # bare calls are told from text by their first character
            calls = self._calls(rules, shown, parallel)
            return f'{calls} | /[^{re.escape(self._form.bare)}](?s:.*)/ | ""'
        rest = self._calls(rules, shown, parallel, opening)
        before = self._until(rules, "before", opening)
        repeat = "*" if parallel else "?"
        tail = rules.add("tail", ANYTHING)
        return f"({before} {rest}){repeat} {tail}"

    # --- arguments -------------------------------------------------------------------------------

    def _arguments(self, rules: Rules, number: int, tool: ShownTool) -> str:
        parameter = self._form.written.parameter
        if tool.grammar is not None and parameter is None:
            text = self._own(rules, number, tool, JSON)
            head = f'{{"input"{self.separators[1]}"'
            return f'{self._literal(head)} {text} "\\"}}"'
        schema = self._enforced(tool, rules.forced)
        if parameter is None:
            return _json(schema)
        if tool.grammar is not None:
            text = self._own(rules, number, tool, PLAIN)
            return self._text_parameter(parameter, "input", text)
        return self._parameters(rules, number, parameter, schema)

    def _enforced(self, tool: ShownTool, forced: bool) -> dict[str, Any]:
        """The schema of a tool as it is enforced. Unless it is strict, keywords that cannot be
        enforced are passed over; unless the call is forced as well, so is the whole schema."""
        form = strict_form if tool.strict else closed_form if tool.strict is None else dict
        schema = self._guided({"type": "object", **form(tool.schema)}, lenient=not tool.strict)
        try:
            self._check(schema, tool.path)
        except InvalidRequest:
            if tool.strict or forced:
                raise
            return self._guided({"type": "object"})
        return schema

    def _own(self, rules: Rules, number: int, tool: ShownTool, escapes: Escapes) -> str:
        """The user's grammar for the input of a custom tool, among our rules."""
        assert tool.grammar is not None
        try:
            return _written(rules, f"u{number}", tool.grammar, escapes)
        except Unwritable as reason:
            raise _no_grammar(tool, str(reason)) from None

    def _parameters(
        self, rules: Rules, number: int, form: ParameterForm, schema: Mapping[str, Any]
    ) -> str:
        """An object's properties in the form's own way, in the order of the schema."""
        properties = schema.get("properties") or {}
        required = set(schema.get("required") or ())
        definitions = {key: schema[key] for key in _SHARED if key in schema}
        said: list[tuple[str, bool]] = []
        for position, (key, inner) in enumerate(properties.items()):
            value = self._parameter(rules, f"p_{number}_{position}", form, key, inner, definitions)
            said.append((value, key in required))
        if not form.separator:
            return " ".join(value if must else f"{value}?" for value, must in said) or '""'
        said.sort(key=lambda pair: not pair[1])
        comma = self._literal(form.separator)
        out = ""
        for position, (value, must) in enumerate(said):
            piece = value if position == 0 else f"{comma} {value}"
            out = f"{out} {piece}" if must else f"{out} ({piece}"
        optional = sum(not must for _, must in said)
        return (out + ")?" * optional).strip() or '""'

    def _parameter(
        self,
        rules: Rules,
        name: str,
        form: ParameterForm,
        key: str,
        schema: Any,
        definitions: Mapping[str, Any],
    ) -> str:
        choices = schema.get("enum") if isinstance(schema, dict) else None
        if not form.quoted and types_of(schema) == {"string"}:
            if choices:
                text = rules.add(f"{name}_v", " | ".join(self._literal(str(c)) for c in choices))
                return rules.add(name, self._text_parameter(form, key, text))
            until = self._until(rules, f"{name}_v", form.text_end)
            return rules.add(name, f"{self._literal(form.before + key + form.text)} {until}")
        value = _json({**(schema if isinstance(schema, dict) else {}), **definitions})
        end = f" {self._literal(form.json_end)}" if form.json_end else ""
        return rules.add(name, f"{self._literal(form.before + key + form.json)} {value}{end}")

    def _text_parameter(self, form: ParameterForm, key: str, text: str) -> str:
        end = f" {self._literal(form.text_end)}" if form.text_end else ""
        return f"{self._literal(form.before + key + form.text)} {text}{end}"

    def _literal(self, text: str) -> str:
        """``text`` as the grammar says it: control tokens by id, the rest quoted."""
        pieces = self._split.split(text) if self._split is not None else [text]
        said = [
            f"<[{self._special[piece]}]>"
            if piece in self._special
            else json.dumps(piece, ensure_ascii=False)
            for piece in pieces
            if piece
        ]
        return " ".join(said) or '""'


#: What every part of a schema needs of the whole.
_SHARED = ("$defs", "definitions", "x-guidance")


class Rules:
    """The rules of one grammar, each with a name of its own. ``forced``: a call must come."""

    def __init__(self, forced: bool) -> None:
        self.forced = forced
        self._rules: dict[str, str] = {}
        self.own: list[str] = []

    def add(self, name: str, body: str, attributes: str = "") -> str:
        self._rules[name] = f"{name}{attributes}: {body}"
        return name

    def text(self) -> str:
        return "\n".join([*self._rules.values(), *self.own])


def _guide(rules: Rules, guide: Guide) -> str:
    try:
        return _written(rules, "g", guide, PLAIN)
    except Unwritable as reason:
        raise InvalidRequest(
            f"Invalid grammar: {reason}", param=guide.path, code="invalid_grammar"
        ) from None


def _written(rules: Rules, prefix: str, grammar: tl.Grammar | Guide, escapes: Escapes) -> str:
    """A user's grammar among our rules; the name of its first one. Raises ``Unwritable``."""
    if grammar.syntax == "regex":
        start, own = prefix, f"{prefix}: {regex_rule(grammar.definition, escapes)}"
    else:
        own, start = lark_rules(grammar.definition, prefix, escapes)
    if (why := grammar_fault(f"start: {start}\n{own}")) is not None:
        raise Unwritable(re.sub(rf"\b{prefix}_[rt]_", "", why))
    rules.own.append(own)
    return start


def _json(schema: Mapping[str, Any]) -> str:
    return "%json " + json.dumps(schema, ensure_ascii=False)


def _unguided(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in schema.items() if key != "x-guidance"}


def _no_grammar(tool: ShownTool, why: str) -> InvalidRequest:
    path = f"{tool.path}.format.definition" if tool.path != "input" else "input"
    return InvalidRequest(
        f"Invalid grammar for tool '{tool.shape.wire_name}': {why}",
        param=path,
        code="invalid_grammar",
    )
