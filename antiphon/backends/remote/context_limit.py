"""Check that a request fits the configured context before the request is sent to an upstream.

If the upstream has an endpoint that counts tokens, this endpoint counts the tokens of the prompt.
For all other upstreams, only a lower bound of the number of tokens is known. So a request that is
rejected here is certainly too long. A request that is too long may still pass this check; then the
upstream rejects it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, Literal

import msgspec

from antiphon.errors import BackendError
from antiphon.upstream.client import Upstream
from antiphon.wire.json_types import JsonObject

#: Kinds of upstream servers that have an endpoint for counting tokens.
TokenEndpoint = Literal["vllm", "llama-server", "antiphon"]
#: Upper bound for the average number of characters per token, without white space. It holds for any
#: tokenizer and language. English text has about 4, German and Hindi text about 5.
_MAX_TOKEN_CHARS = 8
#: Seconds to wait for the upstream's count. After this time, the lower bound is used.
_COUNT_S = 10.0
_TEMPLATE_FIELDS = ("messages", "tools", "chat_template_kwargs")
#: Fields of a request of the Responses API that count as input.
_INPUT_FIELDS = (
    "model",
    "input",
    "instructions",
    "tools",
    "tool_choice",
    "text",
    "reasoning",
    "parallel_tool_calls",
)
#: Prefixes of strings that are not text of the prompt.
_DATA_PREFIXES = ("data:", "http://", "https://")


def may_exceed(max_tokens: int, context_size: int, endpoint: TokenEndpoint | None) -> bool:
    """Return whether ``count_tokens`` can find that a request is too long for the context. Most
    requests are so short that they need no such check.

    ``max_tokens``: an upper bound of the prompt's tokens, such as the bytes of the request: a token
    of text has at least one byte. Without an endpoint that counts tokens, only a prompt of
    ``_MAX_TOKEN_CHARS`` characters per token of the context is certainly too long.
    """
    min_tokens = context_size if endpoint is not None else context_size * _MAX_TOKEN_CHARS
    return max_tokens >= min_tokens


async def count_tokens(
    upstream: Upstream, body: bytes, endpoint: TokenEndpoint | None
) -> tuple[int, bool]:
    """Return the number of tokens of a request's prompt, and whether the upstream counted them.

    ``body``: the body of the request, as JSON. ``endpoint``: the kind of the upstream's endpoint
    that counts tokens, or None. If the upstream did not count the tokens, the number is a lower
    bound. Images are not counted.
    """
    request = await asyncio.to_thread(msgspec.json.decode, body)
    if endpoint is not None:
        try:
            async with asyncio.timeout(_COUNT_S):
                count = await _COUNTERS[endpoint](upstream, request)
        except (BackendError, TimeoutError):
            count = None
        if count is not None:
            return count, True
    return await asyncio.to_thread(_lower_bound, request), False


async def _count_with_vllm(upstream: Upstream, request: Mapping[str, object]) -> int | None:
    answer = await _ask(upstream, "tokenize", _vllm_request(request))
    return _whole_number(answer.get("count"))


def _vllm_request(request: Mapping[str, object]) -> JsonObject:
    if "messages" not in request:
        return {"model": request["model"], "prompt": _joined_text(request)}
    return {"model": request["model"], **_template_fields(request), "add_generation_prompt": True}


async def _count_with_llama_server(upstream: Upstream, request: Mapping[str, object]) -> int | None:
    text: Any = _joined_text(request)
    if "messages" in request:
        answer = await _ask(upstream, "apply-template", _template_fields(request))
        text = answer.get("prompt")
    body = {"content": text, "add_special": True, "parse_special": True}
    tokens = (await _ask(upstream, "tokenize", body)).get("tokens")
    return len(tokens) if isinstance(tokens, list) else None


async def _count_with_antiphon(upstream: Upstream, request: Mapping[str, object]) -> int | None:
    body = {name: request[name] for name in _INPUT_FIELDS if name in request}
    url = f"{upstream.versioned_url}/responses/input_tokens"
    answer = await upstream.request_json(url, body, wait_s=_COUNT_S)
    return _whole_number(answer.get("input_tokens")) if isinstance(answer, Mapping) else None


_COUNTERS: Mapping[
    TokenEndpoint, Callable[[Upstream, Mapping[str, Any]], Awaitable[int | None]]
] = {
    "vllm": _count_with_vllm,
    "llama-server": _count_with_llama_server,
    "antiphon": _count_with_antiphon,
}


async def _ask(upstream: Upstream, path: str, body: JsonObject) -> Mapping[str, Any]:
    answer = await upstream.request_json(f"{upstream.root}/{path}", body, wait_s=_COUNT_S)
    return answer if isinstance(answer, Mapping) else {}


def _template_fields(request: Mapping[str, Any]) -> JsonObject:
    fields = {name: request[name] for name in _TEMPLATE_FIELDS if name in request}
    return {**fields, "messages": [_text_parts(message) for message in request["messages"]]}


def _text_parts(message: JsonObject) -> JsonObject:
    """Return the message with its text parts only. The request that counts tokens needs no images,
    and sending the bytes of images takes long."""
    content = message.get("content")
    if not isinstance(content, list):
        return message
    return {**message, "content": [part for part in content if part.get("type") == "text"]}


def _joined_text(request: Mapping[str, object]) -> str:
    inputs = [request.get(name) for name in ("instructions", "messages", "input", "tools")]
    return "\n".join(_texts(inputs))


def _texts(value: object) -> Iterator[str]:
    """Yield the strings in a JSON value, except URLs and encoded data such as the contents of a
    file."""
    if isinstance(value, str):
        if not value.startswith(_DATA_PREFIXES):
            yield value
    elif isinstance(value, Mapping):
        for name, member in value.items():
            if name not in ("encrypted_content", "file_data", "data"):
                yield from _texts(member)
    elif isinstance(value, list):
        for member in value:
            yield from _texts(member)


def _lower_bound(request: Mapping[str, object]) -> int:
    text = _joined_text(request)
    return sum(map(len, text.split())) // _MAX_TOKEN_CHARS


def _whole_number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
