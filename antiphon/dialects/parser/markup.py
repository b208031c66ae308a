"""Markup in a reply, as long as it is not known what comes of it. It knows no format."""

from __future__ import annotations

__all__ = ["Markup"]


class Markup:
    """A stretch of markup: where it began, and the text of it that is no call yet; ``words``: that
    without its terminals."""

    def __init__(self, origin: str, position: int, *, is_bare: bool) -> None:
        self.origin = origin
        self.position = position
        self.is_bare = is_bare
        self.text: list[str] = []
        self.words: list[str] = []
        self.calls = 0

    def add(self, text: str) -> None:
        """What stands between terminals."""
        self.text.append(text)
        self.words.append(text)

    def clear(self) -> None:
        """It is a call's."""
        self.text, self.words = [], []
