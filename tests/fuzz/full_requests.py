"""Requests that generate something, with many fields each. All of them are accepted as they are."""

from __future__ import annotations

from typing import Any

_SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer", "minimum": 1}, "b": {"enum": ["x", None]}},
    "required": ["a"],
    "additionalProperties": False,
}
_FUNCTION = {"name": "f", "description": "Does it.", "parameters": _SCHEMA, "strict": True}
_SAMPLING = {"temperature": 0.5, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "seed": 3}
_CALL = {"name": "f", "arguments": "{}"}
_MESSAGES: list[Any] = [
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": [{"type": "text", "text": "Hello"}], "name": "Ann"},
    {
        "role": "assistant",
        "tool_calls": [{"id": "c", "type": "function", "function": _CALL}],
    },
    {"role": "tool", "tool_call_id": "c", "content": "fine"},
]

#: Path → a body of a server with the model ``tiny``.
BODIES: dict[str, dict[str, Any]] = {
    "/v1/responses": {
        "model": "tiny",
        "instructions": "Be kind.",
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "Hello"}]},
            {"type": "function_call", "call_id": "c", **_CALL},
            {"type": "function_call_output", "call_id": "c", "output": "fine"},
            {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "s"}]},
            {"role": "user", "content": "And?"},
        ],
        "tools": [
            {"type": "function", **_FUNCTION},
            {"type": "namespace", "name": "n", "description": "N", "tools": [
                {"type": "function", "name": "g", "parameters": None}
            ]},
            {"type": "custom", "name": "c", "format": {
                "type": "grammar", "syntax": "regex", "definition": "a+"
            }},
        ],
        "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [
            {"type": "function", "name": "f"}
        ]},
        "parallel_tool_calls": False,
        "max_output_tokens": 32,
        "max_tool_calls": 3,
        "metadata": {"k": "v"},
        "include": ["message.output_text.logprobs"],
        "top_logprobs": 2,
        "truncation": "auto",
        "prompt_cache_key": "k",
        "safety_identifier": "s",
        "store": True,
        **_SAMPLING,
    },
    "/v1/responses/input_tokens": {
        "model": "tiny",
        "input": [{"role": "user", "content": "Hello"}],
        "tools": [{"type": "function", **_FUNCTION}],
    },
    "/v1/chat/completions": {
        "model": "tiny",
        "messages": _MESSAGES,
        "tools": [{"type": "function", "function": _FUNCTION}],
        "tool_choice": "auto",
        "n": 2,
        "stop": ["x"],
        "max_completion_tokens": 32,
        "logprobs": True,
        "top_logprobs": 2,
        "logit_bias": {"5": 1},
        "presence_penalty": 0.5,
        "frequency_penalty": 0.5,
        "metadata": {"k": "v"},
        **_SAMPLING,
    },
    "/v1/completions": {
        "model": "tiny", "prompt": ["Hello", "there"], "max_tokens": 16, "n": 1,
        "logprobs": 2, "stop": ["x"], "logit_bias": {"5": 1}, **_SAMPLING,
    },
    "/v1/messages": {
        "model": "tiny",
        "max_tokens": 32,
        "system": [{"type": "text", "text": "Be kind.", "cache_control": {"type": "ephemeral"}}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Hello"}]},
            {"role": "assistant", "content": [
                {"type": "tool_use", "id": "c", "name": "f", "input": {"a": 1}}
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "c", "content": "fine", "is_error": False}
            ]},
        ],
        "tools": [{"name": "f", "description": "Does it.", "input_schema": _SCHEMA}],
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
        "stop_sequences": ["x"],
        "metadata": {"user_id": "u"},
        "temperature": 0.5,
        "top_k": 5,
    },
    "/v1/messages/count_tokens": {
        "model": "tiny", "messages": [{"role": "user", "content": "Hello"}], "system": "Be kind.",
    },
    "/api/chat": {
        "model": "tiny", "messages": [{"role": "user", "content": "Hello"}], "stream": False,
        "tools": [{"type": "function", "function": _FUNCTION}],
        "options": {"num_predict": 16, "temperature": 0.5, "seed": 3, "stop": ["x"]},
        "keep_alive": "5m",
    },
    "/api/generate": {
        "model": "tiny", "prompt": "Hello", "stream": False, "system": "Be kind.",
        "options": {"num_predict": 16, "top_k": 4}, "keep_alive": 300,
    },
    "/v1/images/generations": {
        "prompt": "A cat", "n": 1, "size": "1024x1024", "output_format": "png",
        "quality": "low", "background": "opaque", "moderation": "auto",
    },
    "/v1/embeddings": {
        "model": "tiny", "input": ["a cat", "a dog"], "encoding_format": "base64", "user": "u",
    },
    "/v1/rerank": {
        "model": "tiny", "query": "a cat", "documents": ["a", {"text": "b"}], "top_n": 1,
        "return_documents": True,
    },
    "/v1/audio/speech": {
        "model": "tiny", "input": "Hello.", "voice": "alloy", "response_format": "wav",
        "speed": 1.5, "instructions": "Slowly.",
    },
}  # fmt: skip
