"""Translate the body of ``POST /completions``. The result is a list of prompts and a list of
Responses requests. The Responses requests contain no input. They contain only the options, such as
the sampling options.

The accepted fields are the fields of the ``openai`` SDK 3.54 and the sampling extensions in
``wire.request``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from antiphon.errors import InvalidRequest, invalid_field, unsupported_parameter, unsupported_value
from antiphon.wire.json_types import JsonObject
from antiphon.wire.parsing.fields import require
from antiphon.wire.parsing.json_body import DEFAULT_LIMITS, BodyLimits, parse_json_object
from antiphon.wire.parsing.unsupported_fields import refuse_unsupported_fields
from antiphon.wire.request import FIELDS
from antiphon.wire.response import Response

from .completion_response import Completion, CompletionStream, make_completion
from .error_paths import ErrorPaths
from .request_bodies import CompletionOptions, read_options, read_stream_options
from .text_inputs import TextInput, read_text_inputs
from .translated_request import TranslatedRequest, read_translated, with_seed_offset

#: Largest number of continuations of all prompts of one request together.
_MAX_CONTINUATIONS = 32
#: OpenAI's default for ``max_tokens``.
_DEFAULT_TOKENS = 16


class CompletionRequest(TranslatedRequest, frozen=True, kw_only=True):
    """A translated Completions request: ``n`` continuations of each prompt.

    ``requests``: the Responses requests, without input. ``prompts``: the prompts. Both have one
    entry per continuation: ``requests[i]`` continues ``prompts[i]``. ``echo``: the text of each
    choice starts with the prompt. ``include_usage``: the stream ends with a usage chunk.
    """

    prompts: tuple[TextInput, ...]
    n: int = 1
    echo: bool = False
    include_usage: bool = False

    def echoed_text(self, index: int) -> str:
        """Return the prompt that must be repeated at the start of a choice's text. ``index``: index
        of the choice. Returns "" if the request does not set ``echo``."""
        prompt = self.prompts[index]
        return prompt if self.echo and isinstance(prompt, str) else ""

    def answer(self, responses: Sequence[Response]) -> Completion:
        return make_completion(self, responses)

    def choice_stream(self, first: Response, index: int) -> CompletionStream:
        return CompletionStream(self, first, index)


def parse_completion_request(body: bytes, limits: BodyLimits = DEFAULT_LIMITS) -> CompletionRequest:
    """Parse and translate a request body. Raises ``InvalidRequest`` with the path of the field as
    the client wrote it."""
    raw = parse_json_object(body, limits)
    require(raw, "", "prompt")
    _refuse(raw)
    paths = ErrorPaths(input="prompt", max_output_tokens="max_tokens", top_logprobs="logprobs")
    paths.add("include", "logprobs")
    prompts = read_text_inputs(raw["prompt"], "prompt", _MAX_CONTINUATIONS).values()
    options = read_options(raw, CompletionOptions)
    n, echo = options.n, options.echo
    if n * len(prompts) > _MAX_CONTINUATIONS:
        raise _too_many(len(prompts) * n)
    fields: JsonObject = {"input": "", "store": False, "max_output_tokens": _DEFAULT_TOKENS}
    fields |= {name: raw[name] for name in SHARED_FIELDS if name in raw}
    for name, read in READERS.items():
        if name in raw:
            fields |= read(raw[name], name)
    request = read_translated(fields, paths, limits)
    if echo and (raw.get("logprobs") is not None or not all(isinstance(p, str) for p in prompts)):
        raise unsupported_value(
            "echo", "'echo' cannot be combined with 'logprobs' or with token ids."
        )
    return CompletionRequest(
        requests=tuple(with_seed_offset(request, at % n) for at in range(n * len(prompts))),
        prompts=tuple(prompt for prompt in prompts for _ in range(n)),
        paths=paths,
        n=n,
        echo=echo,
        include_usage=options.includes_usage,
    )


def _too_many(count: int) -> InvalidRequest:
    return invalid_field(
        "prompt",
        f"'n' times the number of prompts is {count}; at most"
        f" {_MAX_CONTINUATIONS} continuations are possible.",
    )


# --- fields --------------------------------------------------------------------------------------

#: Fields that are copied unchanged to the Responses request.
SHARED_FIELDS = (
    "cache_salt",
    "frequency_penalty",
    "ignore_eos",
    "include_stop_str_in_output",
    "logit_bias",
    "min_p",
    "model",
    "presence_penalty",
    "priority",
    "prompt_cache_key",
    "repetition_penalty",
    "request_id",
    "seed",
    "skip_special_tokens",
    "stop",
    "stream",
    "temperature",
    "top_k",
    "top_p",
    "user",
    "vllm_xargs",
)
#: Fields of the Responses and Chat Completions APIs that change an answer and do not exist in the
#: Completions API. They are rejected.
_REFUSED = (
    "messages",
    "response_format",
    *(name for name, treatment in FIELDS.items() if treatment == "honoured" and name != "prompt"),
)


def _refuse(raw: JsonObject) -> None:
    refuse_unsupported_fields(raw, known=("echo", "logprobs", "n"))
    for name in _REFUSED:
        if raw.get(name, False) is not False and name not in SHARED_FIELDS and name not in READERS:
            raise unsupported_parameter(name, where="by this API")


def _logprobs(raw: object, path: str) -> JsonObject:
    return {"include": ["message.output_text.logprobs"], "top_logprobs": raw}


READERS: Mapping[str, Callable[[Any, str], JsonObject]] = {
    "max_tokens": lambda raw, path: {"max_output_tokens": raw},
    "logprobs": _logprobs,
    "stream_options": read_stream_options,
}
