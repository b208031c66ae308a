"""Every value of a request is replaced by values of other types: each body is a request or a short
400. Random bodies seldom have a wrong type in one place and are right everywhere else."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from antiphon.compat.chat_request import parse_chat_request
from antiphon.compat.completion_request import parse_completion_request
from antiphon.compat.embeddings import parse_embeddings_request
from antiphon.compat.messages.request import parse_count_request, parse_messages_request
from antiphon.compat.rerank import RerankRequest
from antiphon.errors import InvalidRequest
from antiphon.wire.parsing import uploads, vector_stores
from antiphon.wire.parsing.fields import body_parser
from antiphon.wire.parsing.requests import parse_create_conversation, parse_create_response
from antiphon.wire.parsing.tokens import DetokenizeRequest, parse_tokenize
from antiphon.wire.resources.containers import parse_create_container
from tests.compat import test_chat_request as chat
from tests.wire.samples import CHOICES, ITEMS, TOOLS
from tests.wire.test_fuzz import check_error

_OTHERS = (None, True, -1, 0.5, 10**30, "", "x", [], [None], [[]], {}, {"type": []}, {"a": {}})
_SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
_IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "eA=="}}
_FILTER = {"type": "and", "filters": [{"type": "eq", "key": "a", "value": 1}]}
_MESSAGES: dict[str, Any] = {
    "model": "tiny",
    "max_tokens": 9,
    "system": [{"type": "text", "text": "be brief", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "hi"}, _IMAGE]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hmm", "signature": "x"},
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "call_1", "name": "f", "input": {"a": "b"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "call_1",
                    "is_error": False,
                    "content": [{"type": "text", "text": "x"}, _IMAGE],
                },
                {
                    "type": "document",
                    "title": "a",
                    "source": {"type": "text", "media_type": "text/plain", "data": "x"},
                },
            ],
        },
    ],
    "tools": [
        {"name": "f", "description": "d", "input_schema": _SCHEMA, "strict": True},
        {"type": "web_search_20250305", "name": "web_search", "max_uses": 2},
    ],
    "tool_choice": {"type": "tool", "name": "f", "disable_parallel_tool_use": True},
    "context_management": {
        "edits": [
            {"type": "clear_thinking_20251015", "keep": {"type": "thinking_turns", "value": 1}}
        ]
    },
    "stream": False,
    "stop_sequences": ["a"],
    "temperature": 0.5,
    "top_p": 0.5,
    "top_k": 3,
    "thinking": {"type": "enabled", "budget_tokens": 1024, "display": "omitted"},
    "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": _SCHEMA}},
    "metadata": {"user_id": "u"},
    "service_tier": "auto",
    "cache_control": {"type": "ephemeral"},
    "speed": "standard",
}
_CASES: dict[str, tuple[Callable[[bytes], object], dict[str, Any]]] = {
    "chat": (parse_chat_request, chat.SAMPLE),
    "chat, legacy": (parse_chat_request, {"messages": chat.MESSAGES[-2:], **chat.LEGACY}),
    "completions": (
        parse_completion_request,
        {
            "prompt": ["a", [1]],
            "n": 1,
            "max_tokens": 3,
            "logprobs": 2,
            "echo": False,
            "stream": True,
            "stream_options": {"include_usage": True},
            "stop": ["a"],
            "suffix": None,
            "seed": 1,
            "logit_bias": {"1": 2},
        },
    ),
    "messages": (parse_messages_request, _MESSAGES),
    "count tokens": (parse_count_request, _MESSAGES),
    "embeddings": (
        parse_embeddings_request,
        {"input": ["a", [1]], "model": "m", "dimensions": 3, "encoding_format": "float"},
    ),
    "rerank": (
        body_parser(RerankRequest, refuses_unknown=True),
        {"query": "q", "documents": ["a", {"text": "b"}], "top_n": 1, "return_documents": True},
    ),
    "tokenize": (
        parse_tokenize,
        {"model": "m", "prompt": "hi", "add_special_tokens": True, "return_token_strs": True},
    ),
    "detokenize": (body_parser(DetokenizeRequest), {"model": "m", "tokens": [1]}),
    "upload": (
        uploads.parse_create,
        {"filename": "a", "bytes": 3, "mime_type": "text/plain", "purpose": "user_data"},
    ),
    "upload parts": (uploads.parse_complete, {"part_ids": ["part_1"], "md5": "0" * 32}),
    "vector store": (
        vector_stores.parse_create_vector_store,
        {
            "name": "n",
            "file_ids": ["file-1"],
            "metadata": {"a": "b"},
            "expires_after": {"anchor": "last_active_at", "days": 1},
            "chunking_strategy": {
                "type": "static",
                "static": {"max_chunk_size_tokens": 200, "chunk_overlap_tokens": 50},
            },
        },
    ),
    "vector store files": (
        vector_stores.parse_file_batch,
        {"files": [{"file_id": "file-1", "attributes": {"a": 1}}]},
    ),
    "search": (
        vector_stores.parse_search,
        {
            "query": ["a"],
            "filters": _FILTER,
            "max_num_results": 3,
            "ranking_options": {"ranker": "auto", "score_threshold": 0.1},
            "rewrite_query": False,
        },
    ),
}


_CASES |= {
    f"item {name}": (parse_create_conversation, {"items": [item]}) for name, item in ITEMS.items()
}
_CASES |= {
    f"tool {name}": (parse_create_response, {"input": "hi", "tools": [tool]})
    for name, tool in TOOLS.items()
}
_CASES["tool choices"] = (
    parse_create_response,
    {"input": "hi", "tools": list(TOOLS.values()), "tool_choice": CHOICES[-1]},
)
_CASES["container"] = (
    parse_create_container,
    {
        "name": "a",
        "file_ids": ["file-1"],
        "expires_after": {"anchor": "last_active_at", "minutes": 5},
    },
)


def _replaced(sample: Any) -> Iterator[Any]:
    """Yield the sample with each of its values, at any depth, replaced by each other one."""
    for holder, key in _places(copied := copy.deepcopy(sample)):
        value = holder[key]
        for other in _OTHERS:
            holder[key] = other
            yield copied
        holder[key] = value


def _places(value: Any) -> list[tuple[Any, Any]]:
    pairs = list(value.items() if isinstance(value, dict) else enumerate(value))
    inner = [each for _, item in pairs if isinstance(item, dict | list) for each in _places(item)]
    return [*((value, key) for key, _ in pairs), *inner]


@pytest.mark.parametrize("name", _CASES)
def test_samples_are_requests(name: str) -> None:
    parse, sample = _CASES[name]
    parse(json.dumps(sample).encode())


@pytest.mark.requirement("API-400")
@pytest.mark.parametrize("name", _CASES)
def test_request_with_a_replaced_value_is_parsed_or_refused(name: str) -> None:
    parse, sample = _CASES[name]
    for changed in _replaced(sample):
        try:
            parse(json.dumps(changed).encode())
        except InvalidRequest as error:
            check_error(error)
