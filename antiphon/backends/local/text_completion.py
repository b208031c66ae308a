"""A text to be continued as it stands: no messages, no template, and the answer is read as text."""

from __future__ import annotations

from antiphon.dialects.base import Rendered
from antiphon.dialects.parser.parser import FormatParser
from antiphon.engines.base import Engine
from antiphon.errors import InvalidRequest, context_length_exceeded
from antiphon.tokens import Prompt, Tokenizer

__all__ = ["as_text", "continuing"]


def continuing(engine: Engine, prompt: str | tuple[int, ...]) -> Rendered:
    """What the engine is given: the ids of a text, in which literals of control tokens are these
    tokens, with the token that begins texts before it where the model wants one; or ids as they
    are. Raises ``InvalidRequest`` with the param ``input``."""
    tokenizer, card = engine.tokenizer, engine.card
    if isinstance(prompt, str):
        bos = card.bos_token or "" if card.add_bos else ""
        text = prompt if prompt.startswith(bos) else bos + prompt
        # Nothing at all begins where any text does.
        ids = tuple(tokenizer.encode(text or card.bos_token or card.eos_token or "", special=True))
    else:
        ids = prompt
        if any(not 0 <= id < tokenizer.size for id in ids):
            raise InvalidRequest(
                f"Invalid 'input': this model has {tokenizer.size} tokens.",
                param="input",
                code="invalid_value",
            )
    if not ids:
        raise InvalidRequest("Invalid 'input': it is empty.", param="input", code="invalid_value")
    if len(ids) >= card.context_size:
        raise context_length_exceeded()
    return Rendered(prompt=Prompt(ids), parser=as_text(tokenizer))


def as_text(tokenizer: Tokenizer, *, is_json: bool = False) -> FormatParser:
    """Reads nothing into what is written. ``is_json``: it is held to that."""
    return FormatParser(
        tokenizer,
        reasoning=None,
        tools=None,
        shapes={},
        thinking=False,
        constrained=is_json,
        json_answer=is_json,
    )
