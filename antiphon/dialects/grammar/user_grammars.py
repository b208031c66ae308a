"""Convert the grammars that users write. The result is a set of rules that is added to Antiphon's
own grammar for the reply. Users can write a grammar for the input of a custom tool, and a grammar
for the answer (a guide)."""

from __future__ import annotations

import re

from antiphon.dialects.tools import PromptTool
from antiphon.errors import InvalidRequest
from antiphon.wire import tools as tl
from antiphon.wire.extensions import Guide

from .json_schema import short_grammar_fault
from .lark import LarkRules
from .structural_tags import structural_tag_rules
from .user_ebnf import ebnf_rules
from .user_lark import lark_rules
from .user_regex import PLAIN, Escapes, UnwritableGrammar, regex_rule


def guide_lark(guide: Guide) -> str:
    """Return a grammar that matches only the answers that ``guide`` allows. Antiphon checks answers
    with this grammar. Raises ``InvalidRequest`` if the guide is invalid."""
    rules = LarkRules(call_required=False)
    return f"start: {guide_rule(rules, guide)}\n{rules.text()}"


def input_lark(tool: PromptTool) -> str:
    """Return a grammar that matches only the input of a custom tool. Antiphon checks the inputs of
    calls with this grammar. Raises ``InvalidRequest`` if the tool's grammar is invalid."""
    rules = LarkRules(call_required=False)
    return f"start: {tool_input_rule(rules, 'g', tool, PLAIN)}\n{rules.text()}"


def tool_input_rule(rules: LarkRules, prefix: str, tool: PromptTool, escapes: Escapes) -> str:
    """Add the user's grammar for a custom tool's input to ``rules``. Returns the name of the
    grammar's start rule.

    ``prefix``: the start of the names of the added rules. ``escapes``: character → how it is
    escaped in the reply. Raises ``InvalidRequest`` if the grammar is invalid.
    """
    assert tool.grammar is not None
    try:
        return _add_grammar(rules, prefix, tool.grammar, escapes)
    except UnwritableGrammar as reason:
        raise _no_grammar(tool, str(reason)) from None


def guide_rule(rules: LarkRules, guide: Guide) -> str:
    """Add the user's grammar for the answer to ``rules``. Returns the name of the grammar's start
    rule. Raises ``InvalidRequest`` if the grammar is invalid."""
    try:
        return _add_grammar(rules, "g", guide, PLAIN)
    except UnwritableGrammar as reason:
        raise InvalidRequest(
            f"Invalid grammar: {reason}", param=guide.path, code="invalid_grammar"
        ) from None


def _add_grammar(
    rules: LarkRules, prefix: str, grammar: tl.GrammarFormat | Guide, escapes: Escapes
) -> str:
    """Add a user's grammar to ``rules``. Returns the name of the grammar's start rule.

    ``prefix``: the start of the names of the added rules. ``escapes``: character → how it is
    escaped in the reply. Raises ``UnwritableGrammar`` if the grammar is invalid.
    """
    match grammar:
        case Guide(syntax="ebnf", definition=definition):
            own, start = ebnf_rules(definition, prefix)
        case Guide(syntax="structural_tag", definition=definition, path=path):
            own, start = structural_tag_rules(definition, prefix, path)
        case tl.GrammarFormat(syntax="regex") | Guide(syntax="regex"):
            start, own = prefix, f"{prefix}: {regex_rule(grammar.definition, escapes)}"
        case _:
            own, start = lark_rules(grammar.definition, prefix, escapes)
    if (why := short_grammar_fault(f"start: {start}\n{own}")) is not None:
        raise UnwritableGrammar(re.sub(rf"\b{prefix}_[rtf]_", "", why))
    rules.user_rules.append(own)
    return start


def _no_grammar(tool: PromptTool, why: str) -> InvalidRequest:
    """Return the error for an invalid grammar of a custom tool. ``why``: the reason."""
    path = f"{tool.path}.format.definition" if tool.path != "input" else "input"
    return InvalidRequest(
        f"Invalid grammar for tool '{tool.shape.wire_name}': {why}",
        param=path,
        code="invalid_grammar",
    )
