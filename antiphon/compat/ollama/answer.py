"""Answers of Ollama's API: one JSON object, or a stream with one JSON object per line."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from antiphon.compat.translated_request import ChoiceStream
from antiphon.wire import events as ev
from antiphon.wire import items as it
from antiphon.wire.json_types import JsonObject
from antiphon.wire.response import Response, Usage

from .bodies import OllamaCalledFunction, OllamaToolCall

_encode = msgspec.json.Encoder().encode
_NANOSECONDS_PER_MS = 1_000_000
#: A line without content, which keeps an idle stream open. Clients parse every line as JSON, so an
#: empty line would break them.
KEEPALIVE = (
    b'{"model":"","created_at":"1970-01-01T00:00:00Z","response":"",'
    b'"message":{"role":"assistant","content":""},"done":false}\n'
)


class OllamaAnswerMessage(Struct, frozen=True, kw_only=True):
    content: str
    role: Literal["assistant"] = "assistant"
    thinking: str | UnsetType = UNSET
    tool_calls: tuple[OllamaToolCall, ...] | UnsetType = UNSET


class OllamaAnswer(Struct, frozen=True, kw_only=True):
    """An answer, or one line of a streamed answer. A chat answers in ``message``, a completion in
    the fields after ``message``. The last line has ``done_reason``, the token counts, and durations
    in nanoseconds."""

    model: str
    created_at: str
    done: bool
    message: OllamaAnswerMessage | UnsetType = UNSET
    response: str | UnsetType = UNSET
    thinking: str | UnsetType = UNSET
    tool_calls: tuple[OllamaToolCall, ...] | UnsetType = UNSET
    logprobs: tuple[JsonObject, ...] | UnsetType = UNSET
    done_reason: Literal["stop", "length", "load", "unload"] | UnsetType = UNSET
    total_duration: int | UnsetType = UNSET
    load_duration: int | UnsetType = UNSET
    prompt_eval_count: int | UnsetType = UNSET
    prompt_eval_duration: int | UnsetType = UNSET
    eval_count: int | UnsetType = UNSET
    eval_duration: int | UnsetType = UNSET


class OllamaForm(Struct, frozen=True, kw_only=True):
    """The form of an answer. ``chat``: the answer is a message. ``hides_thinking``: the reasoning
    is left out."""

    chat: bool
    hides_thinking: bool = False

    def fields(
        self,
        content: str,
        thinking: str = "",
        calls: tuple[OllamaToolCall, ...] = (),
        logprobs: Sequence[it.Logprob] = (),
    ) -> JsonObject:
        """Return the fields of an answer that contain the model's output."""
        optional: JsonObject = {
            "thinking": UNSET if self.hides_thinking or not thinking else thinking,
            "tool_calls": calls or UNSET,
        }
        fields: JsonObject = (
            {"message": OllamaAnswerMessage(content=content, **optional)}
            if self.chat
            else {"response": content, **optional}
        )
        if logprobs:
            fields["logprobs"] = tuple(map(msgspec.to_builtins, logprobs))
        return fields


def ollama_time(seconds: float) -> str:
    """Return a Unix time in the form of RFC 3339."""
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def ollama_load_answer(
    form: OllamaForm, model: str, seconds: float, *, unloaded: bool
) -> OllamaAnswer:
    """Return the answer to a request that has only loaded or unloaded a model. ``seconds``: the
    Unix time."""
    return OllamaAnswer(
        model=model,
        created_at=ollama_time(seconds),
        done=True,
        done_reason="unload" if unloaded else "load",
        **form.fields(""),
    )


def ollama_answer(response: Response, form: OllamaForm) -> OllamaAnswer:
    """Translate a finished response. Call this only if the response did not fail."""
    texts: list[str] = []
    thoughts: list[str] = []
    called = enumerate(it.of_type(response.output, it.FunctionCall))
    calls = [_call(call, index) for index, call in called]
    logprobs: list[it.Logprob] = []
    for item in response.output:
        thoughts += [part.text for part in item.reasoning_parts]
        for part in item.message_parts:
            texts.append(_text(part))
            logprobs += getattr(part, "logprobs", None) or ()
    return OllamaAnswer(
        **_head(response),
        **form.fields("".join(texts), "\n".join(thoughts), tuple(calls), logprobs),
        **_end(response),
    )


