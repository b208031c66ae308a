"""A reply around another: it looks like what it holds, where it does not say more."""

from __future__ import annotations

from antiphon.conversation import PromptTokens

from .base import Reply, may_be_refused

__all__ = ["ReplyWrapper"]


class ReplyWrapper:
    """What a ``Reply`` tells of itself, as ``reply`` tells it."""

    def __init__(self, reply: Reply) -> None:
        self._reply = reply

    @property
    def input_tokens(self) -> int:
        return self._reply.input_tokens

    @property
    def kept(self) -> PromptTokens | None:
        return self._reply.kept

    @property
    def may_be_refused(self) -> bool:
        return may_be_refused(self._reply)

    @property
    def dropped(self) -> tuple[str, ...]:
        return self._reply.dropped
