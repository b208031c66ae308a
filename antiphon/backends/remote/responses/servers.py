"""What servers of the Responses API take beyond what all of them do, one row each."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from antiphon.engines.llama.images import UNSUPPORTED_FORMATS

__all__ = ["FLAVOURS", "ResponsesFlavour"]


class ResponsesFlavour(Struct, frozen=True, kw_only=True):
    """What one server takes. ``owners``: what its list of models names as their owner. ``hosts``:
    where it is to be found."""

    #: Further options → fields.
    fields: Mapping[str, str] = {}
    #: It knows custom tools and namespaces, which are functions for the others, and holds to what
    #: is asked of calls.
    native: bool = False
    #: It gives its thinking sealed, and takes it only so.
    seals: bool = False
    #: Its answers have the form that was asked for.
    holds: bool = False
    #: Syntax of a grammar → its name in ``structured_outputs``.
    guides: Mapping[str, str] = {}
    #: Formats of images that it cannot read.
    unread: frozenset[str] = frozenset()
    #: It takes ``chat_template_kwargs``.
    template: bool = False
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
_GUIDES: Mapping[str, str] = {"regex": "regex", "lark": "grammar"}

#: Sources: the servers' own request models and documentation, November 2026.
FLAVOURS: Mapping[str, ResponsesFlavour] = {
    "plain": ResponsesFlavour(),
    "openai": ResponsesFlavour(
        holds=True,
        native=True,
        seals=True,
        owners=("system", "openai", "openai-internal"),
        hosts=("api.openai.com",),
    ),
    "antiphon": ResponsesFlavour(
        holds=True,
        fields={
            **_VLLM,
            "min_p": "min_p",
            "logit_bias": "logit_bias",
            "stop": "stop",
            "include_stop_text": "include_stop_str_in_output",
            "thinking_budget": "thinking_token_budget",
        },
        native=True,
        guides=_GUIDES,
        template=True,
        owners=("antiphon",),
    ),
    "vllm": ResponsesFlavour(holds=True, fields=_VLLM, guides=_GUIDES, owners=("vllm",)),
    "sglang": ResponsesFlavour(
        fields={
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
        template=True,
        owners=("sglang",),
    ),
    "llama-server": ResponsesFlavour(
        fields={
            "top_k": "top_k",
            "min_p": "min_p",
            "repetition_penalty": "repeat_penalty",
            "presence_penalty": "presence_penalty",
            "frequency_penalty": "frequency_penalty",
            "seed": "seed",
            "ignore_eos": "ignore_eos",
        },
        unread=UNSUPPORTED_FORMATS,
        template=True,
        owners=("llamacpp",),
    ),
}
