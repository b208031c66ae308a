"""The chat dialect: models that are spoken to through a chat template.

Conversation → messages → text → ids, and back through the scanner in the format the template is
written in. What the template cannot say, ``fallback`` says. It knows no engine.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from typing import Any, Literal

from msgspec import Struct

from antiphon.conversation import Conversation, Options
from antiphon.dialects.base import ReasoningRetention, Rendered
from antiphon.dialects.formats.registry import (
    DETECTION_NAMES,
    SHIPPED,
    Formats,
    with_vocabulary_suffix,
)
from antiphon.dialects.formats.types import ReasoningFormat, ToolFormat
from antiphon.dialects.grammar.builder import GrammarBuilder
from antiphon.dialects.images import PromptImages, Unreadable, marks
from antiphon.dialects.instructions import LEVELS, form_in_words, format_instructions
from antiphon.dialects.messages import messages_of
from antiphon.dialects.parser.lexer import Lexer, terminals_of
from antiphon.dialects.parser.parser import FormatParser
from antiphon.dialects.tools import PromptTools, shown_tools
from antiphon.errors import InvalidRequest
from antiphon.tokens import Image, ModelCard, Prompt, Tokenizer
from antiphon.wire.response import JsonObjectFormat, JsonSchemaFormat

from .fallback import fitted, tool_prompt, without_tools
from .prompt import Encoder
from .template import CHATML, PLAIN, RESERVED, Refused, Template
from .template_probe import TemplateCapabilities, probe

__all__ = ["ChatDialect"]

Message = dict[str, Any]

#: Switches of templates, and what an effort means for each.
_SWITCHES: Mapping[str, Callable[[str], Any]] = {
    "enable_thinking": lambda effort: effort != "none",
    "thinking": lambda effort: effort != "none",
    "think": lambda effort: effort != "none",
    "thinking_mode": lambda effort: "disabled" if effort == "none" else "enabled",
    "force_reasoning": lambda effort: effort != "none",
    "skip_reasoning": lambda effort: effort == "none",
}
#: What templates call the ends of the scale, where they have words for them.
_ENDS: Mapping[str, tuple[str, ...]] = {
    "none": ("none", "no_think"),
    "minimal": ("minimal",),
    "xhigh": ("xhigh", "max"),
    "max": ("max", "xhigh"),
}
#: What a template calls the number of tokens that a model may think; none: it does not.
_BUDGET = "thinking_budget"
_THOUGHT = "Thought"
#: Nothing but the next name ends a turn that is written as plain text.
_PLAIN_STOPS = ("\n\nuser:", "\n\nassistant:", "\n\nsystem:")


class _Way(Struct, frozen=True, kw_only=True):
    """A template, what it takes, and where the model's turn ends besides the end tokens."""

    template: Template
    traits: TemplateCapabilities
    stop_ids: tuple[int, ...]
    stop: tuple[str, ...]


