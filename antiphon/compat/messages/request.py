"""Translate the bodies of ``POST /messages`` and ``/messages/count_tokens``.

A known field is either honoured, treated as a hint, or rejected with an error that names the field.
Unknown fields are ignored, as everywhere in Antiphon. The field lists follow the types of the
``anthropic`` SDK 2.12, with its beta features. The header ``anthropic-beta`` is not read: it only
makes Anthropic's server accept more fields.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from antiphon.compat.error_paths import ErrorPaths
from antiphon.compat.translated_request import TranslatedRequest, merge_fields, read_translated
from antiphon.errors import unsupported_parameter
from antiphon.wire.json_types import JsonObject
from antiphon.wire.parsing.errors import (
    invalid_type,
    json_type_name,
    missing_parameter,
)
from antiphon.wire.parsing.fields import convert, drop_nulls, read_choice, read_object, require
from antiphon.wire.parsing.json_body import DEFAULT_LIMITS, BodyLimits, parse_json_object
from antiphon.wire.request import CreateResponse, FieldTreatment, InputTokensRequest
from antiphon.wire.response import Response

from .answer import AnswerForm, message_answer
from .bodies import (
    MessageContainerFields,
    MessageDiagnosticsFields,
    MessageMetadata,
    MessageOutputConfig,
    MessageOutputFormat,
    MessagesFields,
    MessageThinking,
)
from .citations import HOW_TO_CITE, DocumentReader, Passages, number_files
from .content import read_messages, read_system
from .context_edits import read_compaction, read_edits
from .server_blocks import search_name
from .stream import MessageStream
from .threads import continued_request, read_thread, response_id, thread_unsupported
from .tools import ToolCollector, opens_pages, read_tool_choice
from .types import AppliedEdits, MessageAnswer

_IGNORED = (
    "metadata",
    "service_tier",
    "cache_control",
    "speed",
    "inference_geo",
    "fallbacks",
)
_REFUSED = ("billing_policy", "fallback_credit_token")
#: How the server treats each field.
MESSAGE_FIELDS: Mapping[str, FieldTreatment] = {
    **dict.fromkeys(MessagesFields.__struct_fields__, "honoured"),
    **dict.fromkeys(_IGNORED, "hint"),
    **dict.fromkeys(_REFUSED, "refused"),
}
#: Options that a backend without them ignores. Clients send them to all models by default.
_HINTS = ("top_k", "thinking_budget")
_TIERS: Mapping[str, str] = {"auto": "auto", "standard_only": "default"}


class MessagesRequest(TranslatedRequest, frozen=True, kw_only=True):
    """A translated request of the Messages API. ``form``: options for the form of the answer.
    ``thread_choice``: the translated ``tool_choice`` of a request that continues a thread, whose
    tools are not known yet."""

    form: AnswerForm
    thread_choice: Any = None

    @property
    def previous_response_id(self) -> str | None:
        """The id of the response that the thread of this request continues."""
        return self.request.previous_response_id

    def continuing(self, previous: Response) -> Self:
        """Return a copy of the request that continues the thread of the response ``previous``."""
        request = continued_request(self.request, previous, self.thread_choice)
        return replace(self, requests=(request,))

    def as_count(self) -> InputTokensRequest:
        """Return the request that counts the tokens of the same prompt."""
        names = set(InputTokensRequest.__struct_fields__) & set(CreateResponse.__struct_fields__)
        return InputTokensRequest(**{name: getattr(self.request, name) for name in names})

    async def with_cited_files(self, read: DocumentReader) -> Self:
        """Return a copy of the request in which the files that the model can cite are numbered
        passages. ``read``: returns the text of a file, or those of its pages. Its arguments are the
        part and its path. Raises ``RequestError``."""
        request = await number_files(self.request, self.form.passages, read)
        return replace(self, requests=(request,))

    def answer(self, responses: Sequence[Response]) -> MessageAnswer:
        return message_answer(responses[0], self._form_of(responses[0]))

    def choice_stream(self, first: Response, index: int) -> MessageStream:
        return MessageStream(first, self._form_of(first))

    def _form_of(self, response: Response) -> AnswerForm:
        """Return the form of the answer. It depends on the tools of the response, because a request
        that continues a thread does not repeat the thread's tools."""
        return replace(
            self.form,
            fetches=opens_pages(response.tools),
            search_name=search_name(response.tools),
            omitted_parts=self.omitted_parts(response),
        )


