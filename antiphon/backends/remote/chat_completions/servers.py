"""The request fields that each kind of upstream server accepts in addition to the standard fields
of the Chat Completions API.

``FLAVOURS`` has one entry per kind of server. If a server would silently ignore a field, its entry
does not contain the field, so a request that uses the field is rejected.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct

from antiphon.backends.remote.context_limit import TokenEndpoint
from antiphon.engines.llama.images import UNSUPPORTED_FORMATS

#: Option → field of the body, for the options of OpenAI's API.
STANDARD: Mapping[str, str] = {
    "temperature": "temperature",
    "top_p": "top_p",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "seed": "seed",
}


class ChatFlavour(Struct, frozen=True, kw_only=True):
    """One kind of upstream server, such as vLLM: the request fields and features that it supports.

    Antiphon recognizes a server of this kind by its host name or by its list of models: ``hosts``
    contains the host name, or ``owners`` contains the field ``owned_by`` of the first model in the
    list.
    """

    #: Option → field of the body, for options beyond the standard.
    option_fields: Mapping[str, str] = {}
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
    #: How the server treats a JSON schema: it enforces the schema, it accepts the schema without a
    #: guarantee, or it supports only the format ``json_object``.
    schema_support: Literal["enforces", "accepts", "json_only"] = "accepts"
    #: The server enforces ``tool_choice`` and the strict schemas of tools.
    enforces_calls: bool = False
    #: The server accepts ``chat_template_kwargs``.
    accepts_template_kwargs: bool = False
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
    #: Image formats that the server cannot read, as MIME types.
    unreadable_formats: frozenset[str] = frozenset()
    #: Syntax of a grammar → the path of the grammar's field in the body.
    grammar_fields: Mapping[str, tuple[str, ...]] = {}
    #: The kind of the server's endpoint that counts tokens.
    token_endpoint: TokenEndpoint | None = None
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
        schema_support="enforces",
        enforces_calls=True,
        max_tokens_field="max_completion_tokens",
        reasoning_fields=(),
        has_developer_role=True,
        owners=("system", "openai", "openai-internal"),
        hosts=("api.openai.com",),
    ),
    "vllm": ChatFlavour(
        schema_support="enforces",
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
        grammar_fields={
            "regex": ("structured_outputs", "regex"),
            "lark": ("structured_outputs", "grammar"),
            "ebnf": ("structured_outputs", "grammar"),
            "structural_tag": ("structured_outputs", "structural_tag"),
        },
        reasoning_fields=("reasoning", "reasoning_content"),
        accepts_template_kwargs=True,
        token_endpoint="vllm",
        owners=("vllm",),
    ),
    "sglang": ChatFlavour(
        schema_support="enforces",
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
        schema_support="enforces",
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
        schema_support="enforces", reasoning_fields=("reasoning",), owners=("library",)
    ),
    "lmstudio": ChatFlavour(
        schema_support="enforces",
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
        schema_support="json_only",
        effort_style="thinking",
        owners=("deepseek",),
        hosts=("api.deepseek.com",),
    ),
    "zai": ChatFlavour(
        schema_support="json_only",
        effort_style="thinking",
        owners=("z-ai",),
        hosts=("api.z.ai", "open.bigmodel.cn"),
    ),
}
