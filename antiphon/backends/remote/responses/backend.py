"""A backend that calls any upstream server that offers the Responses API.

Antiphon itself handles stored responses, server-side tools and background runs. So each request to
the upstream contains the whole conversation, with ``store: false``. Only the upstream can count
tokens, so the token counts before the answer are estimates.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from antiphon.backends.local.capability_checks import extra_field
from antiphon.backends.remote.base import (
    RemoteBackend,
    check_server_options,
    unsupported_error,
)
from antiphon.dialects.async_calls import shown_items, shown_tool
from antiphon.dialects.instructions import format_instructions, json_format_instructions
from antiphon.dialects.json_stream import dump
from antiphon.dialects.messages import render_call, render_result
from antiphon.dialects.tools import PromptTool, PromptTools, collect_tools
from antiphon.inference.conversation import (
    NEUTRAL_VALUES,
    Conversation,
    Options,
    ToolChoice,
    caller_program_id,
    open_programs,
)
from antiphon.stream.kinds import KINDS
from antiphon.upstream.client import Upstream
from antiphon.wire import items as it
from antiphon.wire.json_types import JsonObject
from antiphon.wire.tools import Custom, Function, Namespace, Tool

from .servers import ResponsesFlavour
from .stream_parser import ResponsesStreamParser

_encode = msgspec.json.Encoder().encode

#: Tools of the client. The upstream runs all other tools.
_CLIENT_TOOLS = (Function, Custom, Namespace)
_PROGRAMS = "programmatic_tool_calling"


class ResponsesBackend(RemoteBackend):
    """``Backend`` for one model of an upstream server that offers the Responses API.

    ``flavour``: the features of this kind of server. ``hosted_tools``: types of the tools that the
    upstream runs.
    """

    path = "responses"
    items_field = "input"
    flavour: ResponsesFlavour

    def __init__(
        self,
        upstream: Upstream,
        model: str,
        flavour: ResponsesFlavour,
        *,
        context_size: int | None = None,
        body: Mapping[str, object] | None = None,
        template: Mapping[str, object] | None = None,
        hosted_tools: frozenset[str] = frozenset(),
    ) -> None:
        super().__init__(
            upstream, model, flavour, context_size=context_size, body=body, template=template
        )
        self.capabilities = replace(
            self.capabilities, hosted_tools=hosted_tools, summarizes_reasoning=True
        )

    def visible_tools(self, conversation: Conversation, options: Options) -> PromptTools:
        hosted = any(not isinstance(tool, _CLIENT_TOOLS) for tool in options.tools)
        if hosted and options.tool_choice.must_call:
            # A call of a tool that the upstream runs also fulfils the tool choice.
            options = replace(options, tool_choice=ToolChoice())
        return collect_tools(options, conversation.items)

    def own_fields(self, conversation: Conversation, options: Options) -> JsonObject:
        text = conversation.instructions
        return {
            "instructions": options.encoded(text) if text else None,
            "prompt_cache_key": options.cache_key,
            self.flavour.option_fields.get("cache_salt", ""): options.prefix_salt,
        }

    def added_instructions(self, options: Options) -> Sequence[str]:
        flavour = self.flavour
        form = [] if flavour.enforces_format else json_format_instructions(options)
        if flavour.accepts_guide(options.guide):
            options = replace(options, guide=None)
        if flavour.native_tools:
            options = replace(options, tools=())
        text = replace(options.text, verbosity=UNSET)
        return form + format_instructions(replace(options, text=text))

    def shared_fields(self, options: Options, prompt_tools: PromptTools) -> JsonObject:
        _check(options, self.flavour)
        flavour, options = self.flavour, replace(options, cache_salt=None)
        body: JsonObject = {
            "model": self._model,
            "stream": True,
            "store": False,
        }
        for option, field in {**_STANDARD_FIELDS, **flavour.option_fields}.items():
            value = getattr(options, option)
            if value not in (None, (), {}) and value is not False:
                body[field] = value
        if (guide := options.guide) is not None and flavour.accepts_guide(guide):
            body |= flavour.guide_fields(guide)
        if options.reasoning is not None and (reasoning := _set_fields(options.reasoning)):
            body["reasoning"] = reasoning
        if text := _set_fields(options.text):
            body["text"] = text
        include = ["reasoning.encrypted_content"] if flavour.encrypts_reasoning else []
        if options.logprobs is not None:
            include.append("message.output_text.logprobs")
            body["top_logprobs"] = options.logprobs
        if include:
            body["include"] = include
        if template := {**self._template, **options.template}:
            body["chat_template_kwargs"] = template
        return body | self._tools(options, prompt_tools)

    def _tools(self, options: Options, prompt_tools: PromptTools) -> JsonObject:
        """Return the fields of the request that describe tools."""
        tools, choice = options.tools, options.tool_choice
        body: JsonObject = {}
        if self.flavour.native_tools:
            if tools:
                body["tools"] = [_shown(tool) for tool in tools]
                body["tool_choice"] = _native_choice(choice, prompt_tools)
        else:
            functions = [
                {**tool.definition()["function"], "type": "function", "strict": tool.strict}
                for tool in prompt_tools.callable
            ]
            hosted = [tool for tool in tools if not isinstance(tool, _CLIENT_TOOLS)]
            if functions or hosted:
                body["tools"] = [*functions, *hosted]
                if (named := _function_choice(choice, prompt_tools)) is not None:
                    body["tool_choice"] = named
        if body and not options.allows_parallel_calls:
            body["parallel_tool_calls"] = False
        return body

    def encode_items(
        self, conversation: Conversation, options: Options, prompt_tools: PromptTools
    ) -> Iterator[JsonObject | msgspec.Raw]:
        items = tuple(item for _, item in shown_items(conversation.items))
        hosted = self.capabilities.hosted_tools
        for item in items if _PROGRAMS in hosted else _without_programs(items):
            if isinstance(item, it.Reasoning):
                yield from _reasoning(item, self.flavour, self.upstream.root)
            elif _needs_its_tool(item) and item.tool_type not in hosted:
                yield from map(_to_json, _as_function_call(item, prompt_tools))
            elif self.flavour.native_tools:
                yield _to_json(item)
            else:
                yield _to_json(_as_function(item, prompt_tools))

    def stream_parser(
        self,
        conversation: Conversation,
        options: Options,
        prompt_tools: PromptTools,
        input_tokens: int,
    ) -> ResponsesStreamParser:
        return ResponsesStreamParser(
            {} if self.flavour.native_tools else prompt_tools.shapes,
            origin=self.upstream.root,
            input_tokens=input_tokens,
            max_output_tokens=options.max_output_tokens,
        )


# --- the request -------------------------------------------------------------------------------

_STANDARD_FIELDS: Mapping[str, str] = {
    "temperature": "temperature",
    "top_p": "top_p",
    "max_output_tokens": "max_output_tokens",
}


def _check(options: Options, flavour: ResponsesFlavour) -> None:
    # none of these options is part of the API
    check_server_options(options, NEUTRAL_VALUES, flavour.option_fields)
    if options.template and not flavour.accepts_template_kwargs:
        raise unsupported_error("chat_template_kwargs")
    if options.extra:
        raise unsupported_error(extra_field(next(iter(options.extra))))


def _set_fields(value: object) -> JsonObject:
    """Return the fields of ``value`` that are set and not null. ``value``: the option ``reasoning``
    or ``text``. Returns an empty dict if the only such field is ``format`` with its default value,
    ``{"type": "text"}``."""
    fields: JsonObject = msgspec.to_builtins(value)
    values = {name: inner for name, inner in fields.items() if inner is not None}
    return {} if values == {"format": {"type": "text"}} else values


def _native_choice(choice: ToolChoice, prompt_tools: PromptTools) -> Any:
    """Return ``tool_choice`` for an upstream that supports custom tools and namespaces. Tools keep
    their types and names for such an upstream."""
    hosted = msgspec.to_builtins(choice.hosted)
    functions = [
        _tool_reference(tool, prompt_tools)
        for tool in prompt_tools.tools
        if choice.allows(tool.shape.wire_name, tool.shape.namespace)
    ]
    if choice.mode == "one":
        return next(iter((*hosted, *functions)), "auto")
    if choice.mode == "none" or choice.allowed is None:
        return choice.mode
    return {"type": "allowed_tools", "mode": choice.mode, "tools": [*functions, *hosted]}


def _tool_reference(tool: PromptTool, prompt_tools: PromptTools) -> dict[str, str]:
    """Return the reference to a tool in ``tool_choice``: its type and its name. The namespace is an
    extension of the API, so it is included only if another tool has the same name."""
    shape = tool.shape
    named = {"type": "custom" if shape.custom else "function", "name": shape.wire_name}
    is_unique = sum(other.shape.wire_name == shape.wire_name for other in prompt_tools.tools) == 1
    return (
        named if is_unique or shape.namespace is None else {**named, "namespace": shape.namespace}
    )


def _function_choice(choice: ToolChoice, prompt_tools: PromptTools) -> Any:
    """Return ``tool_choice`` for an upstream that supports neither custom tools nor namespaces. All
    client tools are sent to such an upstream as functions. Return None if the field must be left
    out."""
    if choice.mode == "one" and choice.hosted:
        return msgspec.to_builtins(choice.hosted[0])
    names = [
        tool.name
        for tool in prompt_tools.tools
        if choice.allows(tool.shape.wire_name, tool.shape.namespace)
    ]
    if choice.mode == "one" and len(names) == 1:
        return {"type": "function", "name": names[0]}
    if choice.mode == "none":
        return "none"
    return "required" if choice.must_call else None


def _shown(tool: Tool) -> Tool:
    """Return a tool as the upstream's model is shown it. Antiphon itself does what asynchronous
    calls need, because few upstreams know them."""
    if isinstance(tool, Namespace):
        return replace(tool, tools=tuple(map(shown_tool, tool.tools)))
    return shown_tool(tool) if isinstance(tool, Function | Custom) else tool


# --- the conversation ----------------------------------------------------------------------------


def _without_programs(items: Sequence[it.Item]) -> Iterator[it.Item]:
    """Yield the items for an upstream that does not run programs. A program is code that the model
    wrote to call tools.

    - A program that ran in Antiphon is replaced by the tool call in which the model wrote the
      program.
    - An unfinished program is left out.
    - Tool calls that a program made are left out.
    """
    open_ids = {program.call_id for program in open_programs(items)}
    called_by_programs = {
        each.call_id or each.id for each in items if caller_program_id(each) is not None
    }
    for item in items:
        match item:
            case it.Program():
                if item.call_id not in open_ids and item.fingerprint:
                    yield it.CustomToolCall(call_id=item.call_id, name="program", input=item.code)
            case it.ProgramOutput():
                yield it.CustomToolCallOutput(call_id=item.call_id, output=item.result)
            case _ if caller_program_id(item) is None and item.call_id not in called_by_programs:
                yield item if item.caller is UNSET else replace(item, caller=UNSET)


def _needs_its_tool(item: it.Item) -> bool:
    """Return whether only an upstream that runs the tool of the item knows such items."""
    kind = KINDS[type(item)]
    return kind.contains_result and not kind.returned_with_id


def _as_function_call(item: it.Item, prompt_tools: PromptTools) -> tuple[it.Item, it.Item]:
    """Convert the item of a server-side tool call that Antiphon has run. Return a function call and
    its output.

    The original item cannot be sent, because the upstream does not know its ids, containers and
    images.
    """
    name, arguments = render_call(item)
    arguments = arguments if isinstance(arguments, str) else dump(arguments)
    name = prompt_tools.name_of(name, item.namespace or None)
    return (
        it.FunctionCall(call_id=item.id, name=name, arguments=arguments),
        it.FunctionCallOutput(call_id=item.id, output=render_result(item)),
    )


def _to_json(item: it.Item) -> JsonObject:
    """Return the item as a JSON object. Most ids are left out, because Antiphon created these ids
    and the upstream does not know them. So is ``passage_files``: it is Antiphon's extension of the
    API, and an upstream that searches files may reject it."""
    if isinstance(item, it.FileSearchCall):
        item = replace(item, passage_files=UNSET)
    fields: JsonObject = msgspec.to_builtins(item)
    if (
        not KINDS[type(item)].returned_with_id
        or not item.id
        or fields.get("role", "assistant") != "assistant"
    ):
        fields.pop("id", None)
    return fields


def _reasoning(item: it.Reasoning, flavour: ResponsesFlavour, origin: str) -> Sequence[JsonObject]:
    """Return the JSON objects to send for a reasoning item: one object or an empty list.

    Reasoning that this upstream encrypted is sent back unchanged. Other reasoning is sent as text.
    It is left out if the upstream accepts only encrypted reasoning.
    """
    source, line, state = (item.encrypted_content or "").partition("\n")
    if line and source == origin:
        summary = msgspec.to_builtins(item.summary)
        return [{"type": "reasoning", "summary": summary, **json.loads(state)}]
    if flavour.encrypts_reasoning or not (item.content or item.summary):
        return []
    return [_to_json(replace(item, encrypted_content=UNSET))]


def _as_function(item: it.Item, prompt_tools: PromptTools) -> it.Item:
    """Convert a call of a custom tool or of a tool in a namespace to a plain function call, for
    upstreams that support only functions. Return other items unchanged."""
    match item:
        case it.CustomToolCall():
            namespace = item.namespace or None
            return it.FunctionCall(
                call_id=item.call_id,
                name=prompt_tools.name_of(item.name, namespace),
                arguments=dump({"input": item.input}),
            )
        case it.CustomToolCallOutput():
            return it.FunctionCallOutput(call_id=item.call_id, output=item.output)
        case it.FunctionCall() if item.namespace:
            name = prompt_tools.name_of(item.name, item.namespace)
            return replace(item, name=name, namespace=UNSET)
    return item
