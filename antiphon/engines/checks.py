"""What every engine refuses before it begins, said in the same words. It knows no engine."""

from __future__ import annotations

from antiphon.engines.base import Sampling
from antiphon.errors import BackendError, InvalidRequest
from antiphon.tokens import ModelCard, Prompt, Tokenizer

__all__ = ["check_request"]


def check_request(
    prompt: Prompt, sampling: Sampling, card: ModelCard, tokenizer: Tokenizer
) -> None:
    """Raises ``InvalidRequest`` for what cannot be continued, ``BackendError`` for ids that are of
    another vocabulary."""
    if not prompt.ids:
        raise InvalidRequest("The prompt is empty.", param="input")
    if sampling.max_tokens < 1:
        raise InvalidRequest("At least one token must be asked for.", param="max_output_tokens")
    if len(prompt.ids) >= card.context_size:
        raise InvalidRequest(
            f"The input has {len(prompt.ids)} tokens; the context of this model holds"
            f" {card.context_size}, the answer included.",
            param="input",
            code="context_length_exceeded",
        )
    if min(prompt.ids) < 0 or max(prompt.ids) >= tokenizer.size:
        raise BackendError("The prompt has invalid tokens: ids of another vocabulary.")
