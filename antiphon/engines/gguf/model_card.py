"""Build a model card from a GGUF file's metadata."""

from __future__ import annotations

from antiphon.engines.llama.tokenizer import LlamaTokenizer
from antiphon.inference.tokens import ModelCard

from .reader import GgufHeader


def gguf_card(name: str, context: int, header: GgufHeader, tokenizer: LlamaTokenizer) -> ModelCard:
    """Return the ``ModelCard``, which is the model's metadata in the form that all engines use.

    ``context``: maximum number of tokens, prompt and output together.
    """
    templates = {
        key.removeprefix("tokenizer.chat_template."): str(value)
        for key, value in header.metadata.items()
        if key.startswith("tokenizer.chat_template.")
    }
    return ModelCard(
        name=name,
        context_size=context,
        chat_template=header.metadata.get("tokenizer.chat_template"),
        chat_templates=templates,
        bos_token=tokenizer.bos,
        eos_token=tokenizer.eos,
        add_bos=tokenizer.add_bos,
        architecture=header.architecture or None,
        fingerprint=header.vocabulary_digest[:32],
        generation={
            key.removeprefix("general.sampling."): value
            for key, value in header.metadata.items()
            if key.startswith("general.sampling.")
        },
    )
