"""The chat dialect, for models whose prompts are written by a chat template.

A conversation is converted to messages, then rendered as text, then encoded as token ids. The
parser reads the output in the model's tool format and reasoning format. The module ``fallback``
rewrites messages that the template does not support.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from typing import Any, Literal

from msgspec import Struct

from antiphon.dialects.base import DialectOptions, Parser, ReasoningRetention, Rendered
from antiphon.dialects.formats.registry import (
    DETECTION_NAMES,
    SHIPPED,
    Formats,
    with_vocabulary_suffix,
)
from antiphon.dialects.formats.types import ReasoningFormat, ToolFormat
from antiphon.dialects.grammar.builder import GrammarBuilder
from antiphon.dialects.images import PromptImages, Unreadable, unused_characters
from antiphon.dialects.instructions import LEVELS, format_instructions, json_format_instructions
from antiphon.dialects.messages import build_messages
from antiphon.dialects.parser.citation_tags import CitationTagParser
from antiphon.dialects.parser.lexer import Lexer, terminals_of
from antiphon.dialects.parser.parser import FormatParser
from antiphon.dialects.tools import PromptTools, collect_tools
from antiphon.errors import InvalidRequest
from antiphon.inference.conversation import Conversation, Options
from antiphon.inference.tokens import EncodedImage, ModelCard, Prompt, Tokenizer
from antiphon.wire.response import JsonObjectFormat, JsonSchemaFormat

from .fallback import RESULT_TAGS, adapt_messages, tool_prompt, tools_as_text
from .prompt import ChatPromptEncoder
from .template import CHATML, PLAIN, RESERVED, RenderError, Template
from .template_probe import TemplateCapabilities, probe

__all__ = ["ChatDialect"]

Message = dict[str, Any]

#: Template variable that switches reasoning on or off → function from the effort to its value.
_REASONING_SWITCHES: Mapping[str, Callable[[str], Any]] = {
    "enable_thinking": lambda effort: effort != "none",
    "thinking": lambda effort: effort != "none",
    "think": lambda effort: effort != "none",
    "thinking_mode": lambda effort: "disabled" if effort == "none" else "enabled",
    "force_reasoning": lambda effort: effort != "none",
    "skip_reasoning": lambda effort: effort == "none",
}
#: Lowest and highest reasoning efforts → the words that templates use for them.
_EFFORT_WORDS: Mapping[str, tuple[str, ...]] = {
    "none": ("none", "no_think"),
    "minimal": ("minimal",),
    "xhigh": ("xhigh", "max"),
    "max": ("max", "xhigh"),
}
#: The template variable for the reasoning budget in tokens; 0 switches reasoning off.
_BUDGET_VARIABLE = "thinking_budget"
_SAMPLE_REASONING = "Thought"
#: Stop strings for the template ``PLAIN``, in which only the name of the next role ends a turn.
_PLAIN_STOPS = ("\n\nuser:", "\n\nassistant:", "\n\nsystem:")


class _PreparedTemplate(Struct, frozen=True, kw_only=True):
    """A template with its capabilities. ``stop_ids``, ``stop``: the token ids and strings that end
    the model's turn, in addition to the tokenizer's end tokens."""

    template: Template
    capabilities: TemplateCapabilities
    stop_ids: tuple[int, ...]
    stop: tuple[str, ...]


class ChatDialect:
    """``dialects.base.Dialect`` for one model with a chat template.

    - ``template``: the source of a template that replaces the model's own.
    - ``reasoning_format``, ``tool_format``: names of formats in ``formats``. None means that the
      format is detected, and ``""`` means no format.
    - ``settings``: variables that the template gets with every request.
    - ``images``: how the engine gets the position of an image. With ``apart``, it gets the position
      as a number, and the prompt contains no text for the image. With ``template``, the prompt
      contains the text that the template writes for an image, and this text marks the position.
      None means that the model has no vision.
    - ``unreadable``: what happens to an image if the model has no vision. With ``describe``, a note
      replaces the image. With ``refuse``, the request is rejected.
    - ``today``: returns the current date, for templates that state it.

    Raises ``SetupError`` for unknown formats and for templates that cannot be parsed.
    """

    def __init__(
        self,
        card: ModelCard,
        tokenizer: Tokenizer,
        *,
        template: str | None = None,
        reasoning_format: str | None = None,
        tool_format: str | None = None,
        formats: Formats = SHIPPED,
        settings: Mapping[str, object] | None = None,
        images: Literal["apart", "template"] | None = None,
        unreadable: Unreadable = "refuse",
        today: Callable[[], datetime] = datetime.now,
    ) -> None:
        self._card = card
        self._tokenizer = tokenizer
        self._settings = dict(settings or {})
        self._unreadable: Unreadable = unreadable
        self.template_source = source = _template_source(template, card, tokenizer)
        tool_source = (None if template else card.chat_templates.get("tool_use")) or source
        detected_reasoning, detected_tools = formats.detect(tool_source, tokenizer.special)
        if detected_tools is None and tool_format is None:
            # The tool format of the tool template is unknown, so its calls could not be parsed.
            tool_source = source
        reasoning = formats.reasoning_format(_format_name(reasoning_format, detected_reasoning))
        tools = formats.tool_format(_format_name(tool_format, detected_tools))
        self.reasoning = reasoning and with_vocabulary_suffix(reasoning, tokenizer.special)
        #: The reasoning format if it has tags for the reasoning, not only for answers.
        self._reasoning_tags: ReasoningFormat | None = (
            self.reasoning if self.reasoning is not None and self.reasoning.open else None
        )
        tools = tools and with_vocabulary_suffix(tools, tokenizer.special)
        terminals = terminals_of(self.reasoning, tools)
        self._plain = self._prepare(source, today, terminals)
        self._with_tools = (
            self._plain if tool_source == source else self._prepare(tool_source, today, terminals)
        )
        #: Whether the template itself shows the tools.
        self.template_has_tools = tools is not None and self._with_tools.capabilities.tools
        if tools is None or not (self.template_has_tools or tools.written.parameter is None):
            tools = SHIPPED.tools["hermes"]
        self.tools: ToolFormat = tools
        shows_results = self.template_has_tools and self._with_tools.capabilities.results
        result_tags = None if shows_results else RESULT_TAGS
        self._image_markup = self._with_tools.capabilities.image
        #: The text for an image in the prompt, or None if images are not supported.
        self._image: str | None = {
            "apart": "",
            "template": None if self._image_markup is None else self._image_markup.text,
            None: None,
        }[images]
        self._encoder = ChatPromptEncoder(tokenizer, card.fingerprint)
        self._image_ids = self._encoder.encode(self._image or "", None)
        self._grammar_builder = GrammarBuilder(tokenizer, self.tools, self.reasoning)
        self._lexers = {
            True: Lexer(tokenizer, self.reasoning, self.tools, result_tags),
            False: Lexer(tokenizer, self.reasoning, None),
        }

    @property
    def thinks(self) -> bool:
        """Whether the model can reason before it answers."""
        return self._reasoning_tags is not None

    @classmethod
    def from_options(
        cls, card: ModelCard, tokenizer: Tokenizer, options: DialectOptions
    ) -> ChatDialect:
        """Create the dialect from the settings of a model."""
        return cls(
            card,
            tokenizer,
            template=options.template,
            reasoning_format=options.reasoning_format,
            tool_format=options.tool_format,
            formats=options.formats,
            settings=options.template_kwargs,
            images=options.images,
            unreadable=options.unreadable,
        )

    def _prepare(
        self, source: str, today: Callable[[], datetime], terminals: Collection[str]
    ) -> _PreparedTemplate:
        card = self._card
        template = Template(source, bos=card.bos_token, eos=card.eos_token, today=today)
        capabilities = probe(template)
        own = _turn_end(capabilities.end, self._tokenizer.special, terminals)
        return _PreparedTemplate(
            template=template,
            capabilities=capabilities,
            stop_ids=tuple(own - self._tokenizer.end_ids),
            stop=_PLAIN_STOPS if source == PLAIN else (),
        )

    def render(self, conversation: Conversation, options: Options) -> Rendered:
        for name in RESERVED & options.template.keys():
            raise InvalidRequest(
                f"'{name}' cannot be set by a request.",
                param=f"chat_template_kwargs.{name}",
                code="invalid_value",
            )
        prompt_tools = collect_tools(options, conversation.items)
        prepared = self._with_tools if prompt_tools.tools else self._plain
        text, thinking, prompt_images = self._render_with_images(
            conversation, options, prompt_tools, prepared
        )
        reasoning_done = _effort_of(options) == "none" and not thinking
        constraint = self._grammar_builder.constraint(
            options, prompt_tools, thinking, reasoning_done=reasoning_done
        )
        is_json = isinstance(options.text.format, JsonSchemaFormat | JsonObjectFormat)
        parser: Parser = FormatParser(
            self._tokenizer,
            reasoning=self.reasoning,
            tools=self.tools if prompt_tools.tools else None,
            shapes=prompt_tools.shapes,
            thinking=thinking,
            parallel=options.allows_parallel_calls,
            constrained=constraint is not None,
            json_answer=is_json,
            passes_unknown=options.rejects_unknown_calls,
            logprob_token_ids=options.logprob_token_ids,
            lexer=self._lexers[bool(prompt_tools.tools)],
        )
        if self.reasoning is not None and self.reasoning.citation and not is_json:
            parser = CitationTagParser(parser, self.reasoning.citation)
        return Rendered(
            prompt=self._prompt(text, prompt_images, conversation),
            parser=parser,
            constraint=constraint,
            stop=prepared.stop,
            stop_ids=prepared.stop_ids,
            **self._reasoning_end_fields(options, prompt_tools, text),
        )

    def reasoning_retention(self, options: Options) -> ReasoningRetention:
        """Return whether later prompts contain the reasoning of all turns or only of the current
        turn. The method renders a sample conversation with the template to find this out."""
        prepared = self._plain
        if prepared.capabilities.reasoning is None:
            return "current_turn"
        answer = {
            "role": "assistant",
            "content": "b",
            prepared.capabilities.reasoning: _SAMPLE_REASONING,
        }
        talk = [{"role": "user", "content": "a"}, answer, {"role": "user", "content": "c"}]
        settings = self._template_variables(prepared, options)
        try:
            text = prepared.template.render(
                adapt_messages(talk, prepared.capabilities),
                tools=prepared.capabilities.no_tools,
                settings=settings,
            )
        except RenderError:
            return "current_turn"
        return "all_turns" if _SAMPLE_REASONING in text else "current_turn"

    def _reasoning_end_fields(
        self, options: Options, prompt_tools: PromptTools, prompt: str
    ) -> dict[str, Any]:
        """Return the fields ``reasoning_end_ids`` and ``answer_constraint`` of ``Rendered``. The
        backend needs them to end the reasoning when its token budget is used up. ``prompt``: the
        prompt's text.

        Returns an empty dict if the request sets no budget, or if the model has no tags for
        reasoning.
        """
        if options.thinking_budget is None or self._reasoning_tags is None:
            return {}
        end = self._reasoning_tags.closing_text(prompt)
        return {
            "reasoning_end_ids": tuple(self._tokenizer.encode(end, special=True)),
            "answer_constraint": self._grammar_builder.constraint(
                options, prompt_tools, thinking=False, reasoning_done=True
            ),
        }

    # --- the prompt ------------------------------------------------------------------------------

    @property
    def supports_images(self) -> bool:
        """Whether prompts can contain images. This is the case if the dialect can tell the engine
        where each image stands."""
        return self._image is not None

    def _prompt(
        self, text: str, prompt_images: PromptImages | None, conversation: Conversation
    ) -> Prompt:
        if prompt_images is None or self._image is None or not prompt_images.images:
            return Prompt(ids=self._encoder.encode(text, conversation.stored_tokens))
        # Stored ids do not state where images stood, so a prompt with images reuses no stored ids.
        ids, positions = self._encoder.encode_with_images(text, prompt_images.mark, self._image)
        pairs = zip(prompt_images.images, positions, strict=True)
        word = self._image_ids
        return Prompt(
            ids, tuple(EncodedImage(each.content, each.mime, at, word) for each, at in pairs)
        )

    def _render_with_images(
        self,
        conversation: Conversation,
        options: Options,
        prompt_tools: PromptTools,
        prepared: _PreparedTemplate,
    ) -> tuple[str, bool, PromptImages | None]:
        """Render the prompt's text. In the text, one special character (the mark) stands for each
        image. Returns the text, whether it ends inside the reasoning, and the images.

        No other text of the prompt may contain the mark. If the rendered text contains it
        elsewhere, the prompt is rendered again with another mark.
        """
        if self._image is None:
            return *self._text(conversation, options, prompt_tools, prepared, None), None
        seen = ""
        for _ in range(2):
            prompt_images = PromptImages(next(unused_characters(seen), ""), self._image_markup)
            if not prompt_images.mark:
                break
            text, thinking = self._text(
                conversation, options, prompt_tools, prepared, prompt_images
            )
            if not prompt_images.images or text.count(prompt_images.mark) == len(
                prompt_images.images
            ):
                return text, thinking, prompt_images
            seen = text
        raise InvalidRequest(
            "This model's chat template does not show all images of this conversation.",
            param="input",
        )

    def _text(
        self,
        conversation: Conversation,
        options: Options,
        prompt_tools: PromptTools,
        prepared: _PreparedTemplate,
        prompt_images: PromptImages | None,
    ) -> tuple[str, bool]:
        """Return the prompt's text, and whether it ends inside the reasoning. Control tokens that
        users wrote are masked in this text; see the module ``prompt``."""
        mask = self._encoder.mask
        messages: list[Message] = mask(
            build_messages(
                conversation.items,
                prompt_tools,
                "describe" if options.describes_media else self._unreadable,
                conversation.past_count,
                prompt_images,
            )
        )
        unfinished = messages.pop() if messages and messages[-1].pop("open", False) else None
        if conversation.instructions:
            messages.insert(0, {"role": "system", "content": mask(conversation.instructions)})
        definitions = mask([tool.definition() for tool in prompt_tools.initial_tools])
        uses_template_tools = bool(definitions) and self.template_has_tools
        at_start = options.at_start
        instructions = mask([*json_format_instructions(at_start), *format_instructions(at_start)])
        if definitions and not uses_template_tools:
            instructions.insert(0, tool_prompt(definitions, self.tools))
        if instructions:
            messages = _append_instructions(messages, "\n\n".join(instructions))
        if not (self.template_has_tools and prepared.capabilities.results):
            messages = tools_as_text(messages, self.tools)
        if prepared.capabilities.reasoning is None:
            messages = self._inline_reasoning(messages)
        tools = definitions if uses_template_tools else prepared.capabilities.no_tools
        settings = self._template_variables(prepared, options)
        text = self._render_template(prepared, messages, tools, settings)
        if unfinished is not None:
            text += self._unfinished_answer(unfinished, text)
            return text, self._reasoning_tags is not None and not unfinished["content"]
        text += self._closed_reasoning(prepared.template, options, text)
        return text, self._opens_thinking(text)

    def _render_template(
        self,
        prepared: _PreparedTemplate,
        messages: list[Message],
        tools: Any,
        settings: Mapping[str, object],
    ) -> str:
        try:
            text = prepared.template.render(
                adapt_messages(messages, prepared.capabilities), tools=tools, settings=settings
            )
        except RenderError as refused:
            raise InvalidRequest(
                f"This model's chat template does not accept this conversation: {refused}",
                param="input",
            ) from None
        bos = self._card.bos_token
        return bos + text if self._card.add_bos and bos and not text.startswith(bos) else text

    def _unfinished_answer(self, message: Message, text: str) -> str:
        """Return the text that must be appended to the prompt ``text`` so that the model continues
        an unfinished answer. ``message``: the unfinished answer, with its reasoning."""
        reasoning, answer = message.get("reasoning_content", ""), str(message["content"])
        form = self.reasoning
        if form is not None and answer and (form.header or not form.open):
            answer = form.answer[0] + answer
        if form is None or not form.open:
            return answer
        is_open, closing = form.closing_tag(text), form.closing_text(text)
        if not reasoning:
            return f"{closing}{answer}" if is_open else answer
        start = reasoning if is_open else f"{form.opening_text}{reasoning}"
        return f"{start}{closing}{answer}" if answer else start

    def _opens_thinking(self, text: str) -> bool:
        """Return whether the prompt ``text`` ends with an opening tag for reasoning."""
        return self._reasoning_tags is not None and bool(self._reasoning_tags.closing_tag(text))

    def _closed_reasoning(self, template: Template, options: Options, text: str) -> str:
        """Return the text to append to the prompt ``text``, so that the model writes its answer
        without reasoning. The returned text closes the reasoning. If the prompt has not opened the
        reasoning, the returned text opens and closes it.

        Returns ``""`` in these cases, because no text is needed:

        - The model has no tags for reasoning.
        - The requested reasoning effort is not ``none``.
        - The template itself can switch reasoning off.
        - The prompt already closes the reasoning.
        """
        effort, form = _effort_of(options), self._reasoning_tags
        if form is None or effort != "none" or any(map(template.mentions, _REASONING_SWITCHES)):
            return ""
        endings = (
            tuple(form.opening_text + close for close in form.close) if form.header else form.close
        )
        endings += form.answer[:1] if form.answer[0] else ()
        if text.rstrip().removesuffix(form.header).endswith(endings):
            return ""
        return ("" if form.closing_tag(text) else form.opening_text) + form.closing_text(text)

    def _inline_reasoning(self, messages: list[Message]) -> list[Message]:
        """Move the reasoning of each message into the message's content, for templates that have no
        key for reasoning.

        The content then starts with the reasoning in its tags, as in the model's output. Reasoning
        from before the last user message is left out, as the models' makers recommend. If the
        reasoning format writes reasoning as a message of its own, all messages stay unchanged.
        """
        form = self._reasoning_tags
        if form is None or form.header:
            return messages
        user_turns = (
            n for n, m in enumerate(messages) if m["role"] == "user" and "results" not in m
        )
        last_user = max(user_turns, default=-1)
        out = []
        for position, message in enumerate(messages):
            reasoning = message.get("reasoning_content")
            if reasoning and position > last_user:
                text = f"{form.open[0]}\n{reasoning}\n{form.close[0]}\n\n{message['content']}"
                message = {**message, "content": text}
            out.append(message)
        return out

    def _template_variables(self, prepared: _PreparedTemplate, options: Options) -> dict[str, Any]:
        """Return the values of the template's variables: the model's settings, the request's
        template variables, and variables for the reasoning effort and budget."""
        template = prepared.template
        settings = {**self._settings, **options.template}
        effort = _effort_of(options)
        variables: dict[str, Any] = {}
        if effort is not None:  # most templates write a switch at the end of the prompt
            variables = {name: value(effort) for name, value in _REASONING_SWITCHES.items()}
        at_start = options.at_start
        if (level := _effort_of(at_start)) is not None:
            scales = prepared.capabilities.efforts.items()
            variables |= {name: _template_effort(prepared, words, level) for name, words in scales}
        budget = 0 if level == "none" else at_start.thinking_budget
        if budget is not None:
            variables[_BUDGET_VARIABLE] = budget
        return settings | {
            name: value
            for name, value in variables.items()
            if template.mentions(name) and name not in options.template
        }


def _template_source(template: str | None, card: ModelCard, tokenizer: Tokenizer) -> str:
    """Return the source of the model's chat template, or of a default one."""
    source = template or card.chat_template or card.chat_templates.get("default")
    if source is not None:
        return source
    return CHATML if "<|im_start|>" in tokenizer.special else PLAIN


