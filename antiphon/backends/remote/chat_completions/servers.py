"""The request fields that each kind of upstream server accepts in addition to the standard fields
of the Chat Completions API.

``FLAVOURS`` has one entry per kind of server. If a server would silently ignore a field, its entry
does not contain the field, so a request that uses the field is rejected.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from antiphon.backends.remote.flavours import VLLM_GRAMMARS, ServerFlavour
from antiphon.engines.llama.images import UNSUPPORTED_FORMATS

#: Option → field of the body, for the options of OpenAI's API.
STANDARD: Mapping[str, str] = {
    "temperature": "temperature",
    "top_p": "top_p",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "seed": "seed",
}


class ChatFlavour(ServerFlavour, frozen=True, kw_only=True):
    """One kind of upstream server, with its Chat Completions API."""

    #: A standard option that the server silently ignores.
    ignored_option: str | None = None
    #: The server serves higher priorities first. In Antiphon's API, lower values come first.
    higher_priority_first: bool = False
    #: The server's field for the maximum number of output tokens.
    max_tokens_field: str = "max_tokens"
    #: Fields of an assistant message in which the server accepts reasoning.
    reasoning_fields: tuple[str, ...] = ("reasoning_content",)
    #: The field that sets the reasoning effort.
    effort_style: Literal["reasoning_effort", "reasoning", "thinking"] = "reasoning_effort"
    #: The server accepts a JSON schema, perhaps without a guarantee. Other servers support only the
    #: format ``json_object``.
    accepts_schemas: bool = True
    #: The server supports the role ``developer`` and the newer fields of OpenAI's API.
    has_developer_role: bool = False
    #: The server accepts ``vllm_xargs``.
    accepts_vllm_xargs: bool = False
    #: Fields that make the server report token counts with every chunk. Reasoning tokens are
    #: counted from these reports.
    token_count_options: Mapping[str, Any] = {}
    #: The server's usage includes the number of reasoning tokens, if the server sends reasoning in
    #: a separate field.
    counts_reasoning: bool = True


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
        enforces_format=True,
        enforces_calls=True,
        max_tokens_field="max_completion_tokens",
        reasoning_fields=(),
        has_developer_role=True,
        owners=("system", "openai", "openai-internal"),
        hosts=("api.openai.com",),
    ),
    "vllm": ChatFlavour(
        enforces_format=True,
        option_fields={
            **_LOCAL,
            "priority": "priority",
            "cache_salt": "cache_salt",
            "adapter": "model",
            "thinking_budget": "thinking_token_budget",
            "include_stop_text": "include_stop_str_in_output",
            "logprob_token_ids": "return_tokens_as_token_ids",
        },
        accepts_vllm_xargs=True,
        token_count_options=_CONTINUOUS,
        grammar_fields=VLLM_GRAMMARS,
        reasoning_fields=("reasoning", "reasoning_content"),
        accepts_template_kwargs=True,
        token_endpoint="vllm",
        owners=("vllm",),
    ),
    "sglang": ChatFlavour(
        enforces_format=True,
        option_fields={
            **_LOCAL,
            "priority": "priority",
            "cache_salt": "cache_salt",
            "adapter": "lora_path",
            "include_stop_text": "no_stop_trim",
        },
        ignored_option="seed",  # only deterministic servers use it
        higher_priority_first=True,
        token_count_options=_CONTINUOUS,
        grammar_fields={"regex": ("regex",), "ebnf": ("ebnf",)},
        accepts_template_kwargs=True,
        owners=("sglang",),
    ),
    "llama-server": ChatFlavour(
        enforces_format=True,
        option_fields={**_LOCAL, "repetition_penalty": "repeat_penalty"},
        grammar_fields={"ebnf": ("grammar",)},
        token_count_options={"timings_per_token": True},
        counts_reasoning=False,
        unreadable_formats=UNSUPPORTED_FORMATS,
        accepts_template_kwargs=True,
        token_endpoint="llama-server",
        owners=("llamacpp",),
    ),
    "ollama": ChatFlavour(
        enforces_format=True, reasoning_fields=("reasoning",), owners=("library",)
    ),
    "lmstudio": ChatFlavour(
        enforces_format=True,
        option_fields={"top_k": "top_k", "repetition_penalty": "repeat_penalty"},
        owners=("organization_owner",),
    ),
    "openrouter": ChatFlavour(
        option_fields={
            "top_k": "top_k",
            "min_p": "min_p",
            "repetition_penalty": "repetition_penalty",
        },
        reasoning_fields=("reasoning",),
        effort_style="reasoning",
        hosts=("openrouter.ai",),
    ),
    "deepseek": ChatFlavour(
        accepts_schemas=False,
        effort_style="thinking",
        owners=("deepseek",),
        hosts=("api.deepseek.com",),
    ),
    "zai": ChatFlavour(
        accepts_schemas=False,
        effort_style="thinking",
        owners=("z-ai",),
        hosts=("api.z.ai", "open.bigmodel.cn"),
    ),
}