def parse_messages_request(body: bytes, limits: BodyLimits = DEFAULT_LIMITS) -> MessagesRequest:
    """Parse and translate a request body. Raises ``InvalidRequest`` with the path of the invalid
    field in the client's body, not in the translated request."""
    raw = parse_json_object(body, limits)
    if raw.get("max_tokens") is None:
        raise missing_parameter("max_tokens")
    return read_messages_request(raw, limits)


def parse_count_request(body: bytes, limits: BodyLimits = DEFAULT_LIMITS) -> MessagesRequest:
    """Parse and translate the body of a request to count tokens. Raises ``InvalidRequest``."""
    return read_messages_request(parse_json_object(body, limits), limits)


def read_messages_request(raw: JsonObject, limits: BodyLimits = DEFAULT_LIMITS) -> MessagesRequest:
    """Translate a request body that is already parsed. Raises ``InvalidRequest``."""
    raw = drop_nulls(raw)
    require(raw, "", "model", "messages")
    _refuse(raw)
    paths = ErrorPaths(
        input="messages",
        instructions="system",
        max_output_tokens="max_tokens",
        thinking_token_budget="thinking.budget_tokens",
        stop="stop_sequences",
        user="metadata.user_id",
        max_tool_calls="tools",
        previous_response_id="thread.previous_message_id",
    )
    tools, passages = ToolCollector(paths, limits), Passages()
    conversation, edits = _conversation(raw, tools, passages, paths, limits)
    fields: JsonObject = {**read_thread(raw), **conversation}
    for name, read in _READERS.items():
        if name in raw:
            merge_fields(fields, read(raw[name], name, paths))
    generate = fields.get("max_output_tokens") != 0
    if not generate:
        del fields["max_output_tokens"]
        merge_fields(fields, {"prompt_cache_options": {"prewarm": True}})
    if passages and "text" in fields:
        raise unsupported_parameter("output_config.format", " The request has citations.")
    continues = "previous_response_id" in fields
    thread_choice = fields.pop("tool_choice", None) if continues else None
    request = replace(read_translated(fields, paths, limits), hints=_HINTS)
    return MessagesRequest(
        requests=(request,),
        paths=paths,
        form=AnswerForm(
            omits_thinking=_omits_thinking(raw.get("thinking")),
            generate=generate,
            skills=tools.container.skills or (),
            passages=passages,
            context_management=edits,
        ),
        thread_choice=thread_choice,
    )


def _refuse(raw: JsonObject) -> None:
    for name in _REFUSED:
        if name in raw and raw[name] != []:
            raise unsupported_parameter(name)


def _conversation(
    raw: JsonObject,
    tools: ToolCollector,
    passages: Passages,
    paths: ErrorPaths,
    limits: BodyLimits,
) -> tuple[JsonObject, AppliedEdits | UnsetType]:
    """Translate ``system``, ``messages``, ``tools`` and ``tool_choice`` to fields of the Responses
    request. They are translated together, because messages may add and remove tools. Also return
    the edits that had an effect, if the request asks for edits."""
    tools.container = _container(raw.get("container"))
    tools.declare_servers(raw.get("mcp_servers", []), "mcp_servers")
    tools.declare(raw.get("tools", []), "tools")
    edits = read_edits(raw.get("context_management"), "context_management", paths)
    continues = read_thread(raw).get("previous_response_id") is not None
    if tools.container.skills and not continues:
        tools.check_code_execution("container.skills")
    items, thinking = read_messages(
        raw["messages"],
        "messages",
        tools,
        paths,
        limits,
        passages=passages,
        thinking_turns=edits.thinking_turns,
        may_be_empty=continues,
    )
    if "thread" in raw:
        unsupported = {
            # What these fields hide in this request is part of the stored chain.
            "context_management": edits.hides_something,
            "tools": tools.has_hidden,
            # The numbers of passages and the tokens of servers are not stored.
            "citations": bool(passages),
            "mcp_servers": bool(raw.get("mcp_servers")),
            "container": continues and bool(tools.container.skills),
        }
        for name in filter(unsupported.__getitem__, unsupported):
            raise thread_unsupported(name)
    items, results = edits.without_old_results(items)
    fields = {"input": items, **tools.fields()}
    compaction = edits.compaction
    if raw.get("compaction") is not None:
        compaction = read_compaction(raw["compaction"], "compaction", paths)
        fields["input"].append({"type": "compaction_trigger"})
    if compaction is not None:
        fields["context_management"] = [compaction]
    system = read_system(raw.get("system", ""), "system", limits)
    how = HOW_TO_CITE if passages else ""
    if instructions := "\n\n".join(filter(None, (system, how))):
        fields["instructions"] = instructions
    if "tool_choice" in raw:
        fields |= read_tool_choice(raw["tool_choice"], "tool_choice", tools)
    if "thread" in raw or compaction is not None or tools.has_server_tools:
        fields["return_metrics"] = True  # the model may be called several times
    if "context_management" not in raw:
        return fields, UNSET
    return fields, AppliedEdits(applied_edits=(*thinking, *results))


