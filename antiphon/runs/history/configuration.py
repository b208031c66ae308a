"""Changes of settings in the middle of a conversation (``configuration_update``).

From such an item on, a setting holds until a later item changes it. The model is told by a message
at the place of the item. What precedes this message in the prompt stays the same, so that the
engine can reuse its cache: a prompt that states settings at its beginning still states those of the
request.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from msgspec import UNSET, Struct
from msgspec.structs import replace

from antiphon.inference.conversation import Options
from antiphon.wire import items as it
from antiphon.wire.response import ReasoningConfig
from antiphon.wire.text_formats import Effort, JsonSchemaFormat, TextFormatConfig


class Configuration(Struct, frozen=True, kw_only=True):
    """The settings that the items of a conversation have changed. None: no item has."""

    effort: Effort | None = None
    format: TextFormatConfig | None = None

    def apply(self, options: Options, budgets: Mapping[str, int] = {}) -> Options:
        """Return the options with these settings. ``budgets``: reasoning effort → maximum number of
        reasoning tokens, of the model."""
        changed = options
        if self.effort is not None:
            reasoning = options.reasoning or ReasoningConfig()
            budget = options.thinking_budget
            if budget == budgets.get(reasoning.effort or ""):
                budget = None  # it was the budget of the other effort
            changed = replace(
                changed,
                reasoning=replace(reasoning, effort=self.effort),
                thinking_budget=budgets.get(self.effort) if budget is None else budget,
            )
        if self.format is not None:
            changed = replace(changed, text=replace(options.text, format=self.format), guide=None)
        if changed is options:
            return options
        return replace(changed, stated=options, shape=None)


def configuration_of(items: Iterable[it.Item]) -> Configuration:
    """Return the settings that hold after these items."""
    found = Configuration()
    for item in it.of_type(items, it.ConfigurationUpdate):
        if item.reasoning is not UNSET:
            found = replace(found, effort=item.reasoning.effort)
        if item.text is not UNSET:
            found = replace(found, format=item.text.format)
    return found


def update_message(item: it.ConfigurationUpdate) -> it.Message:
    """Return the message that tells the model about a change of settings."""
    lines: list[str] = []
    if item.reasoning is not UNSET:
        lines.append(f"From here on, use this reasoning effort: {item.reasoning.effort}.")
    if item.text is not UNSET:
        lines.append(_format_line(item.text.format))
    return it.Message(id=item.id, role="developer", content=(it.InputText(text="\n".join(lines)),))


def _format_line(form: TextFormatConfig) -> str:
    if not isinstance(form, JsonSchemaFormat):
        return "From here on, answer in plain text."
    about = f" {form.description}" if form.description else ""
    schema = json.dumps(form.schema, ensure_ascii=False)
    return f"From here on, answer with JSON that follows this schema.{about}\n{schema}"
