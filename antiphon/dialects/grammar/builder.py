"""Build the grammar for a reply, in llguidance's Lark.

The body of the grammar is one of these: an answer that matches a schema or a user's grammar, a
required call, or a free answer that may contain calls with valid arguments. The reasoning before
the body is part of the grammar. So the engine can enforce the grammar from the first token on.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from antiphon.dialects.formats.types import ReasoningFormat, ToolFormat
from antiphon.dialects.tools import PromptTool, PromptTools
from antiphon.errors import InvalidRequest
from antiphon.inference.conversation import Options
from antiphon.inference.tokens import Constraint, Tokenizer
from antiphon.wire.extensions import Guide
from antiphon.wire.response import JsonObjectFormat, JsonSchemaFormat

from .json_schema import (
    bundle_definitions,
    check_schema,
    check_strict,
    forbid_extra_properties,
    is_enforced,
    lenient_schema,
    llguidance_schema,
    require_all_properties,
)
from .lark import ANYTHING, LarkRules, TokenLiterals, pattern
from .parameters import Parameters, json_rule
from .user_grammars import guide_rule, tool_input_rule
from .user_regex import JSON, PLAIN

#: llguidance's option for fixed white space in JSON. With flexible white space, a small model may
#: write spaces endlessly.
_LAYOUT = {"whitespace_flexible": False}
#: The rule for white space that models write before a constrained text.
_LEAD = r"/[ \n]{0,2}/ "
#: Maximum number of consecutive calls. Without a limit, a small model may repeat a call endlessly.
_MAX_CALLS = 16


class GrammarBuilder:
    """Builds the grammars for the replies of one model.

    ``tools``: the format in which the model writes calls. ``reasoning``: the format in which it
    writes reasoning, or None if the model does not reason.
    """

    #: The separators in the model's JSON: after an item, and after a key.
    separators = (", ", ": ")

    def __init__(
        self, tokenizer: Tokenizer, tools: ToolFormat, reasoning: ReasoningFormat | None
    ) -> None:
        self._literals = TokenLiterals(tokenizer.special)
        self._form = tools
        self._reasoning = reasoning
        head = tools.written.first + tools.written.before
        #: The text that starts a further message, for models whose reply is several messages.
        self._header = "" if reasoning is None else reasoning.header
        #: No white space precedes messages with a header, or calls that start with a space.
        is_led = not (self._header or tools.doubtful or head[:1].isspace())
        self._lead = _LEAD if is_led else ""
        #: The text or special token with which a call starts, or ``""`` if calls have none.
        self._opening = max((t for t in tools.opens if head.startswith(t)), key=len, default="")
        self._check_cached = lru_cache(maxsize=512)(check_schema)

    def constraint(
        self,
        options: Options,
        prompt_tools: PromptTools,
        thinking: bool,
        *,
        reasoning_done: bool = False,
    ) -> Constraint | None:
        """Return the constraint for the next reply, or None if any text is valid.

        ``prompt_tools``: the tools in the prompt. ``thinking``: whether the prompt has already
        opened the reasoning. ``reasoning_done``: whether the reasoning is already complete. Raises
        ``InvalidRequest`` for a format that cannot be enforced.
        """
        schema = self._format_schema(options)
        has_format = schema is not None or options.guide is not None
        needed = has_format or self._must_enforce_tools(prompt_tools)
        has_optional_format = any(tool.strict is None for tool in prompt_tools.callable)
        if not (needed or has_optional_format):
            return None
        rules = LarkRules(prompt_tools.required)
        if prompt_tools.required:
            calls = self._calls(rules, prompt_tools, options.allows_parallel_calls)
            body = f"{self._lead}{self._empty_answer()}{calls}"
        elif has_format:
            body = self._answer_or_calls(rules, prompt_tools, options, schema)
        else:
            body = self._free_answer(rules, prompt_tools, options.allows_parallel_calls)
        before = "" if reasoning_done else self._thinking(rules, thinking)
        start = f"{before}{rules.add('body', body)}"
        alone = not (
            prompt_tools.required or prompt_tools.callable or (thinking and not reasoning_done)
        )
        partial = is_partial(schema)
        return Constraint(
            lark=f"start: {start}\n{rules.text()}",
            needed=needed,
            schema=_without_layout(schema)
            if alone and schema is not None and not partial
            else None,
            partial=partial,
            free_text=not (prompt_tools.required or has_format),
        )

    def _must_enforce_tools(self, prompt_tools: PromptTools) -> bool:
        """Return whether the engine must enforce the rules for calls. This is necessary if a call
        is required, if some tools may not be called, or if a tool is strict or has a grammar."""
        has_constraints = any(tool.strict or tool.grammar for tool in prompt_tools.callable)
        return has_constraints or prompt_tools.is_restricted or prompt_tools.required

    # --- thinking --------------------------------------------------------------------------------

    def _thinking(self, rules: LarkRules, begun: bool) -> str:
        """Return the rule for the reasoning before the answer. Returns ``""`` if the model has no
        tags for reasoning. ``begun``: whether the prompt has already opened the reasoning."""
        form = self._reasoning
        if form is None or not form.open:
            return ""
        rule = " | ".join(
            self._literals.add_text_until(rules, f"thought_{n}", end)
            for n, end in enumerate(form.closing_tags)
        )
        rule = rules.add("thought", rule)
        ends = " | ".join(map(self._literal, form.closing_tags))
        rules.add("gap", self._literal(self._header) if self._header else r"/\n{0,2}/")
        if begun:
            return f"{rule} gap "
        # Some models write the closing tag without the opening one.
        return f"({self._lead}({self._literal(form.open[0])} {rule} | {ends}) gap)? "

    # --- answers ---------------------------------------------------------------------------------

    def _answer(
        self, rules: LarkRules, schema: Mapping[str, object] | None, guide: Guide | None
    ) -> str:
        """Return the rule for an answer that matches ``schema`` or ``guide``. A guide is a user's
        grammar. Tags that the model may write before and after an answer are optional in this rule.
        """
        if schema is None and guide is not None:
            rule = guide_rule(rules, guide)
        else:
            rule = json_rule(schema or {})
        before, after = ("", "") if self._reasoning is None else self._reasoning.answer
        if not before:
            return rule
        return f"({self._literal(before)})? {rule} ({self._literal(after)})?"

    def _answer_or_calls(
        self,
        rules: LarkRules,
        prompt_tools: PromptTools,
        options: Options,
        schema: Mapping[str, object] | None,
    ) -> str:
        """Return the rule for an answer in the requested format. If the model may call tools, the
        rule also allows calls in place of the answer.

        ``schema``: the JSON schema of the answer. If it is None, ``options.guide`` is the format.
        """
        if schema is not None and prompt_tools.callable and self._is_json:
            return self._answer(rules, self._answer_or_call(schema, prompt_tools), None)
        answer = rules.add("answer", self._answer(rules, schema, options.guide))
        if not prompt_tools.callable:
            return answer
        return f"{answer} | {self._calls(rules, prompt_tools, options.allows_parallel_calls)}"

    @property
    def _is_json(self) -> bool:
        """Whether the model writes a tool call as plain JSON, without a tag or special token before
        it. If the answer is JSON as well, one schema must describe both the call and the answer."""
        return self._form.bare == "{" and self._form.written.parameter is None

    def _answer_or_call(
        self, answer: Mapping[str, object], prompt_tools: PromptTools
    ) -> dict[str, Any]:
        """Return a schema that matches either the answer or a call that is plain JSON. ``answer``:
        the schema of the answer."""
        syntax = self._form.written
        arms: list[dict[str, Any]] = [{"$ref": "#/$defs/0"}]
        for number, tool in enumerate(prompt_tools.callable, start=1):
            call = json.loads(f"{syntax.render_opening(tool.name, 0)}null{syntax.after}")
            properties = {
                key: {"$ref": f"#/$defs/{number}"} if value is None else {"const": value}
                for key, value in call.items()
            }
            arm = {"type": "object", "properties": properties, "required": list(call)}
            arms.append({**arm, "additionalProperties": False})
        schemas = [answer, *(self._enforced(tool, False) for tool in prompt_tools.callable)]
        return self._with_layout({"anyOf": arms, "$defs": bundle_definitions(schemas)})

    def _format_schema(self, options: Options) -> Mapping[str, Any] | None:
        """Return the JSON schema that the grammar enforces for the output format of the request.
        Returns None if the request does not ask for JSON. Raises ``InvalidRequest`` for a schema
        that cannot be enforced."""
        match options.text.format:
            case JsonObjectFormat():
                return self._with_layout({"type": "object"})
            case JsonSchemaFormat(schema=schema, strict=strict):
                path = "text.format.schema"
                if strict:
                    check_strict(schema, path)
                guided = self._with_layout(schema)
                return guided if self._is_enforced(guided, path, strict) else lenient_schema(guided)
        return None

    def _with_layout(self, schema: Mapping[str, object]) -> dict[str, Any]:
        """Return the schema with Antiphon's options for llguidance, such as the separators in JSON.
        Options that the schema's author has set are removed."""
        item, key = self.separators
        layout = {**_LAYOUT, "item_separator": item, "key_separator": key}
        return {**llguidance_schema(schema), "x-guidance": layout}

    def _check(self, schema: Mapping[str, object], path: str) -> None:
        """Raise ``InvalidRequest`` if the schema cannot be enforced. ``path``: its path in the
        request. The result for a valid schema is cached."""
        self._check_cached(json.dumps(schema), path)

    def _is_enforced(self, schema: Mapping[str, object], path: str, strict: bool) -> bool:
        """Return whether a grammar enforces the whole schema. The function does the same as
        ``is_enforced`` and caches the result for a schema that is fully enforced."""
        try:
            self._check(schema, path)
        except InvalidRequest:
            return is_enforced(schema, path, strict=strict)
        return True

    # --- calls -----------------------------------------------------------------------------------

    def _calls(
        self, rules: LarkRules, prompt_tools: PromptTools, parallel: bool, opened: str = ""
    ) -> str:
        """Return the rule for one or more tool calls. ``parallel``: whether more than one call is
        allowed.

        ``opened``: the first part of the calls' text, if another rule already matches it. The
        returned rule then starts after this part.
        """
        syntax = self._form.written
        head = (syntax.first + syntax.before)[len(opened) :]
        bodies = [self._body(rules, n, tool) for n, tool in enumerate(prompt_tools.callable)]
        # The text before the arguments is one terminal per tool, so that the lexer can tell a call
        # from a free answer that starts the same way.
        first = self._call_alternatives(rules, "first", head, prompt_tools, bodies)
        more = ""
        if parallel:
            again = self._call_alternatives(
                rules, "again", syntax.separator + syntax.before, prompt_tools, bodies
            )
            more = f" {again}{{0,{_MAX_CALLS - 1}}}"
        last = f" {self._literals.fill_template(syntax.last)}" if syntax.last else ""
        return rules.add("calls", f"{first}{more}{last}")

    def _call_alternatives(
        self,
        rules: LarkRules,
        name: str,
        head: str,
        prompt_tools: PromptTools,
        bodies: Sequence[str],
    ) -> str:
        """Add a rule ``name`` for a call of any tool. Returns its name. ``head``: the text before
        the tool's name. ``bodies``: the rules for the arguments and the end of the call, one per
        tool."""
        between = self._form.written.between
        return rules.add(
            name,
            " | ".join(
                f"{self._head(head + tool.name + between, tool.name)} {body}"
                for tool, body in zip(prompt_tools.callable, bodies, strict=True)
            ),
        )

    def _head(self, text: str, name: str) -> str:
        """Return the rule for the text before a call's arguments. ``name``: the name of the tool.

        If an answer may start with the same text, the rule is one regex, so that llguidance's lexer
        can tell a call from an answer. In formats without a tag or special token before calls, this
        regex also matches white space before the call.
        """
        is_marked = self._header or (self._opening and not self._form.doubtful)
        if is_marked or not self._literals.is_plain(text):
            return self._literals.fill_template(text, name=name)
        blanks = "" if self._form.doubtful else r"[ \n]{0,4}"
        return f"/{blanks}{pattern(text, name)}/"

    def _body(self, rules: LarkRules, number: int, tool: PromptTool) -> str:
        """Return the rule for a call's arguments and for the text after them. ``number``: the
        number of the tool, which makes the rule's name unique."""
        after = self._form.written.after
        arguments = self._arguments(rules, number, tool)
        if self._form.written.ids:
            arguments += f' (", \\"id\\": \\"" {self._literals.fill_template("{id}")} "\\"")?'
        end = f" {self._literals.fill_template(after)}" if after else ""
        return rules.add(f"tool_{number}", f"{arguments}{end}")

    def _free_answer(self, rules: LarkRules, prompt_tools: PromptTools, parallel: bool) -> str:
        """Return the rule for an answer without a required format. The answer may contain tool
        calls, but only valid ones."""
        opening = self._opening
        if not prompt_tools.callable:
            return rules.add("free", ANYTHING)
        if self._header:
            return self._messages(rules, prompt_tools, parallel)
        if self._form.doubtful:
            return self._answer_then_calls(rules, prompt_tools, parallel)
        if not opening:
            return self._bare_answer_or_calls(rules, prompt_tools, parallel)
        rest = self._calls(rules, prompt_tools, parallel, opening)
        before = self._literals.add_text_until(rules, "before", opening)
        repeat = "*" if parallel else "?"
        tail = rules.add("tail", ANYTHING)
        frames = self._frames()
        framed = f"({rules.add('framed', f'{ANYTHING} ({frames})')})* " if frames else ""
        return f"({framed}{before} {rest}){repeat} {framed}{tail}"

    def _empty_answer(self) -> str:
        """Return the rule for an empty answer, which some models write before calls. Returns ``""``
        for other models."""
        form = self._reasoning
        if form is None or form.header or not all(map(self._literals.is_special, form.answer)):
            return ""
        return f"({' '.join(map(self._literal, form.answer))})? "

    def _frames(self) -> str:
        """Return the rule for control tokens that may stand before and after an answer. They need a
        rule of their own, because a rule for text does not match control tokens."""
        form = self._reasoning
        frames = () if form is None else dict.fromkeys((*form.answer, *form.frames))
        return " | ".join(self._literal(f) for f in frames if self._literals.is_special(f))

    def _bare_answer_or_calls(
        self, rules: LarkRules, prompt_tools: PromptTools, parallel: bool
    ) -> str:
        """Return the rule for a reply that is either a free answer or calls.

        This rule is for formats that do not mark calls with a tag or a special token. Only the text
        before a call's arguments distinguishes a call from an answer.
        """
        syntax = self._form.written
        calls = self._calls(rules, prompt_tools, parallel)
        head = f"{syntax.first}{syntax.before}"
        begun = [
            f"{pattern(head + tool.name, tool.name)}[^A-Za-z0-9_.\\-]"
            for tool in prompt_tools.callable
        ]
        if syntax.parameter is None:  # the parser takes such JSON for a call, whatever its name
            begun.append(f'{pattern(head)}[^"]*{pattern(syntax.between)}')
        rules.add("TEXT", rf"{ANYTHING} & ~/(?s:\s*({'|'.join(begun)}).*)/")
        openings = (each for each in self._form.opens if each not in self._form.inner)
        marked = [self._literal(opening) for opening in openings]
        return " | ".join(["TEXT", calls, *(f"{mark} {calls}" for mark in marked)])

    def _messages(self, rules: LarkRules, prompt_tools: PromptTools, parallel: bool) -> str:
        """Return the rule for a reply that consists of several messages, some of which are tool
        calls."""
        assert self._reasoning is not None
        before, after = map(self._literal, self._reasoning.answer)
        parts = self._form.written.separator
        header = self._literal(parts if self._header in parts else self._header)
        calls = self._calls(rules, prompt_tools, parallel)
        rule = rules.add("said", f"{before} {ANYTHING} ({after})?")
        return f"{rule} ({header} {calls})? | {calls} ({header} {rule})?"

    def _answer_then_calls(
        self, rules: LarkRules, prompt_tools: PromptTools, parallel: bool
    ) -> str:
        """Return a rule that matches either an answer with optional calls after it, or only calls.

        This rule is for formats in which an answer may contain the text that opens calls. So
        this text alone is no sign of a call. A call is recognized by its whole text before the
        arguments. This longer text includes the tool's name.

        In some formats, the prompt already contains the text that opens the first call. The rule
        for this call then starts after that text.
        """
        syntax, opened = self._form.written, self._opening
        sign = pattern(opened or syntax.separator)
        head = (syntax.first + syntax.before)[len(opened) :]
        heads = "|".join(
            pattern(head + tool.name + syntax.between, tool.name) for tool in prompt_tools.callable
        )
        calls = self._calls(rules, prompt_tools, parallel, opened)
        rules.add("SAID", rf"/(?s:.*{sign})/")
        rules.add("MORE", rf"SAID & ~/(?s:({heads}).*)/")
        rules.add("LAST", rf"{ANYTHING} & ~/(?s:.*{sign}.*)/")
        rules.add("REST", rf"LAST & ~/(?s:({heads}).*)/")
        rule, more = rules.add("said", "SAID", "[lazy]"), rules.add("more", "MORE", "[lazy]")
        after = f"{more}* (REST | {calls})"
        if opened:
            return f"LAST | {rule} {after}"
        if self._reasoning is None or not self._reasoning.answer[0]:
            return f"REST | {more} {after} | {calls}"
        return f"{self._literal(self._reasoning.answer[0])} (LAST | {rule} {after}) | {calls}"

    # --- arguments -------------------------------------------------------------------------------

    def _arguments(self, rules: LarkRules, number: int, tool: PromptTool) -> str:
        """Return the rule for the arguments of a call. ``tool``: the tool that is called.
        ``number``: the number of the tool, which makes the names of the added rules unique.
        ``rules``: the grammar to which rules are added."""
        parameter = self._form.written.parameter
        if tool.grammar is not None and parameter is None:
            text = tool_input_rule(rules, f"u{number}", tool, JSON)
            head = f'{{"input"{self.separators[1]}"'
            return f'{self._literal(head)} {text} "\\"}}"'
        schema = self._enforced(tool, rules.call_required)
        if parameter is None:
            return json_rule(schema)
        if tool.grammar is not None:
            text = tool_input_rule(rules, f"u{number}", tool, JSON if parameter.quoted else PLAIN)
            return Parameters(self._literals, parameter).text("input", text)
        return Parameters(self._literals, parameter).rule_for(rules, f"p_{number}", schema)

    def _enforced(self, tool: PromptTool, forced: bool) -> dict[str, Any]:
        """Return the schema that the grammar enforces for a tool's arguments. ``forced``: whether a
        call is required.

        - The schema of a strict tool is enforced completely. If this is not possible, raises
          ``InvalidRequest``.
        - In the schema of any other tool, keywords that cannot be enforced are ignored. Sometimes
          the schema cannot be enforced even without these keywords. In this case, the arguments
          may be any object if no call is required. If a call is required, raises
          ``InvalidRequest``.
        """
        form = (
            require_all_properties
            if tool.strict
            else forbid_extra_properties
            if tool.strict is None
            else dict
        )
        schema = self._with_layout({"type": "object", **form(tool.schema)})
        if not tool.strict:
            schema = lenient_schema(schema)
        try:
            self._check(schema, tool.path)
        except InvalidRequest:
            if tool.strict or forced:
                raise
            return self._with_layout({"type": "object"})
        return schema

    def _literal(self, text: str) -> str:
        return self._literals.literal(text)


def is_partial(schema: Mapping[str, Any] | None) -> bool:
    """Return whether the grammar that is built from ``schema`` enforces only a part of the schema.
    ``schema``: a JSON schema with options for llguidance, or None."""
    return schema is not None and bool(schema["x-guidance"].get("lenient"))


def _without_layout(schema: Mapping[str, object]) -> dict[str, Any]:
    return {key: value for key, value in schema.items() if key != "x-guidance"}