def _container(raw: object) -> MessageContainerFields:
    """Return the container in which code is executed. Without an id, it is a new one, or the one
    of the conversation. Raises ``InvalidRequest``."""
    if raw is None or isinstance(raw, str):
        return MessageContainerFields(id=raw)
    return convert(read_object(raw, "container"), MessageContainerFields, "container")


# --- fields --------------------------------------------------------------------------------------


def _renamed(name: str) -> Callable[[Any, str, ErrorPaths], JsonObject]:
    return lambda raw, path, paths: {name: raw}


def _max_tokens(raw: object, path: str, paths: ErrorPaths) -> JsonObject:
    if isinstance(raw, bool) or not isinstance(raw, int):
        raise invalid_type(path, "an integer", json_type_name(raw))
    return {"max_output_tokens": raw}


def _metadata(raw: object, path: str, paths: ErrorPaths) -> JsonObject:
    user = convert(read_object(raw, path), MessageMetadata, path).user_id
    return {} if user is None else {"user": user}


def _diagnostics(raw: object, path: str, paths: ErrorPaths) -> JsonObject:
    """Translate ``diagnostics``. The id is null in the first request of a conversation."""
    id = convert(read_object(raw, path), MessageDiagnosticsFields, path).previous_message_id
    if id is None:
        return {}
    paths.add("prompt_cache_options.comparison_response_id", f"{path}.previous_message_id")
    return {"prompt_cache_options": {"comparison_response_id": response_id(id)}}


def _service_tier(raw: object, path: str, paths: ErrorPaths) -> JsonObject:
    return {"service_tier": _TIERS[read_choice(raw, path, _TIERS)]}


def _thinking(raw: object, path: str, paths: ErrorPaths) -> JsonObject:
    """Translate ``thinking``. The types ``adaptive`` and ``between_tools`` let the model decide how
    much it thinks. This is the default for all models on this server, so they change nothing."""
    thinking = convert(read_object(raw, path), MessageThinking, path)
    if thinking.type == "disabled":
        return {"reasoning": {"effort": "none"}}
    if thinking.type != "enabled":
        return {}
    if thinking.budget_tokens is UNSET:
        raise missing_parameter(f"{path}.budget_tokens")
    return {"thinking_token_budget": thinking.budget_tokens}


def _omits_thinking(raw: object) -> bool:
    """Return whether the text of thinking is left out. The display ``updates`` requests short notes
    between tool calls, which models on this server do not write."""
    return isinstance(raw, dict) and raw.get("display") not in (None, "summarized")


def _output_config(raw: object, path: str, paths: ErrorPaths) -> JsonObject:
    config = convert(read_object(raw, path), MessageOutputConfig, path)
    translated: JsonObject = {}
    if config.effort is not None:
        paths.add("reasoning.effort", f"{path}.effort")
        translated["reasoning"] = {"effort": config.effort}
    if config.format is not None:
        translated |= _text_format(config.format, f"{path}.format", paths)
    return translated


def _output_format(raw: object, path: str, paths: ErrorPaths) -> JsonObject:
    return _text_format(convert(read_object(raw, path), MessageOutputFormat, path), path, paths)


def _text_format(asked: MessageOutputFormat, path: str, paths: ErrorPaths) -> JsonObject:
    paths.add("text.format", path)
    # Not strict: Anthropic's schemas may have optional properties. The schema is enforced anyway.
    form = {"type": "json_schema", "name": "output", "schema": asked.schema}
    return {"text": {"format": form}}


#: Field → function that translates its value. ``thinking`` must come after ``output_config``,
#: because disabled thinking overrides the effort.
_READERS: Mapping[str, Callable[[Any, str, ErrorPaths], JsonObject]] = {
    "model": _renamed("model"),
    "max_tokens": _max_tokens,
    "stream": _renamed("stream"),
    "stop_sequences": _renamed("stop"),
    "temperature": _renamed("temperature"),
    "top_p": _renamed("top_p"),
    "top_k": _renamed("top_k"),
    "metadata": _metadata,
    "service_tier": _service_tier,
    "diagnostics": _diagnostics,
    "output_config": _output_config,
    "output_format": _output_format,
    "thinking": _thinking,
}
