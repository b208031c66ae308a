"""A backend that calls any upstream server that offers the Chat Completions API.

The conversation is sent as messages, and the options are sent as fields of the body. The answer's
stream is parsed into deltas. Only the upstream can count tokens, so the token counts before the
answer are estimates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from antiphon.backends.local.capability_checks import extra_field
from antiphon.backends.remote.base import (
    RemoteBackend,
    check_server_options,
    unsupported_error,
)
from antiphon.dialects.base import Parser
from antiphon.dialects.instructions import format_instructions, json_format_instructions
from antiphon.dialects.tools import PromptTool, PromptTools, collect_tools
from antiphon.inference.conversation import Conversation, Options, ToolChoice
from antiphon.upstream.client import Upstream
from antiphon.wire.json_types import JsonObject
from antiphon.wire.response import Effort, JsonObjectFormat, JsonSchemaFormat

from .messages import build_chat_messages
from .servers import STANDARD, ChatFlavour
from .stream_parser import ChatStreamParser

#: Options that are not part of OpenAI's API and that only some servers support.
_NONSTANDARD_OPTIONS = (
    "top_k",
    "min_p",
    "repetition_penalty",
    "ignore_eos",
    "include_stop_text",
    "logprob_token_ids",
    "priority",
    "cache_salt",
    "thinking_budget",
    "adapter",
)
#: Largest budget of reasoning tokens → the effort that stands for it.
_EFFORTS: Sequence[tuple[int, Effort]] = ((0, "none"), (4_096, "low"), (16_384, "medium"))
_HIGHEST_EFFORT: Effort = "high"


class ChatCompletionsBackend(RemoteBackend):
    """``Backend`` for one model of an upstream server that offers the Chat Completions API.

    ``flavour``: the features of this kind of server. ``reasoning_parser``: creates a parser for
    reasoning within the content, for upstreams that do not separate reasoning from content.
    ``adapters``: name of a LoRA adapter in Antiphon → its name on the upstream.
    """

    path = "chat/completions"
    items_field = "messages"
    flavour: ChatFlavour

    def __init__(
        self,
        upstream: Upstream,
        model: str,
        flavour: ChatFlavour,
        *,
        context_size: int | None = None,
        body: Mapping[str, object] | None = None,
        template: Mapping[str, object] | None = None,
        reasoning_parser: Callable[[], Parser] | None = None,
        adapters: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(
            upstream, model, flavour, context_size=context_size, body=body, template=template
        )
        self._reasoning_parser = reasoning_parser
        self._adapters = adapters or {}

    def visible_tools(self, conversation: Conversation, options: Options) -> PromptTools:
        return collect_tools(options, conversation.items)

    def encode_items(
        self, conversation: Conversation, options: Options, prompt_tools: PromptTools
    ) -> list[JsonObject]:
        messages = build_chat_messages(
            conversation,
            prompt_tools,
            reasoning_fields=self.flavour.reasoning_fields,
            has_developer_role=self.flavour.has_developer_role,
            origin=self.upstream.root,
        )
        if messages and isinstance(text := messages[0]["content"], str):
            messages[0]["content"] = options.encoded(text)
        return messages

    def own_fields(self, conversation: Conversation, options: Options) -> JsonObject:
        flavour = self.flavour
        return {
            "prompt_cache_key": options.cache_key if flavour.has_developer_role else None,
            flavour.option_fields.get("cache_salt", ""): options.prefix_salt,
        }

    def added_instructions(self, options: Options) -> Sequence[str]:
        flavour = self.flavour
        if flavour.accepts_guide(options.guide):
            options = replace(options, guide=None)
        if flavour.has_developer_role:
            options = replace(options, text=replace(options.text, verbosity=UNSET))
        form = [] if flavour.enforces_format else json_format_instructions(options)
        return form + format_instructions(options)

    def shared_fields(self, options: Options, prompt_tools: PromptTools) -> JsonObject:
        flavour = self.flavour
        _check(options, flavour)
        body: JsonObject = {
            "model": self._model,
            "stream": True,
            "stream_options": {"include_usage": True},
            **(
                flavour.token_count_options
                if self._reasoning_parser or not flavour.counts_reasoning
                else {}
            ),
            **_sampling(self._for_server(options), flavour),
            **_tools(prompt_tools, options.tool_choice, options.allows_parallel_calls),
            **_response_format(options, flavour),
            **_reasoning_effort(options, flavour),
        }
        template = {**self._template, **body.pop("chat_template_kwargs", {}), **options.template}
        if template:
            body["chat_template_kwargs"] = template
        return body

    def _for_server(self, options: Options) -> Options:
        """Return a copy of the options for the upstream. In the copy, the LoRA adapter has its name
        on the upstream. The salt is a field of the single request."""
        adapter = self._adapters.get(options.adapter or "") or options.adapter
        return replace(options, adapter=adapter, cache_salt=None)

    def stream_parser(
        self,
        conversation: Conversation,
        options: Options,
        prompt_tools: PromptTools,
        input_tokens: int,
    ) -> ChatStreamParser:
        return ChatStreamParser(
            prompt_tools.shapes,
            used_call_ids=(item.call_id or "" for item in conversation.items),
            reasoning_parser=None if self._reasoning_parser is None else self._reasoning_parser(),
            origin=self.upstream.root,
            input_tokens=input_tokens,
            stop=options.stop,
        )


# --- the request -------------------------------------------------------------------------------


def _check(options: Options, flavour: ChatFlavour) -> None:
    check_server_options(options, _NONSTANDARD_OPTIONS, flavour.option_fields)
    if flavour.ignored_option is not None and getattr(options, flavour.ignored_option) is not None:
        raise unsupported_error(flavour.ignored_option)
    if options.extra and not flavour.accepts_vllm_xargs:
        raise unsupported_error(extra_field(next(iter(options.extra))))
    if options.template and not flavour.accepts_template_kwargs:
        raise unsupported_error("chat_template_kwargs")


def _sampling(options: Options, flavour: ChatFlavour) -> JsonObject:
    body: JsonObject = {}
    for option, field in {**STANDARD, **flavour.option_fields}.items():
        value = getattr(options, option)
        if value is not None and value is not False:
            body[field] = value
    if options.priority is not None and flavour.higher_priority_first:
        body["priority"] = -options.priority
    if options.max_output_tokens is not None:
        body[flavour.max_tokens_field] = options.max_output_tokens
    if options.stop:
        body["stop"] = options.stop
    if options.logit_bias:
        body["logit_bias"] = {str(id): bias for id, bias in options.logit_bias.items()}
    if options.logprobs is not None:
        body["logprobs"] = True
        if options.logprobs:
            body["top_logprobs"] = options.logprobs
    return body | _extra(options)


def _extra(options: Options) -> JsonObject:
    xargs = dict(options.extra)
    kwargs = xargs.pop("mm_processor_kwargs", None)
    body = {"mm_processor_kwargs": kwargs, "vllm_xargs": xargs}
    return {field: value for field, value in body.items() if value}


def _tools(
    prompt_tools: PromptTools, choice: ToolChoice, allows_parallel_calls: bool
) -> JsonObject:
    """Return the fields of the request that describe tools. The field ``tools`` contains only the
    tools that the model may call, because this API has no other way to forbid a tool."""
    if not prompt_tools.callable:
        return {}
    body: JsonObject = {"tools": [_tool(tool) for tool in prompt_tools.callable]}
    if prompt_tools.required:
        body["tool_choice"] = _tool_choice(choice, prompt_tools)
    if not allows_parallel_calls:
        body["parallel_tool_calls"] = False
    return body


def _tool(tool: PromptTool) -> JsonObject:
    definition = tool.definition()
    if tool.strict:
        definition["function"]["strict"] = True
    return definition


def _tool_choice(choice: ToolChoice, prompt_tools: PromptTools) -> Any:
    if choice.mode == "one" and len(prompt_tools.callable) == 1:
        return {"type": "function", "function": {"name": prompt_tools.callable[0].name}}
    return "required"


def _response_format(options: Options, flavour: ChatFlavour) -> JsonObject:
    if (guide := options.guide) is not None and flavour.accepts_guide(guide):
        return flavour.guide_fields(guide)
    match options.text.format:
        case JsonObjectFormat():
            return {"response_format": {"type": "json_object"}}
        case JsonSchemaFormat() if not flavour.accepts_schemas:
            return {"response_format": {"type": "json_object"}}
        case JsonSchemaFormat() as form:
            schema = {"name": form.name, "schema": form.schema, "strict": form.strict}
            if form.description is not None:
                schema["description"] = form.description
            return {"response_format": {"type": "json_schema", "json_schema": schema}}
    return {}


def _reasoning_effort(options: Options, flavour: ChatFlavour) -> JsonObject:
    """Return the request fields for the reasoning effort and the verbosity. If the upstream server
    accepts arguments for its chat template, the fields include the argument that switches reasoning
    on or off."""
    body: JsonObject = {}
    if options.text.verbosity is not UNSET and flavour.has_developer_role:
        body["verbosity"] = options.text.verbosity
    effort = None if options.reasoning is None else options.reasoning.effort
    effort = effort or _effort_of_budget(options, flavour)
    if effort is None:
        return body
    match flavour.effort_style:
        case "reasoning":
            body["reasoning"] = {"effort": effort}
        case "thinking":
            body["thinking"] = {"type": "disabled" if effort == "none" else "enabled"}
        case _:
            body["reasoning_effort"] = effort
    if flavour.accepts_template_kwargs:
        body["chat_template_kwargs"] = {"enable_thinking": effort != "none"}
    return body


def _effort_of_budget(options: Options, flavour: ChatFlavour) -> Effort | None:
    """Return the reasoning effort that stands for the request's budget of reasoning tokens. Returns
    None if the server supports budgets, or if it may refuse an effort for a model that does not
    reason."""
    budget = options.thinking_budget
    ignores_effort = flavour.effort_style != "reasoning_effort" or flavour.accepts_template_kwargs
    if budget is None or "thinking_budget" in flavour.option_fields or not ignores_effort:
        return None
    return next((effort for limit, effort in _EFFORTS if budget <= limit), _HIGHEST_EFFORT)