def _text(part: Any) -> str:
    return part.refusal if isinstance(part, it.Refusal) else getattr(part, "text", "")


def _call(item: it.FunctionCall, index: int) -> OllamaToolCall:
    try:
        arguments = msgspec.json.decode(item.arguments, type=JsonObject)
    except msgspec.DecodeError:  # only arguments that a custom parser let through
        arguments = {}
    function = OllamaCalledFunction(name=item.name, arguments=arguments, index=index)
    return OllamaToolCall(id=item.call_id, function=function)


def _head(response: Response) -> JsonObject:
    return {"model": response.model, "created_at": ollama_time(response.created_at)}


def _end(response: Response) -> JsonObject:
    """Return the fields that only the end of an answer has."""
    usage = response.usage or Usage()
    metrics = response.metrics if isinstance(response.metrics, dict) else {}

    def nanoseconds(name: str) -> int:
        return int(metrics.get(name, 0) * _NANOSECONDS_PER_MS)

    details = response.incomplete_details
    is_cut = details is not None and details.reason == "max_output_tokens"
    return {
        "done": True,
        "done_reason": "length" if is_cut else "stop",
        "total_duration": nanoseconds("total_time_ms"),
        "load_duration": 0,
        "prompt_eval_count": usage.input_tokens,
        "prompt_eval_duration": nanoseconds("time_to_first_token_ms"),
        "eval_count": usage.output_tokens,
        "eval_duration": nanoseconds("generation_time_ms"),
    }


class OllamaStream(ChoiceStream):
    """Encodes the events of one response as lines. ``first``: the response as it is at the start of
    the stream. A tool call is one line, which is sent when its arguments are complete."""

    def __init__(self, first: Response, form: OllamaForm) -> None:
        self._head = _head(first)
        self._form = form
        self._call_count = 0
        #: Output indexes of the reasoning items whose full text was streamed. The summaries of
        #: these items are not streamed.
        self._full_texts: set[int] = set()

    def _frames(self, event: ev.Event) -> Iterator[bytes]:
        read = _EVENTS.get(type(event))
        if read is not None and (fields := read(self, event)):
            yield _encode(fields) + b"\n"

    def _line(self, *output: Any) -> OllamaAnswer:
        return OllamaAnswer(**self._head, done=False, **self._form.fields(*output))

    def _text(self, event: ev.OutputTextDelta) -> OllamaAnswer:
        return self._line(event.delta, "", (), event.logprobs)

    def _thinking(self, event: ev.ReasoningTextDelta | ev.ReasoningDelta) -> OllamaAnswer | None:
        self._full_texts.add(event.output_index)
        return None if self._form.hides_thinking else self._line("", event.delta)

    def _summary(self, event: ev.ReasoningSummaryTextDelta) -> OllamaAnswer | None:
        if event.output_index in self._full_texts or self._form.hides_thinking:
            return None
        return self._line("", event.delta)

    def _item_done(self, event: ev.OutputItemDone) -> OllamaAnswer | None:
        if not isinstance(event.item, it.FunctionCall):
            return None
        call = _call(event.item, self._call_count)
        self._call_count += 1
        return self._line("", "", (call,))

    def _ended(self, event: ev.Completed | ev.Incomplete) -> OllamaAnswer:
        return OllamaAnswer(**self._head, **self._form.fields(""), **_end(event.response))

    def _failed(self, event: ev.Error) -> JsonObject:
        return {"error": event.error.message}


#: Type of an event → function that returns the resulting line. Other events produce no line.
_EVENTS: Mapping[type[ev.Event], Callable[[OllamaStream, Any], Any]] = {
    ev.OutputTextDelta: OllamaStream._text,
    ev.RefusalDelta: lambda stream, event: stream._line(event.delta),
    ev.ReasoningTextDelta: OllamaStream._thinking,
    ev.ReasoningDelta: OllamaStream._thinking,
    ev.ReasoningSummaryTextDelta: OllamaStream._summary,
    ev.OutputItemDone: OllamaStream._item_done,
    ev.Completed: OllamaStream._ended,
    ev.Incomplete: OllamaStream._ended,
    ev.Error: OllamaStream._failed,
    ev.Keepalive: lambda stream, event: stream._line(""),
}
