"""The harmony dialect: how gpt-oss is spoken to.

Conversation → one system message, one developer message, what was said → ids; and back through the
machine that reads what the model writes. It knows no engine.
Source: the harmony response format, and its library, which writes the prompts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

from antiphon.conversation import Conversation, Options
from antiphon.dialects.base import ReasoningRetention, Rendered
from antiphon.dialects.instructions import LEVELS, format_instructions
from antiphon.dialects.messages import Unreadable
from antiphon.dialects.tools import PromptTool, PromptTools, shown_tools
from antiphon.errors import InvalidRequest, SetupError
from antiphon.text import replace_lone_surrogates, replace_lone_surrogates_in_json
from antiphon.tokens import ModelCard, Prompt, Tokenizer
from antiphon.wire.response import JsonObjectFormat, JsonSchemaFormat

from .grammar import Grammarian
from .messages import BROWSER, PYTHON, Talk, natives, talk_of
from .parser import CONTROL_TOKENS, HarmonyParser, MessageKind, TokenCodes
from .prompt import Encoder
from .schemas import plain_schema

if TYPE_CHECKING:
    from openai_harmony import HarmonyEncoding, Message, ToolDescription, ToolNamespaceConfig

__all__ = ["SETTINGS", "HarmonyDialect"]

#: What may be set of the system message, as gpt-oss's own chat template and its library call it.
SETTINGS = frozenset(
    {"conversation_start_date", "knowledge_cutoff", "model_identity", "reasoning_effort"}
)
_EFFORTS = ("low", "medium", "high")
#: Any text of both vocabularies has the same ids.
_PROBE = "Grüße, 漢字 🦄 and {braces}: 1234567."


class HarmonyDialect:
    """``dialects.base.Dialect`` for gpt-oss and what was made of it.

    ``encoding``: the library's, from ``vocabulary.load``. ``settings``: values of ``SETTINGS``.
    ``unreadable``: what becomes of images. ``today`` tells the date. Raises ``SetupError`` for
    models with another vocabulary, and for other settings.
    """

    #: The format has no images.
    supports_images = False

    def __init__(
        self,
        card: ModelCard,
        tokenizer: Tokenizer,
        encoding: HarmonyEncoding,
        *,
        settings: Mapping[str, Any] | None = None,
        unreadable: Unreadable = "note",
        today: Callable[[], datetime] = datetime.now,
    ) -> None:
        _check_vocabulary(card, tokenizer, encoding)
        self._tokenizer = tokenizer
        self._settings = dict(settings or {})
        self._unreadable: Unreadable = unreadable
        self._today = today
        self._codes = TokenCodes.from_tokenizer(tokenizer)
        self._encoder = Encoder(encoding, tokenizer, self._codes, card.fingerprint)
        for name, why in _faults(self._settings):
            raise SetupError(f"{card.name}: template_kwargs.{name} {why}")
        ids = self._encoder.ids
        self._stop_ids = (ids["return"], ids["call"])
        self._grammarian = Grammarian(tokenizer)

    def render(self, conversation: Conversation, options: Options) -> Rendered:
        shown = shown_tools(options, conversation.items)
        recalls = self.reasoning_retention(options) == "all_turns"
        talk = talk_of(
            conversation.items, shown, self._unreadable, conversation.past_count, recalls
        )
        called = natives(shown)
        functions = [tool for tool in shown.declared if tool.name not in called]
        head = [self._system(options, [tool for tool in shown.tools if tool.name in called])]
        if developer := _developer(conversation.instructions, talk, options, functions):
            head.append(developer)
        begun = cast(MessageKind, talk.said[-1].channel) if talk.is_open else None
        constraint = self._grammarian.reply(options, shown, begun)
        return Rendered(
            prompt=Prompt(
                self._encoder.encode(
                    head, talk, conversation.stored_tokens, has_functions=bool(functions)
                )
            ),
            parser=HarmonyParser(
                self._tokenizer,
                self._codes,
                shapes=shown.shapes,
                plain_inputs=[name for name, recipient in called.items() if recipient == PYTHON],
                parallel=options.parallel_tool_calls,
                open_kind=begun,
                constrained=constraint is not None and constraint.needed,
                json_answer=bool(_form(options)),
            ),
            constraint=constraint,
            stop_ids=self._stop_ids,
            **self._cut_short(options, shown),
        )

    def reasoning_retention(self, options: Options) -> ReasoningRetention:
        """Of its own accord what its makers train it on: that of the tool loop."""
        asked = options.reasoning
        is_all = asked is not None and asked.context == "all_turns"
        return "all_turns" if is_all else "current_turn"

    def _cut_short(self, options: Options, shown: PromptTools) -> dict[str, Any]:
        """What goes on where a budget of thinking is used up: the answer, or the call that must
        come."""
        if options.thinking_budget is None:
            return {}
        ids, encoder = self._encoder.ids, self._encoder
        unthink = (ids["end"], *encoder.turn)
        if not shown.required:
            unthink = (*unthink, ids["channel"], *encoder.words("final"), ids["message"])
        return {
            "reasoning_end_ids": unthink,
            "answer_constraint": self._grammarian.reply(options, shown, None, thought=True),
        }

    def _system(self, options: Options, tools: Sequence[PromptTool]) -> Message:
        """Who the model is, what day it is, how hard it is to think, and its own tools."""
        from openai_harmony import Message, ReasoningEffort, Role, SystemContent

        for name, why in _faults(options.template):
            raise InvalidRequest(
                f"'{name}' {why}.",
                param=f"chat_template_kwargs.{name[:64]}",
                code="unknown_parameter" if name not in SETTINGS else "invalid_value",
            )
        today = f"{self._today():%Y-%m-%d}"
        said = {"conversation_start_date": today, **self._settings, **options.template}
        effort = options.reasoning.effort if options.reasoning is not None else None
        if effort is None or "reasoning_effort" in options.template:
            effort = said.get("reasoning_effort", "medium")
        content = SystemContent(
            reasoning_effort=ReasoningEffort(LEVELS.get(effort, effort).capitalize()),
        )
        for name in said.keys() - {"reasoning_effort"}:
            setattr(content, name, replace_lone_surrogates(said[name]))
        for namespace in _own(tools):
            content.with_tools(namespace)
        return Message.from_role_and_content(Role.SYSTEM, content)


def _check_vocabulary(card: ModelCard, tokenizer: Tokenizer, encoding: HarmonyEncoding) -> None:
    special = tokenizer.special
    same = all(
        encoding.encode(text, allowed_special="all") == [special.get(text)]
        for text in CONTROL_TOKENS.values()
    )
    if not same or tokenizer.encode(_PROBE, special=False) != encoding.encode(_PROBE):
        raise SetupError(f"{card.name} has not the vocabulary of gpt-oss: it knows no harmony")


def _faults(said: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What is wrong with values of ``SETTINGS``: the name, and why."""
    for name, value in said.items():
        if name not in SETTINGS:
            yield name, f"means nothing to gpt-oss; there are {', '.join(sorted(SETTINGS))}"
        elif not isinstance(value, str):
            yield name, "must be a text"
        elif name == "reasoning_effort" and LEVELS.get(value, value) not in _EFFORTS:
            yield name, f"must be one of {', '.join((*_EFFORTS, *LEVELS))}"


