"""Any Chat Completions server as a backend: local ones, hosted ones, by address and key.

The conversation becomes messages, what is asked a body, and the stream that comes back deltas.
Tokens are the upstream's own affair: counts before the answer are estimates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from antiphon.backends.local.capability_checks import extra_field
from antiphon.backends.remote.base import (
    RemoteBackend,
    check_server_options,
    unsupported,
    with_instructions,
)
from antiphon.conversation import Conversation, Options
from antiphon.dialects.base import Parser
from antiphon.dialects.instructions import form_in_words, format_instructions
from antiphon.dialects.tools import PromptTool, PromptTools, shown_tools
from antiphon.upstream.client import Upstream
from antiphon.wire.response import JsonObjectFormat, JsonSchemaFormat

from .messages import messages
from .servers import STANDARD, ChatFlavour
from .stream_parser import ChatStreamParser

__all__ = ["ChatCompletionsBackend"]

_encode = msgspec.json.Encoder().encode

#: Options that are not part of OpenAI's API and that only some servers know.
_PARTICULAR = (
    "top_k",
    "min_p",
    "repetition_penalty",
    "ignore_eos",
    "include_stop_text",
    "priority",
    "cache_salt",
    "thinking_budget",
    "adapter",
)


class ChatCompletionsBackend(RemoteBackend):
    """``Backend`` of a server of Chat Completions. ``reader``: makes what reads thinking in the
    content, for servers that leave it there. ``adapters``: what they are called here → what
    there."""

    path = "chat/completions"

    def __init__(
        self,
        upstream: Upstream,
        model: str,
        flavour: ChatFlavour,
        *,
        context_size: int | None = None,
        body: Mapping[str, Any] | None = None,
        template: Mapping[str, Any] | None = None,
        reader: Callable[[], Parser] | None = None,
        adapters: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(upstream, model, context_size=context_size, body=body, template=template)
        self.flavour = flavour
        self.unread = flavour.unread
        self._reader = reader
        self._adapters = adapters or {}

    def visible_tools(self, conversation: Conversation, options: Options) -> PromptTools:
        _check(options, self.flavour)
        return shown_tools(options, conversation.items)

    @property
    def enforces_calls(self) -> bool:
        return self.flavour.calls

    def enforces_format(self, options: Options) -> bool:
        if options.guide is not None:
            return options.guide.syntax in self.flavour.guides
        return self.flavour.form == "holds"

    def encode_request(
        self, conversation: Conversation, options: Options, shown: PromptTools
    ) -> bytes:
        flavour = self.flavour
        body: dict[str, Any] = {
            "model": self._model,
            "messages": messages(
                with_instructions(conversation, _words(options, flavour)),
                shown,
                thought=flavour.thought,
                developer=flavour.developer,
                origin=self.upstream.root,
            ),
            "stream": True,
            "stream_options": {"include_usage": True},
            **(flavour.counts if self._reader or not flavour.counts_thinking else {}),
            **_sampling(self._there(options), flavour),
            **_tools(options, shown),
            **_form(options, flavour),
            **_effort(options, flavour),
        }
        template = {**self._template, **body.pop("chat_template_kwargs", {}), **options.template}
        if template:
            body["chat_template_kwargs"] = template
        return _encode({**body, **self._body})

    def _there(self, options: Options) -> Options:
        """With the adapter by its name there."""
        adapter = self._adapters.get(options.adapter or "")
        return options if not adapter else replace(options, adapter=adapter)

    def stream_parser(
        self, conversation: Conversation, options: Options, shown: PromptTools, given: int
    ) -> ChatStreamParser:
        return ChatStreamParser(
            shown.shapes,
            taken=(getattr(item, "call_id", None) or "" for item in conversation.items),
            thinking=None if self._reader is None else self._reader(),
            origin=self.upstream.root,
            given=given,
        )


# --- what is asked -------------------------------------------------------------------------------


def _check(options: Options, flavour: ChatFlavour) -> None:
    check_server_options(options, _PARTICULAR, flavour.fields)
    if flavour.without is not None and getattr(options, flavour.without) is not None:
        raise unsupported(flavour.without)
    if options.extra and not flavour.extra:
        raise unsupported(extra_field(next(iter(options.extra))))
    if options.template and not flavour.template:
        raise unsupported("chat_template_kwargs")


def _sampling(options: Options, flavour: ChatFlavour) -> dict[str, Any]:
    body: dict[str, Any] = {}
    for option, field in {**STANDARD, **flavour.fields}.items():
        value = getattr(options, option)
        if value is not None and value is not False:
            body[field] = value
    if options.priority is not None and flavour.higher_first:
        body["priority"] = -options.priority
    if options.max_output_tokens is not None:
        body[flavour.limit] = options.max_output_tokens
    if options.stop:
        body["stop"] = options.stop
    if options.logit_bias:
        body["logit_bias"] = {str(id): bias for id, bias in options.logit_bias.items()}
    if options.logprobs is not None:
        body["logprobs"] = True
        if options.logprobs:
            body["top_logprobs"] = options.logprobs
    if options.cache_key is not None and flavour.developer:
        body["prompt_cache_key"] = options.cache_key
    return body | _extra(options)


def _extra(options: Options) -> dict[str, Any]:
    besides = dict(options.extra)
    kwargs = besides.pop("mm_processor_kwargs", None)
    body = {"mm_processor_kwargs": kwargs, "vllm_xargs": besides}
    return {field: value for field, value in body.items() if value}


def _tools(options: Options, shown: PromptTools) -> dict[str, Any]:
    """The tools that may be called: this API has no other way to allow some of them."""
    if not shown.callable:
        return {}
    body: dict[str, Any] = {"tools": [_tool(tool) for tool in shown.callable]}
    if shown.required:
        body["tool_choice"] = _choice(options, shown)
    if not options.parallel_tool_calls:
        body["parallel_tool_calls"] = False
    return body


def _tool(tool: PromptTool) -> dict[str, Any]:
    definition = tool.definition()
    if tool.strict:
        definition["function"]["strict"] = True
    return definition


def _choice(options: Options, shown: PromptTools) -> Any:
    if options.tool_choice.mode == "one" and len(shown.callable) == 1:
        return {"type": "function", "function": {"name": shown.callable[0].name}}
    return "required"


def _form(options: Options, flavour: ChatFlavour) -> dict[str, Any]:
    if (guide := options.guide) is not None and guide.syntax in flavour.guides:
        *outer, field = flavour.guides[guide.syntax]
        return {outer[0]: {field: guide.definition}} if outer else {field: guide.definition}
    match options.text.format:
        case JsonObjectFormat():
            return {"response_format": {"type": "json_object"}}
        case JsonSchemaFormat() if flavour.form == "json":
            return {"response_format": {"type": "json_object"}}
        case JsonSchemaFormat() as form:
            schema = {"name": form.name, "schema": form.schema, "strict": form.strict}
            if form.description is not None:
                schema["description"] = form.description
            return {"response_format": {"type": "json_schema", "json_schema": schema}}
    return {}


def _words(options: Options, flavour: ChatFlavour) -> list[str]:
    """What the model is told of its answer, where the server has no field for it or may pass over
    the one it has."""
    if options.guide is not None and options.guide.syntax in flavour.guides:
        options = replace(options, guide=None)
    if flavour.developer:
        options = replace(options, text=replace(options.text, verbosity=UNSET))
    form = [] if flavour.form == "holds" else form_in_words(options)
    return form + format_instructions(options)


def _effort(options: Options, flavour: ChatFlavour) -> dict[str, Any]:
    """How hard to think. Chat templates have a switch of their own for not at all."""
    body: dict[str, Any] = {}
    if options.text.verbosity is not UNSET and flavour.developer:
        body["verbosity"] = options.text.verbosity
    effort = None if options.reasoning is None else options.reasoning.effort
    if effort is None:
        return body
    match flavour.effort:
        case "reasoning":
            body["reasoning"] = {"effort": effort}
        case "thinking":
            body["thinking"] = {"type": "disabled" if effort == "none" else "enabled"}
        case _:
            body["reasoning_effort"] = effort
    if flavour.template:
        body["chat_template_kwargs"] = {"enable_thinking": effort != "none"}
    return body
