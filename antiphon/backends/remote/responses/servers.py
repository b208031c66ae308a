"""The request fields that each kind of upstream server accepts in addition to the standard fields
of the Responses API.

``FLAVOURS`` has one entry per kind of server.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from antiphon.backends.remote.context_limit import TokenEndpoint
from antiphon.engines.llama.images import UNSUPPORTED_FORMATS


class ResponsesFlavour(Struct, frozen=True, kw_only=True):
    """One kind of upstream server, such as vLLM: the request fields and features that its Responses
    API supports.

    Antiphon recognizes a server of this kind by its host name or by its list of models: ``hosts``
    contains the host name, or ``owners`` contains the field ``owned_by`` of the first model in the
    list.
    """

    #: Option → field of the body, for options beyond the standard.
    option_fields: Mapping[str, str] = {}
    #: The server supports custom tools and namespaces, and enforces ``tool_choice`` and strict
    #: schemas. For other servers, all tools are sent as functions.
    native_tools: bool = False
    #: The server sends encrypted reasoning, and accepts only encrypted reasoning.
    encrypts_reasoning: bool = False
    #: The server enforces ``text.format``.
    enforces_format: bool = False
    #: Syntax of a grammar → its name in ``structured_outputs``.
    grammar_fields: Mapping[str, str] = {}
    #: Image formats that the server cannot read, as MIME types.
    unreadable_formats: frozenset[str] = frozenset()
    #: The server accepts ``chat_template_kwargs``.
    accepts_template_kwargs: bool = False
    #: The kind of the server's endpoint that counts tokens.
    token_endpoint: TokenEndpoint | None = None
    owners: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()


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
_GUIDES: Mapping[str, str] = {
    "regex": "regex",
    "lark": "grammar",
    "ebnf": "grammar",
    "structural_tag": "structural_tag",
}

#: Sources: the servers' own request models and documentation, November 2026.
FLAVOURS: Mapping[str, ResponsesFlavour] = {
    "plain": ResponsesFlavour(),
    "openai": ResponsesFlavour(
        enforces_format=True,
        native_tools=True,
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
        grammar_fields=_GUIDES,
        accepts_template_kwargs=True,
        token_endpoint="antiphon",
        owners=("antiphon",),
    ),
    "vllm": ResponsesFlavour(
        enforces_format=True,
        option_fields=_VLLM,
        grammar_fields=_GUIDES,
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
