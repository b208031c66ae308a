"""The chat dialect: models that are spoken to through a chat template.

Conversation → messages → text → ids, and back through the scanner in the format the template is
written in. What the template cannot say, ``fallback`` says. It knows no engine.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from antiphon.conversation import Conversation, Options
from antiphon.errors import InvalidRequest, SetupError
from antiphon.tokens import ModelCard, Prompt, Tokenizer
from antiphon.wire.response import JsonObjectFormat, JsonSchemaFormat

from .base import Rendered
from .constraints import Grammarian
from .fallback import fitted, tool_prompt, without_tools
from .formats import REASONING, TOOLS, ToolFormat, detect
from .messages import messages_of
from .prompt import Encoder
from .scanner import Parser
from .template import CHATML, PLAIN, Refused, Template, Traits
from .tools import Shown, shown_tools

__all__ = ["Dialect"]

Message = dict[str, Any]

#: Switches of templates, and what an effort means for each.
_SWITCHES: Mapping[str, Callable[[str], Any]] = {
    "enable_thinking": lambda effort: effort != "none",
    "thinking": lambda effort: effort != "none",
    "reasoning_effort": lambda effort: _LEVELS.get(effort, effort),
}
#: Templates know three levels.
_LEVELS: Mapping[str, str] = {"none": "low", "minimal": "low", "xhigh": "high", "max": "high"}
_VERBOSITY: Mapping[str, str] = {
    "low": "Keep your answers short.",
    "high": "Answer at length and in detail.",
}


class Dialect:
    """``dialects.base.Dialect`` for one model.

    ``reasoning_format`` and ``tool_format`` name rows of the tables and override what the template
    tells; ``""`` means none. ``settings`` are given to the template with every request. ``today``
    tells templates the date. Raises ``SetupError`` for names that are no rows and templates that
    cannot be read.
    """

    def __init__(
        self,
        card: ModelCard,
        tokenizer: Tokenizer,
        *,
        template: str | None = None,
        reasoning_format: str | None = None,
        tool_format: str | None = None,
        settings: Mapping[str, Any] | None = None,
        today: Callable[[], datetime] = datetime.now,
    ) -> None:
        self._card = card
        self._tokenizer = tokenizer
        self._settings = dict(settings or {})
        source = template or card.chat_template or card.chat_templates.get("default")
        if source is None:
            source = CHATML if "<|im_start|>" in tokenizer.special else PLAIN
        self._template = self._made(source, today)
        tool_use = None if template else card.chat_templates.get("tool_use")
        self._tool_template = self._made(tool_use, today) if tool_use else self._template
        found = detect(self._tool_template.source)
        self.reasoning = _row(REASONING, reasoning_format, found[0], "reasoning_format")
        tools = _row(TOOLS, tool_format, found[1], "tool_format")
        self._traits = self._template.traits()
        self._tool_traits = (
            self._traits if self._tool_template is self._template else self._tool_template.traits()
        )
        self._knows_tools = tools is not None and self._tool_traits.tools
        self.tools: ToolFormat = tools if tools is not None else TOOLS["hermes"]
        self._encoder = Encoder(tokenizer, card.fingerprint)
        self._grammarian = Grammarian(tokenizer, self.tools, self.reasoning)

    def _made(self, source: str, today: Callable[[], datetime]) -> Template:
        return Template(source, bos=self._card.bos_token, eos=self._card.eos_token, today=today)

    @property
    def knows_tools(self) -> bool:
        """The template itself tells the model about tools."""
        return self._knows_tools

    def render(self, conversation: Conversation, options: Options) -> Rendered:
        shown = shown_tools(options, conversation.items)
        text = self._text(conversation, options, shown)
        ids = self._encoder.encode(text, conversation.kept)
        thinking = self._opens_thinking(text)
        return Rendered(
            prompt=Prompt(ids=ids),
            parser=Parser(
                self._tokenizer,
                reasoning=self.reasoning,
                tools=self.tools if shown.tools else None,
                shapes=shown.shapes,
                thinking=thinking,
                parallel=options.parallel_tool_calls,
            ),
            constraint=self._grammarian.constraint(options, shown, thinking),
        )

    # --- the prompt ------------------------------------------------------------------------------

    def _text(self, conversation: Conversation, options: Options, shown: Shown) -> str:
        template = self._tool_template if shown.tools else self._template
        traits = self._tool_traits if shown.tools else self._traits
        native = bool(shown.tools) and self._knows_tools
        messages = self._messages(conversation, options, shown, native, traits)
        goes_on = bool(messages) and bool(messages[-1].pop("open", False))
        for message in messages:
            message.pop("open", None)
            message.pop("results", None)
        hidden = self._encoder.hide(messages)
        definitions = [tool.definition() for tool in shown.tools] if native else None
        try:
            text = template.render(
                hidden,
                tools=self._encoder.hide(definitions),
                prompt=not goes_on,
                settings=self._switches(template, options),
            )
        except Refused as refused:
            raise InvalidRequest(
                f"This model's chat template does not take this conversation: {refused}",
                param="input",
            ) from None
        if goes_on:
            text = _cut_after(text, hidden[-1]["content"])
        bos = self._card.bos_token
        if self._card.add_bos and bos and not text.startswith(bos):
            text = bos + text
        return text

    def _messages(
        self,
        conversation: Conversation,
        options: Options,
        shown: Shown,
        native: bool,
        traits: Traits,
    ) -> list[Message]:
        messages = messages_of(conversation.items, shown)
        if conversation.instructions:
            messages.insert(0, {"role": "system", "content": conversation.instructions})
        if not traits.reasoning:
            messages = self._think_aloud(messages)
        if not (native and traits.results):
            messages = without_tools(messages, self.tools)
        said = list(_asides(options))
        if shown.tools and not native:
            said.insert(0, tool_prompt(shown.tools))
        if said:
            messages = _told(messages, "\n\n".join(said))
        return fitted(messages, traits)

    def _think_aloud(self, messages: list[Message]) -> list[Message]:
        """For templates that know no thinking: within a tool loop it stays, as the text the model
        wrote; what came before the user spoke last is dropped, as its makers do."""
        last_user = max((n for n, m in enumerate(messages) if m["role"] == "user"), default=-1)
        out = []
        for position, message in enumerate(messages):
            said = message.pop("reasoning_content", None)
            if said and self.reasoning is not None and position > last_user:
                opening, closing = self.reasoning.open[0], self.reasoning.close[0]
                text = f"{opening}\n{said}\n{closing}\n\n{message['content']}"
                message = {**message, "content": text}
            out.append(message)
        return out

    def _switches(self, template: Template, options: Options) -> dict[str, Any]:
        settings = {**self._settings, **options.template}
        effort = options.reasoning.effort if options.reasoning is not None else None
        if effort is not None:
            for name, value in _SWITCHES.items():
                if template.mentions(name) and name not in options.template:
                    settings[name] = value(effort)
        return settings

    def _opens_thinking(self, text: str) -> bool:
        tail = text.rstrip()
        return self.reasoning is not None and tail.endswith(self.reasoning.open)


def _row(table: Mapping[str, Any], asked: str | None, found: str | None, option: str) -> Any:
    """The row of a format: the one asked for, or the one found in the template; None for none."""
    name = found if asked is None else asked
    if not name:
        return None
    if name not in table:
        raise SetupError(f"{option}: no format '{name}'; there are {', '.join(sorted(table))}.")
    return table[name]


def _asides(options: Options) -> list[str]:
    """What a model is told in words besides being constrained or trained to it."""
    said = []
    match options.text.format:
        case JsonSchemaFormat(schema=schema, description=description):
            about = f" {description}" if description else ""
            said.append(
                f"Answer with JSON that follows this schema.{about}\n"
                + json.dumps(schema, ensure_ascii=False)
            )
        case JsonObjectFormat():
            said.append("Answer with a JSON object.")
    if isinstance(options.text.verbosity, str) and options.text.verbosity in _VERBOSITY:
        said.append(_VERBOSITY[options.text.verbosity])
    return said


def _told(messages: list[Message], text: str) -> list[Message]:
    """``text`` behind what the leading system message says."""
    if messages and messages[0]["role"] == "system":
        first = {**messages[0], "content": f"{messages[0]['content']}\n\n{text}"}
        return [first, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]


def _cut_after(text: str, content: str) -> str:
    """The text up to the end of the last message, which the model is to go on with."""
    bare = content.strip()
    at = text.rfind(bare) if bare else -1
    return text[: at + len(bare)] if at >= 0 else text
