"""Grammars over harmony's channels: thinking first, then a call or an answer, each as it must be.

A model that is held to one cannot slip in a header either. What JSON and users' grammars come to is
``constraints``' to say.
"""

from __future__ import annotations

import json

from antiphon.conversation import Options
from antiphon.dialects.formats.tool_formats import TOOLS
from antiphon.dialects.grammar.builder import GrammarBuilder as Base
from antiphon.dialects.grammar.builder import is_partial
from antiphon.dialects.grammar.lark import LarkRules
from antiphon.dialects.tools import PromptTools
from antiphon.tokens import Constraint, Tokenizer

from .messages import FUNCTIONS, PYTHON, natives
from .parser import CONTROL_TOKENS, MessageKind

__all__ = ["Grammarian"]

_TURN = f"{CONTROL_TOKENS['end']}{CONTROL_TOKENS['start']}assistant"
_CHANNEL, _MESSAGE = CONTROL_TOKENS["channel"], CONTROL_TOKENS["message"]
#: llama.cpp takes these of gpt-oss's control tokens for text: no message of text may hold them. And
#: it ends what is complete by ``<|endoftext|>`` alone: a reply says its own end.
_TEXT = r"/(?s:.*)/ & ~/(?s:.*)<\|(start|channel|constrain|message|end)\|>(?s:.*)/"
#: Messages before the answer or the call, at most: a small model would else think for ever.
_MOST_THOUGHTS = 8


class Grammarian(Base):
    """Writes the grammars of one model that speaks harmony."""

    #: gpt-oss writes JSON without blanks.
    separators = (",", ":")

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__(tokenizer, TOOLS["hermes"], None)

    def reply(
        self,
        options: Options,
        shown: PromptTools,
        begun: MessageKind | None,
        *,
        thought: bool = False,
    ) -> Constraint | None:
        """What the next reply must obey; None if it may be anything. ``begun``: the prompt ends in
        a message of this kind. ``thought``: it ends where the thinking was cut short, behind the
        role if a call must come, else within the answer. Raises ``InvalidRequest`` for what cannot
        be enforced."""
        schema = self._format_schema(options)
        is_formed = schema is not None or options.guide is not None
        needed = is_formed or self._must_hold(shown)
        if not (needed or any(tool.strict is None for tool in shown.callable)):
            return None
        rules = LarkRules(shown.required)
        answer = self._answer(rules, schema, options.guide) if is_formed else "TEXT"
        rules.add("answer", f"{answer} {self._literal(CONTROL_TOKENS['return'])}")
        rules.add("TEXT", _TEXT)
        if (thought and not shown.required) or begun == "final":
            start = "answer"
        else:
            # What is said by the way would be no part of the form, but of the same chat message.
            kinds = '"analysis"' if is_formed else '("analysis" | "commentary")'
            before = "" if thought else self._before(rules, begun, kinds)
            start = f"{before}{self._ends(rules, shown)}"
        lark = f"start: {start}\n{rules.text()}"
        return Constraint(lark, needed=needed, partial=is_partial(schema))

    def _before(self, rules: LarkRules, begun: MessageKind | None, kinds: str) -> str:
        """The messages before the one that counts."""
        said = rules.add("said", f"TEXT {self._literal(_TURN)}")
        told = f"{self._literal(_CHANNEL)} {kinds} {self._literal(_MESSAGE)} {said}"
        before = f"{rules.add('told', told)}{{0,{_MOST_THOUGHTS}}} "
        return before if begun is None else f"{said} {before}"

    def _ends(self, rules: LarkRules, shown: PromptTools) -> str:
        """A call, or an answer where none must come."""
        constrain = self._literal(CONTROL_TOKENS["constrain"])
        rules.add("type", f'(" " {constrain} "json" | " json")?')
        called = natives(shown)
        calls = []
        for number, tool in enumerate(shown.callable):
            to = called.get(tool.name, FUNCTIONS + tool.name)
            calls.append(self._addressed(rules, number, to))
            said = "TEXT" if to == PYTHON else self._arguments(rules, number, tool)
            kind = '" code"?' if tool.name in called else "type"
            end = self._literal(CONTROL_TOKENS["call"])
            rules.add(f"tool_{number}", f"{kind} {self._literal(_MESSAGE)} {said} {end}")
        if shown.required:
            return rules.add("ends", " | ".join(calls))
        head = f'{self._literal(_CHANNEL)} "final" type {self._literal(_MESSAGE)}'
        return rules.add("ends", " | ".join([*calls, f"{head} answer"]))

    def _addressed(self, rules: LarkRules, number: int, recipient: str) -> str:
        """A call, with its recipient on either side of the channel."""
        to = json.dumps(f" to={recipient}")
        name = "commentary" if recipient.startswith(FUNCTIONS) else "analysis"
        channel = f"{self._literal(_CHANNEL)} {json.dumps(name)}"
        return rules.add(f"call_{number}", f"({to} {channel} | {channel} {to}) tool_{number}")
