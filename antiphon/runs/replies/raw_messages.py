"""Raw messages and metrics of a response. The raw messages are the prompt and the output in the
form that the model reads and writes. The metrics are times and token counts. The fields have vLLM's
names."""

from __future__ import annotations

from array import array
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

from msgspec import to_builtins
from msgspec.structs import replace

from antiphon.backends.base import Backend, DeltaSink, Reply
from antiphon.backends.wrapper import ReplyWrapper
from antiphon.errors import InvalidRequest, RunError
from antiphon.inference.conversation import ResumePoint
from antiphon.runs.execution.token_log import last_turn
from antiphon.stream.deltas import Delta, NewPrompt, finish_of
from antiphon.wire.items import Item
from antiphon.wire.response import RAW_MESSAGE_TYPE, Usage

_FIELD = "enable_response_messages"
_UNSUPPORTED = (
    f"Unsupported parameter: '{_FIELD}' is not supported with this model: its tokens are not known"
    " here."
)


class RawMessagesReply(ReplyWrapper):
    """``Reply`` that adds raw messages and metrics to the final fields of the response.

    - ``with_messages``, ``with_metrics``: whether the reply adds raw messages, and whether it adds
      metrics.
    - ``clock``: returns seconds.
    - ``turn_usages``: the usage of each turn of the tool loop; the tool loop fills this list.
    - ``items``: the conversation before the response.

    The constructor raises ``InvalidRequest`` if raw messages are requested, but the backend cannot
    detokenize or the reply does not report its tokens.
    """

    def __init__(
        self,
        reply: Reply,
        backend: Backend,
        *,
        with_messages: bool,
        with_metrics: bool,
        clock: Callable[[], float],
        turn_usages: Sequence[Usage] = (),
        items: tuple[Item, ...] = (),
    ) -> None:
        super().__init__(reply)
        self._detokenizer: Backend | None = None
        if with_messages:
            if not (backend.capabilities.detokenizes and reply.reports_tokens):
                raise InvalidRequest(_UNSUPPORTED, param=_FIELD, code="unsupported_parameter")
            self._detokenizer = backend
        self._with_metrics = with_metrics
        self._clock = clock
        self._turn_usages = turn_usages
        self._items = items
        self._times: list[float] = []

    def resume(self, point: ResumePoint) -> Reply:
        self._reply = self._reply.resume(point)
        return self

    async def pump(self, sink: DeltaSink) -> None:
        self._times = [self._clock()]

        def measure(batch: tuple[Delta, ...]) -> Awaitable[None] | None:
            # A model that was loaded in the run has sent its prompt, or nothing, before its output.
            if len(self._times) == 1 and any(type(delta) is not NewPrompt for delta in batch):
                self._times.append(self._clock())
            if self._detokenizer is not None and not self._reply.reports_tokens:
                # The model was being loaded when the request was checked, or retries began.
                raise RunError(_UNSUPPORTED, param=_FIELD, code="unsupported_parameter")
            if self._with_metrics and (finish := finish_of(batch)) is not None:
                usage = _with_turns(finish.usage, self._turn_usages or (finish.usage,))
                batch = (*batch[:-1], replace(finish, usage=usage))
            return sink(batch)

        await self._reply.pump(measure)
        self._times.append(self._clock())

    def initial_fields(self) -> Mapping[str, Any]:
        """Return the prompt as raw messages, if it is requested and known."""
        prompt = self.prompt_tokens
        if self._detokenizer is None or prompt is None:
            return {}
        messages = _messages(self._detokenizer, prompt.fingerprint, prompt.ids, self._items)
        return {"input_messages": messages}

    def final_fields(self, sampled: array[int], output: tuple[Item, ...]) -> Mapping[str, Any]:
        """Return the fields that the request asked for: the raw messages, the metrics, or both. The
        raw messages are the prompt and the output in the form that the model reads and writes. A
        client can send the raw messages back as ``previous_input_messages``. The metrics are times
        and token counts. Raises ``RunError`` if raw messages were requested and the token ids are
        unknown."""
        fields: dict[str, Any] = {}
        if self._detokenizer is not None:
            prompt_tokens = self.prompt_tokens
            if prompt_tokens is None and not sampled:
                raise RunError(_UNSUPPORTED, param=_FIELD, code="unsupported_parameter")
            # Unknown if the model was being loaded when the request was checked.
            first_prompt = () if prompt_tokens is None else prompt_tokens.ids
            prompt, sampled = last_turn(first_prompt, sampled)
            tokenizer = None if prompt_tokens is None else prompt_tokens.fingerprint
            messages = partial(_messages, self._detokenizer, tokenizer)
            if prompt:
                fields["input_messages"] = messages(prompt, self._items)
            fields["output_messages"] = messages(sampled, output)
        if self._with_metrics and len(self._times) == 3:
            start, first_delta, end = self._times
            fields["metrics"] = {
                "time_to_first_token_ms": round((first_delta - start) * 1000, 3),
                "generation_time_ms": round((end - first_delta) * 1000, 3),
                "total_time_ms": round((end - start) * 1000, 3),
                **_per_turn(self._turn_usages),
            }
        return fields


def _per_turn(usages: Sequence[Usage]) -> dict[str, list[int]]:
    """Return the metrics of the turns of a tool loop. If the prompt of a turn has more tokens than
    the prompt and the output of the previous turn together, the additional tokens count as tool
    output."""
    if not usages:
        return {}
    previous_usages = (None, *usages[:-1])
    return {
        "input_tokens_per_turn": [turn.input_tokens for turn in usages],
        "cached_tokens_per_turn": [turn.input_tokens_details.cached_tokens for turn in usages],
        "output_tokens_per_turn": [turn.output_tokens for turn in usages],
        "tool_output_tokens_per_turn": [
            0 if previous is None else max(0, turn.input_tokens - previous.total_tokens)
            for previous, turn in zip(previous_usages, usages, strict=True)
        ],
    }


def _with_turns(usage: Usage, turns: Sequence[Usage]) -> Usage:
    """Return the usage with additional fields: the token counts of each turn. The names of these
    fields are vLLM's."""
    per_turn = {name: tuple(counts) for name, counts in _per_turn(turns).items()}
    tool_tokens = per_turn["tool_output_tokens_per_turn"]
    return replace(
        usage,
        input_tokens_details=replace(
            usage.input_tokens_details,
            input_tokens_per_turn=per_turn["input_tokens_per_turn"],
            cached_tokens_per_turn=per_turn["cached_tokens_per_turn"],
        ),
        output_tokens_details=replace(
            usage.output_tokens_details,
            tool_output_tokens=sum(tool_tokens),
            output_tokens_per_turn=per_turn["output_tokens_per_turn"],
            tool_output_tokens_per_turn=tool_tokens,
        ),
    )


def _messages(
    backend: Backend, tokenizer: str | None, ids: Sequence[int], items: tuple[Item, ...]
) -> tuple[dict[str, Any], ...]:
    """Return raw messages with vLLM's fields, and with the fields that messages have in the model's
    format. Two more fields are needed if a later request sends the messages back: ``tokenizer``
    and, in the first message, ``items``."""
    messages: tuple[dict[str, Any], ...] = tuple(
        {
            **fields,
            "type": RAW_MESSAGE_TYPE,
            "message": backend.detokenize(part),
            "tokens": list(part),
            "tokenizer": tokenizer,
        }
        for part, fields in backend.split_messages(ids) or [(ids, {})]
    )
    messages[0]["items"] = to_builtins(items)
    return messages