class ChatDialect:
    """``dialects.base.Dialect`` for one model.

    ``reasoning_format`` and ``tool_format`` name rows of ``formats`` and override what the template
    tells; ``""`` means none. ``settings`` are given to the template with every request. ``images``:
    how an engine that sees is told where they stand, ``apart`` from the text or by what the
    ``template`` writes for them; None: it does not see. ``unreadable``: what becomes of images
    then. ``today`` tells templates the date. Raises ``SetupError`` for names that are no rows and
    templates that cannot be read.
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
        settings: Mapping[str, Any] | None = None,
        images: Literal["apart", "template"] | None = None,
        unreadable: Unreadable = "note",
        today: Callable[[], datetime] = datetime.now,
    ) -> None:
        self._card = card
        self._tokenizer = tokenizer
        self._settings = dict(settings or {})
        self._unreadable: Unreadable = unreadable
        source = template or card.chat_template or card.chat_templates.get("default")
        if source is None:
            source = CHATML if "<|im_start|>" in tokenizer.special else PLAIN
        tool_source = (None if template else card.chat_templates.get("tool_use")) or source
        thinks, calls = formats.detect(tool_source, tokenizer.special)
        if calls is None and tool_format is None:
            tool_source = source  # a way of calling that is not known here is not to be asked for
        thinking = formats.reasoning_format(_named(reasoning_format, thinks))
        tools = formats.tool_format(_named(tool_format, calls))
        self.reasoning = thinking and with_vocabulary_suffix(thinking, tokenizer.special)
        #: The same, if it tells how thinking is written, and not only answers.
        self._thinks: ReasoningFormat | None = (
            self.reasoning if self.reasoning is not None and self.reasoning.open else None
        )
        tools = tools and with_vocabulary_suffix(tools, tokenizer.special)
        used = terminals_of(self.reasoning, tools)
        self._plain = self._made(source, today, used)
        self._with_tools = (
            self._plain if tool_source == source else self._made(tool_source, today, used)
        )
        #: The template itself tells the model about tools.
        self.knows_tools = tools is not None and self._with_tools.traits.tools
        if tools is None or not (self.knows_tools or tools.written.parameter is None):
            tools = SHIPPED.tools["hermes"]
        self.tools: ToolFormat = tools
        #: What stands for an image in the text; None: images are not shown.
        self._place = self._with_tools.traits.image
        self._image: str | None = {
            "apart": "",
            "template": None if self._place is None else self._place.word,
            None: None,
        }[images]
        self._encoder = Encoder(tokenizer, card.fingerprint)
        self._image_ids = self._encoder.encode(self._image or "", None)
        self._grammarian = GrammarBuilder(tokenizer, self.tools, self.reasoning)
        self._lexers = {
            True: Lexer(tokenizer, self.reasoning, self.tools),
            False: Lexer(tokenizer, self.reasoning, None),
        }

    def _made(self, source: str, today: Callable[[], datetime], used: Collection[str]) -> _Way:
        card = self._card
        template = Template(source, bos=card.bos_token, eos=card.eos_token, today=today)
        traits = probe(template)
        own = _turn_end(traits.end, self._tokenizer.special, used)
        return _Way(
            template=template,
            traits=traits,
            stop_ids=tuple(own - self._tokenizer.end_ids),
            stop=_PLAIN_STOPS if source == PLAIN else (),
        )

    def render(self, conversation: Conversation, options: Options) -> Rendered:
        for name in RESERVED & options.template.keys():
            raise InvalidRequest(
                f"'{name}' is not for a request to set.",
                param=f"chat_template_kwargs.{name}",
                code="invalid_value",
            )
        shown = shown_tools(options, conversation.items)
        way = self._with_tools if shown.tools else self._plain
        text, thinking, pictures = self._marked(conversation, options, shown, way)
        thought = _effort_of(options) == "none" and not thinking
        constraint = self._grammarian.constraint(options, shown, thinking, thought=thought)
        return Rendered(
            prompt=self._prompt(text, pictures, conversation),
            parser=FormatParser(
                self._tokenizer,
                reasoning=self.reasoning,
                tools=self.tools if shown.tools else None,
                shapes=shown.shapes,
                thinking=thinking,
                parallel=options.parallel_tool_calls,
                constrained=constraint is not None,
                json_answer=isinstance(options.text.format, JsonSchemaFormat | JsonObjectFormat),
                lexer=self._lexers[bool(shown.tools)],
            ),
            constraint=constraint,
            stop=way.stop,
            stop_ids=way.stop_ids,
            **self._cut_short(options, shown, text),
        )

    def reasoning_retention(self, options: Options) -> ReasoningRetention:
        """As its template does with a thought of an earlier turn."""
        way = self._plain
        if way.traits.reasoning is None:
            return "current_turn"
        answer = {"role": "assistant", "content": "b", way.traits.reasoning: _THOUGHT}
        talk = [{"role": "user", "content": "a"}, answer, {"role": "user", "content": "c"}]
        settings = self._switches(way, options)
        try:
            text = way.template.render(
                fitted(talk, way.traits), tools=way.traits.no_tools, settings=settings
            )
        except Refused:
            return "current_turn"
        return "all_turns" if _THOUGHT in text else "current_turn"

    def _cut_short(self, options: Options, shown: PromptTools, prompt: str) -> dict[str, Any]:
        """What goes on where a budget of thinking is used up."""
        if options.thinking_budget is None or self._thinks is None:
            return {}
        end = self._thinks.closing_text(prompt)
        return {
            "reasoning_end_ids": tuple(self._tokenizer.encode(end, special=True)),
            "answer_constraint": self._grammarian.constraint(
                options, shown, thinking=False, thought=True
            ),
        }

    # --- the prompt ------------------------------------------------------------------------------

    @property
    def supports_images(self) -> bool:
        """It tells an engine where images stand."""
        return self._image is not None

    def _prompt(
        self, text: str, pictures: PromptImages | None, conversation: Conversation
    ) -> Prompt:
        if pictures is None or self._image is None or not pictures.found:
            return Prompt(ids=self._encoder.encode(text, conversation.stored_tokens))
        # Kept ids do not tell where images stood, so that these prompts are always written anew.
        ids, places = self._encoder.spread(text, pictures.mark, self._image)
        images = zip(pictures.found, places, strict=True)
        word = self._image_ids
        return Prompt(ids, tuple(Image(each.content, each.mime, at, word) for each, at in images))

    def _marked(
        self, conversation: Conversation, options: Options, shown: PromptTools, way: _Way
    ) -> tuple[str, bool, PromptImages | None]:
        """The text with a mark for each image: one that nobody wrote, found by trying."""
        if self._image is None:
            return *self._text(conversation, options, shown, way, None), None
        seen = ""
        for _ in range(2):
            pictures = PromptImages(next(marks(seen), ""), self._place)
            if not pictures.mark:
                break
            text, thinking = self._text(conversation, options, shown, way, pictures)
            if not pictures.found or text.count(pictures.mark) == len(pictures.found):
                return text, thinking, pictures
            seen = text
        raise InvalidRequest(
            "This model's chat template does not show all images of this conversation.",
            param="input",
        )

    def _text(
        self,
        conversation: Conversation,
        options: Options,
        shown: PromptTools,
        way: _Way,
        pictures: PromptImages | None,
    ) -> tuple[str, bool]:
        """The prompt, what users wrote masked, and whether it ends in the midst of thinking."""
        hide = self._encoder.hide
        messages: list[Message] = hide(
            messages_of(
                conversation.items, shown, self._unreadable, conversation.past_count, pictures
            )
        )
        unfinished = messages.pop() if messages and messages[-1].pop("open", False) else None
        if conversation.instructions:
            messages.insert(0, {"role": "system", "content": hide(conversation.instructions)})
        definitions = hide([tool.definition() for tool in shown.declared])
        native = bool(definitions) and self.knows_tools
        said = hide([*form_in_words(options), *format_instructions(options)])
        if definitions and not native:
            said.insert(0, tool_prompt(definitions, self.tools))
        if said:
            messages = _told(messages, "\n\n".join(said))
        if not (self.knows_tools and way.traits.results):
            messages = without_tools(messages, self.tools)
        if way.traits.reasoning is None:
            messages = self._think_aloud(messages)
        tools = definitions if native else way.traits.no_tools
        settings = self._switches(way, options)
        text = self._rendered(way, messages, tools, settings)
        if unfinished is not None:
            text += self._begun(unfinished, text)
            return text, self._thinks is not None and not unfinished["content"]
        text += self._unthinking(way.template, options, text)
        return text, self._opens_thinking(text)

    def _rendered(
        self, way: _Way, messages: list[Message], tools: Any, settings: Mapping[str, Any]
    ) -> str:
        try:
            text = way.template.render(fitted(messages, way.traits), tools=tools, settings=settings)
        except Refused as refused:
            raise InvalidRequest(
                f"This model's chat template does not take this conversation: {refused}",
                param="input",
            ) from None
        bos = self._card.bos_token
        return bos + text if self._card.add_bos and bos and not text.startswith(bos) else text

    def _begun(self, message: Message, text: str) -> str:
        """The beginning of an answer that the model is to go on with, behind the prompt ``text``
        that opens its turn."""
        thought, said = message.get("reasoning_content", ""), str(message["content"])
        form = self.reasoning
        if form is not None and said and (form.header or not form.open):
            said = form.answer[0] + said
        if form is None or not form.open:
            return said
        opened, closing = form.closing_tag(text), form.closing_text(text)
        if not thought:
            return f"{closing}{said}" if opened else said
        begun = thought if opened else f"{form.opening_text}{thought}"
        return f"{begun}{closing}{said}" if said else begun

    def _opens_thinking(self, text: str) -> bool:
        return self._thinks is not None and bool(self._thinks.closing_tag(text))

    def _unthinking(self, template: Template, options: Options, text: str) -> str:
        """For models that always think: where effort is none, the thinking is over already."""
        effort, form = _effort_of(options), self._thinks
        if form is None or effort != "none" or any(map(template.mentions, _SWITCHES)):
            return ""
        over = (
            tuple(form.opening_text + close for close in form.close) if form.header else form.close
        )
        over += form.answer[:1] if form.answer[0] else ()
        if text.rstrip().removesuffix(form.header).endswith(over):
            return ""
        return ("" if form.closing_tag(text) else form.opening_text) + form.closing_text(text)

    def _think_aloud(self, messages: list[Message]) -> list[Message]:
        """For templates that know no thinking: within a tool loop it stays, as the text the model
        wrote; what came before the user spoke last is dropped, as its makers do. Thinking that is
        a message of its own is none of another's text."""
        form = self._thinks
        if form is None or form.header:
            return messages
        spoken = (n for n, m in enumerate(messages) if m["role"] == "user" and "results" not in m)
        last_user = max(spoken, default=-1)
        out = []
        for position, message in enumerate(messages):
            thought = message.get("reasoning_content")
            if thought and position > last_user:
                text = f"{form.open[0]}\n{thought}\n{form.close[0]}\n\n{message['content']}"
                message = {**message, "content": text}
            out.append(message)
        return out

    def _switches(self, way: _Way, options: Options) -> dict[str, Any]:
        template = way.template
        settings = {**self._settings, **options.template}
        effort = _effort_of(options)
        told: dict[str, Any] = {}
        if effort is not None:
            scales = way.traits.efforts.items()
            told = {name: value(effort) for name, value in _SWITCHES.items()}
            told |= {name: _effort(way, words, effort) for name, words in scales}
        budget = 0 if effort == "none" else options.thinking_budget
        if budget is not None:
            told[_BUDGET] = budget
        return settings | {
            name: value
            for name, value in told.items()
            if template.mentions(name) and name not in options.template
        }


