"""The body of ``POST /completions`` becomes texts to be continued, and how to sample.

Field lists: the ``openai`` SDK's types, 3.54, and the extensions of sampling that ``wire.request``
has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from antiphon.errors import InvalidRequest
from antiphon.wire.parsing.errors import bad_type, kind_of, missing
from antiphon.wire.parsing.fields import Json, fields_of
from antiphon.wire.parsing.json_body import DEFAULT_LIMITS, Limits, parse
from antiphon.wire.parsing.requests import read_create
from antiphon.wire.parsing.unsupported_fields import refuse_foreign
from antiphon.wire.request import FIELDS, CreateResponse
from antiphon.wire.response import Response

from .completion_response import TextChunks, TextCompletion, completion
from .error_paths import Paths
from .n_choices import count, reseeded
from .text_inputs import TextInput, read_text_inputs

__all__ = ["Completion", "completion_request"]

#: Continuations of one request.
_MOST = 32
#: OpenAI's default.
_USUAL_TOKENS = 16


class Completion(Struct, frozen=True, kw_only=True):
    """What a client of the Completions API asks: the texts, ``n`` continuations of each.

    ``echo``: what stands before every continuation in the answer."""

    requests: tuple[CreateResponse, ...]
    prompts: tuple[TextInput, ...]
    paths: Paths
    n: int = 1
    echo: bool = False
    include_usage: bool = False

    @property
    def stream(self) -> bool:
        return bool(self.requests[0].stream)

    def lead(self, index: int) -> str:
        """What the answer repeats of the prompt."""
        prompt = self.prompts[index]
        return prompt if self.echo and isinstance(prompt, str) else ""

    def answer(self, responses: Sequence[Response]) -> TextCompletion:
        """Responses that are over, none of which failed."""
        return completion(self, responses)

    def chunks(self, first: Response, index: int) -> TextChunks:
        """The stream of one choice, of the answer that ``first`` names."""
        return TextChunks(self, first, index)


def completion_request(body: bytes, limits: Limits = DEFAULT_LIMITS) -> Completion:
    """Raises ``InvalidRequest``, with the path of the field as the client wrote it."""
    raw = parse(body, limits)
    if "prompt" not in raw:
        raise missing("prompt")
    _refuse(raw)
    paths = Paths(input="prompt", max_output_tokens="max_tokens", top_logprobs="logprobs")
    paths.add("include", "logprobs")
    prompts = read_text_inputs(raw["prompt"], "prompt", _MOST).values()
    n = count(raw.get("n", 1), "n", _MOST)
    if n * len(prompts) > _MOST:
        raise _too_many(len(prompts) * n)
    asked: Json = {"input": "", "store": False, "max_output_tokens": _USUAL_TOKENS}
    asked |= {name: raw[name] for name in _SAME if name in raw}
    for name, read in _READERS.items():
        if name in raw:
            asked |= read(raw[name], name)
    try:
        request = read_create(asked, limits)
    except InvalidRequest as error:
        paths.name(error)
        raise
    echo = raw.get("echo", False)
    if not isinstance(echo, bool):
        raise bad_type("echo", "a boolean", kind_of(echo))
    if echo and (raw.get("logprobs") is not None or not all(isinstance(p, str) for p in prompts)):
        raise InvalidRequest(
            "Unsupported value: 'echo' goes neither with 'logprobs' nor with token ids.",
            param="echo",
            code="unsupported_value",
        )
    return Completion(
        requests=tuple(reseeded(request, at % n) for at in range(n * len(prompts))),
        prompts=tuple(prompt for prompt in prompts for _ in range(n)),
        paths=paths,
        n=n,
        echo=echo,
        include_usage=bool((raw.get("stream_options") or {}).get("include_usage")),
    )


def _too_many(asked: int) -> InvalidRequest:
    return InvalidRequest(
        f"Invalid 'prompt': one request gets at most {_MOST} continuations, not {asked}.",
        param="prompt",
        code="invalid_value",
    )


# --- fields --------------------------------------------------------------------------------------

#: What both APIs call by one name.
_SAME = (
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
#: Fields of the other APIs that would change an answer: this one has no place for them.
_REFUSED = (
    "messages",
    "response_format",
    *(name for name, fate in FIELDS.items() if fate == "honoured" and name != "prompt"),
)


def _refuse(raw: Json) -> None:
    refuse_foreign(raw, known=("echo", "logprobs", "n"))
    for name in _REFUSED:
        if raw.get(name, False) is not False and name not in _SAME and name not in _READERS:
            raise InvalidRequest(
                f"Unsupported parameter: '{name}' is not supported by this API.",
                param=name,
                code="unsupported_parameter",
            )


def _logprobs(raw: Any, path: str) -> Json:
    return {"include": ["message.output_text.logprobs"], "top_logprobs": raw}


def _stream_options(raw: Any, path: str) -> Json:
    fields = fields_of(raw, path)
    usage = fields.pop("include_usage", False)
    if not isinstance(usage, bool):
        raise bad_type(f"{path}.include_usage", "a boolean", kind_of(usage))
    refuse_foreign(fields, path=path)
    return {path: fields}


_READERS: Mapping[str, Callable[[Any, str], Json]] = {
    "max_tokens": lambda raw, path: {"max_output_tokens": raw},
    "logprobs": _logprobs,
    "stream_options": _stream_options,
}
