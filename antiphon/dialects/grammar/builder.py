"""Grammars: what a reply must look like, in llguidance's Lark.

A schema, a forced call, strict arguments in a free answer: each is a body, and the thinking that
may come before it is part of the grammar, so that a constraint begins where reasoning ends.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from antiphon.conversation import Options
from antiphon.dialects.formats.types import ReasoningFormat, ToolFormat
from antiphon.dialects.tools import PromptTool, PromptTools
from antiphon.errors import InvalidRequest
from antiphon.tokens import Constraint, Tokenizer
from antiphon.wire.extensions import Guide
from antiphon.wire.response import JsonObjectFormat, JsonSchemaFormat

from .json_schema import (
    bare,
    check_schema,
    check_strict,
    closed_form,
    definitions_of,
    is_enforced,
    lenient,
    strict_form,
)
from .lark import ANYTHING, LarkRules, TokenLiterals, pattern
from .parameters import Parameters, json_rule
from .user_grammars import guide_rule, tool_input_rule
from .user_regex import JSON, PLAIN

__all__ = ["GrammarBuilder", "is_partial"]

#: One way to write JSON: a small model would else put blanks until its tokens run out.
_LAYOUT = {"whitespace_flexible": False}
#: What models put before what they are held to.
_LEAD = r"/[ \n]{0,2}/ "
#: Calls one after another, at most: a small model would else repeat one until its tokens run out.
_MOST_CALLS = 16


class GrammarBuilder:
    """Writes the grammars of one model."""

    #: What stands behind the items and the keys of JSON.
    separators = (", ", ": ")

    def __init__(
        self, tokenizer: Tokenizer, tools: ToolFormat, reasoning: ReasoningFormat | None
    ) -> None:
        self._spelling = TokenLiterals(tokenizer.special)
        self._form = tools
        self._reasoning = reasoning
        head = tools.written.first + tools.written.before
        #: What begins a further message of a reply, where it consists of such.
        self._header = "" if reasoning is None else reasoning.header
        #: Where messages are told apart, or begin with a blank, nothing stands before them.
        is_led = not (self._header or tools.doubtful or head[:1].isspace())
        self._lead = _LEAD if is_led else ""
        #: The terminal by which calls are told from text, if there is one.
        self._opening = max((t for t in tools.opens if head.startswith(t)), key=len, default="")
        self._valid = lru_cache(maxsize=512)(check_schema)

    def constraint(
        self, options: Options, shown: PromptTools, thinking: bool, *, thought: bool = False
    ) -> Constraint | None:
        """What the next reply must obey; None if it may be anything. ``thinking``: the prompt has
        opened the thinking; ``thought``: it is over. Raises ``InvalidRequest`` for what cannot
        be enforced."""
        schema = self._format_schema(options)
        answered = schema is not None or options.guide is not None
        needed = answered or self._must_hold(shown)
        better = any(tool.strict is None for tool in shown.callable)
        if not (needed or better):
            return None
        rules = LarkRules(shown.required)
        if shown.required:
            calls = self._calls(rules, shown, options.parallel_tool_calls)
            body = f"{self._lead}{self._unsaid()}{calls}"
        elif answered:
            body = self._answer_or_calls(rules, shown, options, schema)
        else:
            body = self._free(rules, shown, options.parallel_tool_calls)
        before = "" if thought else self._thinking(rules, thinking)
        start = f"{before}{rules.add('body', body)}"
        alone = not (shown.required or shown.callable or (thinking and not thought))
        partial = is_partial(schema)
        return Constraint(
            lark=f"start: {start}\n{rules.text()}",
            needed=needed,
            schema=_unguided(schema) if alone and schema is not None and not partial else None,
            partial=partial,
        )

    def _must_hold(self, shown: PromptTools) -> bool:
        """Whether what may be called, and how, has to be enforced."""
        asked = any(tool.strict or tool.grammar for tool in shown.callable)
        return asked or shown.restricted or shown.required

    # --- thinking --------------------------------------------------------------------------------

    def _thinking(self, rules: LarkRules, begun: bool) -> str:
        form = self._reasoning
        if form is None or not form.open:
            return ""
        said = " | ".join(
            self._spelling.until(rules, f"thought_{n}", end)
            for n, end in enumerate(form.closing_tags)
        )
        said = rules.add("thought", said)
        ends = " | ".join(map(self._literal, form.closing_tags))
        rules.add("gap", self._literal(self._header) if self._header else r"/\n{0,2}/")
        if begun:
            return f"{said} gap "
        # Some end thinking that they have not begun.
        return f"({self._lead}({self._literal(form.open[0])} {said} | {ends}) gap)? "

    # --- answers ---------------------------------------------------------------------------------

    def _answer(
        self, rules: LarkRules, schema: Mapping[str, Any] | None, guide: Guide | None
    ) -> str:
        """An answer that follows a schema or a guide, in the frame that this model may put it."""
        if schema is None and guide is not None:
            said = guide_rule(rules, guide)
        else:
            said = json_rule(schema or {})
        before, after = ("", "") if self._reasoning is None else self._reasoning.answer
        if not before:
            return said
        return f"({self._literal(before)})? {said} ({self._literal(after)})?"

    def _answer_or_calls(
        self,
        rules: LarkRules,
        shown: PromptTools,
        options: Options,
        schema: Mapping[str, Any] | None,
    ) -> str:
        if schema is not None and shown.callable and self._is_json:
            return self._answer(rules, self._answer_or_call(schema, shown), None)
        answer = rules.add("answer", self._answer(rules, schema, options.guide))
        if not shown.callable:
            return answer
        return f"{answer} | {self._calls(rules, shown, options.parallel_tool_calls)}"

    @property
    def _is_json(self) -> bool:
        """A call is nothing but JSON: only a schema can tell it from an answer that is JSON too."""
        return self._form.bare == "{" and self._form.written.parameter is None

    def _answer_or_call(self, answer: Mapping[str, Any], shown: PromptTools) -> dict[str, Any]:
        """The schema of an answer or of a call that is nothing but JSON."""
        how = self._form.written
        arms: list[dict[str, Any]] = [{"$ref": "#/$defs/0"}]
        for number, tool in enumerate(shown.callable, start=1):
            call = json.loads(f"{how.render_opening(tool.name, 0)}null{how.after}")
            properties = {
                key: {"$ref": f"#/$defs/{number}"} if value is None else {"const": value}
                for key, value in call.items()
            }
            arm = {"type": "object", "properties": properties, "required": list(call)}
            arms.append({**arm, "additionalProperties": False})
        schemas = [answer, *(self._enforced(tool, False) for tool in shown.callable)]
        return self._guided({"anyOf": arms, "$defs": definitions_of(schemas)})

    def _format_schema(self, options: Options) -> Mapping[str, Any] | None:
        match options.text.format:
            case JsonObjectFormat():
                return self._guided({"type": "object"})
            case JsonSchemaFormat(schema=schema, strict=strict):
                path = "text.format.schema"
                if strict:
                    check_strict(schema, path)
                guided = self._guided(schema)
                return guided if self._holds(guided, path, strict) else lenient(guided)
        return None

    def _guided(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        """The schema with what llguidance is told about it, and not by its author."""
        item, key = self.separators
        layout = {**_LAYOUT, "item_separator": item, "key_separator": key}
        return {**bare(schema), "x-guidance": layout}

    def _check(self, schema: Mapping[str, Any], path: str) -> None:
        self._valid(json.dumps(schema), path)

    def _holds(self, schema: Mapping[str, Any], path: str, strict: bool) -> bool:
        """``is_enforced``, remembered where all of it is."""
        try:
            self._check(schema, path)
        except InvalidRequest:
            return is_enforced(schema, path, strict=strict)
        return True

    # --- calls -----------------------------------------------------------------------------------

    def _calls(self, rules: LarkRules, shown: PromptTools, parallel: bool, opened: str = "") -> str:
        """Calls as they are written; ``opened``: what of the beginning stands already."""
        how = self._form.written
        head = (how.first + how.before)[len(opened) :]
        bodies = [self._body(rules, n, tool) for n, tool in enumerate(shown.callable)]
        # What stands before the arguments is one text for each tool: a free answer that begins
        # alike can then be told from a call, letter by letter.
        first = self._one(rules, "first", head, shown, bodies)
        more = ""
        if parallel:
            again = self._one(rules, "again", how.separator + how.before, shown, bodies)
            more = f" {again}{{0,{_MOST_CALLS - 1}}}"
        last = f" {self._spelling.filled(how.last)}" if how.last else ""
        return rules.add("calls", f"{first}{more}{last}")

    def _one(
        self, rules: LarkRules, name: str, head: str, shown: PromptTools, bodies: Sequence[str]
    ) -> str:
        between = self._form.written.between
        return rules.add(
            name,
            " | ".join(
                f"{self._head(head + tool.name + between, tool.name)} {body}"
                for tool, body in zip(shown.callable, bodies, strict=True)
            ),
        )

    def _head(self, text: str, name: str) -> str:
        """What stands before arguments. Where an answer may begin so, it is one text: else it could
        not be told from it. Where nothing marks it, the white space before it is part of it."""
        is_marked = self._header or (self._opening and not self._form.doubtful)
        if is_marked or not self._spelling.is_plain(text):
            return self._spelling.filled(text, name=name)
        blanks = "" if self._form.doubtful else r"[ \n]{0,4}"
        return f"/{blanks}{pattern(text, name)}/"

    def _body(self, rules: LarkRules, number: int, tool: PromptTool) -> str:
        """The arguments of a call and its end."""
        after = self._form.written.after
        arguments = self._arguments(rules, number, tool)
        if self._form.written.ids:
            arguments += f' (", \\"id\\": \\"" {self._spelling.filled("{id}")} "\\"")?'
        end = f" {self._spelling.filled(after)}" if after else ""
        return rules.add(f"tool_{number}", f"{arguments}{end}")

    def _free(self, rules: LarkRules, shown: PromptTools, parallel: bool) -> str:
        """An answer in which calls may stand anywhere, each of them right."""
        opening = self._opening
        if not shown.callable:
            return rules.add("free", ANYTHING)
        if self._header:
            return self._messages(rules, shown, parallel)
        if self._form.doubtful:
            return self._told(rules, shown, parallel)
        if not opening:
            return self._bare(rules, shown, parallel)
        rest = self._calls(rules, shown, parallel, opening)
        before = self._spelling.until(rules, "before", opening)
        repeat = "*" if parallel else "?"
        tail = rules.add("tail", ANYTHING)
        frames = self._frames()
        framed = f"({rules.add('framed', f'{ANYTHING} ({frames})')})* " if frames else ""
        return f"({framed}{before} {rest}){repeat} {framed}{tail}"

    def _unsaid(self) -> str:
        """An answer of no words, which some write before calls."""
        form = self._reasoning
        if form is None or form.header or not all(map(self._spelling.is_special, form.answer)):
            return ""
        return f"({' '.join(map(self._literal, form.answer))})? "

    def _frames(self) -> str:
        """The control tokens that stand before and behind answers: no text can spell them."""
        form = self._reasoning
        frames = () if form is None else dict.fromkeys((*form.answer, *form.frames))
        return " | ".join(self._literal(f) for f in frames if self._spelling.is_special(f))

    def _bare(self, rules: LarkRules, shown: PromptTools, parallel: bool) -> str:
        """A free answer, or calls: told apart by what stands before the arguments."""
        how = self._form.written
        calls = self._calls(rules, shown, parallel)
        head = f"{how.first}{how.before}"
        begun = [
            f"{pattern(head + tool.name, tool.name)}[^A-Za-z0-9_.\\-]" for tool in shown.callable
        ]
        if how.parameter is None:  # whatever its name, it would be read as a call
            begun.append(f'{pattern(head)}[^"]*{pattern(how.between)}')
        rules.add("TEXT", rf"{ANYTHING} & ~/(?s:\s*({'|'.join(begun)}).*)/")
        marked = [self._literal(opening) for opening in self._form.opens]
        return " | ".join(["TEXT", calls, *(f"{mark} {calls}" for mark in marked)])

    def _messages(self, rules: LarkRules, shown: PromptTools, parallel: bool) -> str:
        """A reply of several messages, of which some are calls."""
        assert self._reasoning is not None
        before, after = map(self._literal, self._reasoning.answer)
        parts = self._form.written.separator
        header = self._literal(parts if self._header in parts else self._header)
        calls = self._calls(rules, shown, parallel)
        said = rules.add("said", f"{before} {ANYTHING} ({after})?")
        return f"{said} ({header} {calls})? | {calls} ({header} {said})?"

    def _told(self, rules: LarkRules, shown: PromptTools, parallel: bool) -> str:
        """An answer and then calls, or either. What opens calls may stand in an answer: only what
        stands before a tool's arguments tells them apart. A prompt may have opened the first."""
        how, opened = self._form.written, self._opening
        sign = pattern(opened or how.separator)
        head = (how.first + how.before)[len(opened) :]
        heads = "|".join(
            pattern(head + tool.name + how.between, tool.name) for tool in shown.callable
        )
        calls = self._calls(rules, shown, parallel, opened)
        rules.add("SAID", rf"/(?s:.*{sign})/")
        rules.add("MORE", rf"SAID & ~/(?s:({heads}).*)/")
        rules.add("LAST", rf"{ANYTHING} & ~/(?s:.*{sign}.*)/")
        rules.add("REST", rf"LAST & ~/(?s:({heads}).*)/")
        said, more = rules.add("said", "SAID", "[lazy]"), rules.add("more", "MORE", "[lazy]")
        after = f"{more}* (REST | {calls})"
        if opened:
            return f"LAST | {said} {after}"
        if self._reasoning is None or not self._reasoning.answer[0]:
            return f"REST | {more} {after} | {calls}"
        return f"{self._literal(self._reasoning.answer[0])} (LAST | {said} {after}) | {calls}"

    # --- arguments -------------------------------------------------------------------------------

    def _arguments(self, rules: LarkRules, number: int, tool: PromptTool) -> str:
        parameter = self._form.written.parameter
        if tool.grammar is not None and parameter is None:
            text = tool_input_rule(rules, f"u{number}", tool, JSON)
            head = f'{{"input"{self.separators[1]}"'
            return f'{self._literal(head)} {text} "\\"}}"'
        schema = self._enforced(tool, rules.forced)
        if parameter is None:
            return json_rule(schema)
        if tool.grammar is not None:
            text = tool_input_rule(rules, f"u{number}", tool, JSON if parameter.quoted else PLAIN)
            return Parameters(self._spelling, parameter).text("input", text)
        return Parameters(self._spelling, parameter).of(rules, f"p_{number}", schema)

    def _enforced(self, tool: PromptTool, forced: bool) -> dict[str, Any]:
        """The schema of a tool as it is enforced. Unless it is strict, keywords that cannot be
        enforced are passed over; unless the call is forced as well, so is the whole schema."""
        form = strict_form if tool.strict else closed_form if tool.strict is None else dict
        schema = self._guided({"type": "object", **form(tool.schema)})
        if not tool.strict:
            schema = lenient(schema)
        try:
            self._check(schema, tool.path)
        except InvalidRequest:
            if tool.strict or forced:
                raise
            return self._guided({"type": "object"})
        return schema

    def _literal(self, text: str) -> str:
        return self._spelling.literal(text)


def is_partial(schema: Mapping[str, Any] | None) -> bool:
    """Whether a schema is held to in part only."""
    return schema is not None and bool(schema["x-guidance"].get("lenient"))


def _unguided(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in schema.items() if key != "x-guidance"}
