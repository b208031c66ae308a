"""The harmony dialect, for the prompts and the output of gpt-oss.

A prompt consists of one system message, one developer message and the messages of the
conversation's turns. The messages are encoded as token ids. OpenAI's library renders the prompts.
Source: OpenAI's specification of the harmony response format.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

from antiphon.dialects.base import ReasoningRetention, Rendered
from antiphon.dialects.images import Unreadable
from antiphon.dialects.instructions import LEVELS, format_instructions
from antiphon.dialects.tools import PromptTool, PromptTools, collect_tools
from antiphon.errors import InvalidRequest, SetupError
from antiphon.inference.conversation import Conversation, Options
from antiphon.inference.tokens import ModelCard, Prompt, Tokenizer
from antiphon.support.text import replace_lone_surrogates, replace_lone_surrogates_in_json
from antiphon.wire.response import JsonObjectFormat, JsonSchemaFormat

from .container import CONTAINER, EXEC, exec_tool, is_shell
from .grammar import HarmonyGrammar
from .messages import BROWSER, PYTHON, HarmonyConversation, build_conversation, native_tools
from .parser import CONTROL_TOKENS, HarmonyMessageKind, HarmonyParser, TokenCodes
from .prompt import HarmonyPromptEncoder
from .raw_messages import split_messages
from .schemas import plain_schema

if TYPE_CHECKING:
    from openai_harmony import HarmonyEncoding, Message, ToolDescription, ToolNamespaceConfig

#: The names of the settings of the system message. gpt-oss's own chat template and OpenAI's library
#: use the same names.
SETTINGS = frozenset(
    {"conversation_start_date", "knowledge_cutoff", "model_identity", "reasoning_effort"}
)
_MAX_WORD = 5000
#: What ends a word of letters, and what ends a word of other signs.
_WORD_ENDS = (re.compile(r"[\s\d!-/:-@\[-`{-~]+"), re.compile(r"(?:(?!_)[\w\s])+"))
_EFFORTS = ("low", "medium", "high")
#: A text whose ids are compared to check that a model has gpt-oss's vocabulary.
_PROBE = "Grüße, 漢字 🦄 and {braces}: 1234567."


class HarmonyDialect:
    """``dialects.base.Dialect`` for gpt-oss and models derived from it.

    - ``encoding``: the encoding of OpenAI's library, from ``vocabulary.load``.
    - ``settings``: name of a setting of the system message → value. ``SETTINGS`` contains the
      names.
    - ``unreadable``: what happens to an image, which the harmony format cannot contain. With
      ``describe``, a note replaces the image. With ``refuse``, the request is rejected.
    - ``today``: returns the current date, for the system message.

    Raises ``SetupError`` for models with another vocabulary, and for unknown or invalid settings.
    """

    #: The format has no images.
    supports_images = False
    thinks = True
    template_source = ""

    def __init__(
        self,
        card: ModelCard,
        tokenizer: Tokenizer,
        encoding: HarmonyEncoding,
        *,
        settings: Mapping[str, object] | None = None,
        unreadable: Unreadable = "refuse",
        today: Callable[[], datetime] = datetime.now,
    ) -> None:
        _check_vocabulary(card, tokenizer, encoding)
        self._tokenizer = tokenizer
        self._settings = dict(settings or {})
        self._unreadable: Unreadable = unreadable
        self._today = today
        self._codes = TokenCodes.from_tokenizer(tokenizer)
        self._encoder = HarmonyPromptEncoder(encoding, tokenizer, self._codes, card.fingerprint)
        for name, why in _invalid_settings(self._settings):
            raise SetupError(f"{card.name}: template_kwargs.{name} {why}")
        ids = self._encoder.ids
        self._stop_ids = (ids["return"], ids["call"])
        self._grammar = HarmonyGrammar(tokenizer)

    def render(self, conversation: Conversation, options: Options) -> Rendered:
        prompt_tools = collect_tools(options, conversation.items)
        keeps_reasoning = self.reasoning_retention(options) == "all_turns"
        history = build_conversation(
            conversation.items,
            prompt_tools,
            "describe" if options.describes_media else self._unreadable,
            conversation.past_count,
            keeps_reasoning,
        )
        called = native_tools(prompt_tools)
        functions = [tool for tool in prompt_tools.initial_tools if tool.name not in called]
        head = [
            self._system_message(
                options.at_start, [tool for tool in prompt_tools.tools if tool.name in called]
            )
        ]
        if developer := _developer_message(
            conversation.instructions, history, options.at_start, functions
        ):
            head.append(developer)
        open_kind = (
            cast(HarmonyMessageKind, history.messages[-1].channel) if history.is_open else None
        )
        constraint = self._grammar.constraint_for_reply(options, prompt_tools, open_kind)
        return Rendered(
            prompt=Prompt(
                self._encoder.encode(
                    head, history, conversation.stored_tokens, has_functions=bool(functions)
                )
            ),
            parser=HarmonyParser(
                self._tokenizer,
                self._codes,
                shapes=prompt_tools.shapes,
                native_tools={recipient: name for name, recipient in called.items()},
                parallel=options.allows_parallel_calls,
                open_kind=open_kind,
                constrained=constraint is not None and constraint.needed,
                json_answer=bool(_format_section(options)),
                passes_unknown=options.rejects_unknown_calls,
                logprob_token_ids=options.logprob_token_ids,
            ),
            constraint=constraint,
            stop_ids=self._stop_ids,
            **self._reasoning_end_fields(options, prompt_tools),
        )

    def split_messages(self, ids: Sequence[int]) -> list[tuple[Sequence[int], Mapping[str, Any]]]:
        return split_messages(ids, self._tokenizer, self._codes)

    def reasoning_retention(self, options: Options) -> ReasoningRetention:
        """Return for how many turns the reasoning of a turn stays in the prompt.

        - ``all_turns``: the reasoning of all turns, if the request asks for it.
        - ``current_turn``: otherwise, only the reasoning of the current tool loop, as OpenAI
          recommends.
        """
        reasoning = options.reasoning
        is_all = reasoning is not None and reasoning.context == "all_turns"
        return "all_turns" if is_all else "current_turn"

    def _reasoning_end_fields(self, options: Options, prompt_tools: PromptTools) -> dict[str, Any]:
        """Return the fields ``reasoning_end_ids`` and ``answer_constraint`` of ``Rendered``. The
        backend needs them to end the reasoning when its token budget is used up. Returns an empty
        dict if the request sets no budget.

        ``reasoning_end_ids`` ends the reasoning message and starts the next message of the model.
        If a call is required, ``reasoning_end_ids`` stops after the model's role, so that the model
        writes the header of a call. Otherwise, ``reasoning_end_ids`` also contains the header of an
        answer, so that the model writes an answer.
        """
        if options.thinking_budget is None:
            return {}
        ids, encoder = self._encoder.ids, self._encoder
        reasoning_end = (ids["end"], *encoder.turn)
        if not prompt_tools.required:
            reasoning_end = (
                *reasoning_end,
                ids["channel"],
                *encoder.words("final"),
                ids["message"],
            )
        return {
            "reasoning_end_ids": reasoning_end,
            "answer_constraint": self._grammar.constraint_for_reply(
                options, prompt_tools, None, reasoning_done=True
            ),
        }

    def _system_message(self, options: Options, tools: Sequence[PromptTool]) -> Message:
        """Build the system message. It contains the model's identity, the date, the reasoning
        effort and ``tools``. ``tools``: the request's tools that gpt-oss was trained to call."""
        from openai_harmony import Message, ReasoningEffort, Role, SystemContent

        for name, why in _invalid_settings(options.template):
            raise InvalidRequest(
                f"'{name}' {why}.",
                param=f"chat_template_kwargs.{name[:64]}",
                code="unknown_parameter" if name not in SETTINGS else "invalid_value",
            )
        today = f"{self._today():%Y-%m-%d}"
        settings = {"conversation_start_date": today, **self._settings, **options.template}
        effort = options.reasoning.effort if options.reasoning is not None else None
        if effort is None or "reasoning_effort" in options.template:
            effort = settings.get("reasoning_effort", "medium")
        content = SystemContent(
            reasoning_effort=ReasoningEffort(LEVELS.get(effort, effort).capitalize()),
        )
        for name in settings.keys() - {"reasoning_effort"}:
            setattr(content, name, replace_lone_surrogates(settings[name]))
        for namespace in _native_namespaces(tools):
            content.with_tools(namespace)
        return Message.from_role_and_content(Role.SYSTEM, content)