def _named(name: str | None, found: str | None) -> str:
    """A format by its name, or as it was found."""
    return (found if name is None or name in DETECTION_NAMES else name) or ""


def _effort_of(options: Options) -> str | None:
    return None if options.reasoning is None else options.reasoning.effort


def _effort(way: _Way, taken: Collection[str], effort: str) -> str:
    """An effort in the template's words: its own for the ends of the scale, else one of three
    levels, or the nearest of those that it takes."""
    own = [word for word in _ENDS.get(effort, ()) if way.template.names(word)]
    words = (*own, LEVELS.get(effort, effort), "high", "low")
    return next((word for word in words if word in taken), effort)


def _turn_end(text: str, special: Mapping[str, int], used: Collection[str]) -> frozenset[int]:
    """The control token with which a template ends a turn. ``used`` are the terminals of a model's
    formats: tokens of these part what it writes within a turn, and do not end it."""
    marked = [literal for literal in used if any(token in literal for token in special)]
    rest = text.lstrip()
    while found := next((literal for literal in marked if rest.startswith(literal)), None):
        rest = rest[len(found) :].lstrip()
    end = next((token for token in special if rest.startswith(token)), None)
    if end is None or any(end in literal for literal in marked):
        return frozenset()
    return frozenset({special[end]})


def _told(messages: list[Message], text: str) -> list[Message]:
    """``text`` behind what the leading system message says."""
    if messages and messages[0]["role"] == "system":
        first = {**messages[0], "content": f"{messages[0]['content']}\n\n{text}"}
        return [first, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]
