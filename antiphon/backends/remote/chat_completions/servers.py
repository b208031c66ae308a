"""What servers of Chat Completions take beyond the standard, one row each.

A field that a server would drop in silence is not in its row: asking for it is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct

from antiphon.engines.llama.images import UNSUPPORTED_FORMATS

__all__ = ["FLAVOURS", "STANDARD", "ChatFlavour"]

#: Option → field of the body, where servers do what OpenAI's reference says.
STANDARD: Mapping[str, str] = {
    "temperature": "temperature",
    "top_p": "top_p",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "seed": "seed",
}


class ChatFlavour(Struct, frozen=True, kw_only=True):
    """What one server takes. ``owners``: what its list of models names as their owner. ``hosts``:
    where it is to be found."""

    #: Further options → fields.
    fields: Mapping[str, str] = {}
    #: One of the standard that it drops.
    without: str | None = None
    #: Its higher priorities come first; ours, the lower ones.
    higher_first: bool = False
    #: What the limit of tokens is called.
    limit: str = "max_tokens"
    #: Under what names it takes what was thought.
    thought: tuple[str, ...] = ("reasoning_content",)
    #: How it is told how hard to think.
    effort: Literal["reasoning_effort", "reasoning", "thinking"] = "reasoning_effort"
    #: What it does with a schema: hold to it, take it for what it may, know nothing but "JSON".
    form: Literal["holds", "takes", "json"] = "takes"
    #: It holds to strict schemas and to the choice of a tool.
    calls: bool = False
    #: It takes ``chat_template_kwargs``.
    template: bool = False
    #: It knows that role.
    developer: bool = False
    #: It takes ``vllm_xargs``.
    extra: bool = False
    #: What makes it tell of all chunks how many tokens there were: all that it has of thinking, or
    #: all it has where it takes thinking for text.
    counts: Mapping[str, Any] = {}
    #: It counts the tokens of thinking that it tells apart.
    counts_thinking: bool = True
    #: Formats of images that it cannot read.
    unread: frozenset[str] = frozenset()
    #: Syntax of a grammar → where it takes one.
    guides: Mapping[str, tuple[str, ...]] = {}
    owners: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()


_CONTINUOUS: Mapping[str, Any] = {
    "stream_options": {"include_usage": True, "continuous_usage_stats": True}
}

_LOCAL: Mapping[str, str] = {
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "ignore_eos": "ignore_eos",
}

#: Sources: the servers' own request models and documentation, November 2026.
FLAVOURS: Mapping[str, ChatFlavour] = {
    "plain": ChatFlavour(),
    "openai": ChatFlavour(
        form="holds",
        calls=True,
        limit="max_completion_tokens",
        thought=(),
        developer=True,
        owners=("system", "openai", "openai-internal"),
        hosts=("api.openai.com",),
    ),
    "vllm": ChatFlavour(
        form="holds",
        fields={
            **_LOCAL,
            "priority": "priority",
            "cache_salt": "cache_salt",
            "adapter": "model",
            "thinking_budget": "thinking_token_budget",
            "include_stop_text": "include_stop_str_in_output",
        },
        extra=True,
        counts=_CONTINUOUS,
        guides={
            "regex": ("structured_outputs", "regex"),
            "lark": ("structured_outputs", "grammar"),
        },
        thought=("reasoning", "reasoning_content"),
        template=True,
        owners=("vllm",),
    ),
    "sglang": ChatFlavour(
        form="holds",
        fields={
            **_LOCAL,
            "priority": "priority",
            "cache_salt": "cache_salt",
            "adapter": "lora_path",
            "include_stop_text": "no_stop_trim",
        },
        without="seed",  # heeded by deterministic ones alone, which do not say that they are
        higher_first=True,
        counts=_CONTINUOUS,
        guides={"regex": ("regex",)},
        template=True,
        owners=("sglang",),
    ),
    "llama-server": ChatFlavour(
        form="holds",
        fields={**_LOCAL, "repetition_penalty": "repeat_penalty"},
        counts={"timings_per_token": True},
        counts_thinking=False,
        unread=UNSUPPORTED_FORMATS,
        template=True,
        owners=("llamacpp",),
    ),
    "ollama": ChatFlavour(form="holds", thought=("reasoning",), owners=("library",)),
    "lmstudio": ChatFlavour(
        form="holds",
        fields={"top_k": "top_k", "repetition_penalty": "repeat_penalty"},
        owners=("organization_owner",),
    ),
    "openrouter": ChatFlavour(
        fields={"top_k": "top_k", "min_p": "min_p", "repetition_penalty": "repetition_penalty"},
        thought=("reasoning",),
        effort="reasoning",
        hosts=("openrouter.ai",),
    ),
    "deepseek": ChatFlavour(
        form="json", effort="thinking", owners=("deepseek",), hosts=("api.deepseek.com",)
    ),
    "zai": ChatFlavour(
        form="json", effort="thinking", owners=("z-ai",), hosts=("api.z.ai", "open.bigmodel.cn")
    ),
}
