"""What servers of the Responses API take beyond what all of them do, one row each."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

__all__ = ["FLAVOURS", "Flavour"]


class Flavour(Struct, frozen=True, kw_only=True):
    """``fields``: further options → fields. ``native``: it knows custom tools and namespaces; they
    are functions for the others. ``seals``: it gives its thinking sealed, and takes it only so.
    ``template``: it takes ``chat_template_kwargs``. ``hosts``: where it is to be found."""

    fields: Mapping[str, str] = {}
    native: bool = False
    seals: bool = False
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

#: Sources: the servers' own request models and documentation, November 2026.
FLAVOURS: Mapping[str, Flavour] = {
    "plain": Flavour(),
    "openai": Flavour(
        native=True,
        seals=True,
        owners=("system", "openai", "openai-internal"),
        hosts=("api.openai.com",),
    ),
    "antiphon": Flavour(
        fields={**_VLLM, "min_p": "min_p"}, native=True, template=True, owners=("antiphon",)
    ),
    "vllm": Flavour(fields=_VLLM, owners=("vllm",)),
    "sglang": Flavour(
        fields={
            name: name
            for name in (
                "top_k",
                "min_p",
                "repetition_penalty",
                "presence_penalty",
                "frequency_penalty",
            )
        },
        owners=("sglang",),
    ),
    "llama-server": Flavour(
        fields={
            "top_k": "top_k",
            "min_p": "min_p",
            "repetition_penalty": "repeat_penalty",
            "presence_penalty": "presence_penalty",
            "frequency_penalty": "frequency_penalty",
            "seed": "seed",
            "ignore_eos": "ignore_eos",
        },
        template=True,
        owners=("llamacpp",),
    ),
}
