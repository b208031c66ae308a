"""What is too long for a model is cut in its middle, and it is told so."""

from __future__ import annotations

__all__ = ["truncate_middle"]


def truncate_middle(text: str, room: int) -> str:
    """The beginning and the end of a text of more than ``room`` bytes. Bytes, since they tell more
    of how many tokens a text takes than characters do, in all scripts."""
    size = len(text) if text.isascii() else len(text.encode("utf-8", "replace"))
    if size <= room:
        return text
    each = max(1, room * len(text) // size // 2)
    left = len(text) - 2 * each
    return f"{text[:each]}\n[… {left} characters left out …]\n{text[-each:]}"
