"""Any server of the Responses API as a backend, with our state, tools and background before it.

It is asked with the whole conversation and told to keep nothing; its items become ours. Tokens are
its own affair: counts before the answer are estimates.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from antiphon.backends.base import BackendCapabilities
from antiphon.backends.local.capability_checks import extra_field
from antiphon.backends.remote.base import (
    RemoteBackend,
    check_server_options,
    unsupported,
    with_instructions,
)
from antiphon.conversation import (
    NEUTRAL_VALUES,
    Conversation,
    Options,
    ToolChoice,
    caller_program_id,
    open_programs,
)
from antiphon.dialects.instructions import form_in_words, format_instructions
from antiphon.dialects.json_stream import dump
from antiphon.dialects.messages import told_of
from antiphon.dialects.tools import PromptTool, PromptTools, shown_tools
from antiphon.upstream.client import Upstream
from antiphon.wire import items as it
from antiphon.wire.tools import Custom, Function, Namespace

from .servers import ResponsesFlavour
from .stream_parser import ResponsesStreamParser

__all__ = ["ResponsesBackend"]

_encode = msgspec.json.Encoder().encode

#: Tools of the client; what else a request has is run by the upstream.
_OURS = (Function, Custom, Namespace)
#: Kinds of items that tools leave behind which run at the upstream or here → their types.
_HOSTED: Mapping[type[it.ItemBase], str] = {
    it.ImageGenerationCall: "image_generation",
    it.CodeInterpreterCall: "code_interpreter",
    it.FileSearchCall: "file_search",
}
_PROGRAMS = "programmatic_tool_calling"
#: Kinds of items whose ids servers want to see again.
_NAMED = (it.Message, it.Reasoning, it.McpCall, it.McpApprovalRequest, it.WebSearchCall)


class ResponsesBackend(RemoteBackend):
    """``Backend`` of a server of the Responses API. ``hosted_tools``: types of the tools that the
    upstream runs."""

    path = "responses"

    def __init__(
        self,
        upstream: Upstream,
        model: str,
        flavour: ResponsesFlavour,
        *,
        context_size: int | None = None,
        body: Mapping[str, Any] | None = None,
        template: Mapping[str, Any] | None = None,
        hosted_tools: frozenset[str] = frozenset(),
    ) -> None:
        super().__init__(upstream, model, context_size=context_size, body=body, template=template)
        self.flavour = flavour
        self.unread = flavour.unread
        self.capabilities = BackendCapabilities(images=True, hosted_tools=hosted_tools)

    def visible_tools(self, conversation: Conversation, options: Options) -> PromptTools:
        _check(options, self.flavour)
        hosted = any(not isinstance(tool, _OURS) for tool in options.tools)
        if hosted and options.tool_choice.must_call:
            # A call of a tool that the upstream runs satisfies the choice too.
            options = replace(options, tool_choice=ToolChoice())
        return shown_tools(options, conversation.items)

    @property
    def enforces_calls(self) -> bool:
        return self.flavour.native

    def enforces_format(self, options: Options) -> bool:
        if options.guide is not None:
            return options.guide.syntax in self.flavour.guides
        return self.flavour.holds

    def encode_request(
        self, conversation: Conversation, options: Options, shown: PromptTools
    ) -> bytes:
        flavour = self.flavour
        conversation = with_instructions(conversation, _words(options, flavour))
        body: dict[str, Any] = {
            "model": self._model,
            "input": list(self._items(conversation, shown)),
            "stream": True,
            "store": False,
        }
        if conversation.instructions:
            body["instructions"] = conversation.instructions
        for option, field in {**_PLAIN, **flavour.fields}.items():
            value = getattr(options, option)
            if value not in (None, (), {}) and value is not False:
                body[field] = value
        if (guide := options.guide) is not None and guide.syntax in flavour.guides:
            body["structured_outputs"] = {flavour.guides[guide.syntax]: guide.definition}
        if options.reasoning is not None and (reasoning := _set(options.reasoning)):
            body["reasoning"] = reasoning
        if text := _set(options.text):
            body["text"] = text
        include = ["reasoning.encrypted_content"] if flavour.seals else []
        if options.logprobs is not None:
            include.append("message.output_text.logprobs")
            body["top_logprobs"] = options.logprobs
        if include:
            body["include"] = include
        body |= _tools(options, shown, flavour)
        if template := {**self._template, **options.template}:
            body["chat_template_kwargs"] = template
        return _encode({**body, **self._body})

    def _items(self, conversation: Conversation, shown: PromptTools) -> Iterator[dict[str, Any]]:
        items, hosted = conversation.items, self.capabilities.hosted_tools
        for item in items if _PROGRAMS in hosted else _without_programs(items):
            runs = _HOSTED.get(type(item))
            if isinstance(item, it.Reasoning):
                yield from _reasoning(item, self.flavour, self.upstream.root)
            elif runs is not None and runs not in hosted:
                yield from map(_plain, _in_words(item, shown))
            elif self.flavour.native:
                yield _plain(item)
            else:
                yield _plain(_as_function(item, shown))

    def stream_parser(
        self, conversation: Conversation, options: Options, shown: PromptTools, given: int
    ) -> ResponsesStreamParser:
        return ResponsesStreamParser(
            {} if self.flavour.native else shown.shapes,
            origin=self.upstream.root,
            given=given,
            most=options.max_output_tokens,
        )


# --- what is asked -------------------------------------------------------------------------------

_PLAIN: Mapping[str, str] = {
    "temperature": "temperature",
    "top_p": "top_p",
    "max_output_tokens": "max_output_tokens",
    "cache_key": "prompt_cache_key",
}


def _check(options: Options, flavour: ResponsesFlavour) -> None:
    # none of these options is part of the API
    check_server_options(options, NEUTRAL_VALUES, flavour.fields)
    if options.template and not flavour.template:
        raise unsupported("chat_template_kwargs")
    if options.extra:
        raise unsupported(extra_field(next(iter(options.extra))))


def _words(options: Options, flavour: ResponsesFlavour) -> list[str]:
    """What the model is told of its answer, where the server has no field for it or may pass over
    the one it has."""
    form = [] if flavour.holds else form_in_words(options)
    if options.guide is not None and options.guide.syntax in flavour.guides:
        options = replace(options, guide=None)
    if flavour.native:
        options = replace(options, tools=())
    return form + format_instructions(replace(options, text=replace(options.text, verbosity=UNSET)))


def _set(value: Any) -> dict[str, Any]:
    """Those of its fields that are set."""
    fields: dict[str, Any] = msgspec.to_builtins(value)
    given = {name: inner for name, inner in fields.items() if inner is not None}
    return {} if given == {"format": {"type": "text"}} else given


def _tools(options: Options, shown: PromptTools, flavour: ResponsesFlavour) -> dict[str, Any]:
    body: dict[str, Any] = {}
    if flavour.native:
        if options.tools:
            body = {
                "tools": msgspec.to_builtins(options.tools),
                "tool_choice": _native_choice(options.tool_choice, shown),
            }
    else:
        functions = [
            {**tool.definition()["function"], "type": "function", "strict": tool.strict}
            for tool in shown.callable
        ]
        hosted = [tool for tool in options.tools if not isinstance(tool, _OURS)]
        if tools := [*functions, *msgspec.to_builtins(hosted)]:
            body["tools"] = tools
        if body and (choice := _function_choice(options.tool_choice, shown)) is not None:
            body["tool_choice"] = choice
    if body and not options.parallel_tool_calls:
        body["parallel_tool_calls"] = False
    return body


def _native_choice(choice: ToolChoice, shown: PromptTools) -> Any:
    """``tool_choice`` for a server that is sent the tools as the request has them."""
    hosted = msgspec.to_builtins(choice.hosted)
    functions = [
        _named(tool, shown)
        for tool in shown.tools
        if choice.allows(tool.shape.wire_name, tool.shape.namespace)
    ]
    if choice.mode == "one":
        return next(iter((*hosted, *functions)), "auto")
    if choice.mode == "none" or choice.allowed is None:
        return choice.mode
    return {"type": "allowed_tools", "mode": choice.mode, "tools": [*functions, *hosted]}


def _named(tool: PromptTool, shown: PromptTools) -> dict[str, str]:
    """The namespace is an extension, so it is sent only where two tools have the same name."""
    shape = tool.shape
    named = {"type": "custom" if shape.custom else "function", "name": shape.wire_name}
    is_unique = sum(other.shape.wire_name == shape.wire_name for other in shown.tools) == 1
    return (
        named if is_unique or shape.namespace is None else {**named, "namespace": shape.namespace}
    )


def _function_choice(choice: ToolChoice, shown: PromptTools) -> Any:
    """``tool_choice`` for a server that is sent functions; None: leave it out."""
    if choice.mode == "one" and choice.hosted:
        return msgspec.to_builtins(choice.hosted[0])
    names = [
        tool.name
        for tool in shown.tools
        if choice.allows(tool.shape.wire_name, tool.shape.namespace)
    ]
    if choice.mode == "one" and len(names) == 1:
        return {"type": "function", "name": names[0]}
    if choice.mode == "none":
        return "none"
    return "required" if choice.must_call else None


# --- the conversation ----------------------------------------------------------------------------


def _without_programs(items: Sequence[it.Item]) -> Iterator[it.Item]:
    """Programs that ran here as the calls that the model made of them. What they called it is not
    told, nor of one that is not over."""
    going = {program.call_id for program in open_programs(items)}
    theirs = {
        getattr(each, "call_id", each.id) for each in items if caller_program_id(each) is not None
    }
    for item in items:
        match item:
            case it.Program():
                if item.call_id not in going and item.fingerprint:
                    yield it.CustomToolCall(call_id=item.call_id, name="program", input=item.code)
            case it.ProgramOutput():
                yield it.CustomToolCallOutput(call_id=item.call_id, output=item.result)
            case _ if (
                caller_program_id(item) is None and getattr(item, "call_id", "-") not in theirs
            ):
                is_told = getattr(item, "caller", UNSET) is not UNSET
                yield replace(item, caller=UNSET) if is_told else item


def _in_words(item: it.Item, shown: PromptTools) -> tuple[it.Item, it.Item]:
    """What ran here, as other models are told of it too: its ids, containers and images name
    nothing to the upstream."""
    name, arguments, result = told_of(item)
    arguments = arguments if isinstance(arguments, str) else dump(arguments)
    name = shown.name_of(name, getattr(item, "server_label", None))
    return (
        it.FunctionCall(call_id=item.id, name=name, arguments=arguments),
        it.FunctionCallOutput(call_id=item.id, output=result),
    )


def _plain(item: it.Item) -> dict[str, Any]:
    """The item as it goes over the wire. Ids are ours: most of them would name nothing there."""
    fields: dict[str, Any] = msgspec.to_builtins(item)
    if (
        not isinstance(item, _NAMED)
        or not item.id
        or fields.get("role", "assistant") != "assistant"
    ):
        fields.pop("id", None)
    return fields


def _reasoning(
    item: it.Reasoning, flavour: ResponsesFlavour, origin: str
) -> Sequence[dict[str, Any]]:
    """Thinking goes back as it came: sealed by the upstream, or as text to one that takes it."""
    source, line, kept = (item.encrypted_content or "").partition("\n")
    if line and source == origin:
        summary = msgspec.to_builtins(item.summary)
        return [{"type": "reasoning", "summary": summary, **json.loads(kept)}]
    if flavour.seals or not (item.content or item.summary):
        return []
    return [_plain(replace(item, encrypted_content=UNSET))]


def _as_function(item: it.Item, shown: PromptTools) -> it.Item:
    """Custom tools and namespaces are functions for those who know no others."""
    match item:
        case it.CustomToolCall():
            namespace = item.namespace or None
            return it.FunctionCall(
                call_id=item.call_id,
                name=shown.name_of(item.name, namespace),
                arguments=dump({"input": item.input}),
            )
        case it.CustomToolCallOutput():
            return it.FunctionCallOutput(call_id=item.call_id, output=item.output)
        case it.FunctionCall() if item.namespace:
            name = shown.name_of(item.name, item.namespace)
            return replace(item, name=name, namespace=UNSET)
    return item
