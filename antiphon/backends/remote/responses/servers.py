"""The request fields that each kind of upstream server accepts in addition to the standard fields
of the Responses API.

``FLAVOURS`` has one entry per kind of server.
"""

from __future__ import annotations

from collections.abc import Mapping

from antiphon.backends.remote.flavours import VLLM_GRAMMARS, ServerFlavour
from antiphon.engines.llama.images import UNSUPPORTED_FORMATS


class ResponsesFlavour(ServerFlavour, frozen=True, kw_only=True):
    """One kind of upstream server, with its Responses API."""

    #: The server supports custom tools and namespaces. For other servers, all tools are sent as
    #: functions.
    native_tools: bool = False
    #: The server sends encrypted reasoning, and accepts only encrypted reasoning.
    encrypts_reasoning: bool = False


_VLLM: Mapping[str, str] = {
    "top_k": "top_k",
    "repetition_penalty": "repetition_penalty",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "seed": "seed",
    "ignore_eos": "ignore_eos",
    "priority": "priority",
    "cache_salt": "cache_salt",
    "adapter": "model",
}

#: Sources: the servers' own request models and documentation, November 2026.
FLAVOURS: Mapping[str, ResponsesFlavour] = {
    "plain": ResponsesFlavour(),
    "openai": ResponsesFlavour(
        enforces_format=True,
        native_tools=True,
        enforces_calls=True,
        encrypts_reasoning=True,
        owners=("system", "openai", "openai-internal"),
        hosts=("api.openai.com",),
    ),
    "antiphon": ResponsesFlavour(
        enforces_format=True,
        option_fields={
            **_VLLM,
            "min_p": "min_p",
            "logit_bias": "logit_bias",
            "stop": "stop",
            "include_stop_text": "include_stop_str_in_output",
            "logprob_token_ids": "return_tokens_as_token_ids",
            "thinking_budget": "thinking_token_budget",
        },
        native_tools=True,
        enforces_calls=True,
        grammar_fields=VLLM_GRAMMARS,
        accepts_template_kwargs=True,
        token_endpoint="antiphon",
        owners=("antiphon",),
    ),
    "vllm": ResponsesFlavour(
        enforces_format=True,
        option_fields=_VLLM,
        grammar_fields=VLLM_GRAMMARS,
        token_endpoint="vllm",
        owners=("vllm",),
    ),
    "sglang": ResponsesFlavour(
        option_fields={
            name: name
            for name in (
                "top_k",
                "min_p",
                "repetition_penalty",
                "presence_penalty",
                "frequency_penalty",
                "stop",
                "cache_salt",
            )
        },
        accepts_template_kwargs=True,
        owners=("sglang",),
    ),
    "llama-server": ResponsesFlavour(
        option_fields={
            "top_k": "top_k",
            "min_p": "min_p",
            "repetition_penalty": "repeat_penalty",
            "presence_penalty": "presence_penalty",
            "frequency_penalty": "frequency_penalty",
            "seed": "seed",
            "ignore_eos": "ignore_eos",
        },
        unreadable_formats=UNSUPPORTED_FORMATS,
        accepts_template_kwargs=True,
        token_endpoint="llama-server",
        owners=("llamacpp",),
    ),
}
