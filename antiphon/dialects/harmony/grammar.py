"""Grammars for replies in the harmony format. Such a reply is reasoning, followed by a call or an
answer.

These grammars also prevent invalid headers. ``grammar.builder`` writes the rules for JSON and for
users' grammars.
"""

from __future__ import annotations

import json

from antiphon.dialects.formats.tool_formats import TOOLS
from antiphon.dialects.grammar.builder import GrammarBuilder as Base
from antiphon.dialects.grammar.builder import is_partial
from antiphon.dialects.grammar.lark import LarkRules
from antiphon.dialects.tools import PromptTools
from antiphon.inference.conversation import Options
from antiphon.inference.tokens import Constraint, Tokenizer

from .container import EXEC, exec_tool
from .messages import FUNCTIONS, PYTHON, native_tools
from .parser import CONTROL_TOKENS, HarmonyMessageKind

_NEXT_TURN = f"{CONTROL_TOKENS['end']}{CONTROL_TOKENS['start']}assistant"
_CHANNEL, _MESSAGE = CONTROL_TOKENS["channel"], CONTROL_TOKENS["message"]
#: The text of a message. llama.cpp treats these control tokens of gpt-oss as text, so the rule
#: excludes them. After a complete grammar, llama.cpp allows only ``<|endoftext|>``, so the grammars
#: here contain the end token.
_TEXT = r"/(?s:.*)/ & ~/(?s:.*)<\|(start|channel|constrain|message|end)\|>(?s:.*)/"
#: Maximum number of messages before the answer or the call. Without a limit, a small model never
#: stops reasoning.
_MAX_MESSAGES = 8


class HarmonyGrammar(Base):
    """Builds the grammars for the replies of one model that writes the harmony format."""

    #: gpt-oss writes JSON without spaces.
    separators = (",", ":")

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__(tokenizer, TOOLS["hermes"], None)

    def constraint_for_reply(
        self,
        options: Options,
        prompt_tools: PromptTools,
        open_kind: HarmonyMessageKind | None,
        *,
        reasoning_done: bool = False,
    ) -> Constraint | None:
        """Return the constraint for the next reply, or None if any text is valid. Raises
        ``InvalidRequest`` for a format that cannot be enforced.

        - ``open_kind``: the kind of message inside which the prompt ends. None means that the
          prompt ends with the model's role (``<|start|>assistant``).
        - ``reasoning_done``: whether the backend has ended the reasoning because its budget was
          used up. If so, the backend has also written the beginning of the next message, and the
          constraint applies to the text after this beginning. If a call is required, the beginning
          is only the model's role. Otherwise, it is the whole header of the answer.
        """
        schema = self._format_schema(options)
        has_format = schema is not None or options.guide is not None
        needed = has_format or self._must_enforce_tools(prompt_tools)
        if not (needed or any(tool.strict is None for tool in prompt_tools.callable)):
            return None
        rules = LarkRules(prompt_tools.required)
        answer = self._answer(rules, schema, options.guide) if has_format else "TEXT"
        rules.add("answer", f"{answer} {self._literal(CONTROL_TOKENS['return'])}")
        rules.add("TEXT", _TEXT)
        if (reasoning_done and not prompt_tools.required) or open_kind == "final":
            start = "answer"
        else:
            # In a chat message, a text before the answer is joined with the answer. It would break
            # the answer's format.
            kinds = '"analysis"' if has_format else '("analysis" | "commentary")'
            before = "" if reasoning_done else self._preceding_messages(rules, open_kind, kinds)
            start = f"{before}{self._final_message(rules, prompt_tools)}"
        lark = f"start: {start}\n{rules.text()}"
        return Constraint(lark, needed=needed, partial=is_partial(schema))

    def _preceding_messages(
        self, rules: LarkRules, open_kind: HarmonyMessageKind | None, kinds: str
    ) -> str:
        """Return the rule for the messages before the answer or the call. ``open_kind``: the kind
        of message inside which the prompt ends, or None. ``kinds``: the Lark expression for the
        channel names that these messages may have."""
        text_rule = rules.add("said", f"TEXT {self._literal(_NEXT_TURN)}")
        message = f"{self._literal(_CHANNEL)} {kinds} {self._literal(_MESSAGE)} {text_rule}"
        before = f"{rules.add('earlier', message)}{{0,{_MAX_MESSAGES}}} "
        return before if open_kind is None else f"{text_rule} {before}"

    def _final_message(self, rules: LarkRules, prompt_tools: PromptTools) -> str:
        """Return the rule for a call or an answer. If a call is required, the rule allows only a
        call."""
        constrain = self._literal(CONTROL_TOKENS["constrain"])
        rules.add("type", f'(" " {constrain} "json" | " json")?')
        called = native_tools(prompt_tools)
        calls = []
        for number, tool in enumerate(prompt_tools.callable):
            to = called.get(tool.name, FUNCTIONS + tool.name)
            calls.append(self._call_rule(rules, number, to))
            seen = exec_tool(tool) if to == EXEC else tool
            text_rule = "TEXT" if to == PYTHON else self._arguments(rules, number, seen)
            kind = '" code"?' if tool.name in called else "type"
            end = self._literal(CONTROL_TOKENS["call"])
            rules.add(f"tool_{number}", f"{kind} {self._literal(_MESSAGE)} {text_rule} {end}")
        if prompt_tools.required:
            return rules.add("ends", " | ".join(calls))
        head = f'{self._literal(_CHANNEL)} "final" type {self._literal(_MESSAGE)}'
        return rules.add("ends", " | ".join([*calls, f"{head} answer"]))

    def _call_rule(self, rules: LarkRules, number: int, recipient: str) -> str:
        """Return the rule for a call. ``number``: the number of the tool, which makes the rule's
        name unique. ``recipient``: the tool's name as it stands in the header of the message. It
        may stand before or after the channel's name."""
        to = json.dumps(f" to={recipient}")
        name = "commentary" if recipient.startswith(FUNCTIONS) else "analysis"
        channel = f"{self._literal(_CHANNEL)} {json.dumps(name)}"
        return rules.add(f"call_{number}", f"({to} {channel} | {channel} {to}) tool_{number}")