# --- the developer message -----------------------------------------------------------------------


def _developer(
    instructions: str | None, talk: Talk, options: Options, tools: Sequence[PromptTool]
) -> Message | None:
    """All that instructs the model, in order: instructions, what system and developer said, the
    tools, the form of the answer. None where nothing does."""
    from openai_harmony import DeveloperContent, Message, Role, TextContent

    told = [
        text
        for text in (instructions, *talk.told, *format_instructions(options, (BROWSER,)))
        if text
    ]
    parts: list[Any] = []
    if told or tools:
        content = DeveloperContent()
        if told:
            content.with_instructions(replace_lone_surrogates("\n\n".join(told)))
        if tools:
            content.with_function_tools([_described(tool, tool.name) for tool in tools])
        parts.append(content)
    if form := _form(options):
        parts.append(TextContent(text=replace_lone_surrogates(f"\n\n{form}" if parts else form)))
    return Message.from_role_and_contents(Role.DEVELOPER, parts) if parts else None


def _own(tools: Sequence[PromptTool]) -> Iterator[ToolNamespaceConfig]:
    """The interpreter and the browser, as the system message has them."""
    from openai_harmony import ToolNamespaceConfig

    browser = [tool for tool in tools if tool.shape.namespace == BROWSER]
    for tool in tools:
        if tool not in browser:
            description = replace_lone_surrogates(tool.description)
            yield ToolNamespaceConfig(name=PYTHON, description=description, tools=[])
    if browser:
        described = [_described(tool, tool.shape.wire_name) for tool in browser]
        yield ToolNamespaceConfig(name=BROWSER, description=None, tools=described)


def _described(tool: PromptTool, name: str) -> ToolDescription:
    from openai_harmony import ToolDescription

    schema = plain_schema(tool.schema)
    if schema is not None:
        schema = replace_lone_surrogates_in_json(schema)
    return ToolDescription.new(name, replace_lone_surrogates(tool.description), schema)


def _form(options: Options) -> str:
    """The section that says which JSON the answer is to be; a grammar sees to it as well."""
    match options.text.format:
        case JsonSchemaFormat(name=name, schema=schema, description=description):
            about = f"// {' '.join(description.split())}\n" if description else ""
            shape = json.dumps(schema, ensure_ascii=False)
        case JsonObjectFormat():
            name, about, shape = "json_object", "", '{"type": "object"}'
        case _:
            return ""
    return f"# Response Formats\n\n## {name}\n\n{about}{shape}"
