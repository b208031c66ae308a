"""Text completion: the model continues a text without messages and without a chat template. The
output is plain text."""

from __future__ import annotations

from antiphon.dialects.base import Rendered
from antiphon.dialects.parser.parser import FormatParser
from antiphon.engines.base import Engine
from antiphon.errors import context_length_exceeded, invalid_field
from antiphon.inference.tokens import Prompt, Tokenizer
from antiphon.support.encoding_work import limit_ids


def render_text(engine: Engine, prompt: str | tuple[int, ...]) -> Rendered:
    """Render the prompt of a text completion. ``prompt``: a text or token ids.

    A text is tokenized. If the text contains the name of a control token, such as ``<|im_end|>``,
    this name becomes the control token. If the model expects a BOS token at the beginning and the
    text has none, a BOS token is added. Token ids are used unchanged.

    Raises ``InvalidRequest``, with the param ``input``, if the prompt is empty or too long, or if a
    token id is unknown.
    """
    tokenizer, card = engine.tokenizer, engine.card
    if isinstance(prompt, str):
        bos = card.bos_token or "" if card.add_bos else ""
        text = prompt if prompt.startswith(bos) else bos + prompt
        # An empty prompt becomes the BOS token.
        text = text or card.bos_token or card.eos_token or ""
        with limit_ids(card.context_size):
            ids = tuple(tokenizer.encode(text, special=True))
    else:
        ids = prompt
        if any(not 0 <= id < tokenizer.size for id in ids):
            raise invalid_field("input", f"this model has {tokenizer.size} tokens.")
    if not ids:
        raise invalid_field("input", "it is empty.")
    if len(ids) >= card.context_size:
        raise context_length_exceeded()
    return Rendered(prompt=Prompt(ids), parser=plain_text_parser(tokenizer))


def plain_text_parser(tokenizer: Tokenizer, *, is_json: bool = False) -> FormatParser:
    """Return a parser that reads the output as plain text. ``is_json``: whether the engine enforces
    JSON output. If so, the parser reads a special token inside a JSON string as text."""
    return FormatParser(
        tokenizer,
        reasoning=None,
        tools=None,
        shapes={},
        thinking=False,
        constrained=is_json,
        json_answer=is_json,
    )
