"""What servers of Chat Completions take beyond the standard, one row each.

A field that a server would drop in silence is not in its row: asking for it is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

__all__ = ["FLAVOURS", "STANDARD", "Flavour"]

#: Option → field of the body, where servers do what OpenAI's reference says.
STANDARD: Mapping[str, str] = {
    "temperature": "temperature",
    "top_p": "top_p",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "seed": "seed",
}


class Flavour(Struct, frozen=True, kw_only=True):
    """``fields``: further options → fields. ``limit``: what the limit of tokens is called.
    ``thought``: under what names it takes what was thought. ``effort``: how it is told how hard to
    think. ``template``: it takes ``chat_template_kwargs``. ``developer``: it knows that role.
    ``extra``: it takes ``vllm_xargs``. ``guides``: syntax of a grammar → where it takes one.
    ``owners``: what its list of models names as their owner. ``hosts``: where it is to be found."""

    fields: Mapping[str, str] = {}
    limit: str = "max_tokens"
    thought: tuple[str, ...] = ("reasoning_content",)
    effort: Literal["reasoning_effort", "reasoning", "thinking"] = "reasoning_effort"
    template: bool = False
    developer: bool = False
    extra: bool = False
    guides: Mapping[str, tuple[str, ...]] = {}
    owners: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()


_LOCAL: Mapping[str, str] = {
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "ignore_eos": "ignore_eos",
}

#: Sources: the servers' own request models and documentation, November 2026.
FLAVOURS: Mapping[str, Flavour] = {
    "plain": Flavour(),
    "openai": Flavour(
        limit="max_completion_tokens",
        thought=(),
        developer=True,
        owners=("system", "openai", "openai-internal"),
        hosts=("api.openai.com",),
    ),
    "vllm": Flavour(
        fields={
            **_LOCAL,
            "priority": "priority",
            "cache_salt": "cache_salt",
            "adapter": "model",
            "thinking_budget": "thinking_token_budget",
            "stop_shown": "include_stop_str_in_output",
        },
        extra=True,
        guides={
            "regex": ("structured_outputs", "regex"),
            "lark": ("structured_outputs", "grammar"),
        },
        thought=("reasoning", "reasoning_content"),
        template=True,
        owners=("vllm",),
    ),
    "sglang": Flavour(fields={**_LOCAL, "priority": "priority"}, template=True, owners=("sglang",)),
    "llama-server": Flavour(
        fields={**_LOCAL, "repetition_penalty": "repeat_penalty"},
        template=True,
        owners=("llamacpp",),
    ),
    "ollama": Flavour(thought=("reasoning",), owners=("library",)),
    "lmstudio": Flavour(
        fields={"top_k": "top_k", "repetition_penalty": "repeat_penalty"},
        owners=("organization_owner",),
    ),
    "openrouter": Flavour(
        fields={"top_k": "top_k", "min_p": "min_p", "repetition_penalty": "repetition_penalty"},
        thought=("reasoning",),
        effort="reasoning",
        hosts=("openrouter.ai",),
    ),
    "deepseek": Flavour(effort="thinking", owners=("deepseek",), hosts=("api.deepseek.com",)),
    "zai": Flavour(effort="thinking", owners=("z-ai",), hosts=("api.z.ai", "open.bigmodel.cn")),
}