def _format_name(name: str | None, detected: str | None) -> str:
    """Return the configured name of a format. If no name is configured, or if the name requests
    detection, return the detected name. Returns ``""`` if no format was detected."""
    return (detected if name is None or name in DETECTION_NAMES else name) or ""


def _effort_of(options: Options) -> str | None:
    return None if options.reasoning is None else options.reasoning.effort


def _template_effort(prepared: _PreparedTemplate, accepted: Collection[str], effort: str) -> str:
    """Return the word that the template uses for a reasoning effort. ``accepted``: the words that
    the template's variable accepts.

    The function returns the first of these words that is accepted:

    1. a synonym of ``effort`` in the template's source, such as ``no_think`` for ``none``
    2. the nearest of the levels ``low``, ``medium`` and ``high``
    3. ``high``
    4. ``low``

    If none of them is accepted, the function returns ``effort`` itself.
    """
    own = [word for word in _EFFORT_WORDS.get(effort, ()) if prepared.template.quotes(word)]
    words = (*own, LEVELS.get(effort, effort), "high", "low")
    return next((word for word in words if word in accepted), effort)


def _turn_end(text: str, special: Mapping[str, int], terminals: Collection[str]) -> frozenset[int]:
    """Return a set with the id of the special token that ends a turn in the template. The set is
    empty if a turn ends without a special token.

    ``text``: the text that the template writes after an answer. ``special``: text of a special
    token → its id. ``terminals``: the texts that have a meaning in the model's formats. A special
    token in one of these texts separates parts of a turn, so it does not end the turn.
    """
    marked = [literal for literal in terminals if any(token in literal for token in special)]
    rest = text.lstrip()
    while found := next((literal for literal in marked if rest.startswith(literal)), None):
        rest = rest[len(found) :].lstrip()
    end = next((token for token in special if rest.startswith(token)), None)
    if end is None or any(end in literal for literal in marked):
        return frozenset()
    return frozenset({special[end]})


def _append_instructions(messages: list[Message], text: str) -> list[Message]:
    """Append ``text`` to the first message if it is a system message. Otherwise, insert a system
    message with ``text`` at the start."""
    if messages and messages[0]["role"] == "system":
        first = {**messages[0], "content": f"{messages[0]['content']}\n\n{text}"}
        return [first, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]