def _check_vocabulary(card: ModelCard, tokenizer: Tokenizer, encoding: HarmonyEncoding) -> None:
    """Raise ``SetupError`` if the model's tokenizer does not have the vocabulary of gpt-oss."""
    special = tokenizer.special
    same = all(
        encoding.encode(text, allowed_special="all") == [special.get(text)]
        for text in CONTROL_TOKENS.values()
    )
    if not same or tokenizer.encode(_PROBE, special=False) != encoding.encode(_PROBE):
        raise SetupError(
            f"{card.name} does not have the vocabulary of gpt-oss, which harmony needs"
        )


def _invalid_settings(settings: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """Yield the name of each invalid setting, and the reason why it is invalid."""
    for name, value in settings.items():
        if name not in SETTINGS:
            yield name, f"is not a setting of gpt-oss (known: {', '.join(sorted(SETTINGS))})"
        elif not isinstance(value, str):
            yield name, "must be a text"
        elif name == "reasoning_effort" and LEVELS.get(value, value) not in _EFFORTS:
            yield name, f"must be one of {', '.join((*_EFFORTS, *LEVELS))}"


# --- the developer message -----------------------------------------------------------------------


def _developer_message(
    instructions: str | None,
    history: HarmonyConversation,
    options: Options,
    tools: Sequence[PromptTool],
) -> Message | None:
    """Build the developer message. Returns None if it would be empty.

    The message contains the following, in this order:

    - the argument ``instructions``
    - the texts of the system and developer messages at the beginning of the conversation
    - the instructions for the verbosity, for a grammar and for namespaces of tools
    - the definitions of ``tools``
    - the requested JSON format
    """
    from openai_harmony import DeveloperContent, Message, Role, TextContent

    texts = [
        text
        for text in (instructions, *history.instructions, *format_instructions(options, (BROWSER,)))
        if text
    ]
    form = _format_section(options)
    for text in (*texts, form, *(f"{tool.description} {tool.schema}" for tool in tools)):
        _check_words(text)
    parts: list[Any] = []
    if texts or tools:
        content = DeveloperContent()
        if texts:
            content.with_instructions(replace_lone_surrogates("\n\n".join(texts)))
        if tools:
            content.with_function_tools([_tool_description(tool, tool.name) for tool in tools])
        parts.append(content)
    if form:
        parts.append(TextContent(text=replace_lone_surrogates(f"\n\n{form}" if parts else form)))
    return Message.from_role_and_contents(Role.DEVELOPER, parts) if parts else None


def _check_words(text: str) -> None:
    """Raise ``InvalidRequest`` if a text has a word of more than ``_MAX_WORD`` characters. The
    library encodes a developer message as a whole, and each word in quadratic time."""
    if len(text) > _MAX_WORD and any(
        len(word) > _MAX_WORD for ends in _WORD_ENDS for word in ends.split(text)
    ):
        raise InvalidRequest(
            f"With this model, instructions and tools may have no word of more than {_MAX_WORD}"
            " characters."
        )


def _native_namespaces(tools: Sequence[PromptTool]) -> Iterator[ToolNamespaceConfig]:
    """Yield the namespaces of tools for the system message. ``tools``: the tools that gpt-oss was
    trained to call, which are the Python interpreter, the container and the browser."""
    from openai_harmony import ToolNamespaceConfig

    browser = [tool for tool in tools if tool.shape.namespace == BROWSER]
    for tool in tools:
        if is_shell(tool):
            described = [_tool_description(exec_tool(tool), EXEC.removeprefix(f"{CONTAINER}."))]
            yield ToolNamespaceConfig(name=CONTAINER, description=None, tools=described)
        elif tool not in browser:
            description = replace_lone_surrogates(tool.description)
            yield ToolNamespaceConfig(name=PYTHON, description=description, tools=[])
    if browser:
        described = [_tool_description(tool, tool.shape.wire_name) for tool in browser]
        yield ToolNamespaceConfig(name=BROWSER, description=None, tools=described)


def _tool_description(tool: PromptTool, name: str) -> ToolDescription:
    from openai_harmony import ToolDescription

    schema = plain_schema(tool.schema)
    if schema is not None:
        schema = replace_lone_surrogates_in_json(schema)
    return ToolDescription.new(name, replace_lone_surrogates(tool.description), schema)


def _format_section(options: Options) -> str:
    """Return the section of the developer message that describes the requested JSON. Returns ``""``
    if the request does not ask for JSON."""
    match options.text.format:
        case JsonSchemaFormat(name=name, schema=schema, description=description):
            about = f"// {' '.join(description.split())}\n" if description else ""
            shape = json.dumps(schema, ensure_ascii=False)
        case JsonObjectFormat():
            name, about, shape = "json_object", "", '{"type": "object"}'
        case _:
            return ""
    return f"# Response Formats\n\n## {name}\n\n{about}{shape}"
