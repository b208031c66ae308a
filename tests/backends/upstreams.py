"""Real Chat Completions servers: the model list and the stream of each.

Recorded shapes, shortened; ids and times are made up.
"""

from __future__ import annotations

from typing import Any

from tests.upstream.fakes import sse

STORY = ("A boat left", " the harbour.", " It was never", " seen again.")
USAGE = {"prompt_tokens": 25, "completion_tokens": 12, "total_tokens": 37}


def _chunk(delta: dict[str, Any], reason: str | None = None, **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": reason, "logprobs": None}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1_760_000_000,
        "model": "m",
        "choices": [choice],
        **more,
    }


def _last(usage: dict[str, Any]) -> dict[str, Any]:
    return {**_chunk({}), "choices": [], "usage": usage}


VLLM = sse(
    _chunk({"role": "assistant", "content": ""}),
    _chunk({"reasoning": "Boats"}),
    _chunk({"reasoning": "."}),
    *(_chunk({"content": text}) for text in STORY),
    _chunk({"content": ""}, "stop", stop_reason=None),
    _last({**USAGE, "prompt_tokens_details": {"cached_tokens": 16}}),
)
LLAMA_SERVER = sse(
    _chunk({"role": "assistant", "content": None}),
    *(_chunk({"content": text}) for text in STORY),
    _chunk({}, "stop"),
    {
        **_last({**USAGE, "prompt_tokens_details": {"cached_tokens": 16}}),
        "timings": {"cache_n": 16, "prompt_n": 9, "predicted_n": 12},
    },
)
OLLAMA = sse(
    *(_chunk({"role": "assistant", "content": text}) for text in STORY),
    _chunk({"role": "assistant", "content": ""}, "stop"),
    _last(USAGE),
)
OPENROUTER = [
    b": OPENROUTER PROCESSING\n\n",
    b": OPENROUTER PROCESSING\n\n",
    *sse(
        _chunk(
            {
                "role": "assistant",
                "content": "",
                "reasoning": "Boats.",
                "reasoning_details": [
                    {"type": "reasoning.text", "text": "Boats.", "format": "x", "index": 0}
                ],
            }
        ),
        *(_chunk({"role": "assistant", "content": text}) for text in STORY),
        _chunk({"role": "assistant", "content": ""}, "stop", native_finish_reason="end_turn"),
        _chunk(
            {"role": "assistant", "content": ""},
            usage={
                **USAGE,
                "cost": 0.1,
                "prompt_tokens_details": {"cached_tokens": 16},
                "completion_tokens_details": {"reasoning_tokens": 3},
            },
        ),
    ),
]
#: Neither ``[DONE]``, nor usage, nor an event that ends; the reason in a chunk of text.
BROKEN = [
    f"data: {text}\r\n\r\n".encode()
    for text in (
        '{"choices":[{"delta":{"content":"A boat left the harbour."}}]}',
        '{"choices":[{"delta":{"content":" It was never seen again."},"finish_reason":"stop"}]}',
    )
]

#: Flavour → (``owned_by`` of its list of models, its stream).
STREAMS: dict[str, tuple[str, list[bytes]]] = {
    "vllm": ("vllm", VLLM),
    "sglang": ("sglang", VLLM),
    "llama-server": ("llamacpp", LLAMA_SERVER),
    "ollama": ("library", OLLAMA),
    "lmstudio": ("organization_owner", OLLAMA),
    "openrouter": ("", OPENROUTER),
    "plain": ("nobody", BROKEN),
}
